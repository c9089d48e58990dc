/* drawer.h - draws tokens from rows of logits with the CPU backend. */
#ifndef ML_TESTS_SUPPORT_DRAWER_H
#define ML_TESTS_SUPPORT_DRAWER_H

#include "backend/backend.h"
#include "backend/draw.h"

enum { ML_DRAWER_VOCAB = 3001 }; /* several tiles and an odd remainder */

typedef struct ml_drawer {
    ml_backend be;
    void *scratch;
    int64_t n_vocab;
} ml_drawer;

/* level NULL: the best available.  Failures end the test. */
ml_drawer ml_drawer_open(int n_thread, const char *level, int64_t n_vocab);
void ml_drawer_close(ml_drawer *m);
void ml_drawer_draw(ml_drawer *m, ml_draw *d, int64_t n);

/* Logits like a model's: most of them far below, some candidates, some ties. */
void ml_drawer_row(float *z, int64_t n, uint64_t seed, double spread);

extern const ml_draw_opts ml_drawer_plain; /* neither filter nor penalty */
/* A draw that returns only its token. */
ml_draw ml_drawer_of(const float *z, const ml_draw_opts *o);

#endif
