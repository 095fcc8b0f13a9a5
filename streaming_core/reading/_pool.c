/* Thread names and macOS' timed waits need more than C11 declares. */
#define _GNU_SOURCE 1
#define _DARWIN_C_SOURCE 1
#define _FILE_OFFSET_BITS 64

#include "_pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

static const size_t GUESS_PIECE = 2 << 20;

struct Pool {
    pthread_mutex_t lock;
    pthread_cond_t work;  /* something was queued, or the pool closes */
    pthread_cond_t ended; /* some batch has ended */
    Read *first[URGENCIES], *last[URGENCIES];
    size_t idle, waiting; /* threads in either condition */
    size_t guessing, most_guessing; /* threads that carry out a guess, and how many may */
    Bounce spare;         /* for threads that help; whoever uses it takes it out */
    size_t largest;
    atomic_bool closing;
    unsigned forks; /* how many forks this process came from when the pool was made */
    int threads;
    pthread_t thread[];
};

/* ---- time, forks ----------------------------------------------------------------------------------------------- */

long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static atomic_uint forks;

static void in_child(void) { atomic_fetch_add(&forks, 1); }

static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

bool pool_forked(const Pool *pool) { return atomic_load(&forks) != pool->forks; }

/* macOS has no condition on the monotonic clock, but one that takes a duration. */
static int condition_init(pthread_cond_t *condition)
{
#ifdef __APPLE__
    return pthread_cond_init(condition, NULL);
#else
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    int error = pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return error;
#endif
}

static void condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, long long until_ns)
{
#ifdef __APPLE__
    long long left = until_ns - now_ns();
    if (left <= 0)
        return;
    struct timespec span = {left / 1000000000LL, left % 1000000000LL};
    pthread_cond_timedwait_relative_np(condition, lock, &span);
#else
    struct timespec until = {until_ns / 1000000000LL, until_ns % 1000000000LL};
    pthread_cond_timedwait(condition, lock, &until);
#endif
}

/* ---- queues; the lock is held ---------------------------------------------------------------------------------- */

static void enqueue(Pool *pool, Read *read, Urgency urgency)
{
    read->queued = true;
    read->queue = urgency;
    read->before = pool->last[urgency];
    read->after = NULL;
    *(read->before ? &read->before->after : &pool->first[urgency]) = read;
    pool->last[urgency] = read;
}

static void dequeue(Pool *pool, Read *read)
{
    read->queued = false;
    *(read->before ? &read->before->after : &pool->first[read->queue]) = read->after;
    *(read->after ? &read->after->before : &pool->last[read->queue]) = read->before;
}

static Read *take_most_urgent(Pool *pool, size_t most_guessing)
{
    Read *read = pool->first[DEMAND];
    if (!read && pool->guessing < most_guessing)
        read = pool->first[GUESS];
    if (read)
        dequeue(pool, read);
    return read;
}

static Read *take_own(Pool *pool, Batch *batch)
{
    while (batch->next_own < batch->count) {
        Read *read = &batch->reads[batch->next_own++];
        if (read->queued) {
            dequeue(pool, read);
            return read;
        }
    }
    return NULL;
}

static void wake(Pool *pool, size_t threads)
{
    for (size_t n = 0; n < threads && n < pool->idle; n++)
        pthread_cond_signal(&pool->work);
}

static void make_demand(Pool *pool, Batch *batch)
{
    for (size_t n = batch->next_own; n < batch->count; n++) {
        Read *read = &batch->reads[n];
        if (read->queued && read->queue == GUESS) {
            dequeue(pool, read);
            enqueue(pool, read, DEMAND);
        }
    }
}

/* ---- one read -------------------------------------------------------------------------------------------------- */

/* Tells whether it was the last of its batch.  If so, the batch may be gone by now. */
static bool end(Read *read, Outcome outcome)
{
    Batch *batch = read->batch;
    read->outcome = outcome;
    if (outcome == CANCELLED)
        atomic_store(&batch->cancelled, true);
    else if (outcome != FILLED) {
        long long none = -1;
        atomic_compare_exchange_strong(&batch->first_failed, &none, read - batch->reads);
    }
    long long now = now_ns(), latest = atomic_load(&batch->ended_ns);
    while (now > latest && !atomic_compare_exchange_weak(&batch->ended_ns, &latest, now))
        ;
    return atomic_fetch_sub(&batch->left, 1) == 1;
}

/* Takes the lock off for as long as it lasts. */
static void carry_out(Pool *pool, Read *read, Bounce *bounce)
{
    if (!atomic_load(&read->batch->began_ns))
        atomic_store(&read->batch->began_ns, now_ns());
    pthread_mutex_unlock(&pool->lock);
    /* A guess is read in pieces, so that it can be given up under way: demand reads wait for the device. */
    size_t largest = read->queue == GUESS && pool->largest > GUESS_PIECE ? GUESS_PIECE : pool->largest;
    bool last = end(read, fill(&read->span, bounce, largest, (Stop){&pool->closing, &read->batch->unwanted}));
    pthread_mutex_lock(&pool->lock);
    if (last && pool->waiting)
        pthread_cond_broadcast(&pool->ended);
}

/* ---- threads --------------------------------------------------------------------------------------------------- */

static void *work(void *argument)
{
    Pool *pool = argument;
    Bounce bounce = {NULL, 0};
#ifdef __APPLE__
    pthread_setname_np("expert-reader");
#else
    pthread_setname_np(pthread_self(), "expert-reader");
#endif
    pthread_mutex_lock(&pool->lock);
    while (!atomic_load(&pool->closing)) {
        Read *read = take_most_urgent(pool, pool->most_guessing);
        if (read) {
            bool guess = read->queue == GUESS;
            pool->guessing += guess;
            carry_out(pool, read, &bounce);
            pool->guessing -= guess;
        } else {
            pool->idle++;
            pthread_cond_wait(&pool->work, &pool->lock);
            pool->idle--;
        }
    }
    pthread_mutex_unlock(&pool->lock);
    bounce_free(&bounce);
    return NULL;
}

/* Until there are `threads`; the error of the one that could not be started. */
static int start_threads(Pool *pool, int threads)
{
    /* Signals are for the threads that know what to do about them: Python's. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    while (pool->threads < threads && !(error = pthread_create(&pool->thread[pool->threads], NULL, work, pool)))
        pool->threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

Pool *pool_new(int threads, int most_guessing, size_t largest)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    size_t most = threads ? (size_t)threads : 1; /* a guess wants one */
    Pool *pool = calloc(1, sizeof *pool + most * sizeof pool->thread[0]);
    if (!pool)
        return NULL;
    pool->largest = largest;
    pool->most_guessing = (size_t)most_guessing;
    pool->forks = atomic_load(&forks);
    pthread_mutex_init(&pool->lock, NULL);
    condition_init(&pool->work);
    condition_init(&pool->ended);
    int error = start_threads(pool, threads);
    if (error) {
        pool_close(pool);
        pool_free(pool);
        errno = error;
        return NULL;
    }
    return pool;
}

/* ---- what callers do ------------------------------------------------------------------------------------------- */

bool pool_submit(Pool *pool, Batch *batch, Urgency urgency)
{
    pthread_mutex_lock(&pool->lock);
    bool open = !atomic_load(&pool->closing);
    if (open) {
        batch->submitted_ns = now_ns();
        for (size_t n = 0; n < batch->count; n++) {
            batch->reads[n].batch = batch;
            enqueue(pool, &batch->reads[n], urgency);
        }
        /* Nobody waits for a guess.  Where no thread can be had it begins when somebody does. */
        if (urgency == GUESS && !pool->threads)
            start_threads(pool, 1);
        size_t useful = batch->count;
        if (urgency == GUESS && useful > pool->most_guessing - pool->guessing)
            useful = pool->most_guessing - pool->guessing;
        wake(pool, useful);
    }
    pthread_mutex_unlock(&pool->lock);
    return open;
}

void pool_cancel(Pool *pool, Batch *batch)
{
    if (!atomic_load(&batch->left))
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&batch->unwanted, true);
    bool last = false;
    for (Read *read; (read = take_own(pool, batch)); )
        last = end(read, CANCELLED);
    if (last && pool->waiting)
        pthread_cond_broadcast(&pool->ended);
    pthread_mutex_unlock(&pool->lock);
}

void pool_hurry(Pool *pool, Batch *batch)
{
    if (!atomic_load(&batch->left))
        return;
    pthread_mutex_lock(&pool->lock);
    make_demand(pool, batch);
    wake(pool, batch->count);
    pthread_mutex_unlock(&pool->lock);
}

bool pool_wait(Pool *pool, Batch *batch, bool help, long long until_ns)
{
    pthread_mutex_lock(&pool->lock);
    Bounce bounce = {NULL, 0};
    if (help) {
        make_demand(pool, batch);
        bounce = pool->spare;
        pool->spare = (Bounce){NULL, 0};
    }
    pool->waiting++;
    while (atomic_load(&batch->left) && now_ns() < until_ns) {
        Read *read = help ? take_own(pool, batch) : NULL;
        if (read)
            carry_out(pool, read, &bounce);
        else
            condition_wait(&pool->ended, &pool->lock, until_ns);
    }
    pool->waiting--;
    if (bounce.size > pool->spare.size) {
        Bounce smaller = pool->spare;
        pool->spare = bounce;
        bounce = smaller;
    }
    pthread_mutex_unlock(&pool->lock);
    bounce_free(&bounce);
    return !atomic_load(&batch->left);
}

void pool_close(Pool *pool)
{
    if (pool_forked(pool))
        return;
    pthread_mutex_lock(&pool->lock);
    bool before = atomic_exchange(&pool->closing, true);
    for (Read *read; !before && (read = take_most_urgent(pool, SIZE_MAX)); )
        end(read, POOL_CLOSED);
    pthread_cond_broadcast(&pool->work);
    pthread_cond_broadcast(&pool->ended);
    pthread_mutex_unlock(&pool->lock);
    for (int n = 0; !before && n < pool->threads; n++)
        pthread_join(pool->thread[n], NULL);
}

bool pool_closed(const Pool *pool) { return atomic_load(&pool->closing); }

void pool_free(Pool *pool)
{
    if (pool_forked(pool))
        return;
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->ended);
    bounce_free(&pool->spare);
    free(pool);
}
