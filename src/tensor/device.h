/* device.h - where bytes live and in which order work on them happens.
 *
 * The interface only: backends implement it, comm and model use it.  A device hands
 * out buffers; a stream is an ordered queue of work on one device (on the CPU, the
 * calling thread and its pool: work is done when the call returns).
 *
 * thread: a device is immutable after open; a stream has one owner. */
#ifndef ML_TENSOR_DEVICE_H
#define ML_TENSOR_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

typedef struct ml_device ml_device;

typedef enum ml_mem_kind {
    ML_MEM_WEIGHT,
    ML_MEM_GRAD,
    ML_MEM_ACT,
    ML_MEM_SCRATCH,
    ML_MEM_KV,
    ML_MEM_OPTIM,
    ML_MEM_KINDS
} ml_mem_kind;

typedef struct ml_buf {
    ml_device *dev;
    void *ptr; /* aligned to 64; zeroed */
    size_t bytes;
    ml_mem_kind kind;
} ml_buf;

typedef struct ml_stream {
    ml_device *dev;
} ml_stream;

struct ml_device {
    const char *name;
    bool
        host; /* its memory is the program's own: what is copied may also be read in place */
    /* ML_ENOMEM with the size and kind in the message. */
    ml_status (*alloc)(ml_device *d, ml_buf *out, size_t bytes, ml_mem_kind kind,
                       ml_err *err);
    void (*free)(ml_buf *b); /* a buffer of zeros is fine */
    /* Ordered on the stream; host memory is plain, and free to change (or filled) on return.  What
     * should be the device's may be the host's, too. */
    void (*copy_in)(ml_stream *s, void *dst, const void *host, size_t bytes);
    void (*copy_out)(ml_stream *s, void *host, const void *src, size_t bytes);
    void (*copy)(ml_stream *s, void *dst, const void *src, size_t bytes); /* within it */
    /* Waits for the stream; the first failed piece of work since the last wait is named. */
    ml_status (*sync)(ml_stream *s, ml_err *err);
    /* Bytes that can still be had; NULL: ask the system (train/memory.h). */
    size_t (*available)(const ml_device *d);
    /* Of memory that is not the program's own: bytes in use now, and the most after any alloc.
     * What the device needs for itself and what others have taken is among them. */
    size_t (*used)(const ml_device *d);
    size_t (*peak)(const ml_device *d);
    /* Memory of the host that copies are fastest with; NULL: any is. */
    void *(*host_alloc)(size_t bytes); /* NULL: there is none */
    void (*host_free)(void *p);
    size_t later; /* what it will take for itself as work runs for the first time, about */
};

const char *ml_mem_name(ml_mem_kind kind); /* "weights", "gradients", ... */

/* A step must not allocate: between seal and unseal an alloc of any device by this thread is a
 * bug and ends the process.  Seals nest; another thread's step does not concern this one. */
void ml_mem_seal(void);
void ml_mem_unseal(void);
bool ml_mem_sealed(void); /* for the devices */

#endif
