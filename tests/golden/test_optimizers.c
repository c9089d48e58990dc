/* Optimizers against torch's AdamW, SGD and Muon and transformers' Adafactor, to 1e-6 after five
 * steps (tools/gen_optimizer_golden.py); their bits on other threads and levels; moments in
 * fewer bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/moments.h"
#include "base/file.h"
#include "base/json.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "train/optimizer.h"

#define MODEL "tests/golden/data/qwen3"
#define STEPS 5

typedef struct fixture {
    ml_spec spec;
    ml_checkpoint *ckpt;
    ml_backend be;
    ml_weights weights, grads;
    ml_optimizer opt;
    ml_arena arena;
} fixture;

static const ml_optim_rule_opts adam = { .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-8 };

static void begin(fixture *w, int n_thread, const char *level, ml_weight_dtype dtype,
                  ml_optim_rule_opts rule) {
    ml_optimizer_opts opts = { .rule = rule };

    *w = (fixture){ 0 };
    ml_arena_init(&w->arena, "test");
    MUST(ml_spec_open(&w->spec, MODEL, &err));
    MUST(ml_checkpoint_open(&w->ckpt, MODEL, &err));
    MUST(ml_backend_cpu_open(&w->be, n_thread, level, &err));
    MUST(ml_weights_load(&w->weights, &w->spec, w->ckpt, dtype, &w->be, &w->arena, &err));
    MUST(ml_weights_zeros(&w->grads, &w->spec, &w->be, &w->arena, &err));
    MUST(ml_optimizer_open(&w->opt, &w->spec, &w->weights, &w->be, &opts, &err));
}

static void end(fixture *w) {
    ml_optimizer_close(&w->opt);
    ml_weights_close(&w->grads);
    ml_weights_close(&w->weights);
    ml_backend_close(&w->be);
    ml_checkpoint_close(w->ckpt);
    ml_spec_close(&w->spec);
    ml_arena_release(&w->arena);
}

/* As in the generator. */
static float grad_of(int64_t i, int step) {
    return 1e-3f * (float)((i * i % 5003 + i * 7919 + step * 104729) % 2003 - 1001);
}

static void set_grads(fixture *w, int step) {
    for (int32_t i = 0; i < w->grads.n; i++) {
        const ml_param *p = &w->spec.param[i];
        int64_t rows = p->n_dim == 2 ? p->shape[0] : 1;
        int64_t cols = p->n_dim == 2 ? p->shape[1] : p->shape[0];
        float *row = malloc((size_t)cols * sizeof *row);
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = 0; c < cols; c++)
                row[c] = grad_of(r * cols + c + 31 * (int64_t)strlen(p->name), step);
            ml_weights_pack(&w->grads, i, 0, r, 1, row);
        }
        free(row);
    }
}

static void steps(fixture *w, int from, int to, double lr) {
    for (int k = from; k < to; k++) {
        ml_update u;
        set_grads(w, k);
        MUST(ml_optimizer_step(&w->opt, &w->grads, lr, 0.1, 1.0, &u, &err));
        CHECK(u.applied);
    }
}

/* --- goldens ------------------------------------------------------------------- */

static void check_row(const fixture *w, int32_t i, int64_t r, const ml_json *want,
                      const char *what) {
    float row[4096];
    int32_t n = 0;

    ml_weights_unpack(&w->weights, i, 0, r, 1, ML_F32, row);
    for (const ml_json *v = want->child; v; v = v->next, n++) {
        double x = HUGE_VAL;
        CHECK(ml_json_f64(v, &x));
        if (!(fabs((double)row[n] - x) <= 1e-6))
            ml_test_fail(__FILE__, __LINE__,
                         "%s of %s, row %d, column %d: %.9g, torch %.9g", what,
                         w->spec.param[i].name, (int)r, (int)n, (double)row[n], x);
    }
    CHECK(n == 6);
}

static void follows(const char *name, ml_optim_rule_opts rule, double lr) {
    ml_file f = { 0 };
    const ml_json *root, *one;
    int32_t n = 0;
    fixture w;

    begin(&w, 2, NULL, ML_WEIGHT_F32, rule);
    steps(&w, 0, STEPS, lr);
    MUST(ml_file_map(&f, "tests/golden/optimizers.json", &err));
    MUST(ml_json_parse(&root, &w.arena, f.bytes, "optimizers.json", &err));
    one = ml_json_get(root, name);
    for (int32_t i = 0; i < w.spec.n_param; i++) {
        const ml_param *p = &w.spec.param[i];
        const ml_json *rows = ml_json_get(one, p->name);
        if (!rows)
            continue;
        check_row(&w, i, 0, rows->child, name);
        check_row(&w, i, p->n_dim == 2 ? p->shape[0] - 1 : 0, rows->child->next, name);
        n++;
    }
    CHECK(n >= 20);
    ml_file_unmap(&f);
    end(&w);
}

static ml_optim_rule_opts muon(ml_muon_scale scale) {
    ml_optim_rule_opts o = adam;

    o.kind = ML_OPTIMIZER_MUON;
    o.muon_momentum = 0.95;
    o.muon_nesterov = true;
    o.muon_iter = 5;
    o.muon_coef = ML_MUON_SIMPLE;
    o.muon_scale = scale;
    o.muon_extra_scale = 1;
    return o;
}

static ml_optim_rule_opts adafactor(bool scaled) {
    return (ml_optim_rule_opts){ .kind = ML_OPTIMIZER_ADAFACTOR,
                                 .factor_decay = 0.8,
                                 .factor_clip = 1,
                                 .factor_eps = 1e-30,
                                 .factor_eps_scale = 1e-3,
                                 .factor_scale = scaled };
}

static void adamw_is_that_of_torch(void) {
    ml_optim_rule_opts o = adam;

    follows("adamw", o, 1e-2);
    o.format1 = o.format2 = ML_MOMENT_BF16;
    follows("adamw_bf16", o, 1e-3);
}

static void muon_is_that_of_torch(void) {
    ml_optim_rule_opts o = muon(ML_MUON_SPECTRAL);

    o.muon_extra_scale = 0.2;
    follows("muon", o, 1e-3);
    o = muon(ML_MUON_SHAPE_SCALING);
    o.muon_momentum = 0.9;
    o.muon_nesterov = false;
    o.muon_iter = 3;
    follows("muon_original", o, 1e-3);
}

static void sgd_is_that_of_torch(void) {
    follows("sgd", (ml_optim_rule_opts){ .kind = ML_OPTIMIZER_SGD, .momentum = 0.9 }, 1e-2);
}

static void adafactor_is_that_of_transformers(void) {
    follows("adafactor", adafactor(false), 1e-3);
    follows("adafactor_scaled", adafactor(true), 1e-2);
}

/* --- bits ------------------------------------------------------------------------ */

static void same(const ml_weights *a, const ml_weights *b, const char *what) {
    for (int32_t i = 0; i < a->n; i++)
        if (memcmp(a->t[i].data, b->t[i].data, ml_tensor_bytes(&a->t[i])))
            ml_test_fail(__FILE__, __LINE__, "%s: tensor %d differs", what, i);
}

static void bits_are_the_same(ml_optim_rule_opts rule) {
    const char *const *levels = ml_backend_cpu_levels();
    fixture one, other;

    begin(&one, 1, NULL, ML_WEIGHT_BF16, rule);
    steps(&one, 0, 3, 1e-2);
    for (int k = 0; levels[k]; k++) {
        begin(&other, 3, levels[k], ML_WEIGHT_BF16, rule);
        steps(&other, 0, 3, 1e-2);
        same(&one.weights, &other.weights, levels[k]);
        same(&one.opt.master, &other.opt.master, levels[k]);
        end(&other);
    }
    end(&one);
}

static void bits_do_not_depend_on_threads(void) {
    ml_optim_rule_opts o = adam;

    o.format1 = o.format2 = ML_MOMENT_FP8;
    bits_are_the_same(o);
    o = muon(ML_MUON_UNIT_RMS_NORM);
    o.muon_coef = ML_MUON_QUINTIC;
    bits_are_the_same(o);
    bits_are_the_same(adafactor(true));
}

/* --- Newton-Schulz --------------------------------------------------------------- */

/* After the quintic iterations the singular values are near 1: the columns of an update of a
 * tall matrix are nearly orthonormal. */
static void muon_orthogonalizes(void) {
    ml_optim_rule_opts o = muon(ML_MUON_SHAPE_SCALING);
    float before[4096], after[4096];
    double dot[2][2] = { { 0 } };
    int32_t i, member;
    fixture w;

    o.muon_coef = ML_MUON_QUINTIC;
    o.muon_iter = 10;
    begin(&w, 1, NULL, ML_WEIGHT_F32, o);
    i = ml_spec_find(&w.spec, ml_str_of("model.layers.0.mlp.down_proj.weight"), &member);
    CHECK(w.spec.param[i].shape[0] < w.spec.param[i].shape[1]);
    for (int k = 0; k < 2; k++)
        ml_weights_unpack(&w.weights, i, 0, k, 1, ML_F32, before + 2048 * k);
    set_grads(&w, 0);
    {
        ml_update u;
        MUST(ml_optimizer_step(&w.opt, &w.grads, 1, 0, 1, &u, &err));
    }
    for (int k = 0; k < 2; k++)
        ml_weights_unpack(&w.weights, i, 0, k, 1, ML_F32, after + 2048 * k);
    for (int a = 0; a < 2; a++)
        for (int b = 0; b < 2; b++)
            for (int64_t c = 0; c < w.spec.param[i].shape[1]; c++)
                dot[a][b] += (double)(before[2048 * a + c] - after[2048 * a + c]) *
                             (double)(before[2048 * b + c] - after[2048 * b + c]);
    CHECK(fabs(dot[0][0] - 1) < 0.3 && fabs(dot[1][1] - 1) < 0.3);
    CHECK(fabs(dot[0][1]) < 0.2 && fabs(dot[1][0]) < 0.2);
    end(&w);
}

/* --- FP8 ---------------------------------------------------------------------------- */

enum { N = 1000 };

static void fill(float *x, bool second) {
    for (int i = 0; i < N; i++) {
        x[i] = grad_of(i, 3) * (i < 512 ? 1e-6f : 1e3f) * (i % 7 == 0 ? 1e-4f : 1.0f);
        if (second)
            x[i] = x[i] * x[i];
    }
    x[5] = 0;
}

static void check_format(bool second) {
    size_t bytes = ml_moment_bytes(ML_MOMENT_FP8, N);
    unsigned char *data = malloc(bytes), *again = malloc(bytes);
    float x[N], y[N], z[N];
    ml_moment m = { ML_MOMENT_FP8, data, N, second, .step = 7, .id = 3 };

    CHECK(bytes < N + 64 + 8);
    fill(x, second);
    ml_moment_store(&m, 0, N, x);
    ml_moment_load(y, &m, 0, N);
    for (int i = 0; i < N; i++) {
        double big = i < 512 ? 1.001e-6 : 1001, size = fabs((double)x[i]);
        double unit = second ? sqrt(size) : size,
               got = second ? sqrt((double)y[i]) : (double)y[i];
        CHECK(fabs(fabs(got) - unit) <= unit / 8 + big * 0x1p-16);
        CHECK(second ? (x[i] > 0) == (y[i] > 0) : x[i] * y[i] >= 0);
    }
    m.data = again;
    m.step = 8; /* other random bits: loaded values have no rest to round */
    ml_moment_store(&m, 0, N, y);
    ml_moment_load(z, &m, 0, N);
    CHECK(memcmp(y, z, sizeof y) == 0);
    free(data);
    free(again);
}

static void fp8_keeps_its_own_values(void) {
    check_format(false);
    check_format(true);
}

/* The mean of many roundings is the value: a small decay of an average adds up. */
static void fp8_rounds_without_bias(void) {
    unsigned char data[N + 128];
    float x[N], y[N];
    double sum = 0;

    for (int i = 0; i < N; i++)
        x[i] = i % 256 ? 1.03f : 1.75f;
    for (uint64_t k = 0; k < 20; k++) {
        ml_moment m = { ML_MOMENT_FP8, data, N, .step = k };
        ml_moment_store(&m, 0, N, x);
        ml_moment_load(y, &m, 0, N);
        for (int i = 0; i < N; i++)
            sum += i % 256 ? (double)y[i] : 0;
    }
    CHECK(fabs(sum / (20 * (N - 4)) - 1.03) < 2e-3);
}

/* 20 steps with constant gradients end near those with f32 moments. */
static void fp8_trains_like_f32(void) {
    ml_optim_rule_opts o = adam;
    double far = 0, all = 0;
    fixture a, b, c;

    begin(&a, 2, NULL, ML_WEIGHT_F32, o);
    begin(&c, 2, NULL, ML_WEIGHT_F32, o);
    o.format1 = o.format2 = ML_MOMENT_FP8;
    begin(&b, 2, NULL, ML_WEIGHT_F32, o);
    CHECK(b.opt.bytes < a.opt.bytes / 3);
    steps(&a, 0, 20, 1e-3);
    steps(&b, 0, 20, 1e-3);
    for (int32_t i = 0; i < a.weights.n; i++)
        for (size_t k = 0; k < ml_tensor_bytes(&a.weights.t[i]) / sizeof(float); k++) {
            double x = (double)((float *)a.weights.t[i].data)[k];
            double y = (double)((float *)b.weights.t[i].data)[k];
            double z = (double)((float *)c.weights.t[i].data)[k];
            far += (x - y) * (x - y);
            all += (x - z) * (x - z);
        }
    CHECK(all > 0 && sqrt(far / all) < 0.1);
    end(&a);
    end(&b);
    end(&c);
}

static const ml_test tests[] = {
    { "AdamW is that of torch, with bf16 moments, too", adamw_is_that_of_torch },
    { "Muon is that of torch", muon_is_that_of_torch },
    { "SGD is that of torch", sgd_is_that_of_torch },
    { "Adafactor is that of transformers", adafactor_is_that_of_transformers },
    { "updates of whole matrices and FP8 have the same bits on all threads and levels",
      bits_do_not_depend_on_threads },
    { "Newton-Schulz iterations orthogonalize an update", muon_orthogonalizes },
    { "FP8 moments that were loaded are stored without change", fp8_keeps_its_own_values },
    { "stochastic rounding to FP8 has no bias", fp8_rounds_without_bias },
    { "FP8 moments train like f32 moments, in a third of the memory", fp8_trains_like_f32 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
