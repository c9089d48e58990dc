#include "tests/support/ranks.h"

#include <pthread.h>
#include <stdlib.h>

#include "comm/threads/threads.h"
#include "tests/support/test.h"

typedef struct rank {
    pthread_t thread;
    ml_comm *c;
    ml_rank_fn *fn;
    void *ud;
} rank;

static void *run(void *p) {
    rank *r = p;

    r->fn(r->c, r->ud);
    r->c->close(r->c);
    return NULL;
}

void ml_ranks_run(int32_t n, ml_rank_fn *fn, void *ud) {
    rank *all = calloc((size_t)n, sizeof *all);
    ml_comm **c = calloc((size_t)n, sizeof(*c));
    ml_err err = { 0 };

    CHECK(all && c && ml_comm_threads_open(c, n, &err) == ML_OK);
    for (int32_t r = 0; r < n; r++) {
        all[r] = (rank){ .c = c[r], .fn = fn, .ud = ud };
        CHECK(pthread_create(&all[r].thread, NULL, run, &all[r]) == 0);
    }
    for (int32_t r = 0; r < n; r++)
        pthread_join(all[r].thread, NULL);
    free(c);
    free(all);
}
