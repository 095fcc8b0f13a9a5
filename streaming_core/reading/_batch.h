/* The Python object of a batch: it holds the buffers that are read into. */
#ifndef STREAMING_CORE_BATCH_H
#define STREAMING_CORE_BATCH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_pool.h"

typedef struct BatchObject BatchObject;

typedef struct {
    PyObject_HEAD
    Pool *pool;
    BatchObject *live; /* owned: batches that may still be written to, whether or not somebody keeps them */
} PoolObject;

struct BatchObject {
    PyObject_HEAD
    PoolObject *owner;
    Batch *batch;
    struct iovec *parts; /* of all reads, one after the other */
    Py_buffer *buffers;  /* one per part */
    Py_ssize_t held;     /* how many of them are */
    bool is_live;
    BatchObject *before, *after; /* in the owner's list */
};

extern PyTypeObject BatchType;

/* A new batch of reads, each a tuple (fd, align, offset, views); `items` is a PySequence_Fast.  NULL with an exception
   set if one is wrong. */
BatchObject *batch_new(PoolObject *owner, PyObject *items);

/* Lets go of the buffers of a batch that has ended. */
void batch_release(BatchObject *batch);

/* Puts a batch on its owner's list, and takes it off if it is on it. */
void batch_add_live(BatchObject *batch);
void batch_remove_live(BatchObject *batch);

#endif
