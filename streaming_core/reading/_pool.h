/* Reads on threads of their own.  Nothing in here knows Python or needs its lock. */
#ifndef STREAMING_CORE_POOL_H
#define STREAMING_CORE_POOL_H

#include "_fill.h"

typedef struct Pool Pool;
typedef struct Batch Batch;

typedef enum { DEMAND, GUESS, URGENCIES } Urgency;

typedef struct Read {
    Span span; /* the caller fills it in before the batch is submitted */
    Outcome outcome; /* to be looked at once the batch has ended */
    /* The pool's own: */
    Batch *batch;
    struct Read *before, *after;
    bool queued;
    Urgency queue;
} Read;

/* Reads that are waited for together.  Memory of the caller's, which must stay until `left` is zero; after that the
   pool never touches it again. */
struct Batch {
    atomic_size_t left;        /* reads not ended: zero is the flag that can be read at any time without a lock */
    atomic_bool cancelled;     /* one of them was, before it began or between two of its pieces */
    atomic_bool unwanted;      /* reads under way should break off */
    atomic_llong first_failed; /* index of the read that failed first in time; -1: none so far */
    atomic_llong began_ns;     /* now_ns() when the first read began; 0: none was begun */
    atomic_llong ended_ns;     /* now_ns() when the last read ended */
    long long submitted_ns;    /* now_ns() when it was submitted */
    size_t count;
    size_t next_own; /* reads before this one were begun or cancelled */
    Read reads[];
};

/* A pool of `threads` threads, none of which receives signals; at most `most_guessing` of them carry out guesses at
   once; a single call reads at most `largest` bytes.  NULL with errno set if it cannot be made. */
Pool *pool_new(int threads, int most_guessing, size_t largest);

/* False if the pool is closed.  Never blocks for longer than it takes to queue. */
bool pool_submit(Pool *pool, Batch *batch, Urgency urgency);

/* Ends the reads of the batch that were not begun; those under way break off if they come in several pieces. */
void pool_cancel(Pool *pool, Batch *batch);

/* Its guesses not begun become demand reads. */
void pool_hurry(Pool *pool, Batch *batch);

/* Waits until the batch has ended, and says so, or until `until_ns`.  With `help`, its guesses become demand reads and
   the calling thread carries out what nobody has begun; `until_ns` is then looked at between reads. */
bool pool_wait(Pool *pool, Batch *batch, bool help, long long until_ns);

/* Reads not begun end as POOL_CLOSED, those under way are finished or break off between two pieces; returns when the
   threads are gone.  Idempotent. */
void pool_close(Pool *pool);
bool pool_closed(const Pool *pool);

/* Whether this process is a child of the one that made the pool: there are no threads here, and its locks may be held
   for ever.  Only this function, pool_close and pool_free may be called then; they do nothing. */
bool pool_forked(const Pool *pool);

void pool_free(Pool *pool);

/* A clock that only goes forward. */
long long now_ns(void);

#endif
