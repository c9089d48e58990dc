#include "model/expert_rounds.h"

#include <string.h>

int32_t ml_expert_first(int32_t n_expert, int32_t n_rank, int32_t rank) {
    return (int32_t)((int64_t)n_expert * rank / n_rank);
}

static int32_t capacity(const ml_expert_rows *x, int32_t rank) {
    return x->row[(int64_t)rank * (1 + x->n_expert)];
}

static int32_t count(const ml_expert_rows *x, int32_t rank, int32_t expert) {
    return x->row[(int64_t)rank * (1 + x->n_expert) + 1 + expert];
}

static int32_t first_of(const ml_expert_rows *x, int32_t rank) {
    return ml_expert_first(x->n_expert, x->n_rank, rank);
}

static int64_t rows_for(const ml_expert_rows *x, int32_t to) {
    int64_t n = 0;
    for (int32_t e = first_of(x, to); e < first_of(x, to + 1); e++)
        for (int32_t r = 0; r < x->n_rank; r++)
            n += count(x, r, e);
    return n;
}

int32_t ml_expert_rounds(const ml_expert_rows *x) {
    int64_t most = 0;
    for (int32_t r = 0; r < x->n_rank; r++) {
        int64_t n = (rows_for(x, r) + capacity(x, r) - 1) / capacity(x, r);
        most = n > most ? n : most;
    }
    return (int32_t)most;
}

/* Rows at .. at + n - 1 of a rank's order, as far as they are in the round. */
static ml_slot_run within(int64_t at, int64_t n, int64_t cap, int32_t round) {
    int64_t begin = cap * round, end = begin + cap;
    int64_t from = at > begin ? at : begin, to = at + n < end ? at + n : end;

    return (ml_slot_run){ from - at, to > from ? to - from : 0 };
}

ml_slot_run ml_expert_run(const ml_expert_rows *x, int32_t from, int32_t to,
                          int32_t round) {
    ml_slot_run run = { 0 };
    int64_t at = 0, slot = 0;

    for (int32_t e = 0; e < first_of(x, to); e++)
        slot += count(x, from, e);
    for (int32_t e = first_of(x, to); e < first_of(x, to + 1); e++)
        for (int32_t r = 0; r < x->n_rank; r++) {
            int64_t n = count(x, r, e);
            if (r == from) {
                ml_slot_run part = within(at, n, capacity(x, to), round);
                if (part.n && !run.n)
                    run.at = slot + part.at;
                run.n += part.n;
                slot += n;
            }
            at += n;
        }
    return run;
}

int64_t ml_expert_received(const ml_expert_rows *x, int32_t to, int32_t round) {
    return within(0, rows_for(x, to), capacity(x, to), round).n;
}

void ml_expert_tables(int32_t *group, int32_t *back, int64_t *next, const ml_expert_rows *x,
                      int32_t to, int32_t round) {
    int32_t first = first_of(x, to), n_expert = first_of(x, to + 1) - first;
    int64_t n = ml_expert_received(x, to, round), at = 0, before = 0;
    int32_t *arrived = group + n_expert + 1, *slot = arrived + n, n_slot = 0;

    for (int32_t r = 0; r < x->n_rank; r++) {
        next[r] = before;
        before += ml_expert_run(x, r, to, round).n;
    }
    for (int32_t e = 0; e < n_expert; e++) {
        group[e] = n_slot;
        for (int32_t r = 0; r < x->n_rank; r++) {
            int64_t rows = count(x, r, first + e);
            int64_t here = within(at, rows, capacity(x, to), round).n;
            at += rows;
            for (; here > 0; here--, n_slot++) {
                arrived[n_slot] = (int32_t)next[r];
                slot[next[r]++] = n_slot;
            }
        }
    }
    group[n_expert] = n_slot;
    memcpy(back, group, (size_t)(n_expert + 1) * sizeof *back);
    memcpy(back + n_expert + 1, slot, (size_t)n * sizeof *back);
    memcpy(back + n_expert + 1 + n, arrived, (size_t)n * sizeof *back);
}
