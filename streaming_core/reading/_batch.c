#include "_batch.h"

#include <stdint.h>

void batch_release(BatchObject *self)
{
    while (self->held)
        PyBuffer_Release(&self->buffers[--self->held]);
}

void batch_add_live(BatchObject *self)
{
    self->is_live = true;
    self->before = NULL;
    self->after = self->owner->live;
    if (self->after)
        self->after->before = self;
    self->owner->live = self;
    Py_INCREF(self);
}

void batch_remove_live(BatchObject *self)
{
    if (!self->is_live)
        return;
    self->is_live = false;
    *(self->before ? &self->before->after : &self->owner->live) = self->after;
    if (self->after)
        self->after->before = self->before;
    Py_DECREF(self);
}

static void batch_dealloc(PyObject *object)
{
    BatchObject *self = (BatchObject *)object;
    batch_release(self);
    PyMem_Free(self->batch);
    PyMem_Free(self->parts);
    PyMem_Free(self->buffers);
    Py_XDECREF(self->owner);
    Py_TYPE(self)->tp_free(object);
}

static PyObject *batch_done(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(!atomic_load(&((BatchObject *)self)->batch->left));
}

static PyObject *batch_cancelled(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(atomic_load(&((BatchObject *)self)->batch->cancelled));
}

static PyObject *batch_submitted_ns(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(((BatchObject *)self)->batch->submitted_ns);
}

static PyObject *batch_began_ns(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(atomic_load(&((BatchObject *)self)->batch->began_ns));
}

static PyObject *batch_ended_ns(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLongLong(atomic_load(&((BatchObject *)self)->batch->ended_ns));
}

static PyObject *batch_failure(PyObject *self, void *closure)
{
    (void)closure;
    Batch *batch = ((BatchObject *)self)->batch;
    long long first = atomic_load(&batch->first_failed);
    if (first < 0 || atomic_load(&batch->left))
        Py_RETURN_NONE;
    return Py_BuildValue("Lii", first, (int)batch->reads[first].outcome, batch->reads[first].span.error);
}

static PyGetSetDef batch_getset[] = {
    {"done", batch_done, NULL, "Whether every read has ended.  Takes no lock.", NULL},
    {"cancelled", batch_cancelled, NULL, "Whether a read was cancelled before it began.", NULL},
    {"submitted_ns", batch_submitted_ns, NULL, "now_ns() when it was submitted.", NULL},
    {"began_ns", batch_began_ns, NULL, "now_ns() when the first read began; 0 if none was begun.", NULL},
    {"ended_ns", batch_ended_ns, NULL, "now_ns() when the last read ended.", NULL},
    {"failure", batch_failure, NULL, "(index, outcome, errno) of the first read that failed, once done; else None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject BatchType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "streaming_core.reading._native.Batch",
    .tp_doc = "Reads that are waited for together.",
    .tp_basicsize = sizeof(BatchObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = batch_dealloc,
    .tp_getset = batch_getset,
};

/* ---- from Python's tuples ---------------------------------------------------------------------------------------- */

static bool hold_views(BatchObject *self, Read *read, PyObject *views, Py_ssize_t room)
{
    PyObject *fast = PySequence_Fast(views, "the views of a read must be a sequence");
    if (!fast)
        return false;
    read->span.parts = self->parts + self->held;
    read->span.count = (int)PySequence_Fast_GET_SIZE(fast);
    bool good = PySequence_Fast_GET_SIZE(fast) <= room - self->held;
    if (!good)
        PyErr_SetString(PyExc_ValueError, "a sequence of views changed its length");
    for (int n = 0; good && n < read->span.count; n++) {
        Py_buffer *buffer = &self->buffers[self->held];
        good = PyObject_GetBuffer(PySequence_Fast_GET_ITEM(fast, n), buffer, PyBUF_WRITABLE) == 0;
        if (good)
            self->parts[self->held++] = (struct iovec){buffer->buf, (size_t)buffer->len};
    }
    Py_DECREF(fast);
    return good;
}

/* From (fd, align, offset, views). */
static bool parse_read(PyObject *item, Read *read, PyObject **views)
{
    long long offset;
    Py_ssize_t align;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a read must be a tuple of fd, align, offset, views");
        return false;
    }
    if (!PyArg_ParseTuple(item, "inLO", &read->span.fd, &align, &offset, views))
        return false;
    if (align < 1 || (align & (align - 1))) {
        PyErr_SetString(PyExc_ValueError, "align must be a power of two");
        return false;
    }
    read->span.align = (size_t)align;
    read->span.offset = (off_t)offset;
    return true;
}

static bool fill_batch(BatchObject *self, PyObject *items, Py_ssize_t count)
{
    Py_ssize_t parts = 0;
    PyObject *views;
    for (Py_ssize_t n = 0; n < count; n++) {
        if (!parse_read(PySequence_Fast_GET_ITEM(items, n), &self->batch->reads[n], &views))
            return false;
        Py_ssize_t some = PySequence_Size(views);
        if (some < 0)
            return false;
        parts += some;
    }
    self->parts = PyMem_Calloc((size_t)parts, sizeof *self->parts);
    self->buffers = PyMem_Calloc((size_t)parts, sizeof *self->buffers);
    if (!self->parts || !self->buffers) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t n = 0; n < count; n++) {
        Read *read = &self->batch->reads[n];
        if (!parse_read(PySequence_Fast_GET_ITEM(items, n), read, &views) || !hold_views(self, read, views, parts))
            return false;
    }
    return true;
}

BatchObject *batch_new(PoolObject *owner, PyObject *items)
{
    Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
    BatchObject *self = PyObject_New(BatchObject, &BatchType);
    if (!self)
        return NULL;
    self->parts = NULL;
    self->buffers = NULL;
    self->held = 0;
    self->is_live = false;
    self->owner = (PoolObject *)Py_NewRef((PyObject *)owner);
    self->batch = PyMem_Calloc(1, sizeof *self->batch + (size_t)count * sizeof self->batch->reads[0]);
    if (!self->batch) {
        PyErr_NoMemory();
    } else {
        self->batch->count = (size_t)count;
        atomic_init(&self->batch->left, (size_t)count);
        atomic_init(&self->batch->first_failed, -1);
        if (fill_batch(self, items, count))
            return self;
    }
    Py_DECREF(self);
    return NULL;
}
