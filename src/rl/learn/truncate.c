#include "rl/learn/truncate.h"

int64_t ml_truncate(const ml_truncate_opts *o, int64_t n) {
    int64_t batch = o->global_batch_size;

    if (o->all || o->has_pieces)
        return n;
    if (o->one_step) {
        batch = n / o->n_rank * o->n_rank;
        batch = batch < o->n_rank ? o->n_rank : batch;
    }
    return n / batch * batch;
}
