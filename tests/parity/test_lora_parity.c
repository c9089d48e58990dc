/* Adapters in every family: log-probs and gradients against those of the model with merged
 * weights, and rows that do not depend on which adapters other rows of the batch use. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "base/philox.h"
#include "model/lora.h"
#include "model/plan.h"
#include "tensor/codes.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"

#define DATA "tests/golden/data/"

enum { N_SEQ = 4, N_ADAPTER = 2, MAX_ROWS = 512 };

typedef struct fixture {
    ml_arena arena;
    ml_spec base, adapted;
    ml_checkpoint *checkpoint;
    ml_backend be;
    ml_weights weights, merged;
    ml_lora lora[N_ADAPTER];
    const ml_lora_site *site[N_ADAPTER];
    ml_lora_table table;
    ml_st_file *golden;
    const int32_t *id[N_SEQ];
    int32_t len[N_SEQ];
} fixture;

/* Adapters of different rank; the second shares what can be shared. */
static const ml_lora_opts makes[N_ADAPTER] = {
    { .rank = 3, .alpha = 6, .target = "all-linear", .seed = 1 },
    { .rank = 18,
      .alpha = 9,
      .rslora = true,
      .target = "all-linear",
      .fused = true,
      .shared_outer = true,
      .seed = 2 },
};

/* B is zero in a new adapter. */
static void fill_b(ml_lora *l) {
    for (int32_t s = 0; s < l->n_site; s++) {
        const ml_param *p = &l->spec.param[l->link[s].b];
        float row[64];
        if (l->link[s].b == ML_NONE)
            continue;
        for (int32_t e = 0; e < p->n_stack; e++)
            for (int64_t i = 0; i < p->shape[0]; i++) {
                for (int64_t k = 0; k < p->shape[1]; k++)
                    row[k] = (float)(0.1 * ml_philox_uniform(7, (uint64_t)(s * 4096 + e),
                                                             (uint64_t)(i * 64 + k)) -
                                     0.05);
                ml_weights_pack(&l->weights, l->link[s].b, e, i, 1, row);
            }
    }
}

static void open_adapters(fixture *f) {
    for (int i = 0; i < N_ADAPTER; i++) {
        MUST(ml_lora_new(&f->lora[i], &f->base, f->checkpoint, &makes[i], &f->be, &err));
        fill_b(&f->lora[i]);
        MUST(ml_lora_take_grads(&f->lora[i], &err));
        f->site[i] = f->lora[i].site;
    }
    f->table = (ml_lora_table){ .adapter = f->site, .n_adapter = N_ADAPTER };
    ml_spec_lora_insert(&f->adapted, NULL, 18);
}

static void open_fixture(fixture *f, const char *family, int n_thread) {
    char dir[256], path[300], name[32];

    *f = (fixture){ 0 };
    ml_arena_init(&f->arena, "parity");
    snprintf(dir, sizeof dir, DATA "%s", family);
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    MUST(ml_spec_open(&f->base, dir, &err));
    MUST(ml_spec_open(&f->adapted, dir, &err));
    MUST(ml_checkpoint_open(&f->checkpoint, dir, &err));
    MUST(ml_backend_cpu_open(&f->be, n_thread, NULL, &err));
    MUST(ml_weights_load(&f->weights, &f->base, f->checkpoint, ML_WEIGHT_F32, &f->be,
                         &f->arena, &err));
    MUST(ml_st_open(&f->golden, path, &err));
    for (int i = 0; i < N_SEQ; i++) {
        const ml_st_tensor *t;
        snprintf(name, sizeof name, "tokens.%d", i);
        t = ml_st_find(f->golden, ml_str_of(name));
        f->id[i] = t->data;
        f->len[i] = (int32_t)t->shape[0];
    }
    open_adapters(f);
    f->weights.lora = &f->table;
}

static void close_fixture(fixture *f) {
    for (int i = 0; i < N_ADAPTER; i++)
        ml_lora_close(&f->lora[i]);
    ml_st_close(f->golden);
    ml_weights_close(&f->weights);
    ml_weights_close(&f->merged);
    ml_backend_close(&f->be);
    ml_checkpoint_close(f->checkpoint);
    ml_spec_close(&f->base);
    ml_spec_close(&f->adapted);
    ml_arena_release(&f->arena);
}

static const ml_batch_caps caps = {
    .n_token = MAX_ROWS, .n_seq = 8, .n_loss = MAX_ROWS, .n_page = 64
};

/* A sequence and its adapter. */
typedef struct entry {
    int seq;
    int32_t adapter;
} entry;

static void fill_batch(fixture *f, ml_batch *b, const entry *e, int n) {
    int32_t target[MAX_ROWS];

    ml_batch_init(b, &f->arena, caps);
    for (int i = 0; i < n; i++) {
        int s = e[i].seq;
        for (int32_t k = 0; k < f->len[s]; k++)
            target[k] = k + 1 < f->len[s] ? f->id[s][k + 1] : ML_TARGET_NONE;
        ml_batch_add(b, f->id[s], target, f->len[s], 0, NULL);
        ml_batch_set_adapter(b, e[i].adapter);
    }
}

/* Log-probs of the entries, concatenated; backward: of their sum / 512, into grads or, without
 * them, into those of the adapters. */
static void score(fixture *f, const ml_spec *s, const ml_weights *w, const entry *e, int n,
                  bool backward, const ml_weights *grads, float *out) {
    static float each[MAX_ROWS];
    ml_plan *p = NULL;
    ml_batch b;
    ml_run run = { .weights = w, .grads = grads, .rows = &b.rows };

    MUST(ml_plan_new(
        &p, s, &f->be,
        (ml_plan_opts){ .caps = caps, .backward = backward, .frozen = backward && !grads },
        &err));
    MUST(ml_plan_alloc(p, &err));
    fill_batch(f, &b, e, n);
    ml_plan_forward(p, &run);
    ml_plan_read(p, &b.rows, out, NULL, NULL);
    for (int32_t i = 0; i < b.rows.n_loss; i++)
        each[i] = b.rows.loss_id[i] < 0 ? 0.0f : -1.0f / MAX_ROWS;
    if (backward)
        ml_plan_backward(p, &run, each, NULL);
    ml_plan_free(p);
}

/* --- merged weights ----------------------------------------------------------------- */

static double *values(ml_arena *a, const ml_weights *w, int32_t i, int32_t e, int64_t rows,
                      int64_t cols) {
    float *v = ML_NEW(a, float, rows *cols);
    double *d = ML_NEW(a, double, rows *cols);

    ml_weights_unpack(w, i, e, 0, rows, ML_F32, v);
    for (int64_t k = 0; k < rows * cols; k++)
        d[k] = (double)v[k];
    return d;
}

/* Adds what a site contributes to the gradients of its A and B: scale B^T dW, scale dW A^T. */
static void add_expected(fixture *f, const ml_lora *l, int32_t s, const ml_weights *dw,
                         double **da, double **db) {
    const ml_lora_layer *y = &l->layer[s];
    const ml_lora_link *k = &l->link[s];
    const ml_param *p = &f->base.param[y->param];
    int64_t rank = l->spec.param[k->a].shape[0];

    for (int32_t g = 0; g < y->n_group; g++) {
        int32_t ga = l->spec.param[k->a].n_stack > 1 ? g : 0;
        int32_t gb = l->spec.param[k->b].n_stack > 1 ? g : 0;
        const double *d = values(&f->arena, dw, y->param, g, p->shape[0], p->shape[1]);
        const double *a = values(&f->arena, &l->weights, k->a, ga, rank, y->n_in);
        const double *b = values(&f->arena, &l->weights, k->b, gb, y->n_out, rank);
        double *to_a = da[k->a] + ga * rank * y->n_in;
        double *to_b = db[k->b] + gb * y->n_out * rank;
        for (int64_t o = 0; o < y->n_out; o++)
            for (int64_t i = 0; i < y->n_in; i++) {
                double v = (double)k->scale *
                           d[y->transposed ? i * y->n_out + o : o * y->n_in + i];
                for (int64_t r = 0; r < rank; r++) {
                    to_a[r * y->n_in + i] += b[o * rank + r] * v;
                    to_b[o * rank + r] += v * a[r * y->n_in + i];
                }
            }
    }
}

/* Whether an earlier layer has the same weights, whose gradient is that of both. */
static bool is_repeated(const ml_lora *l, int32_t site) {
    for (int32_t i = 0; i < site; i++)
        if (l->layer[i].param == l->layer[site].param)
            return true;
    return false;
}

static void check_grads(fixture *f, const ml_lora *l, const ml_weights *dw) {
    int32_t n = l->spec.n_param;
    double **want = ML_NEW(&f->arena, double *, n), all = 0;

    for (int32_t i = 0; i < n; i++)
        want[i] = ML_NEW(&f->arena, double, ml_param_count(&l->spec.param[i]));
    for (int32_t s = 0; s < l->n_site; s++)
        if (l->link[s].a != ML_NONE && !is_repeated(l, s))
            add_expected(f, l, s, dw, want, want);
    for (int32_t i = 0; i < n; i++)
        for (int64_t k = 0; k < ml_param_count(&l->spec.param[i]); k++)
            all += want[i][k] * want[i][k];
    CHECK(all > 0);
    for (int32_t i = 0; i < n; i++) {
        const ml_param *p = &l->spec.param[i];
        int64_t each = p->shape[0] * p->shape[1];
        double off = 0, size = 0;
        for (int32_t e = 0; e < p->n_stack; e++) {
            const double *got =
                values(&f->arena, &l->grads, i, e, p->shape[0], p->shape[1]);
            for (int64_t k = 0; k < each; k++) {
                off += pow(got[k] - want[i][e * each + k], 2);
                size += pow(want[i][e * each + k], 2);
            }
        }
        if (!(sqrt(off) <= 1e-4 * sqrt(size) + 1e-6 * sqrt(all)))
            ml_test_fail(__FILE__, __LINE__, "%s: gradient off by %g of %g", p->name,
                         sqrt(off), sqrt(size));
    }
}

static void check_merged(fixture *f, int32_t adapter) {
    static const char *const what[] = { "first adapter", "second adapter" };
    entry e[N_SEQ], alone[N_SEQ];
    float got[MAX_ROWS], want[MAX_ROWS];
    double off = 0, size = 0;
    ml_weights grads;
    int32_t n = 0;

    for (int i = 0; i < N_SEQ; n += f->len[i++]) {
        e[i] = (entry){ i, adapter };
        alone[i] = (entry){ i, -1 };
    }
    MUST(ml_weights_clone(&f->merged, &f->weights, &f->be, &f->arena, &err));
    MUST(ml_weights_zeros(&grads, &f->base, &f->be, &f->arena, &err));
    ml_lora_merge(&f->lora[adapter], &f->base, &f->merged);
    score(f, &f->base, &f->merged, alone, N_SEQ, true, &grads, want);
    score(f, &f->adapted, &f->weights, e, N_SEQ, true, NULL, got);
    for (int32_t i = 0; i < n; i++) {
        off += pow((double)(got[i] - want[i]), 2);
        size += pow((double)want[i], 2);
    }
    if (!(sqrt(off) <= 1e-5 * sqrt(size)))
        ml_test_fail(__FILE__, __LINE__, "%s: log-probs off by %g of %g", what[adapter],
                     sqrt(off), sqrt(size));
    ml_lora_join_grads(&f->lora[adapter]);
    check_grads(f, &f->lora[adapter], &grads);
    ml_weights_close(&grads);
    ml_weights_close(&f->merged);
}

static void merged(const char *family) {
    fixture f;

    open_fixture(&f, family, 1);
    for (int32_t i = 0; i < N_ADAPTER; i++)
        check_merged(&f, i);
    close_fixture(&f);
    if (ml_test_failures())
        printf("  in %s\n", family);
}

/* --- mixed batches -------------------------------------------------------------------- */

static void same_bits(const char *family, const char *what, const void *a, const void *b,
                      size_t bytes) {
    if (memcmp(a, b, bytes) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s: %s", family, what);
}

/* The gradients of an adapter. */
static void *copy_grads(fixture *f, int32_t adapter) {
    ml_lora *l = &f->lora[adapter];
    void *copy = ml_arena_take(&f->arena, l->grads.buf.bytes, 1);

    ml_lora_join_grads(l);
    memcpy(copy, l->grads.buf.ptr, l->grads.buf.bytes);
    ml_lora_zero_grads(l);
    return copy;
}

static void mixed(const char *family) {
    static const entry all[] = { { 0, 1 }, { 1, -1 }, { 2, 0 },
                                 { 3, 1 }, { 1, 0 },  { 2, -1 } };
    static const entry first[] = { { 2, 0 }, { 1, 0 } }, second[] = { { 0, 1 }, { 3, 1 } };
    enum { N = sizeof all / sizeof *all };
    float got[MAX_ROWS], one[MAX_ROWS];
    fixture f, g;
    int32_t at = 0;

    open_fixture(&f, family, 2);
    open_fixture(&g, family, 1);
    score(&f, &f.adapted, &f.weights, all, N, false, NULL, got);
    for (int i = 0; i < N; at += f.len[all[i++].seq]) {
        bool base = all[i].adapter < 0;
        score(&g, base ? &g.base : &g.adapted, &g.weights, &all[i], 1, false, NULL, one);
        same_bits(family, "a row depends on the batch", got + at, one,
                  (size_t)f.len[all[i].seq] * sizeof *one);
    }
    score(&f, &f.adapted, &f.weights, all, N, true, NULL, got);
    score(&g, &g.adapted, &g.weights, first, 2, true, NULL, one);
    score(&g, &g.adapted, &g.weights, second, 2, true, NULL, one);
    for (int32_t i = 0; i < N_ADAPTER; i++)
        same_bits(family, "gradients depend on the batch or on the threads",
                  copy_grads(&f, i), copy_grads(&g, i), f.lora[i].grads.buf.bytes);
    close_fixture(&f);
    close_fixture(&g);
}

/* --- a quantized base --------------------------------------------------------------- */

/* f32 weights with the values of a quantized set. */
static void widen(fixture *f, const ml_weights *from) {
    for (int32_t i = 0; i < f->base.n_param; i++) {
        const ml_param *p = &f->base.param[i];
        int64_t rows = p->n_dim == 2 ? p->shape[0] : 1;
        int64_t cols = p->n_dim == 2 ? p->shape[1] : p->shape[0];
        float *v = ML_NEW(&f->arena, float, rows *cols);
        for (int32_t e = 0; e < p->n_stack; e++) {
            ml_weights_unpack(from, i, e, 0, rows, ML_F32, v);
            ml_weights_pack(&f->weights, i, e, 0, rows, v);
        }
    }
}

static int32_t count_quantized(const ml_weights *w) {
    int32_t n = 0;

    for (int32_t i = 0; i < w->n; i++)
        n += ml_dtype_codes(w->t[i].dtype) != NULL;
    return n;
}

static void quantized_to(const char *family, ml_weight_dtype dtype) {
    static const entry all[] = { { 0, 1 }, { 1, -1 }, { 2, 0 } };
    float got[MAX_ROWS], want[MAX_ROWS];
    void *grads[N_ADAPTER];
    ml_weights base;
    fixture f;

    open_fixture(&f, family, 2);
    MUST(ml_weights_load(&base, &f.base, f.checkpoint, dtype, &f.be, &f.arena, &err));
    base.lora = &f.table;
    CHECK(count_quantized(&base) > 0);
    widen(&f, &base);
    score(&f, &f.adapted, &base, all, 3, true, NULL, got);
    for (int32_t i = 0; i < N_ADAPTER; i++)
        grads[i] = copy_grads(&f, i);
    score(&f, &f.adapted, &f.weights, all, 3, true, NULL, want);
    for (int32_t i = 0; i < N_ADAPTER; i++)
        same_bits(family, "gradients of adapters differ from those of the values", grads[i],
                  copy_grads(&f, i), f.lora[i].grads.buf.bytes);
    same_bits(family, "log-probs differ from those of the values", got, want,
              (size_t)(f.len[0] + f.len[1] + f.len[2]) * sizeof *got);
    ml_weights_close(&base);
    close_fixture(&f);
}

/* One format for each family, or with MILES_LONG all of them. */
static void quantized(const char *family) {
    static const ml_weight_dtype dtypes[] = { ML_WEIGHT_FP8, ML_WEIGHT_INT8, ML_WEIGHT_INT4,
                                              ML_WEIGHT_INT4_G128, ML_WEIGHT_NF4 };
    enum { N = sizeof dtypes / sizeof *dtypes };
    static int n_family;

    for (int i = 0; i < (getenv("MILES_LONG") ? N : 1); i++)
        quantized_to(family, dtypes[(n_family + i) % N]);
    n_family++;
}

static void each_family(void (*fn)(const char *family), int part, int n_part) {
    ml_arena a;
    ml_names names;

    ml_arena_init(&a, "families");
    MUST(ml_dir_list(&names, DATA, &a, &err));
    CHECK(names.n > 20);
    for (int32_t i = part; i < names.n; i += n_part)
        fn(names.name[i]);
    ml_arena_release(&a);
}

static void merged_0(void) {
    each_family(merged, 0, 2);
}

static void merged_1(void) {
    each_family(merged, 1, 2);
}

static void mixed_0(void) {
    each_family(mixed, 0, 2);
}

static void mixed_1(void) {
    each_family(mixed, 1, 2);
}

static void quantized_all(void) {
    each_family(quantized, 0, getenv("MILES_LONG") ? 1 : 6);
}

static const ml_test tests[] = {
    { "a quantized base has the log-probs and adapter gradients of its values",
      quantized_all, 240 },
    { "an adapter is its merged weights, half of the families", merged_0, 240 },
    { "an adapter is its merged weights, the other half", merged_1, 240 },
    { "a row does not depend on other adapters of its batch, half of the families", mixed_0,
      240 },
    { "a row does not depend on other adapters of its batch, the other half", mixed_1,
      240 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
