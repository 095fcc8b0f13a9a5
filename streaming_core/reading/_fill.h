/* One blocking read, as files.py does it.  Nothing in here knows Python or needs its lock. */
#ifndef STREAMING_CORE_FILL_H
#define STREAMING_CORE_FILL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef enum { NOT_ENDED, FILLED, FAILED, FILE_ENDED, CANCELLED, POOL_CLOSED } Outcome;

/* Consecutive bytes of a file into one or several places. */
typedef struct {
    int fd;
    size_t align; /* what a direct read must be aligned to, a power of two; 1 when reads go through the page cache */
    off_t offset;
    struct iovec *parts; /* moved on as they fill */
    int count;
    int error; /* errno if FAILED */
} Span;

/* A buffer for direct reads whose places are not aligned; grows to the largest, or to 32 MiB.  Zero at first. */
typedef struct {
    char *memory;
    size_t size;
} Bounce;

/* Why a read should break off between two calls. */
typedef struct {
    const atomic_bool *closing;  /* then it ends as POOL_CLOSED */
    const atomic_bool *unwanted; /* then as CANCELLED */
} Stop;

/* Fills the parts, at most `largest` bytes a call, and tells how it ended. */
Outcome fill(Span *span, Bounce *bounce, size_t largest, Stop stop);

void bounce_free(Bounce *bounce);

#endif
