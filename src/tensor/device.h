/* device.h - device memory and streams.
 *
 * This is the interface only: backends implement it, comm and model use it.  A device
 * allocates buffers; a stream is an ordered queue of work on one device (on the CPU, the
 * calling thread and its pool: work is complete when the call returns).
 *
 * thread: a device is immutable after open; a stream has one owner. */
#ifndef ML_TENSOR_DEVICE_H
#define ML_TENSOR_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "tensor/tensor.h"

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

/* Memory that processes of one host share (CUDA IPC). */
enum { ML_PEER_HANDLE = 64 };
typedef struct ml_peer_memory {
    /* Names a buffer for other processes.  They unmap it before it is freed. */
    ml_status (*share)(const ml_buf *b, unsigned char handle[ML_PEER_HANDLE], ml_err *err);
    ml_status (*map)(ml_device *d, void **out, const unsigned char handle[ML_PEER_HANDLE],
                     ml_err *err);
    void (*unmap)(ml_device *d, void *p);
    /* out [n] = the tree (ML_REDUCE_TREE, comm.h) of n_in arrays [n]; max: the maximum
     * instead of the sum.  out may be one of them. */
    void (*tree)(ml_stream *s, void *out, const void *const *in, int32_t n_in, int64_t n,
                 ml_dtype dtype, bool max);
} ml_peer_memory;

enum { ML_PEERS = 64 }; /* arrays of a tree, at most */

struct ml_device {
    const char *name;
    bool host; /* host memory: copies may be skipped and data read in place */
    /* On ML_ENOMEM the message has the size and the kind. */
    ml_status (*alloc)(ml_device *d, ml_buf *out, size_t bytes, ml_mem_kind kind,
                       ml_err *err);
    void (*free)(ml_buf *b); /* a zeroed ml_buf is allowed */
    /* Zeros a buffer of which little will be written: the rest takes no memory.  NULL: all of
     * it does. */
    void (*zero_sparse)(ml_buf *b);
    /* Ordered on the stream.  Host memory is pageable; on return it may be changed
     * (copy_in) or is filled (copy_out).  The device pointer may also be host memory. */
    void (*copy_in)(ml_stream *s, void *dst, const void *host, size_t bytes);
    void (*copy_out)(ml_stream *s, void *host, const void *src, size_t bytes);
    void (*copy)(ml_stream *s, void *dst, const void *src, size_t bytes); /* on device */
    /* Waits for the stream; reports the first work that failed since the last wait. */
    ml_status (*sync)(ml_stream *s, ml_err *err);
    /* Bytes that can still be allocated; NULL: query the system (train/memory.h). */
    size_t (*available)(const ml_device *d);
    /* For memory other than the host's: bytes in use now, and the maximum after any
     * alloc.  Both include the device's own overhead and the memory of other processes. */
    size_t (*used)(const ml_device *d);
    size_t (*peak)(const ml_device *d);
    /* For such memory: bytes of this process alone, of all buffers, now and at most.  They leave out
     * the device's own overhead. */
    size_t (*held)(void);
    size_t (*held_peak)(void);
    /* Host memory with the fastest copies (pinned); NULL: any memory is as fast. */
    void *(*host_alloc)(size_t bytes); /* NULL: allocation failed */
    void (*host_free)(void *p);
    void *(*native)(ml_stream *s); /* the cudaStream_t, for libraries; NULL: none */
    unsigned char uuid[16];        /* of a GPU */
    const ml_peer_memory *peer;    /* NULL: other processes cannot use its memory */
    size_t later; /* roughly what it will allocate itself when kernels first run */
};

const char *ml_mem_name(ml_mem_kind kind); /* "weights", "gradients", ... */

/* A step must not allocate: between seal and unseal an alloc of any device by this thread
 * is a bug and ends the process.  Seals nest; they apply to the calling thread only. */
void ml_mem_seal(void);
void ml_mem_unseal(void);
bool ml_mem_sealed(void); /* checked by the devices' alloc */

#endif
