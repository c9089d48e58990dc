#include "base/write_behind.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/background.h"

enum { SLOTS = 8 };
#define SLOT_BYTES ((size_t)1 << 17)
#define SYNC_BYTES ((size_t)1 << 22) /* write-back starts for so many at a time */

typedef struct slot {
    size_t offset, n;
    unsigned char *bytes; /* [SLOT_BYTES] */
} slot;

/* A ring: slots first .. first + n - 1 wait for the thread. */
struct ml_write_behind {
    int fd;
    ml_background job;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    slot slot[SLOTS];
    unsigned first, n;
    size_t dirty,
        end; /* written without write-back: a range that the next slot continues */
    bool closing;
    ml_write_failure failure;
    unsigned char memory[];
};

ml_write_failure ml_write_at(int fd, size_t offset, ml_str bytes) {
    while (bytes.len) {
        ssize_t n = pwrite(fd, bytes.ptr, bytes.len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return (ml_write_failure){ errno, offset, bytes.len };
        bytes = (ml_str){ bytes.ptr + n, bytes.len - (size_t)n };
        offset += (size_t)n;
    }
    return (ml_write_failure){ 0 };
}

static ml_write_failure write_slot(ml_write_behind *w, const slot *s) {
    ml_write_failure f = ml_write_at(w->fd, s->offset, (ml_str){ (char *)s->bytes, s->n });

    if (s->offset != w->end)
        w->dirty = s->offset;
    w->end = s->offset + s->n;
    if (f.why || w->end - w->dirty < SYNC_BYTES)
        return f;
    /* Only advice: file systems without it write at the fsync. */
    sync_file_range(w->fd, (off_t)w->dirty, (off_t)(w->end - w->dirty),
                    SYNC_FILE_RANGE_WRITE);
    w->dirty = w->end;
    return f;
}

static ml_status write_slots(void *ud, ml_err *err) {
    ml_write_behind *w = ud;

    (void)err;
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        ml_write_failure f = w->failure;
        while (!w->n && !w->closing)
            pthread_cond_wait(&w->changed, &w->mutex);
        if (!w->n)
            break;
        pthread_mutex_unlock(&w->mutex);
        if (!f.why)
            f = write_slot(w, &w->slot[w->first]);
        pthread_mutex_lock(&w->mutex);
        w->failure = f;
        w->first = (w->first + 1) % SLOTS;
        w->n--;
        pthread_cond_signal(&w->changed);
    }
    pthread_mutex_unlock(&w->mutex);
    return ML_OK;
}

static void free_ring(ml_write_behind *w) {
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}

ml_write_behind *ml_write_behind_open(int fd) {
    ml_write_behind *w = malloc(sizeof *w + SLOTS * SLOT_BYTES);

    if (!w)
        return NULL;
    *w = (ml_write_behind){ .fd = fd };
    for (int i = 0; i < SLOTS; i++)
        w->slot[i].bytes = w->memory + (size_t)i * SLOT_BYTES;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    if (ml_background_start(&w->job, write_slots, w, NULL) == ML_OK)
        return w;
    free_ring(w);
    return NULL;
}

ml_write_failure ml_write_behind_put(ml_write_behind *w, size_t offset, ml_str bytes) {
    ml_write_failure f = { 0 };

    while (bytes.len && !f.why) {
        size_t n = bytes.len < SLOT_BYTES ? bytes.len : SLOT_BYTES;
        slot *s;
        pthread_mutex_lock(&w->mutex);
        while (w->n == SLOTS)
            pthread_cond_wait(&w->changed, &w->mutex);
        f = w->failure;
        s = &w->slot[(w->first + w->n) % SLOTS];
        pthread_mutex_unlock(&w->mutex);
        s->offset = offset;
        s->n = n;
        memcpy(s->bytes, bytes.ptr, n);
        pthread_mutex_lock(&w->mutex);
        w->n++;
        pthread_cond_signal(&w->changed);
        pthread_mutex_unlock(&w->mutex);
        bytes = (ml_str){ bytes.ptr + n, bytes.len - n };
        offset += n;
    }
    return f;
}

ml_write_failure ml_write_behind_close(ml_write_behind *w) {
    ml_write_failure f = { 0 };

    if (!w)
        return f;
    pthread_mutex_lock(&w->mutex);
    w->closing = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    ml_background_wait(&w->job, NULL);
    f = w->failure;
    free_ring(w);
    return f;
}
