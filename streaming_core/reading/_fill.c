/* preadv needs more than C11 declares. */
#define _GNU_SOURCE 1
#define _DARWIN_C_SOURCE 1
#define _FILE_OFFSET_BITS 64

#include "_fill.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 16384, MOST_PARTS = 1024 }; /* the largest page of any Mac or PC; IOV_MAX of both systems */
static const size_t MOST_BOUNCED = (size_t)32 << 20; /* larger unaligned reads go through the buffer in pieces */

static Outcome failed(Span *span)
{
    span->error = errno;
    return FAILED;
}

static Outcome broken_off(Stop stop)
{
    if (atomic_load_explicit(stop.closing, memory_order_relaxed))
        return POOL_CLOSED;
    return atomic_load_explicit(stop.unwanted, memory_order_relaxed) ? CANCELLED : NOT_ENDED;
}

static bool is_aligned(const Span *span)
{
    size_t mask = span->align - 1, bits = (size_t)span->offset;
    for (int n = 0; n < span->count; n++)
        bits |= (size_t)(uintptr_t)span->parts[n].iov_base | span->parts[n].iov_len;
    return (bits & mask) == 0;
}

/* Moves the parts on by `nbytes`, and past empty ones. */
static void advance(Span *span, size_t nbytes)
{
    while (span->count && nbytes >= span->parts->iov_len) {
        nbytes -= span->parts->iov_len;
        span->parts++;
        span->count--;
    }
    if (span->count) {
        span->parts->iov_base = (char *)span->parts->iov_base + nbytes;
        span->parts->iov_len -= nbytes;
    }
}

static Outcome fill_straight(Span *span, size_t largest, Stop stop)
{
    off_t at = span->offset;
    for (advance(span, 0); span->count; ) {
        /* Only the end of the file cuts a direct read short of a block. */
        if ((size_t)at & (span->align - 1))
            return FILE_ENDED;
        Outcome broken = at == span->offset ? NOT_ENDED : broken_off(stop);
        if (broken != NOT_ENDED)
            return broken;
        int parts = 0;
        size_t nbytes = 0;
        while (parts < span->count && parts < MOST_PARTS && nbytes + span->parts[parts].iov_len <= largest)
            nbytes += span->parts[parts++].iov_len;
        ssize_t got = parts ? preadv(span->fd, span->parts, parts, at)
                            : pread(span->fd, span->parts->iov_base, largest, at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return failed(span);
        if (got == 0)
            return FILE_ENDED;
        at += got;
        advance(span, (size_t)got);
    }
    return FILLED;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static bool bounce_room(Bounce *bounce, size_t size)
{
    if (bounce->size >= size)
        return true;
    bounce_free(bounce);
    void *memory;
    if ((errno = posix_memalign(&memory, BLOCK, size)))
        return false;
    *bounce = (Bounce){memory, size};
    return true;
}

static void scatter(Span *span, const char *from, size_t nbytes)
{
    while (nbytes) {
        size_t some = smaller(nbytes, span->parts->iov_len);
        memcpy(span->parts->iov_base, from, some);
        advance(span, some);
        from += some;
        nbytes -= some;
    }
}

/* A direct read whose places are not aligned: whole blocks into the bounce buffer, copied from there. */
static Outcome fill_through(Span *span, Bounce *bounce, size_t largest, Stop stop)
{
    size_t block = span->align > BLOCK ? span->align : BLOCK;
    size_t lead = (size_t)span->offset & (span->align - 1), wanted = lead; /* bytes from `at` on */
    off_t at = span->offset - (off_t)lead;
    for (int n = 0; n < span->count; n++)
        wanted += span->parts[n].iov_len;
    if (wanted == lead)
        return FILLED;
    size_t room = smaller((wanted + block - 1) / block * block, smaller(MOST_BOUNCED, largest));
    if (!bounce_room(bounce, room))
        return failed(span);
    while (wanted) {
        ssize_t got = pread(span->fd, bounce->memory, smaller(room, (wanted + block - 1) / block * block), at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return failed(span);
        size_t useful = smaller((size_t)got, wanted);
        if (useful > lead)
            scatter(span, bounce->memory + lead, useful - lead);
        at += got;
        wanted -= useful;
        lead = 0;
        if (wanted && (got == 0 || (size_t)got & (span->align - 1)))
            return FILE_ENDED;
        Outcome broken = wanted ? broken_off(stop) : NOT_ENDED;
        if (broken != NOT_ENDED)
            return broken;
    }
    return FILLED;
}

Outcome fill(Span *span, Bounce *bounce, size_t largest, Stop stop)
{
    if (span->align == 1 || is_aligned(span))
        return fill_straight(span, largest, stop);
    return fill_through(span, bounce, largest, stop);
}

void bounce_free(Bounce *bounce)
{
    free(bounce->memory);
    *bounce = (Bounce){NULL, 0};
}
