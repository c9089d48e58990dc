/* staging.cu - small copies to the device, through a ring of pinned buffers.
 *
 * A copy from pageable host memory may wait for the stream; overlap scheduling, which
 * prepares a step while another runs, must not wait.  So small copies go through pinned
 * buffers, and the caller may reuse its own memory at once. */
#include "backend/cuda/common.cuh"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 4, SLOT_BYTES = 1 << 18 };

struct ml_staging_ring {
    char *memory;
    cudaEvent_t sent[SLOTS];
    unsigned next;
};

ml_status ml_cuda_staging_open(ml_cuda_stream *s, ml_err *err) {
    ml_staging_ring *r = (ml_staging_ring *)calloc(1, sizeof *r);
    cudaError_t e = cudaErrorMemoryAllocation;

    s->staging = r;
    if (r)
        e = cudaMallocHost((void **)&r->memory, (size_t)SLOTS * SLOT_BYTES);
    for (int i = 0; e == cudaSuccess && i < SLOTS; i++)
        e = cudaEventCreateWithFlags(&r->sent[i], cudaEventDisableTiming);
    if (e == cudaSuccess)
        return ML_OK;
    cudaGetLastError();
    return ml_fail(err, ML_ENOMEM, "out of memory for copies to the GPU: %s",
                   cudaGetErrorString(e));
}

void ml_cuda_staging_close(ml_cuda_stream *s) {
    if (!s->staging)
        return;
    for (int i = 0; i < SLOTS; i++)
        if (s->staging->sent[i])
            cudaEventDestroy(s->staging->sent[i]);
    cudaFreeHost(s->staging->memory);
    free(s->staging);
    s->staging = NULL;
}

static cudaError_t copy_through_slot(ml_cuda_stream *s, void *dst, const void *host,
                                     size_t bytes) {
    unsigned slot = s->staging->next++ % SLOTS;
    char *memory = s->staging->memory + (size_t)slot * SLOT_BYTES;
    cudaError_t e = cudaEventSynchronize(s->staging->sent[slot]); /* of its last use */

    memcpy(memory, host, bytes);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(dst, memory, bytes, cudaMemcpyDefault, s->stream);
    return e == cudaSuccess ? cudaEventRecord(s->staging->sent[slot], s->stream) : e;
}

/* Larger copies bypass the ring: pageable memory has been read when the call returns. */
void ml_cuda_staged_copy(ml_stream *s, void *dst, const void *host, size_t bytes) {
    ml_cuda_stream *c = ml_cuda(s);

    ml_cuda_note(c,
                 bytes <= SLOT_BYTES
                     ? copy_through_slot(c, dst, host, bytes)
                     : cudaMemcpyAsync(dst, host, bytes, cudaMemcpyDefault, c->stream),
                 "a copy to the GPU");
}
