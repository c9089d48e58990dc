#include "train/packing.h"

#include <stdlib.h>
#include <string.h>

#include "base/bug.h"

/* --- bins ------------------------------------------------------------------- */

static ml_bins no_bins(ml_arena *a, int32_t cap) {
    return (ml_bins){ .bin = ML_NEW(a, ml_bin, cap) };
}

/* Counts the items of each bin before allocating, so that bins use only the memory they
 * need: of[i] is the bin of the i-th item in `order`. */
static void fill_bins(ml_bins *b, ml_arena *a, const int32_t *order, const int32_t *of,
                      int32_t n) {
    for (int32_t i = 0; i < n; i++)
        b->bin[of[i]].n++;
    for (int32_t k = 0; k < b->n; k++) {
        b->bin[k].item = ML_NEW(a, int32_t, b->bin[k].n);
        b->bin[k].n = 0;
    }
    for (int32_t i = 0; i < n; i++) {
        ml_bin *bin = &b->bin[of[i]];
        bin->item[bin->n++] = order[i];
    }
}

static ml_bins fit(ml_arena *a, const int64_t *len, const int32_t *order, int32_t n,
                   int64_t cap) {
    ml_bins b = no_bins(a, n);
    int64_t *sum = ML_NEW(a, int64_t, n);
    int32_t *of = ML_NEW(a, int32_t, n);

    for (int32_t i = 0; i < n; i++) {
        int64_t l = len[order[i]];
        int32_t k = 0;
        while (k < b.n && sum[k] + l > cap)
            k++;
        b.n += k == b.n;
        sum[k] += l;
        of[i] = k;
    }
    fill_bins(&b, a, order, of, n);
    return b;
}

static int by_length_down(const void *x, const void *y, void *ud) {
    const int64_t *len = ud;
    int32_t i = *(const int32_t *)x, k = *(const int32_t *)y;
    if (len[i] != len[k])
        return len[i] > len[k] ? -1 : 1;
    return i < k ? -1 : i > k;
}

static int32_t *in_order(ml_arena *a, int32_t n) {
    int32_t *order = ML_NEW(a, int32_t, n);
    for (int32_t i = 0; i < n; i++)
        order[i] = i;
    return order;
}

ml_bins ml_pack_first_fit(ml_arena *a, const int64_t *len, int32_t n, int64_t cap) {
    return fit(a, len, in_order(a, n), n, cap);
}

ml_bins ml_pack_first_fit_decreasing(ml_arena *a, const int64_t *len, int32_t n,
                                     int64_t cap) {
    int32_t *order = in_order(a, n);
    int64_t *copy = ML_NEW(a, int64_t, n); /* qsort_r needs a writable argument */

    memcpy(copy, len, (size_t)n * sizeof *len);
    if (n)
        qsort_r(order, (size_t)n, sizeof *order, by_length_down, copy);
    return fit(a, len, order, n, cap);
}

/* --- splitting -------------------------------------------------------------- */

static int64_t tokens_of(const ml_bin *b, const int64_t *len) {
    int64_t sum = 0;
    for (int32_t i = 0; i < b->n; i++)
        sum += len[b->item[i]];
    return sum;
}

/* The last of the heaviest bins with more than one sample, or -1. */
static int32_t heaviest(const ml_bins *b, const int64_t *len) {
    int32_t best = -1;
    int64_t most = -1;

    for (int32_t k = 0; k < b->n; k++)
        if (b->bin[k].n > 1 && tokens_of(&b->bin[k], len) >= most) {
            best = k;
            most = tokens_of(&b->bin[k], len);
        }
    return best;
}

/* Longest first, each into the lighter half; items of equal length keep their order. */
static void halve(ml_bin *bin, ml_bin *right, ml_arena *a, const int64_t *len) {
    int32_t n = bin->n, *item = bin->item, *left = ML_NEW(a, int32_t, n);
    int64_t sum[2] = { 0, 0 };

    right->item = ML_NEW(a, int32_t, n);
    right->n = bin->n = 0;
    for (int32_t i = 1; i < n; i++) /* insertion sort: bins are small, and it is stable */
        for (int32_t k = i; k > 0 && len[item[k - 1]] < len[item[k]]; k--) {
            int32_t swap = item[k];
            item[k] = item[k - 1];
            item[k - 1] = swap;
        }
    for (int32_t i = 0; i < n; i++) {
        int half = sum[1] < sum[0];
        ml_bin *to = half ? right : bin;
        (half ? right->item : left)[to->n++] = item[i];
        sum[half] += len[item[i]];
    }
    bin->item = left;
}

void ml_pack_expand(ml_bins *bins, ml_arena *a, const int64_t *len, int32_t target) {
    ml_bin *grown;

    if (bins->n >= target)
        return;
    grown = ML_NEW(a, ml_bin, target);
    memcpy(grown, bins->bin, (size_t)bins->n * sizeof *grown);
    bins->bin = grown;
    while (bins->n < target) {
        int32_t k = heaviest(bins, len);
        if (k < 0)
            return;
        halve(&bins->bin[k], &bins->bin[bins->n], a, len);
        bins->n++;
    }
}

ml_bins *ml_pack_deal(ml_arena *a, const ml_bins *bins, const int64_t *len,
                      int32_t n_rank) {
    ml_bins *out = ML_NEW(a, ml_bins, n_rank);
    int64_t *sum = ML_NEW(a, int64_t, n_rank);

    for (int32_t r = 0; r < n_rank; r++)
        out[r] = no_bins(a, bins->n);
    for (int32_t k = 0; k < bins->n; k++) {
        int32_t least = 0;
        for (int32_t r = 1; r < n_rank; r++)
            least = sum[r] < sum[least] ? r : least;
        out[least].bin[out[least].n++] = bins->bin[k];
        sum[least] += tokens_of(&bins->bin[k], len);
    }
    return out;
}

/* --- the schedule ----------------------------------------------------------- */

/* rank[i]: the order in which the sample's rollout first appears; returns the number of
 * rollouts. */
static int64_t number_rollouts(ml_arena *a, const int64_t *rollout, int32_t n,
                               int64_t *rank) {
    int64_t *seen = ML_NEW(a, int64_t, n), n_seen = 0;

    for (int32_t i = 0; i < n; i++) {
        int64_t k = 0;
        /* Samples of a rollout are almost always adjacent: search from the latest. */
        while (k < n_seen && seen[n_seen - 1 - k] != rollout[i])
            k++;
        if (k == n_seen) {
            seen[n_seen++] = rollout[i];
            k = 0;
        }
        rank[i] = n_seen - 1 - k;
    }
    return n_seen;
}

/* The samples of one step, rollout by rollout, as separate arrays. */
typedef struct step_samples {
    int32_t n;
    int32_t *sample; /* [n] */
    int64_t *len;    /* [n] */
    double *weight;  /* [n] cost or length */
    int64_t *common; /* [n] tokens that it has in common with the one before; NULL: none */
} step_samples;

static int by_rank(const void *x, const void *y, void *ud) {
    const int64_t *rank = ud;
    int32_t i = *(const int32_t *)x, k = *(const int32_t *)y;
    if (rank[i] != rank[k])
        return rank[i] < rank[k] ? -1 : 1;
    return i < k ? -1 : i > k;
}

static step_samples no_samples(ml_arena *a, int32_t cap) {
    return (step_samples){ .sample = ML_NEW(a, int32_t, cap),
                           .len = ML_NEW(a, int64_t, cap),
                           .weight = ML_NEW(a, double, cap) };
}

static void add_sample(step_samples *s, int32_t i, const int64_t *len, const double *cost) {
    s->sample[s->n] = i;
    s->len[s->n] = len[i];
    s->weight[s->n++] = cost ? cost[i] : (double)len[i];
}

static ml_bins chunks(ml_arena *a, const step_samples *s, int64_t size) {
    ml_bins b = no_bins(a, s->n);
    int32_t *of = ML_NEW(a, int32_t, s->n);

    for (int32_t i = 0; i < s->n; i++)
        of[i] = (int32_t)(i / size);
    b.n = s->n ? of[s->n - 1] + 1 : 0;
    fill_bins(&b, a, in_order(a, s->n), of, s->n);
    return b;
}

/* As many bins as the token count requires, of equal cost; the token limit is not
 * enforced. */
static ml_bins bins_by_cost(ml_arena *a, const step_samples *s, int64_t cap) {
    int64_t tokens = 0, n;
    ml_bins b;

    for (int32_t i = 0; i < s->n; i++)
        tokens += s->len[i];
    n = (tokens + cap - 1) / cap;
    n = n < 1 ? 1 : n;
    if (n >= s->n)
        return chunks(a, s, 1);
    ML_BUG_IF(!ml_pack_balance(&b, a, s->weight, s->n, (int32_t)n, false));
    return b;
}

/* Assigns bins to ranks, as bins of bins. */
static void deal(ml_bins *out, ml_arena *a, const ml_bins *bins, const step_samples *s,
                 const ml_schedule_opts *o, int32_t n_rank) {
    double *weight = ML_NEW(a, double, bins->n);

    if (o->balance || o->cost) {
        for (int32_t k = 0; k < bins->n; k++)
            for (int32_t i = 0; i < bins->bin[k].n; i++)
                weight[k] += s->weight[bins->bin[k].item[i]];
        ML_BUG_IF(!ml_pack_balance(out, a, weight, bins->n, n_rank, true));
        return;
    }
    *out = no_bins(a, n_rank);
    out->n = n_rank;
    for (int32_t r = 0; r < n_rank; r++) {
        out->bin[r].item = ML_NEW(a, int32_t, bins->n / n_rank);
        for (int32_t k = r; k < bins->n; k += n_rank)
            out->bin[r].item[out->bin[r].n++] = k;
    }
}

/* --- shared tokens ---------------------------------------------------------- */

/* Tokens that item i adds to a bin in which item i - 1 is, or is not. */
static int64_t added_tokens(const step_samples *s, int32_t i, bool first) {
    return first ? s->len[i] : s->len[i] - s->common[i];
}

/* Next fit in the order of shared tokens. */
static ml_bins bins_of_groups(ml_arena *a, const step_samples *s, int64_t cap) {
    ml_bins b = no_bins(a, s->n);
    int32_t *of = ML_NEW(a, int32_t, s->n);
    int64_t sum = 0;

    for (int32_t i = 0; i < s->n; i++) {
        bool first = i == 0 || sum + added_tokens(s, i, false) > cap;
        sum = (first ? 0 : sum) + added_tokens(s, i, first);
        b.n += first;
        of[i] = b.n - 1;
    }
    fill_bins(&b, a, in_order(a, s->n), of, s->n);
    return b;
}

/* Splits the bin with most samples in its middle until there are `target`. */
static void split_groups(ml_bins *b, ml_arena *a, int32_t target) {
    ml_bin *bin = ML_NEW(a, ml_bin, target > b->n ? target : b->n);

    memcpy(bin, b->bin, (size_t)b->n * sizeof *bin);
    b->bin = bin;
    for (; b->n < target; b->n++) {
        int32_t k = 0;
        for (int32_t i = 1; i < b->n; i++)
            k = bin[i].n > bin[k].n ? i : k;
        if (bin[k].n < 2)
            return;
        memmove(bin + k + 1, bin + k, (size_t)(b->n - k) * sizeof *bin);
        bin[k].n /= 2;
        bin[k + 1].item += bin[k].n;
        bin[k + 1].n -= bin[k].n;
    }
}

static void group_samples(step_samples *s, ml_arena *a, const int64_t *len,
                          const ml_schedule_opts *o) {
    o->group(o->ud, s->sample, s->n);
    s->common = ML_NEW(a, int64_t, s->n);
    for (int32_t i = 0; i < s->n; i++) {
        s->len[i] = len[s->sample[i]];
        s->weight[i] = o->cost ? o->cost[s->sample[i]] : (double)s->len[i];
        s->common[i] = i ? o->common(o->ud, s->sample[i - 1], s->sample[i]) : 0;
    }
}

static ml_status pack_step(ml_bins *out, ml_arena *a, const step_samples *s,
                           const ml_schedule_opts *o, int32_t align, ml_err *err) {
    int64_t cap = o->max_tokens * (o->n_context ? o->n_context : 1);
    int32_t target;

    if (!o->dynamic)
        *out = chunks(a, s, o->micro_batch_size);
    else if (s->common)
        *out = bins_of_groups(a, s, cap);
    else if (o->cost)
        *out = bins_by_cost(a, s, cap);
    else
        *out = ml_pack_first_fit_decreasing(a, s->len, s->n, cap);
    target = (out->n + align - 1) / align * align;
    if (o->dynamic && s->common)
        split_groups(out, a, target);
    else if (o->dynamic)
        ml_pack_expand(out, a, s->len, target);
    if (out->n != target)
        return ml_fail(err, ML_EUSAGE,
                       "%d samples give %d micro-batches; the ranks need a multiple of %d: "
                       "change --micro-batch-size or --global-batch-size",
                       s->n, out->n, align);
    return ML_OK;
}

/* Puts samples with and without a gradient into separate micro-batches.  Those with one
 * keep their order, in which their gradients are summed. */
static ml_bins set_apart(ml_arena *a, const ml_bins *bins, const int64_t *len,
                         const ml_schedule_opts *o) {
    int64_t sum = 0, cap = o->max_tokens * (o->n_context ? o->n_context : 1);
    int32_t n = 0, n_in = 0, at = 0, *order, *of;
    int64_t added;
    ml_bins out;

    for (int32_t k = 0; k < bins->n; k++)
        n += bins->bin[k].n;
    order = ML_NEW(a, int32_t, n);
    of = ML_NEW(a, int32_t, n);
    out = no_bins(a, n);
    for (int idle = 0; idle < 2; idle++, n_in = 0) /* n_in: samples of the open bin */
        for (int32_t k = 0; k < bins->n; k++)
            for (int32_t i = 0; i < bins->bin[k].n; i++) {
                int32_t item = bins->bin[k].item[i];
                if (o->idle[item] != idle)
                    continue;
                added = len[item];
                if (o->group && n_in)
                    added -= o->common(o->ud, order[at - 1], item);
                if (n_in == 0 ||
                    (o->dynamic ? sum + added > cap : n_in == o->micro_batch_size)) {
                    out.n++;
                    n_in = 0;
                    sum = 0;
                    added = len[item];
                }
                order[at] = item;
                of[at++] = out.n - 1;
                sum += added;
                n_in++;
            }
    fill_bins(&out, a, order, of, n);
    return out;
}

/* Whether bins have samples with and without a gradient. */
static bool is_mixed(const ml_bins *bins, const uint8_t *idle) {
    int32_t n = 0, n_idle = 0;

    for (int32_t k = 0; k < bins->n; k++)
        for (int32_t i = 0; i < bins->bin[k].n; i++, n++)
            n_idle += idle[bins->bin[k].item[i]];
    return n_idle > 0 && n_idle < n;
}

static ml_status build_step(ml_schedule_step *out, ml_arena *a, step_samples *s,
                            const int64_t *len, const ml_schedule_opts *o, int32_t n_rank,
                            ml_err *err) {
    int32_t align = n_rank * (o->align ? o->align : 1);
    ml_bins bins, ranks;
    ml_status st;

    if (s->n < n_rank)
        return ml_fail(err, ML_EUSAGE, "a step has %d samples for %d ranks", s->n, n_rank);
    if (o->group)
        group_samples(s, a, len, o);
    st = pack_step(&bins, a, s, o, align, err);
    if (st != ML_OK)
        return st;
    deal(&ranks, a, &bins, s, o, n_rank);
    for (int32_t k = 0; k < bins.n; k++)
        for (int32_t i = 0; i < bins.bin[k].n; i++)
            bins.bin[k].item[i] = s->sample[bins.bin[k].item[i]];
    out->rank = ML_NEW(a, ml_bins, n_rank);
    for (int32_t r = 0; r < n_rank; r++) {
        out->rank[r] = no_bins(a, ranks.bin[r].n);
        for (int32_t k = 0; k < ranks.bin[r].n; k++)
            out->rank[r].bin[out->rank[r].n++] = bins.bin[ranks.bin[r].item[k]];
    }
    for (int32_t r = 0; r < n_rank && o->idle; r++)
        if (is_mixed(&out->rank[r], o->idle))
            out->rank[r] = set_apart(a, &out->rank[r], len, o);
    return ML_OK;
}

ml_status ml_schedule_build(ml_schedule *out, ml_arena *a, const int64_t *len,
                            const int64_t *rollout, int32_t n, const ml_schedule_opts *opts,
                            ml_err *err) {
    int64_t *rank = ML_NEW(a, int64_t, n), n_rollout = number_rollouts(a, rollout, n, rank);
    int64_t size = opts->one_step && n_rollout ? n_rollout : opts->global_batch_size;
    int64_t n_step = n_rollout / size;
    int32_t n_rank = opts->n_rank ? opts->n_rank : 1, *order = in_order(a, n), at = 0;
    step_samples s = no_samples(a, n);
    ml_status st = ML_OK;

    *out =
        (ml_schedule){ .n_rank = n_rank, .step = ML_NEW(a, ml_schedule_step, n_step + 1) };
    if (n)
        qsort_r(order, (size_t)n, sizeof *order, by_rank, rank);
    for (int64_t k = 0; k <= n_step && st == ML_OK; k++) {
        int64_t end = (k + 1) * size < n_rollout ? (k + 1) * size : n_rollout;
        s.n = 0;
        while (at < n && rank[order[at]] < end)
            add_sample(&s, order[at++], len, opts->cost);
        if (k == n_step && !(opts->allow_partial && opts->dynamic && s.n >= n_rank))
            break;
        out->step[k].n_rollout = end - k * size;
        st = build_step(&out->step[k], a, &s, len, opts, n_rank, err);
        out->n_step++;
    }
    return st;
}
