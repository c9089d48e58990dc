#include "tests/support/drawer.h"

#include <math.h>
#include <stdlib.h>

#include "backend/cpu/lmhead.h"
#include "base/philox.h"
#include "tests/support/must.h"

const ml_draw_opts ml_drawer_plain = { .temperature = 1.0f,
                                       .top_p = 1.0f,
                                       .repetition = 1.0f };

ml_drawer ml_drawer_open(int n_thread, const char *level, int64_t n_vocab) {
    ml_drawer m = { .n_vocab = n_vocab };

    MUST(ml_backend_cpu_open(&m.be, n_thread, level, &err));
    m.scratch = malloc(ml_cpu_sample_scratch(m.be.stream, n_vocab));
    return m;
}

void ml_drawer_close(ml_drawer *m) {
    free(m->scratch);
    ml_backend_close(&m->be);
}

void ml_drawer_draw(ml_drawer *m, ml_draw *d, int64_t n) {
    ml_cpu_sample(m->be.stream, d, n, m->n_vocab, m->scratch, NULL);
}

/* Uniform in [0, 1), as a test's own noise. */
static double noise(uint64_t a, uint64_t b) {
    return ml_philox_uniform(0x7e57, a, b);
}

void ml_drawer_row(float *z, int64_t n, uint64_t seed, double spread) {
    for (int64_t i = 0; i < n; i++) {
        double a = noise(seed, (uint64_t)(2 * i)), b = noise(seed, (uint64_t)(2 * i + 1));
        z[i] = (float)(spread * sqrt(-2.0 * log(1.0 - a)) * cos(6.283185307179586 * b));
        if (i % 7 == 3)
            z[i] = roundf(z[i] * 2.0f) / 2.0f;
    }
}

ml_draw ml_drawer_of(const float *z, const ml_draw_opts *o) {
    return (ml_draw){ .logits = z, .opts = o, .given = -1 };
}
