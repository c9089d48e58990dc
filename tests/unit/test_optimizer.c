/* The optimizer against formulas in f64, against itself, and against bad gradients. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "train/master_weights.h"

#define MODEL "tests/golden/data/qwen3"

/* A model with gradients that a formula gives. */
typedef struct fixture {
    ml_spec spec;
    ml_checkpoint *ckpt;
    ml_backend be;
    ml_weights weights, grads;
    ml_optimizer opt;
    ml_arena arena;
} fixture;

static const ml_optimizer_opts adam = {
    .rule = { .kind = ML_OPTIMIZER_ADAM, .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-8 }
};

static bool begin(fixture *w, int n_thread, const char *level, ml_weight_dtype dtype,
                  ml_optimizer_opts opts) {
    ml_err err = { 0 };
    bool ok;

    *w = (fixture){ 0 };
    ml_arena_init(&w->arena, "test");
    ok = !ml_spec_open(&w->spec, MODEL, &err) &&
         !ml_checkpoint_open(&w->ckpt, MODEL, &err) &&
         !ml_backend_cpu_open(&w->be, n_thread, level, &err) &&
         !ml_weights_load(&w->weights, &w->spec, w->ckpt, dtype, &w->be, &w->arena, &err) &&
         !ml_weights_zeros(&w->grads, &w->spec, &w->be, &w->arena, &err) &&
         !ml_optimizer_open(&w->opt, &w->spec, &w->weights, &w->be, &opts, &err);
    if (!ok)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return ok;
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

static float grad_of(int64_t i, int step) {
    return 1e-3f * (float)((i * 7919 + step * 104729) % 2003 - 1001);
}

/* Padding gets none, as after a backward: only what unpacks is set. */
static void set_grads(fixture *w, int step) {
    for (int32_t i = 0; i < w->grads.n; i++) {
        const ml_param *p = &w->spec.param[i];
        int64_t rows = p->n_dim == 2 ? p->shape[0] : 1;
        int64_t cols = p->n_dim == 2 ? p->shape[1] : p->shape[0];
        float *row = malloc((size_t)cols * sizeof *row);
        for (int32_t e = 0; e < p->n_stack; e++)
            for (int64_t r = 0; r < rows; r++) {
                for (int64_t c = 0; c < cols; c++)
                    row[c] = grad_of(i * 31 + r * cols + c, step);
                ml_weights_pack(&w->grads, i, e, r, 1, row);
            }
        free(row);
    }
}

static void steps(fixture *w, int n, double lr, double decay) {
    ml_update u;
    for (int k = 0; k < n; k++) {
        set_grads(w, k);
        CHECK(!ml_optimizer_step(&w->opt, &w->grads, lr, decay, 1.0, &u, NULL));
        CHECK(u.applied && u.bad_param == ML_NONE);
    }
}

static int32_t find_param(const fixture *w, const char *name) {
    int32_t member, i = ml_spec_find(&w->spec, ml_str_of(name), &member);
    CHECK(i != ML_NONE);
    return i;
}

static const char *const matrix = "model.layers.0.mlp.down_proj.weight";
static const char *const vector = "model.norm.weight";

static void row_of(const fixture *w, const char *name, float *out) {
    ml_weights_unpack(&w->weights, find_param(w, name), 0, 0, 1, ML_F32, out);
}

/* AdamW of one element in f64. */
static double reference(double x, int64_t index, int n, double lr, double decay) {
    double m = 0, v = 0;
    for (int k = 0; k < n; k++) {
        double g = (double)grad_of(index, k), t = k + 1;
        m = 0.9 * m + 0.1 * g;
        v = 0.98 * v + 0.02 * g * g;
        x -= lr * decay * x;
        x -= lr * (m / (1 - pow(0.9, t))) / (sqrt(v / (1 - pow(0.98, t))) + 1e-8);
    }
    return x;
}

static void check_row(const fixture *w, const char *name, const float *before, int n,
                      double lr, double decay) {
    int32_t i = find_param(w, name);
    float row[1024];

    row_of(w, name, row);
    for (int64_t c = 0; c < 16; c++) {
        double want = reference((double)before[c], i * 31 + c, n, lr, decay);
        CHECK(fabs((double)row[c] - want) < 2e-6 * (1 + fabs(want)));
        CHECK(row[c] != before[c]);
    }
}

static void adamw_is_the_formula(void) {
    fixture w;
    float m[1024], v[1024];

    if (!begin(&w, 1, NULL, ML_WEIGHT_F32, adam))
        return;
    row_of(&w, matrix, m);
    row_of(&w, vector, v);
    steps(&w, 5, 1e-2, 0.1);
    CHECK(w.weights.version == 5);
    check_row(&w, matrix, m, 5, 1e-2, 0.1);
    check_row(&w, vector, v, 5, 1e-2, 0.0);
    end(&w);
}

static void sgd_is_the_formula(void) {
    fixture w;
    float before[1024], after[1024];
    double x, m = 0;

    if (!begin(
            &w, 1, NULL, ML_WEIGHT_F32,
            (ml_optimizer_opts){ .rule = { .kind = ML_OPTIMIZER_SGD, .momentum = 0.9 } }))
        return;
    row_of(&w, matrix, before);
    steps(&w, 3, 1e-2, 0.1);
    row_of(&w, matrix, after);
    x = (double)before[3];
    for (int k = 0; k < 3; k++) {
        m = 0.9 * m + (double)grad_of(find_param(&w, matrix) * 31 + 3, k) + 0.1 * x;
        x -= 1e-2 * m;
    }
    CHECK(fabs((double)after[3] - x) < 1e-6 && after[3] != before[3]);
    end(&w);
}

static void same(const ml_weights *a, const ml_weights *b, const char *what) {
    for (int32_t i = 0; i < a->n; i++)
        if (memcmp(a->t[i].data, b->t[i].data, ml_tensor_bytes(&a->t[i])))
            ml_test_fail(__FILE__, __LINE__, "%s: tensor %d differs", what, i);
}

static void bits_do_not_depend_on_threads_or_levels(void) {
    const char *const *levels = ml_backend_cpu_levels();
    fixture one, other;
    ml_optimizer_opts o = adam;

    o.clip_grad = 1.0;
    if (!begin(&one, 1, NULL, ML_WEIGHT_BF16, o))
        return;
    steps(&one, 3, 1e-2, 0.1);
    for (int n = 2; n <= 3; n++)
        for (int k = 0; levels[k]; k++) {
            if (!begin(&other, n, levels[k], ML_WEIGHT_BF16, o))
                return;
            steps(&other, 3, 1e-2, 0.1);
            same(&one.weights, &other.weights, levels[k]);
            same(&one.opt.master, &other.opt.master, levels[k]);
            end(&other);
        }
    o.offload_dir = ml_test_dir();
    if (!begin(&other, 2, NULL, ML_WEIGHT_BF16, o))
        return;
    steps(&other, 3, 1e-2, 0.1);
    same(&one.weights, &other.weights, "in a file");
    same(&one.opt.moment2, &other.opt.moment2, "in a file");
    end(&other);
    end(&one);
}

/* The CPU as a device with memory of its own. */
static void *host_alloc(size_t bytes) {
    return malloc(bytes);
}

static void host_free(void *p) {
    free(p);
}

static bool begin_elsewhere(fixture *w, ml_device *dev, ml_optimizer_opts opts) {
    ml_err err = { 0 };
    bool ok = begin(w, 2, NULL, ML_WEIGHT_BF16, adam);

    ml_optimizer_close(&w->opt);
    ml_weights_close(&w->grads);
    ml_weights_close(&w->weights);
    *dev = *w->be.dev;
    dev->host = false;
    dev->host_alloc = host_alloc;
    dev->host_free = host_free;
    w->be.dev = dev;
    w->be.linear = ML_ROWS;
    ok = ok &&
         !ml_weights_load(&w->weights, &w->spec, w->ckpt, ML_WEIGHT_BF16, &w->be, &w->arena,
                          &err) &&
         !ml_weights_zeros(&w->grads, &w->spec, &w->be, &w->arena, &err) &&
         !ml_optimizer_open(&w->opt, &w->spec, &w->weights, &w->be, &opts, &err);
    if (!ok)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return ok;
}

/* State in a file or in the host's memory, which the device gets in pieces, and state that makes
 * room between steps. */
static void state_leaves_the_device(void) {
    ml_optimizer_opts in_file = adam, on_host = adam;
    ml_device dev[4];
    fixture stays, file, host, away;
    ml_err err;

    in_file.offload_dir = ml_test_dir();
    in_file.offload_piece = 192; /* no parameter's size is a multiple of it */
    on_host.offload_host = true;
    on_host.offload_piece = 192;
    if (!begin_elsewhere(&stays, &dev[0], adam) ||
        !begin_elsewhere(&file, &dev[1], in_file) ||
        !begin_elsewhere(&away, &dev[2], adam) || !begin_elsewhere(&host, &dev[3], on_host))
        return;
    CHECK(file.opt.stage.bytes == 3 * 192 * sizeof(float) && !file.opt.buf.dev);
    CHECK(host.opt.stage.bytes == 3 * 192 * sizeof(float) && !host.opt.buf.dev);
    steps(&stays, 3, 1e-2, 0.1);
    steps(&file, 3, 1e-2, 0.1);
    steps(&host, 3, 1e-2, 0.1);
    for (int k = 0; k < 3; k++) {
        ml_update u;
        CHECK(ml_optimizer_release(&away.opt, &err) == ML_OK && !away.opt.buf.dev);
        CHECK(ml_optimizer_take(&away.opt, &err) == ML_OK && away.opt.buf.dev);
        set_grads(&away, k);
        CHECK(!ml_optimizer_step(&away.opt, &away.grads, 1e-2, 0.1, 1.0, &u, NULL));
    }
    same(&stays.weights, &file.weights, "in a file");
    same(&stays.opt.master, &file.opt.master, "in a file");
    same(&stays.opt.moment2, &file.opt.moment2, "in a file");
    same(&stays.weights, &host.weights, "on the host");
    same(&stays.opt.master, &host.opt.master, "on the host");
    same(&stays.opt.moment2, &host.opt.moment2, "on the host");
    same(&stays.weights, &away.weights, "away");
    same(&stays.opt.moment1, &away.opt.moment1, "away");
    ml_optimizer_reset(&file.opt);
    ml_optimizer_reset(&stays.opt);
    same(&stays.opt.moment2, &file.opt.moment2, "in a file, reset");
    CHECK(ml_optimizer_release(&away.opt, &err) == ML_OK); /* closed while it is away */
    end(&stays);
    end(&file);
    end(&host);
    end(&away);
}

/* Steps too small for bf16 add up in the master; the weight is its rounding. */
static void weights_round_their_masters(void) {
    fixture w;
    int32_t i, v;
    bool moved = false;
    float m[512];
    uint16_t weight[512];

    if (!begin(&w, 2, NULL, ML_WEIGHT_BF16, adam))
        return;
    steps(&w, 4, 1e-5, 0.0);
    i = find_param(&w, matrix);
    v = find_param(&w, vector);
    CHECK(w.weights.t[i].dtype == ML_BF16 && w.weights.t[v].dtype == ML_F32);
    CHECK(w.spec.param[i].shape[1] <= 512);
    for (int64_t r = 0; r < w.spec.param[i].shape[0]; r++) {
        ml_weights_unpack(&w.opt.master, i, 0, r, 1, ML_F32, m);
        ml_weights_unpack(&w.weights, i, 0, r, 1, ML_BF16, weight);
        for (int64_t k = 0; k < w.spec.param[i].shape[1]; k++) {
            CHECK(weight[k] == ml_f32_to_bf16(m[k]));
            moved = moved || m[k] != ml_bf16_to_f32(ml_f32_to_bf16(m[k]));
        }
    }
    for (int k = 0; k < 48; k++) {
        float n = ((float *)w.opt.master.t[v].data)[k];
        CHECK(((float *)w.weights.t[v].data)[k] == ml_bf16_to_f32(ml_f32_to_bf16(n)));
    }
    CHECK(moved);
    end(&w);
}

static void freezes_by_name(void) {
    ml_optimizer_opts o = adam;
    fixture w;
    float before[1024], after[1024], other[1024], other_after[1024];
    ml_err err = { 0 };
    ml_optimizer opt;

    o.freeze = "model.layers.1.*,*down_proj*";
    if (!begin(&w, 1, NULL, ML_WEIGHT_F32, o))
        return;
    row_of(&w, matrix, before);
    row_of(&w, vector, other);
    CHECK(w.opt.moment1.t[find_param(&w, matrix)].data == NULL);
    CHECK(w.opt.bytes < ml_optimizer_bytes(&w.spec, &adam, false));
    steps(&w, 2, 1e-2, 0.1);
    row_of(&w, matrix, after);
    row_of(&w, vector, other_after);
    CHECK(memcmp(before, after, 16 * sizeof *before) == 0);
    CHECK(memcmp(other, other_after, 16 * sizeof *other) != 0);
    o.freeze = "*";
    CHECK(ml_optimizer_open(&opt, &w.spec, &w.weights, &w.be, &o, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "leaves no parameter");
    o.freeze = "*down_proj*,layer.7";
    CHECK(ml_optimizer_open(&opt, &w.spec, &w.weights, &w.be, &o, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "layer.7");
    end(&w);
}

static void bad_gradients_are_named_and_not_applied(void) {
    fixture w;
    ml_update u;
    float before[1024], after[1024];
    int32_t i;

    if (!begin(&w, 2, NULL, ML_WEIGHT_F32, adam))
        return;
    set_grads(&w, 0);
    i = find_param(&w, matrix);
    ((float *)w.grads.t[i].data)[5] = NAN;
    ((float *)w.grads.t[0].data)[0] = INFINITY;
    row_of(&w, matrix, before);
    CHECK(!ml_optimizer_step(&w.opt, &w.grads, 1e-2, 0.1, 1.0, &u, NULL));
    row_of(&w, matrix, after);
    CHECK(!u.applied && u.bad_param == i && u.n_bad == 1);
    CHECK(w.opt.n_step == 0 && w.weights.version == 0);
    CHECK(memcmp(before, after, 16 * sizeof *before) == 0);
    end(&w);
}

static void clips_the_norm_of_all_gradients(void) {
    fixture w;
    ml_update u;
    ml_optimizer_opts o = { .rule = { .kind = ML_OPTIMIZER_SGD }, .clip_grad = 0.5 };
    double sum = 0;
    float before[1024], after[1024];

    if (!begin(&w, 1, NULL, ML_WEIGHT_F32, o))
        return;
    set_grads(&w, 0);
    for (int32_t i = 0; i < w.grads.n; i++)
        for (size_t k = 0; k < ml_tensor_bytes(&w.grads.t[i]) / sizeof(float); k++)
            sum += pow((double)((float *)w.grads.t[i].data)[k], 2);
    row_of(&w, matrix, before);
    CHECK(!ml_optimizer_step(&w.opt, &w.grads, 1.0, 0.0, 2.0, &u, NULL));
    row_of(&w, matrix, after);
    CHECK(fabs(u.grad_norm / (2 * sqrt(sum)) - 1) < 1e-12);
    CHECK(fabs(u.clip * u.grad_norm - 0.5) < 1e-6);
    CHECK(fabs((double)(before[1] - after[1]) -
               (double)grad_of(find_param(&w, matrix) * 31 + 1, 0) * 2 * u.clip) < 1e-6);
    end(&w);
}

/* One weight that is not its master's rounding is found. */
static void weights_are_held_against_masters(void) {
    ml_err err = { 0 };
    float row[4096];
    fixture w;

    if (!begin(&w, 1, NULL, ML_WEIGHT_BF16, adam))
        return;
    steps(&w, 2, 1e-3, 0.1);
    CHECK(ml_master_weights_check(&w.opt, &err) == ML_OK);
    ml_weights_unpack(&w.weights, 1, 0, 0, 1, ML_F32, row);
    row[2] += 1.0f;
    ml_weights_pack(&w.weights, 1, 0, 0, 1, row);
    CHECK(ml_master_weights_check(&w.opt, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, w.spec.param[1].name);
    CHECK_HAS(err.msg, "[0, 2] is ");
    end(&w);
}

static const ml_test tests[] = {
    { "AdamW is its formula in f64", adamw_is_the_formula },
    { "SGD is its formula in f64", sgd_is_the_formula },
    { "optimizer steps are the same bits for every level and thread count",
      bits_do_not_depend_on_threads_or_levels },
    { "offloaded optimizer state gives the same bits", state_leaves_the_device },
    { "bf16 weights are their f32 masters rounded", weights_round_their_masters },
    { "a weight that is not its master rounded is found",
      weights_are_held_against_masters },
    { "--freeze keeps parameters by name", freezes_by_name },
    { "a gradient that is not finite is named and not applied",
      bad_gradients_are_named_and_not_applied },
    { "gradients are clipped to the norm", clips_the_norm_of_all_gradients },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
