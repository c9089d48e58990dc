/* staging.cu - small copies to the device, through a ring of pinned buffers.
 *
 * A copy from pageable host memory may wait for the stream; overlap scheduling, which
 * prepares a step while another runs, must not wait.  So small copies go through pinned
 * buffers, and the caller may reuse its own memory at once. */
#include "backend/cuda/common.cuh"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 4, SLOT_BYTES = 1 << 18 };

struct ml_send_ring {
    char *memory;
    cudaEvent_t sent[SLOTS];
    unsigned next;
};

ml_status ml_cuda_send_open(ml_cuda_stream *s, ml_err *err) {
    ml_send_ring *r = (ml_send_ring *)calloc(1, sizeof *r);
    cudaError_t e = cudaErrorMemoryAllocation;

    s->send = r;
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

void ml_cuda_send_close(ml_cuda_stream *s) {
    if (!s->send)
        return;
    for (int i = 0; i < SLOTS; i++)
        if (s->send->sent[i])
            cudaEventDestroy(s->send->sent[i]);
    cudaFreeHost(s->send->memory);
    free(s->send);
    s->send = NULL;
}

static cudaError_t send_slot(ml_cuda_stream *s, void *dst, const void *host, size_t bytes) {
    unsigned slot = s->send->next++ % SLOTS;
    char *memory = s->send->memory + (size_t)slot * SLOT_BYTES;
    cudaError_t e = cudaEventSynchronize(s->send->sent[slot]); /* of its last use */

    memcpy(memory, host, bytes);
    if (e == cudaSuccess)
        e = cudaMemcpyAsync(dst, memory, bytes, cudaMemcpyDefault, s->stream);
    return e == cudaSuccess ? cudaEventRecord(s->send->sent[slot], s->stream) : e;
}

/* Larger copies bypass the ring: pageable memory has been read when the call returns. */
void ml_cuda_send(ml_stream *s, void *dst, const void *host, size_t bytes) {
    ml_cuda_stream *c = ml_cuda(s);

    ml_cuda_note(c,
                 bytes <= SLOT_BYTES
                     ? send_slot(c, dst, host, bytes)
                     : cudaMemcpyAsync(dst, host, bytes, cudaMemcpyDefault, c->stream),
                 "a copy to the GPU");
}
