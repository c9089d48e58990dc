/* Sampling supports: their bytes; draws that return them; the LM head that normalises over them,
 * with the bits of the draw, and its gradient against f64. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/support.h"
#include "base/philox.h"
#include "tests/support/drawer.h"
#include "tests/support/must.h"

/* --- bytes ---------------------------------------------------------------------------- */

enum { VOCAB = 2500, WIDTH = 9, ROWS = 7 };

static double noise(uint64_t a, uint64_t b) {
    return ml_philox_uniform(0x5a9, a, b);
}

/* A set in which each id is with this probability; the id `with` always is. */
static int64_t random_set(int32_t *id, int64_t n_vocab, double p, uint64_t seed,
                          int32_t with) {
    int64_t n = 0;

    for (int32_t i = 0; i < n_vocab; i++)
        if (i == with || noise(seed, (uint64_t)i) < p)
            id[n++] = i;
    return n;
}

static void is_read_back(const int32_t *id, int64_t n, int64_t n_vocab) {
    static uint8_t bytes[1 + VOCAB];
    static int32_t back[VOCAB];
    size_t len = ml_support_write(bytes, id, n, n_vocab);
    ml_text records = { 0 };
    ml_str s = { (const char *)bytes, len }, left;
    int32_t first = id[0], other = -1;

    CHECK(len <= ml_support_max(n_vocab));
    CHECK(ml_support_ids(back, s, n_vocab) == n);
    CHECK(memcmp(back, id, (size_t)n * sizeof *id) == 0);
    ml_support_add(&records, s);
    left = (ml_str){ records.ptr, records.len };
    CHECK(records.len <= ml_support_record_max(n_vocab));
    MUST(ml_support_check(left, &first, 1, n_vocab, &err));
    CHECK(ml_support_first(left, 1).len == left.len && ml_support_first(left, 0).len == 0);
    for (int32_t i = 0; i < n_vocab && other < 0; i++)
        other = i < n && id[i] == i ? -1 : i;
    if (n <
        n_vocab) { /* a token that is not in the set is refused, and so is less than it */
        ml_err err = { 0 };
        CHECK(ml_support_check(left, &other, 1, n_vocab, &err) == ML_EFORMAT);
        CHECK_HAS(err.msg, "was it drawn with another model?");
        left.len--;
        CHECK(ml_support_check(left, &first, 1, n_vocab, &err) == ML_EFORMAT);
    }
    ml_text_release(&records);
}

static void supports_are_read_back(void) {
    static const double p[] = { 0, 0.001, 0.02, 0.2, 0.5, 0.8, 0.98, 0.999, 1 };
    static int32_t id[VOCAB];
    static const int64_t sizes[] = { 1, 7, 8, 33, 1024, VOCAB };

    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (size_t i = 0; i < sizeof p / sizeof *p; i++) {
            int32_t with = (int32_t)(noise(i, k) * (double)sizes[k]);
            is_read_back(id, random_set(id, sizes[k], p[i], i, with), sizes[k]);
        }
}

/* The format of recordings: it must not change. */
static void bytes_are_fixed(void) {
    static const int32_t few[] = { 3, 4, 300 }, all[] = { 0, 1, 2, 4, 5, 6, 7, 8, 9 };
    static const int32_t even[] = { 0, 2, 4, 6, 8 };
    static uint8_t bytes[1 + VOCAB];
    ml_text records = { 0 };

    CHECK(ml_support_write(bytes, few, 3, 1000) == 5);
    CHECK(memcmp(bytes, "L\3\0\xa7\2", 5) == 0);
    CHECK(ml_support_write(bytes, all, 9, 10) == 2 && memcmp(bytes, "C\3", 2) == 0);
    CHECK(ml_support_write(bytes, even, 5, 10) == 3 && memcmp(bytes, "B\x55\1", 3) == 0);
    CHECK(ml_support_write(bytes, even, 1, 1) == 0); /* the whole vocabulary */
    ml_support_add_ids(&records, (int32_t[]){ 300, 3, 4, 3 }, 4);
    CHECK(records.len == 6 && memcmp(records.ptr, "\5L\3\0\xa7\2", 6) == 0);
    ml_text_release(&records);
}

static void damaged_records_are_refused(void) {
    static const ml_str bad[] = {
        { "\5L\3", 3 },     { "\2X\3", 3 }, { "\2L\xff", 3 },    { "\1L", 2 },
        { "\3B\x55\4", 4 }, { "\2B\1", 3 }, { "\2L\12", 3 },     { "\2L\0\0", 4 },
        { "", 0 },          { "\2C\0", 3 }, { "\4L\0\0\10", 5 },
    };
    int32_t token = 0;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ml_err err = { 0 };
        if (ml_support_check(bad[i], &token, 1, 10, &err) == ML_OK)
            ml_test_fail(__FILE__, __LINE__, "record %zu is accepted", i);
    }
}

/* --- draws ---------------------------------------------------------------------------- */

/* What a draw may take, and the log-prob over it. */
static void check_draw(ml_drawer *m, const float *z, ml_draw d) {
    static uint8_t bytes[1 + ML_DRAWER_VOCAB];
    static int32_t id[ML_DRAWER_VOCAB], ids[ML_DRAWER_VOCAB];
    static float lp[ML_DRAWER_VOCAB];
    const ml_draw_opts *o = d.opts;
    double sum = 0;
    int64_t n, at = 0;
    ml_str s;

    for (int32_t i = 0; i < ML_DRAWER_VOCAB; i++)
        ids[i] = i;
    d.also = ids;
    d.n_also = ML_DRAWER_VOCAB;
    d.also_logprob = lp;
    d.support = bytes;
    ml_drawer_draw(m, &d, 1);
    s = (ml_str){ (const char *)bytes, (size_t)d.n_support };
    n = ml_support_ids(id, s, ML_DRAWER_VOCAB);
    for (int32_t i = 0; i < ML_DRAWER_VOCAB; i++) {
        bool in = at < n && id[at] == i;
        at += in;
        CHECK(in == (isfinite(lp[i]) != 0));
        sum +=
            in ? exp((double)(z[i] / o->temperature) - (double)(z[d.id] / o->temperature))
               : 0;
    }
    CHECK(fabs((double)d.support_logprob + log(sum)) < 3e-5);
}

static void draws_return_what_they_may_take(void) {
    static const struct {
        int32_t top_k;
        float top_p, min_p, temperature;
        bool masked;
    } cases[] = { { 0, 0.9f, 0, 1, false },     { 50, 1, 0, 1, false },
                  { 0, 1, 0.05f, 1.3f, false }, { 0, 0.999f, 0, 2, false },
                  { 0, 1, 0, 1, true },         { 40, 0.95f, 0, 0.7f, true },
                  { 0, 1, 0, 1, false } };
    ml_drawer m = ml_drawer_open(1, NULL, ML_DRAWER_VOCAB);
    static uint32_t allowed[ML_DRAWER_VOCAB / 32 + 1];
    static float z[ML_DRAWER_VOCAB];
    int32_t ban[] = { 5, 2000 };

    for (uint64_t row = 0; row < 4; row++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            ml_draw_opts o = ml_drawer_plain;
            ml_draw d;
            ml_drawer_row(z, ML_DRAWER_VOCAB, row, row % 2 ? 0.3 : 3.0);
            o.top_k = cases[i].top_k;
            o.top_p = cases[i].top_p;
            o.min_p = cases[i].min_p;
            o.temperature = cases[i].temperature;
            o.dist = ML_DIST_DRAWN; /* so that other tokens have -inf */
            o.sample = row * 100 + i;
            for (size_t w = 0; w < sizeof allowed / sizeof *allowed; w++)
                allowed[w] = w % 3 ? 0xf0f0u << w % 8 : 0;
            d = ml_drawer_of(z, &o);
            if (cases[i].masked) {
                d.allowed = allowed; /* a grammar's, and bans */
                d.ban = ban;
                d.n_ban = 2;
            }
            check_draw(&m, z, d);
        }
    ml_drawer_close(&m);
}

/* --- the LM head ---------------------------------------------------------------------- */

typedef struct head {
    ml_backend be;
    float x[ROWS][WIDTH], *w, *dw; /* w: panels */
    float logprob[ROWS], entropy[ROWS], stat[ROWS][2], logits[ROWS][VOCAB];
    float dx[ROWS][WIDTH], dlogprob[ROWS], dentropy[ROWS], over[ROWS], over_stat[ROWS][2],
        dover[ROWS];
    int32_t row[ROWS], id[ROWS];
    ml_str support[ROWS];
    ml_support_rows supports;
    ml_op_args args;
    ml_op_attr attr;
    ml_rows rows;
    void *scratch;
} head;

static ml_tensor matrix(void *data, int64_t n, int64_t m) {
    return (ml_tensor){ .data = data, .dtype = ML_F32, .n_dim = 2, .shape = { n, m } };
}

static ml_tensor vector(void *data, int64_t n) {
    return (ml_tensor){ .data = data, .dtype = ML_F32, .n_dim = 1, .shape = { n } };
}

static size_t panel_at(int64_t i, int64_t k) {
    return (size_t)(i / 16 * 16 * WIDTH + k * 16 + i % 16);
}

static void fill(head *h, float temperature, float softcap) {
    size_t n_w = (VOCAB + 15) / 16 * 16 * WIDTH;

    h->w = calloc(n_w, sizeof *h->w);
    h->dw = calloc(n_w, sizeof *h->dw);
    for (int64_t i = 0; i < VOCAB; i++)
        for (int64_t k = 0; k < WIDTH; k++)
            h->w[panel_at(i, k)] = (float)(noise((uint64_t)i, (uint64_t)k) * 2 - 1);
    for (int i = 0; i < ROWS; i++) {
        h->row[i] = i;
        h->id[i] = i == 3 ? -1 : (int32_t)(noise(77, (uint64_t)i) * VOCAB);
        h->dlogprob[i] = (float)noise(78, (uint64_t)i) - 0.5f;
        h->dentropy[i] = (float)noise(79, (uint64_t)i) - 0.5f;
        h->dover[i] = (float)noise(80, (uint64_t)i) - 0.5f;
        for (int k = 0; k < WIDTH; k++)
            h->x[i][k] = (float)noise(81 + (uint64_t)i, (uint64_t)k) * 4 - 2;
    }
    h->supports = (ml_support_rows){ h->support, h->over, &h->over_stat[0][0], h->dover };
    h->rows = (ml_rows){ .n_token = ROWS,
                         .n_loss = ROWS,
                         .loss_row = h->row,
                         .loss_id = h->id,
                         .temperature = temperature,
                         .support = &h->supports };
    h->attr.logit_softcap = softcap;
    h->args = (ml_op_args){ .attr = &h->attr, .rows = &h->rows };
    h->args.in[0] = matrix(h->x, ROWS, WIDTH);
    h->args.w[0] = matrix(h->w, VOCAB, WIDTH);
    h->args.w[0].layout = ML_PANELS;
    h->args.out[0] = vector(h->logprob, ROWS);
    h->args.out[1] = vector(h->entropy, ROWS);
    h->args.out[2] = matrix(h->stat, ROWS, 2);
    h->args.out[3] = matrix(h->logits, ROWS, VOCAB);
    h->args.din[0] = matrix(h->dx, ROWS, WIDTH);
    h->args.dw[0] = matrix(h->dw, VOCAB, WIDTH);
    h->args.dw[0].layout = ML_PANELS;
    h->args.dout[0] = vector(h->dlogprob, ROWS);
    h->args.dout[1] = vector(h->dentropy, ROWS);
}

static void run(head *h, int threads, const char *level, bool logits) {
    size_t bytes, back;

    MUST(ml_backend_cpu_open(&h->be, threads, level, &err));
    h->args.out[3].data = logits ? h->logits : NULL;
    bytes = h->be.ops->scratch(h->be.stream, ML_OP_LMHEAD, &h->args, false);
    back = h->be.ops->scratch(h->be.stream, ML_OP_LMHEAD, &h->args, true);
    h->scratch = aligned_alloc(64, ((bytes > back ? bytes : back) + 127) / 64 * 64);
    h->args.scratch = h->scratch;
    h->be.ops->forward[ML_OP_LMHEAD](h->be.stream, &h->args);
    h->be.ops->backward[ML_OP_LMHEAD](h->be.stream, &h->args);
    free(h->scratch);
    ml_backend_close(&h->be);
}

static void release(head *h) {
    free(h->w);
    free(h->dw);
    free(h);
}

/* log of the sum of exp of the scaled logits over a mask, in f64. */
static double log_sum(const double *s, const uint8_t *in, double *entropy) {
    double m = -(double)INFINITY, l = 0, u = 0;

    for (int i = 0; i < VOCAB; i++)
        m = in[i] ? fmax(m, s[i]) : m;
    for (int i = 0; i < VOCAB; i++)
        if (in[i]) {
            l += exp(s[i] - m);
            u += exp(s[i] - m) * (s[i] - m);
        }
    *entropy = log(l) - u / l;
    return m + log(l);
}

/* The weighted sum of a row's three results, as a function of its x. */
static double row_loss(const head *h, int i, const double *x, double *over) {
    static double s[VOCAB];
    static uint8_t in[VOCAB], all[VOCAB];
    static int32_t id[VOCAB];
    double cap = (double)h->attr.logit_softcap, t = (double)h->rows.temperature, entropy,
           none;
    double full, part;
    int64_t n = ml_support_ids(id, h->support[i], VOCAB);

    memset(in, 0, sizeof in);
    memset(all, 1, sizeof all);
    for (int64_t k = 0; k < n; k++)
        in[id[k]] = 1;
    for (int j = 0; j < VOCAB; j++) {
        double z = 0;
        for (int k = 0; k < WIDTH; k++)
            z += x[k] * (double)h->w[panel_at(j, k)];
        s[j] = (cap != 0 ? cap * tanh(z / cap) : z) / t;
    }
    full = log_sum(s, all, &entropy);
    part = log_sum(s, in, &none);
    *over = h->id[i] < 0 ? 0 : s[h->id[i]] - part;
    return (double)h->dentropy[i] * entropy +
           (h->id[i] < 0 ? 0
                         : (double)h->dlogprob[i] * (s[h->id[i]] - full) +
                               (double)h->dover[i] * *over);
}

static void head_against_f64(float temperature, float softcap) {
    static const double p[ROWS] = { 0.0005, 0.01, 0.5, 0.02, 0.97, 1, 0 };
    static uint8_t bytes[ROWS][1 + VOCAB];
    static int32_t id[VOCAB];
    head *h = calloc(1, sizeof *h);
    double x[WIDTH], over, none;

    fill(h, temperature, softcap);
    for (int i = 0; i < ROWS; i++) {
        int64_t n =
            random_set(id, VOCAB, p[i], 90 + (uint64_t)i, h->id[i] < 0 ? 0 : h->id[i]);
        h->support[i] =
            (ml_str){ (const char *)bytes[i], ml_support_write(bytes[i], id, n, VOCAB) };
    }
    run(h, 2, NULL, false);
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < WIDTH; k++)
            x[k] = (double)h->x[i][k];
        row_loss(h, i, x, &over);
        CHECK(fabs(over - (double)h->over[i]) < 1e-5);
        for (int k = 0; k < WIDTH; k++) {
            double at = x[k], up, down;
            x[k] = at + 1e-5;
            up = row_loss(h, i, x, &none);
            x[k] = at - 1e-5;
            down = row_loss(h, i, x, &none);
            x[k] = at;
            if (!(fabs((up - down) / 2e-5 - (double)h->dx[i][k]) < 2e-5))
                ml_test_fail(__FILE__, __LINE__, "row %d, x %d: %g, expected %g", i, k,
                             (double)h->dx[i][k], (up - down) / 2e-5);
        }
    }
    release(h);
}

static void the_head_normalises_over_supports(void) {
    head_against_f64(1.0f, 0.0f);
    head_against_f64(0.7f, 6.0f);
}

/* A draw's log-prob over its support is the head's; levels, threads and stored logits change
 * nothing. */
static void draw_and_head_have_the_same_bits(void) {
    static uint8_t bytes[ROWS][1 + VOCAB];
    ml_draw_opts o = ml_drawer_plain;
    head *h = calloc(1, sizeof *h), *other;
    ml_draw d[ROWS];
    ml_drawer m = ml_drawer_open(1, NULL, VOCAB);

    fill(h, 1.3f, 0.0f);
    h->rows.support = NULL;
    run(h, 1, NULL, true);
    o.temperature = 1.3f;
    o.top_p = 0.7f;
    for (int i = 0; i < ROWS; i++) {
        d[i] = ml_drawer_of(h->logits[i], &o);
        d[i].support = bytes[i];
        ml_drawer_draw(&m, &d[i], 1);
        h->id[i] = d[i].id;
        h->support[i] = (ml_str){ (const char *)bytes[i], (size_t)d[i].n_support };
    }
    h->rows.support = &h->supports;
    memset(h->dw, 0, (VOCAB + 15) / 16 * 16 * WIDTH * sizeof *h->dw);
    run(h, 1, NULL, true);
    for (int i = 0; i < ROWS; i++)
        CHECK(memcmp(&h->over[i], &d[i].support_logprob, sizeof(float)) == 0);
    for (const char *const *level = ml_backend_cpu_levels(); *level; level++) {
        other = calloc(1, sizeof *other);
        fill(other, 1.3f, 0.0f);
        memcpy(other->id, h->id, sizeof h->id);
        memcpy(other->support, h->support, sizeof h->support);
        run(other, 3, *level, false);
        CHECK(memcmp(other->over, h->over, sizeof h->over) == 0);
        CHECK(memcmp(other->dx, h->dx, sizeof h->dx) == 0);
        CHECK(memcmp(other->dw, h->dw, (VOCAB + 15) / 16 * 16 * WIDTH * sizeof *h->dw) ==
              0);
        release(other);
    }
    ml_drawer_close(&m);
    release(h);
}

/* The support of all ids is no support: the same log-probs and gradients, bit for bit. */
static void the_whole_vocabulary_changes_no_bits(void) {
    head *none = calloc(1, sizeof *none), *all = calloc(1, sizeof *all);

    fill(none, 0.7f, 0.0f);
    fill(all, 0.7f, 0.0f);
    none->rows.support = NULL;
    memset(none->dentropy, 0, sizeof none->dentropy);
    memset(all->dentropy, 0, sizeof all->dentropy);
    memcpy(all->dover, all->dlogprob, sizeof all->dover);
    memset(all->dlogprob, 0, sizeof all->dlogprob);
    run(none, 1, NULL, false);
    run(all, 1, NULL, false);
    CHECK(memcmp(all->over, none->logprob, sizeof all->over) == 0);
    CHECK(memcmp(all->logprob, none->logprob, sizeof all->over) == 0);
    CHECK(memcmp(all->dx, none->dx, sizeof all->dx) == 0);
    CHECK(memcmp(all->dw, none->dw, (VOCAB + 15) / 16 * 16 * WIDTH * sizeof *all->dw) == 0);
    release(none);
    release(all);
}

static const ml_test tests[] = {
    { "supports are read back", supports_are_read_back },
    { "the bytes of supports are fixed", bytes_are_fixed },
    { "damaged records are refused", damaged_records_are_refused },
    { "draws return what they may take", draws_return_what_they_may_take },
    { "the LM head normalises over supports", the_head_normalises_over_supports },
    { "draw and LM head have the same bits", draw_and_head_have_the_same_bits },
    { "the whole vocabulary changes no bits", the_whole_vocabulary_changes_no_bits },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
