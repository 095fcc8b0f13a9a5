/* The Python side of _pool.c: who may call what when, and Python's lock let go while somebody waits. */
#include "_batch.h"

#include <errno.h>

/* How long a wait may leave Ctrl-C unnoticed. */
static const long long SIGNAL_CHECK_NS = 50 * 1000000LL;

static void sweep(PoolObject *self)
{
    for (BatchObject *each = self->live, *after; each; each = after) {
        after = each->after;
        if (!atomic_load(&each->batch->left))
            batch_remove_live(each);
    }
}

static bool is_here(PoolObject *self)
{
    if (!pool_forked(self->pool))
        return true;
    PyErr_SetString(PyExc_RuntimeError, "the pool belongs to the process that forked this one");
    return false;
}

static BatchObject *own_batch(PoolObject *self, PyObject *object)
{
    if (PyObject_TypeCheck(object, &BatchType) && ((BatchObject *)object)->owner == self)
        return (BatchObject *)object;
    PyErr_SetString(PyExc_TypeError, "not a batch of this pool");
    return NULL;
}

static PyObject *pool_py_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)kwargs;
    int threads, guessing;
    Py_ssize_t largest;
    if (!PyArg_ParseTuple(args, "iin", &threads, &guessing, &largest))
        return NULL;
    if (threads < 0 || threads > 4096 || guessing < 1 || largest < 1)
        return PyErr_Format(PyExc_ValueError, "threads must be from 0 to 4096, those for guesses and the largest read positive");
    PoolObject *self = (PoolObject *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->pool = pool_new(threads, guessing, (size_t)largest);
    if (!self->pool) {
        Py_DECREF(self);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return (PyObject *)self;
}

static PyObject *pool_py_submit(PyObject *object, PyObject *args)
{
    PoolObject *self = (PoolObject *)object;
    PyObject *reads;
    int guess;
    if (!PyArg_ParseTuple(args, "Op", &reads, &guess) || !is_here(self))
        return NULL;
    sweep(self);
    PyObject *items = PySequence_Fast(reads, "reads must be a sequence");
    BatchObject *batch = items ? batch_new(self, items) : NULL;
    Py_XDECREF(items);
    if (!batch)
        return NULL;
    if (!pool_submit(self->pool, batch->batch, guess ? GUESS : DEMAND)) {
        Py_DECREF(batch);
        return PyErr_Format(PyExc_RuntimeError, "the pool is closed");
    }
    batch_add_live(batch);
    return (PyObject *)batch;
}

static PyObject *pool_py_cancel(PyObject *object, PyObject *argument)
{
    PoolObject *self = (PoolObject *)object;
    BatchObject *batch = own_batch(self, argument);
    if (!batch)
        return NULL;
    if (!pool_forked(self->pool))
        pool_cancel(self->pool, batch->batch);
    Py_RETURN_NONE;
}

static PyObject *pool_py_hurry(PyObject *object, PyObject *argument)
{
    PoolObject *self = (PoolObject *)object;
    BatchObject *batch = own_batch(self, argument);
    if (!batch)
        return NULL;
    if (!pool_forked(self->pool))
        pool_hurry(self->pool, batch->batch);
    Py_RETURN_NONE;
}

static PyObject *pool_py_wait(PyObject *object, PyObject *args)
{
    PoolObject *self = (PoolObject *)object;
    PyObject *argument;
    int help;
    if (!PyArg_ParseTuple(args, "Op", &argument, &help))
        return NULL;
    BatchObject *batch = own_batch(self, argument);
    if (!batch)
        return NULL;
    bool done = !atomic_load(&batch->batch->left);
    while (!done) {
        if (!is_here(self))
            return NULL;
        Py_BEGIN_ALLOW_THREADS
        done = pool_wait(self->pool, batch->batch, help, now_ns() + SIGNAL_CHECK_NS);
        Py_END_ALLOW_THREADS
        if (!done && PyErr_CheckSignals())
            return NULL;
    }
    batch_release(batch);
    batch_remove_live(batch);
    Py_RETURN_NONE;
}

static PyObject *pool_py_close(PyObject *object, PyObject *nothing)
{
    (void)nothing;
    PoolObject *self = (PoolObject *)object;
    Py_BEGIN_ALLOW_THREADS
    pool_close(self->pool);
    Py_END_ALLOW_THREADS
    if (!pool_forked(self->pool))
        sweep(self);
    Py_RETURN_NONE;
}

/* Nothing can be under way: live batches refer to their pool. */
static void pool_py_dealloc(PyObject *object)
{
    PoolObject *self = (PoolObject *)object;
    if (self->pool) {
        Py_BEGIN_ALLOW_THREADS
        pool_close(self->pool);
        Py_END_ALLOW_THREADS
        pool_free(self->pool);
    }
    Py_TYPE(self)->tp_free(object);
}

static PyObject *pool_py_forked(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(pool_forked(((PoolObject *)self)->pool));
}

static PyObject *pool_py_closed(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(pool_closed(((PoolObject *)self)->pool));
}

static PyGetSetDef pool_getset[] = {
    {"forked", pool_py_forked, NULL, "Whether this process is a child of the one that made the pool.", NULL},
    {"closed", pool_py_closed, NULL, "Whether the pool takes no more reads.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef pool_methods[] = {
    {"submit", pool_py_submit, METH_VARARGS, "submit(reads, guess) -> Batch; a read is (fd, align, offset, views)."},
    {"cancel", pool_py_cancel, METH_O, "cancel(batch): ends what was not begun."},
    {"hurry", pool_py_hurry, METH_O, "hurry(batch): its guesses not begun become demand reads."},
    {"wait", pool_py_wait, METH_VARARGS, "wait(batch, help): until it is done, carrying out its reads if help."},
    {"close", pool_py_close, METH_NOARGS, "Ends the threads.  Idempotent."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject PoolType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "streaming_core.reading._native.Pool",
    .tp_doc = "Pool(threads, guessing, largest): threads that read, at most `largest` bytes a call.",
    .tp_basicsize = sizeof(PoolObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = pool_py_new,
    .tp_dealloc = pool_py_dealloc,
    .tp_methods = pool_methods,
    .tp_getset = pool_getset,
};

/* ---- the module ------------------------------------------------------------------------------------------------ */

static PyObject *py_now_ns(PyObject *module, PyObject *nothing)
{
    (void)module;
    (void)nothing;
    return PyLong_FromLongLong(now_ns());
}

static PyMethodDef functions[] = {
    {"now_ns", py_now_ns, METH_NOARGS, "The clock of Batch.ended_ns."},
    {NULL, NULL, 0, NULL},
};

/* Initialised in one step on purpose: that keeps it out of interpreters that do not share the lock it relies on. */
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "Reads on threads that never need Python's lock.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && !PyModule_AddType(module, &PoolType) && !PyModule_AddType(module, &BatchType)
        && !PyModule_AddIntConstant(module, "FAILED", FAILED) && !PyModule_AddIntConstant(module, "FILE_ENDED", FILE_ENDED)
        && !PyModule_AddIntConstant(module, "POOL_CLOSED", POOL_CLOSED))
        return module;
    Py_XDECREF(module);
    return NULL;
}
