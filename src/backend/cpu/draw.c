/* draw.c - sampling tokens and their log-probabilities (docs/NUMERICS.md, "Drawing a
 * token").
 *
 * Rows are divided among threads, each with scratch for one row.  Two distributions are
 * involved: the sampling distribution and the reported one (dist), which are the same
 * only for ML_DIST_DRAWN; the reported one keeps the bits of LMHEAD. */
#include "backend/draw.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/lmhead.h"
#include "backend/cpu/math.h"
#include "backend/cpu/select.h"
#include "base/philox.h"

/* Columns whose weights are summed together; tiles start at absolute multiples. */
enum { SAMPLE_TILE = 256 };

/* Scratch of a thread. */
typedef struct draw_scratch {
    const ml_cpu_kern *kern;
    int64_t n;        /* vocabulary size */
    float *z;         /* [n] logits after penalties, bias and bans */
    float *tile_mass; /* [n / SAMPLE_TILE, rounded up] */
    int32_t *tally;   /* [n] count of each token in the answer; aliases select.id */
    ml_select select;
} draw_scratch;

typedef struct sample_call {
    const ml_cpu_stream *stream;
    ml_draw *draw;
    int64_t n_vocab;
    char *scratch;
} sample_call;

/* A distribution over the vocabulary, with its normalization. */
typedef struct sample_dist {
    const float *z; /* [n] */
    float temperature;
    float m, log_l, entropy;
    const ml_select *kept; /* the only tokens with nonzero probability; NULL: all */
    double total;          /* sum of their weights */
} sample_dist;

/* ---- scratch ---- */

/* A row of n four-byte numbers.  The extra 192 bytes keep rows of round lengths from
 * having the same page offset, where stores to one delay loads from another (4K
 * aliasing). */
static size_t sample_row_bytes(int64_t n) {
    return ((size_t)n * 4 + 63) / 64 * 64 + 192;
}

static int64_t sample_tiles(int64_t n) {
    return (n + SAMPLE_TILE - 1) / SAMPLE_TILE;
}

static size_t draw_scratch_bytes(int64_t n) {
    return 4 * sample_row_bytes(n) + ml_select_bins_bytes() +
           sample_row_bytes(sample_tiles(n));
}

size_t ml_cpu_sample_scratch(const ml_stream *s, int64_t n_vocab) {
    return (size_t)ml_pool_size(ml_cpu(s)->pool) * draw_scratch_bytes(n_vocab);
}

static draw_scratch draw_scratch_of(const sample_call *c, int worker) {
    size_t row = sample_row_bytes(c->n_vocab);
    char *p = c->scratch + (size_t)worker * draw_scratch_bytes(c->n_vocab);
    draw_scratch r = { .kern = c->stream->kern, .n = c->n_vocab };

    r.z = (float *)(void *)p;
    r.tally = (int32_t *)(void *)(p + row);
    r.select = (ml_select){ .kern = r.kern,
                            .id = r.tally,
                            .d = (float *)(void *)(p + 2 * row),
                            .w = (float *)(void *)(p + 3 * row),
                            .bins = p + 4 * row };
    r.tile_mass = (float *)(void *)(p + 4 * row + ml_select_bins_bytes());
    return r;
}

/* ---- logit processing ---- */

static bool sample_has_penalty(const ml_draw_opts *o) {
    return o->repetition != 1.0f || o->frequency != 0.0f || o->presence != 0.0f;
}

static float sample_penalized(float z, int32_t answered, const ml_draw_opts *o) {
    z = z > 0.0f ? z / o->repetition : z * o->repetition;
    if (answered > 0)
        z = (z - o->frequency * (float)answered) - o->presence;
    return z;
}

/* Processes each token of the history once, with its count in the answer. */
static void sample_penalize(draw_scratch *r, const ml_draw *w) {
    for (int32_t i = 0; i < w->n_history; i++)
        r->tally[w->history[i]] = 0;
    for (int32_t i = w->n_prompt; i < w->n_history; i++)
        r->tally[w->history[i]]++;
    for (int32_t i = 0; i < w->n_history; i++) {
        int32_t id = w->history[i];
        if (r->tally[id] >= 0)
            r->z[id] = sample_penalized(r->z[id], r->tally[id], w->opts);
        r->tally[id] = -1;
    }
}

/* Tokens that are not allowed have no probability. */
static void sample_mask(draw_scratch *r, const uint32_t *allowed) {
    for (int64_t i = 0; i < r->n; i += 32) {
        uint32_t word = allowed[i / 32];
        int64_t end = i + 32 < r->n ? i + 32 : r->n;
        if (word == UINT32_MAX)
            continue;
        for (int64_t k = i; k < end; k++)
            r->z[k] = word >> (k - i) & 1 ? r->z[k] : -INFINITY;
    }
}

/* The logits to sample from: the model's own if nothing changes them. */
static const float *sample_logits(draw_scratch *r, const ml_draw *w) {
    const ml_draw_opts *o = w->opts;
    bool penalty = sample_has_penalty(o);

    if (!penalty && o->n_bias == 0 && w->n_ban == 0 && !w->allowed)
        return w->logits;
    memcpy(r->z, w->logits, (size_t)r->n * sizeof *r->z);
    if (penalty)
        sample_penalize(r, w);
    for (int32_t i = 0; i < o->n_bias; i++)
        r->z[o->bias[i].id] += o->bias[i].add;
    if (w->allowed)
        sample_mask(r, w->allowed);
    for (int32_t i = 0; i < w->n_ban; i++)
        r->z[w->ban[i]] = -INFINITY;
    return r->z;
}

/* ---- the draw ---- */

static int64_t sample_tile_size(const draw_scratch *r, int64_t tile) {
    int64_t left = r->n - tile * SAMPLE_TILE;
    return left < SAMPLE_TILE ? left : SAMPLE_TILE;
}

/* The largest of z that is not NaN, ties to the lowest id; 0 if all are NaN. */
static int32_t sample_argmax(const draw_scratch *r, const float *z) {
    float best = -INFINITY;
    int64_t at = 0;

    for (int64_t t = 0; t < sample_tiles(r->n); t++) {
        float max = r->kern->sample->max(z + t * SAMPLE_TILE, sample_tile_size(r, t));
        if (max > best) {
            best = max;
            at = t;
        }
    }
    for (int64_t i = at * SAMPLE_TILE; i < r->n; i++)
        if (z[i] == best)
            return (int32_t)i;
    return 0;
}

/* Inverse-CDF step: the index of the weight at which the running sum, starting at `sum`,
 * exceeds target.  If rounding keeps it from exceeding, the last nonzero weight; -1 if
 * all are 0. */
static int64_t sample_pass(const float *w, int64_t n, double sum, double target) {
    int64_t last = -1;
    for (int64_t i = 0; i < n; i++) {
        if (!(w[i] > 0.0f))
            continue;
        last = i;
        sum += (double)w[i];
        if (sum > target)
            break;
    }
    return last;
}

/* Computes the weights of a tile; returns their sum. */
static float sample_weigh_tile(const draw_scratch *r, float *w, const float *z,
                               float temperature, float m, int64_t tile) {
    int64_t n = sample_tile_size(r, tile);
    r->kern->sample->distance(w, z + tile * SAMPLE_TILE, n, temperature, m);
    return r->kern->sample->weigh(w, w, n);
}

/* Samples from the whole row by inverse CDF: first the tile, then the token in it. */
static int32_t sample_row(draw_scratch *r, const float *z, float temperature, double u) {
    float m = r->kern->sample->max(z, r->n) / temperature, w[SAMPLE_TILE];
    double total = 0.0, before = 0.0;
    int64_t tile;

    for (int64_t t = 0; t < sample_tiles(r->n); t++) {
        r->tile_mass[t] = sample_weigh_tile(r, w, z, temperature, m, t);
        total += (double)r->tile_mass[t];
    }
    tile = sample_pass(r->tile_mass, sample_tiles(r->n), 0.0, u * total);
    if (tile < 0)
        return sample_argmax(r, z);
    for (int64_t t = 0; t < tile; t++)
        before += (double)r->tile_mass[t];
    sample_weigh_tile(r, w, z, temperature, m, tile);
    return (int32_t)(tile * SAMPLE_TILE +
                     sample_pass(w, sample_tile_size(r, tile), before, u * total));
}

/* ---- filters ---- */

static bool sample_has_filter(const ml_draw_opts *o) {
    return o->temperature > 0.0f && (o->top_k > 0 || o->top_p < 1.0f || o->min_p > 0.0f);
}

/* The tokens that pass all three filters, and their distribution. */
static sample_dist sample_filter(draw_scratch *r, const float *z, const ml_draw_opts *o) {
    sample_dist d = { .z = z, .temperature = o->temperature, .kept = &r->select };
    ml_select *s = &r->select;
    double u = 0.0;

    d.m = r->kern->sample->max(z, r->n) / o->temperature;
    ml_select_all(s, z, r->n, o->temperature, d.m);
    if (o->top_p < 1.0f)
        ml_select_weigh(s);
    ml_select_first(s, o->top_k > 0 ? o->top_k : r->n, o->top_p);
    if (o->min_p > 0.0f)
        ml_select_near(s, -ml_logf(o->min_p));
    if (!(o->top_p < 1.0f))
        ml_select_weigh(s);
    for (int64_t i = 0; i < s->n; i++) {
        d.total += (double)s->w[i];
        if (s->w[i] > 0.0f)
            u += (double)s->w[i] * (double)s->d[i];
    }
    d.log_l = ml_logf((float)d.total);
    d.entropy = d.log_l + (float)(u / d.total);
    return d;
}

static int32_t sample_kept(const draw_scratch *r, const sample_dist *d, double u) {
    int64_t i = sample_pass(d->kept->w, d->kept->n, 0.0, u * d->total);
    return i < 0 ? sample_argmax(r, d->z) : d->kept->id[i];
}

/* ---- log-probabilities ---- */

static sample_dist sample_dist_of(const draw_scratch *r, const float *z,
                                  float temperature) {
    ml_logprob p = ml_logprob_of(r->kern, z, r->n, -1, temperature);
    return (sample_dist){ .z = z,
                          .temperature = temperature,
                          .m = p.m,
                          .log_l = ml_logf(p.l),
                          .entropy = p.entropy };
}

static bool sample_is_kept(const ml_select *s, int32_t id) {
    int64_t begin = 0, end = s->n;
    while (begin < end) {
        int64_t middle = (begin + end) / 2;
        if (s->id[middle] < id)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin < s->n && s->id[begin] == id;
}

/* As LMHEAD: (s - m) - log l. */
static float sample_logprob(const sample_dist *d, int32_t id) {
    return (d->z[id] / d->temperature - d->m) - d->log_l;
}

/* A filter keeps a prefix of the tokens in order of distance, so that the dropped tokens
 * are also the last ones of the list. */
static void sample_top(draw_scratch *r, const sample_dist *d, ml_draw *w) {
    int64_t n_kept = d->kept ? d->kept->n : r->n;
    ml_select *s = &r->select;

    ml_select_all(s, d->z, r->n, d->temperature,
                  r->kern->sample->max(d->z, r->n) / d->temperature);
    ml_select_first(s, w->n_top, 1.0f);
    ml_select_sort(s);
    for (int32_t i = 0; i < w->n_top; i++) {
        w->top_id[i] = s->id[i];
        w->top_logprob[i] = i < n_kept ? sample_logprob(d, s->id[i]) : -INFINITY;
    }
}

static float sample_logprob_kept(const sample_dist *d, int32_t id) {
    if (d->kept && !sample_is_kept(d->kept, id))
        return -INFINITY;
    return sample_logprob(d, id);
}

/* Fills the results that refer to d.  The list of the most probable tokens comes last,
 * because it overwrites the memory of the filter's tokens. */
static void sample_report(draw_scratch *r, const sample_dist *d, ml_draw *w) {
    w->logprob = sample_logprob_kept(d, w->id);
    w->entropy = d->entropy;
    for (int32_t i = 0; i < w->n_also; i++)
        w->also_logprob[i] = w->also[i] < 0 ? NAN : sample_logprob_kept(d, w->also[i]);
    if (w->n_top > 0)
        sample_top(r, d, w);
}

/* ---- the support ---- */

/* The tokens that could be drawn from z: those that the filters keep, and whose logits nothing
 * has set to -inf.  The selection becomes these. */
static int64_t sample_drawable(draw_scratch *r, const float *z, const sample_dist *drawn) {
    int64_t n = drawn->kept ? drawn->kept->n : r->n, kept = 0;
    int32_t *id = r->select.id;

    for (int64_t i = 0; i < n; i++) {
        int32_t x = drawn->kept ? id[i] : (int32_t)i;
        id[kept] = x;
        kept += z[x] > -INFINITY;
    }
    return r->select.n = kept;
}

static void sample_support(draw_scratch *r, ml_draw *w, const float *z,
                           const sample_dist *drawn) {
    float t = w->opts->temperature;
    int64_t n = sample_drawable(r, z, drawn);

    w->n_support = n ? (int32_t)ml_support_write(w->support, r->select.id, n, r->n) : 0;
    w->support_logprob =
        ml_logprob_over(r->kern, w->logits, r->n, w->id, t > 0.0f ? t : 1.0f,
                        (ml_str){ (const char *)w->support, (size_t)w->n_support })
            .logprob;
}

/* ---- one draw ---- */

/* The distribution to report; `drawn` is the filtered one, if there are filters. */
static sample_dist sample_reported(const draw_scratch *r, const ml_draw *w, const float *z,
                                   const sample_dist *drawn) {
    float t = w->opts->temperature;
    switch (w->opts->dist) {
    case ML_DIST_MODEL: return sample_dist_of(r, w->logits, 1.0f);
    case ML_DIST_DRAWN:
        return drawn->kept ? *drawn : sample_dist_of(r, z, t > 0.0f ? t : 1.0f);
    case ML_DIST_RAW: break;
    }
    return sample_dist_of(r, w->logits, t > 0.0f ? t : 1.0f);
}

static int32_t sample_token(draw_scratch *r, const ml_draw *w, const float *z,
                            const sample_dist *drawn) {
    const ml_draw_opts *o = w->opts;
    double u = ml_philox_uniform(o->seed, o->sample, (uint64_t)w->n_history);
    if (!(o->temperature > 0.0f))
        return sample_argmax(r, z);
    return drawn->kept ? sample_kept(r, drawn, u) : sample_row(r, z, o->temperature, u);
}

static void sample_one(draw_scratch *r, ml_draw *w) {
    bool draw = w->given < 0, changed = draw || w->opts->dist == ML_DIST_DRAWN;
    const float *z = changed ? sample_logits(r, w) : w->logits;
    sample_dist drawn = { 0 }, reported;

    if (changed && sample_has_filter(w->opts))
        drawn = sample_filter(r, z, w->opts);
    w->id = draw ? sample_token(r, w, z, &drawn) : w->given;
    if (draw && w->support)
        sample_support(r, w, z, &drawn);
    reported = sample_reported(r, w, z, &drawn);
    sample_report(r, &reported, w);
}

static void sample_task(void *ud, int64_t begin, int64_t end, int worker) {
    const sample_call *c = ud;
    draw_scratch r = draw_scratch_of(c, worker);
    for (int64_t i = begin; i < end; i++)
        sample_one(&r, c->draw + i);
}

void ml_cpu_sample(ml_stream *s, ml_draw *draw, int64_t n, int64_t n_vocab, void *scratch,
                   int32_t *drawn) {
    sample_call c = {
        .stream = ml_cpu(s), .draw = draw, .n_vocab = n_vocab, .scratch = scratch
    };
    ml_pool_run(c.stream->pool, n, 1, sample_task, &c);
    for (int64_t i = 0; drawn && i < n; i++)
        drawn[i] = draw[i].id;
}

void ml_cpu_sampled(ml_stream *s, ml_draw *draw, int64_t n) {
    (void)s;
    (void)draw;
    (void)n;
}
