/* timers.cu - timestamps of the GPU's work, for profiles.
 *
 * CUDA events measure the time between each other.  The first one is recorded in an
 * empty stream when the host's clock is read: the two clocks agree to a few
 * microseconds. */
#include "backend/cuda/common.cuh"

#include <stdlib.h>

extern "C" {
#include "base/clock.h"
}

struct ml_cuda_clock {
    cudaEvent_t event[ML_MARKS];
    int n_event;
    double began_s;
};

static bool has_event(ml_cuda_stream *c, int32_t i) {
    if (!c->clock)
        c->clock = (ml_cuda_clock *)calloc(1, sizeof *c->clock);
    if (!c->clock) {
        ml_cuda_note(c, cudaErrorMemoryAllocation, "the clock of a profile");
        return false;
    }
    for (; c->clock->n_event <= i; c->clock->n_event++) {
        cudaError_t e = cudaEventCreate(&c->clock->event[c->clock->n_event]);
        ml_cuda_note(c, e, "the clock of a profile");
        if (e != cudaSuccess)
            return false;
    }
    return true;
}

static void put_mark(ml_stream *s, int32_t i) {
    ml_cuda_stream *c = ml_cuda(s);

    if (!has_event(c, i))
        return;
    if (i == 0) {
        ml_cuda_note(c, cudaStreamSynchronize(c->stream), "the clock of a profile");
        c->clock->began_s = ml_clock_s();
    }
    ml_cuda_note(c, cudaEventRecord(c->clock->event[i], c->stream),
                 "the clock of a profile");
}

static void read_marks(ml_stream *s, double *at_s, int32_t n) {
    ml_cuda_stream *c = ml_cuda(s);

    ml_cuda_note(c, cudaStreamSynchronize(c->stream), "the clock of a profile");
    for (int32_t i = 0; i < n; i++) {
        float ms = 0.0f;
        if (has_event(c, i))
            ml_cuda_note(c,
                         cudaEventElapsedTime(&ms, c->clock->event[0], c->clock->event[i]),
                         "the clock of a profile");
        at_s[i] = c->clock ? c->clock->began_s + 1e-3 * (double)ms : 0.0;
    }
}

const ml_marks ml_cuda_marks = { put_mark, read_marks };

void ml_cuda_marks_close(ml_cuda_stream *s) {
    for (int i = 0; s->clock && i < s->clock->n_event; i++)
        cudaEventDestroy(s->clock->event[i]);
    free(s->clock);
    s->clock = NULL;
}
