/* Learning rates and weight decays against those that Megatron's scheduler gave. */
#include <math.h>
#include <string.h>

#include "tests/support/cases.h"
#include "tests/support/test.h"
#include "train/lr.h"

static int word(const ml_json *v, const char *const *words) {
    for (int i = 0; words[i]; i++)
        if (v && v->type == ML_JSON_STRING && ml_str_is(v->text, words[i]))
            return i;
    return 0;
}

static ml_lr_opts opts_of(const ml_json *a) {
    static const char *const styles[] = { "constant", "linear",
                                          "cosine",   "inverse-square-root",
                                          "WSD",      NULL };
    static const char *const wsd[] = { "exponential", "linear", "cosine", "minus_sqrt",
                                       NULL };
    static const char *const incr[] = { "constant", "linear", "cosine", NULL };
    int64_t batch = ml_case_i64(a, "global_batch_size", 0);
    int64_t n = ml_case_i64(a, "num_rollout", 0) * ml_case_i64(a, "rollout_batch_size", 0) *
                ml_case_i64(a, "n_samples_per_prompt", 0);

    return (ml_lr_opts){
        .train_iters = n / batch,
        .global_batch_size = batch,
        .lr = ml_case_f64(a, "lr", 0),
        .min_lr = ml_case_f64(a, "min_lr", 0),
        .warmup_init = ml_case_f64(a, "lr_warmup_init", 0),
        .style = (ml_lr_style)word(ml_json_get(a, "lr_decay_style"), styles),
        .decay_iters = ml_case_i64(a, "lr_decay_iters", 0),
        .warmup_iters = ml_case_i64(a, "lr_warmup_iters", 0),
        .warmup_fraction = ml_case_f64(a, "lr_warmup_fraction", 0),
        .wsd_decay_iters = ml_case_i64(a, "lr_wsd_decay_iters", 0),
        .wsd_style = (ml_wsd_style)word(ml_json_get(a, "lr_wsd_decay_style"), wsd),
        .start_weight_decay = ml_case_f64(a, "start_weight_decay", 0),
        .end_weight_decay = ml_case_f64(a, "end_weight_decay", 0),
        .weight_decay_style =
            (ml_decay_incr_style)word(ml_json_get(a, "weight_decay_incr_style"), incr),
    };
}

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-12 * fabs(b) + 1e-20;
}

static void check_case(ml_case *c) {
    ml_lr_opts o = opts_of(c->args);
    ml_err err = { 0 };
    ml_lr s;
    int64_t n, n_decay;
    double *lr = ml_case_f64s(c, ml_json_get(c->out, "lr"), &n);
    double *decay = ml_case_f64s(c, ml_json_get(c->out, "weight_decay"), &n_decay);

    if (ml_lr_init(&s, &o, &err) != ML_OK) {
        ml_case_fail(c, err.msg);
        return;
    }
    if (n < 2 || n != n_decay || o.train_iters != ml_case_i64(c->out, "train_iters", -1))
        ml_case_fail(c, "the number of values or of iterations differs");
    for (int64_t i = 0; i < n; i++) {
        if (!near(ml_lr_at(&s, i * o.global_batch_size), lr[i]))
            ml_case_fail(c, "a learning rate differs");
        if (!near(ml_lr_weight_decay_at(&s, i * o.global_batch_size), decay[i]))
            ml_case_fail(c, "a weight decay differs");
    }
}

static void as_megatron(void) {
    ml_test_cases("lr_megatron.jsonl", check_case);
}

static void refuses_what_does_not_go_together(void) {
    ml_lr_opts good = { .train_iters = 10, .global_batch_size = 4, .lr = 1e-3 }, o;
    ml_lr s;
    ml_err err = { 0 };

    CHECK(ml_lr_init(&s, &good, &err) == ML_OK);
    o = good;
    o.min_lr = 1e-2;
    CHECK(ml_lr_init(&s, &o, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "--min-lr");
    o = good;
    o.warmup_iters = 10;
    CHECK(ml_lr_init(&s, &o, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "--lr-warmup-iters");
    o = good;
    o.style = ML_LR_WSD;
    CHECK(ml_lr_init(&s, &o, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "--lr-wsd-decay-iters");
    o = good;
    o.end_weight_decay = 0.1;
    CHECK(ml_lr_init(&s, &o, &err) == ML_EUSAGE);
    o = good;
    o.train_iters = 0;
    CHECK(ml_lr_init(&s, &o, &err) == ML_EUSAGE);
}

static const ml_test tests[] = {
    { "learning rates and weight decay are Megatron's", as_megatron },
    { "contradictory learning-rate options are refused",
      refuses_what_does_not_go_together },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
