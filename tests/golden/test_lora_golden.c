/* Adapters against PEFT: logits, log-probs, losses, gradients of every A and B, and a batch of
 * two adapters, as `miles score` writes them; merged weights; five steps of AdamW.  The cases
 * are in tests/golden/adapters; more of them in $MILES_FIXTURES, if that is set. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "base/file.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "train/trainer.h"

#define LOGITS_BOUND 1e-5
#define GRAD_BOUND 1e-4
#define FINAL_BOUND 1e-3 /* Adam amplifies gradients near its epsilon */

typedef struct golden_case {
    ml_arena arena;
    const char *dir, *base;
    ml_file json;
    const ml_json *root;
    ml_st_file *golden;
} golden_case;

static const char *root_dir(void) {
    return ml_test_fixtures() ? ml_test_fixtures() : "tests/golden/adapters";
}

/* False: the base is a model that this set does not have. */
static bool open_case(golden_case *c, const char *name) {
    const ml_json *base;

    *c = (golden_case){ 0 };
    ml_arena_init(&c->arena, "golden");
    c->dir = ml_arena_printf(&c->arena, "%s/lora/%s", root_dir(), name);
    MUST(ml_file_map(&c->json, ml_arena_printf(&c->arena, "%s/case.json", c->dir), &err));
    MUST(ml_json_parse(&c->root, &c->arena, c->json.bytes, "case.json", &err));
    base = ml_json_get(c->root, "base");
    c->base = ml_arena_printf(&c->arena, "%s/%s", root_dir(),
                              ml_arena_str(&c->arena, base->text.ptr, base->text.len));
    MUST(ml_st_open(&c->golden, ml_arena_printf(&c->arena, "%s/golden.safetensors", c->dir),
                    &err));
    return memchr(base->text.ptr, ':', base->text.len) == NULL;
}

static void close_case(golden_case *c) {
    ml_st_close(c->golden);
    ml_file_unmap(&c->json);
    ml_arena_release(&c->arena);
}

static double size_of(const float *v, size_t n) {
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += (double)v[i] * (double)v[i];
    return sqrt(s);
}

static void compare(const char *where, const char *name, const ml_st_tensor *got,
                    const void *want, size_t bytes, double bound) {
    const float *y = want, *x;
    double off = 0;

    if (!got || got->bytes != bytes) {
        ml_test_fail(__FILE__, __LINE__, "%s: %s: missing or of another size", where, name);
        return;
    }
    x = got->data;
    for (size_t i = 0; i < bytes / sizeof *x; i++)
        off += pow((double)x[i] - (double)y[i], 2);
    if (!(sqrt(off) <= bound * size_of(y, bytes / sizeof *y)))
        ml_test_fail(__FILE__, __LINE__, "%s: %s: off by %g of %g", where, name, sqrt(off),
                     size_of(y, bytes / sizeof *y));
}

static void score(const golden_case *c, const char *input, const char *output,
                  const char *more) {
    char line[2048], said[4096];

    snprintf(line, sizeof line,
             "score --hf-checkpoint %s --input %s --output %s --logits --grads %s", c->base,
             input, output, more);
    if (ml_test_miles(said, sizeof said, line) != 0)
        ml_test_fail(__FILE__, __LINE__, "miles %s: %s", line, said);
}

static bool starts(ml_str name, const char *prefix) {
    return strncmp(name.ptr, prefix, strlen(prefix)) == 0;
}

static void check_case(const char *name) {
    const char *path = ml_test_path("out.safetensors");
    ml_st_file *out = NULL;
    golden_case c;
    int32_t n_grad = 0;

    if (open_case(&c, name)) {
        score(&c, ml_arena_printf(&c.arena, "%s/golden.safetensors", c.dir), path,
              ml_arena_printf(&c.arena, "--lora-adapter-path %s", c.dir));
        MUST(ml_st_open(&out, path, &err));
        for (int32_t i = 0; i < c.golden->n; i++) {
            const ml_st_tensor *t = &c.golden->tensor[i];
            bool grad = starts(t->name, "grad.");
            n_grad += grad;
            if (grad || starts(t->name, "logits.") || starts(t->name, "logprobs.") ||
                starts(t->name, "loss"))
                compare(name, t->name.ptr, ml_st_find(out, t->name), t->data, t->bytes,
                        grad ? GRAD_BOUND : LOGITS_BOUND);
        }
        for (int32_t i = 0; i < out->n; i++)
            n_grad -= starts(out->tensor[i].name, "grad.");
        CHECK(n_grad == 0); /* no gradient more */
        ml_st_close(out);
    }
    close_case(&c);
}

/* --- merged weights ----------------------------------------------------------------- */

static void check_merged(const char *name) {
    const char *model = ml_test_path(name), *path = ml_test_path("out.safetensors");
    ml_st_file *out = NULL;
    const ml_st_tensor *want;
    char line[2048], said[4096];
    golden_case c;

    if (open_case(&c, name)) {
        want = ml_st_find(c.golden, ml_str_of("merged_logits.0"));
        snprintf(line, sizeof line,
                 "convert --hf-checkpoint %s --lora-adapter-path %s --save-hf %s", c.base,
                 c.dir, model);
        if (ml_test_miles(said, sizeof said, line) != 0)
            ml_test_fail(__FILE__, __LINE__, "miles %s: %s", line, said);
        c.base = model;
        score(&c, ml_arena_printf(&c.arena, "%s/golden.safetensors", c.dir), path, "");
        MUST(ml_st_open(&out, path, &err));
        if (want)
            compare(name, "merged_logits.0", ml_st_find(out, ml_str_of("logits.0")),
                    want->data, want->bytes, LOGITS_BOUND);
        ml_st_close(out);
    }
    close_case(&c);
}

/* --- five steps of AdamW -------------------------------------------------------------- */

typedef struct training {
    ml_arena arena;
    ml_spec spec;
    ml_checkpoint *checkpoint;
    ml_backend be;
    ml_weights weights;
    ml_lora lora;
    const ml_lora_site *site;
    ml_lora_table table;
    ml_trainer *trainer;
    ml_train_sample *sample;
    int32_t n_sample;
    int64_t n_next;
} training;

static void read_samples(training *t, const golden_case *c) {
    char name[32];

    t->sample = ML_NEW(&t->arena, ml_train_sample, c->golden->n);
    for (;; t->n_sample++) {
        const ml_st_tensor *ids;
        int32_t n;
        snprintf(name, sizeof name, "tokens.%d", t->n_sample);
        ids = ml_st_find(c->golden, ml_str_of(name));
        if (!ids)
            return;
        n = (int32_t)ids->shape[0];
        t->sample[t->n_sample] = (ml_train_sample){
            .token = ids->data, .n_token = n, .n_response = n - 1, .rollout = t->n_sample
        };
        t->n_next += n - 1;
    }
}

static double number(const golden_case *c, const char *key) {
    double x = 0;
    CHECK(ml_json_f64(ml_json_get(ml_json_get(c->root, "optimizer"), key), &x));
    return x;
}

static void open_training(training *t, const golden_case *c) {
    ml_trainer_opts o = {
        .optimizer = { .rule = { .beta1 = 0.9, .beta2 = 0.98, .eps = number(c, "eps") } },
        .lr = { .train_iters = 1000,
                .global_batch_size = 1,
                .lr = number(c, "lr"),
                .start_weight_decay = number(c, "weight_decay"),
                .end_weight_decay = number(c, "weight_decay") },
        .batch = { .global_batch_size = 1, .dynamic = true, .max_tokens = 4096 },
        .lora = &t->lora,
    };

    *t = (training){ 0 };
    ml_arena_init(&t->arena, "training");
    MUST(ml_spec_open(&t->spec, c->base, &err));
    MUST(ml_checkpoint_open(&t->checkpoint, c->base, &err));
    MUST(ml_backend_cpu_open(&t->be, 1, NULL, &err));
    MUST(ml_weights_load(&t->weights, &t->spec, t->checkpoint, ML_WEIGHT_F32, &t->be,
                         &t->arena, &err));
    MUST(ml_lora_load(&t->lora, &t->spec, c->dir, &t->be, &err));
    t->site = t->lora.site;
    t->table = (ml_lora_table){ .adapter = &t->site, .n_adapter = 1, .all = true };
    t->weights.lora = &t->table;
    ml_spec_lora_insert(&t->spec, NULL, t->lora.max_rank);
    MUST(ml_trainer_open(&t->trainer, &t->spec, &t->weights, &t->be, &o, &err));
    read_samples(t, c);
}

static void close_training(training *t) {
    ml_trainer_close(t->trainer);
    ml_lora_close(&t->lora);
    ml_weights_close(&t->weights);
    ml_backend_close(&t->be);
    ml_checkpoint_close(t->checkpoint);
    ml_spec_close(&t->spec);
    ml_arena_release(&t->arena);
}

static ml_status sum_nll(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    (void)ud;
    (void)err;
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < io[i].n_response; k++) {
            io[i].loss -= (double)io[i].logprob[k];
            io[i].dlogprob[k] = -1.0f;
        }
    return ML_OK;
}

/* Two micro-batches, so that gradients are accumulated. */
static double step_of(training *t) {
    ml_bin bin[2] = { 0 };
    ml_bins bins = { .bin = bin, .n = 2 };
    ml_step_result r;

    for (int32_t i = 0; i < t->n_sample; i++) {
        ml_bin *b = &bin[i >= t->n_sample / 2];
        if (!b->item)
            b->item = ML_NEW(&t->arena, int32_t, t->n_sample);
        b->item[b->n++] = i;
    }
    MUST(ml_trainer_step(t->trainer,
                         &(ml_step){ .sample = t->sample,
                                     .micro = &bins,
                                     .n_rollout = t->n_sample,
                                     .denominator = (double)t->n_next,
                                     .loss = sum_nll },
                         &r, &err));
    CHECK(r.applied);
    return r.loss;
}

static void check_final(training *t, const golden_case *c, const char *name) {
    ml_st_file *out = NULL;
    const char *dir = ml_test_path("final");
    int32_t n = 0;

    MUST(ml_dir_make(dir, &err));
    MUST(ml_lora_save(&t->lora, &t->lora.weights, dir, &err));
    MUST(ml_st_open(&out, ml_arena_printf(&t->arena, "%s/%s", dir, ML_LORA_FILE), &err));
    for (int32_t i = 0; i < c->golden->n; i++) {
        const ml_st_tensor *w = &c->golden->tensor[i];
        if (!starts(w->name, "final."))
            continue;
        compare(name, w->name.ptr,
                ml_st_find(out, ml_str_of(w->name.ptr + strlen("final."))), w->data,
                w->bytes, FINAL_BOUND);
        n++;
    }
    CHECK(n > 0);
    ml_st_close(out);
}

static void check_training(const char *name) {
    golden_case c;
    training t;

    if (open_case(&c, name)) {
        const ml_st_tensor *loss = ml_st_find(c.golden, ml_str_of("train.loss"));
        open_training(&t, &c);
        for (int i = 0; loss && i < (int)loss->shape[0]; i++) {
            double want = (double)((const float *)loss->data)[i], got = step_of(&t);
            if (!(fabs(got - want) <= 1e-5 * want))
                ml_test_fail(__FILE__, __LINE__, "%s: loss of step %d is %.8f, not %.8f",
                             name, i, got, want);
        }
        check_final(&t, &c, name);
        close_training(&t);
    }
    close_case(&c);
}

static void each_case(void (*fn)(const char *name)) {
    ml_arena a;
    ml_names names;
    int32_t n = 0;

    ml_arena_init(&a, "cases");
    MUST(ml_dir_list(&names, ml_arena_printf(&a, "%s/lora", root_dir()), &a, &err));
    for (int32_t i = 0; i < names.n; i++) {
        if (strchr(names.name[i], '.') || starts(ml_str_of(names.name[i]), "multi"))
            continue;
        fn(names.name[i]);
        n++;
    }
    CHECK(n > 5);
    ml_arena_release(&a);
}

static void all_cases(void) {
    each_case(check_case);
}

static void all_merged(void) {
    each_case(check_merged);
}

static void all_training(void) {
    each_case(check_training);
}

/* --- a mixed batch ------------------------------------------------------------------ */

static int32_t adapter_of(const ml_json *names, ml_str name) {
    int32_t i = 0;
    for (const ml_json *e = names->child; e; e = e->next, i++)
        if (ml_str_eq(e->text, name))
            return i;
    return -1;
}

/* Row i of `tokens` as tokens.i, with its adapter. */
static int32_t write_rows(golden_case *c, const char *path) {
    const ml_st_tensor *t = ml_st_find(c->golden, ml_str_of("tokens"));
    const ml_json *row = ml_json_get(c->root, "rows")->child;
    const ml_json *names = ml_json_get(c->root, "adapters");
    int32_t n = (int32_t)t->shape[0];
    size_t bytes = (size_t)t->shape[1] * 4;
    ml_st_tensor *list = ML_NEW(&c->arena, ml_st_tensor, 2 * n);
    ml_st_writer *w;

    for (int32_t i = 0; i < n; i++) {
        list[i] =
            (ml_st_tensor){ .name = ml_str_of(ml_arena_printf(&c->arena, "tokens.%d", i)),
                            .dtype = ML_ST_I32,
                            .n_dim = 1,
                            .shape = { t->shape[1] } };
        list[n + i] = (ml_st_tensor){
            .name = ml_str_of(ml_arena_printf(&c->arena, "adapter.%d", i)),
            .dtype = ML_ST_I32,
        };
    }
    MUST(ml_st_create(&w, path, &(ml_st_layout){ .n = 2 * n, .tensor = list }, &err));
    for (int32_t i = 0; i < n; i++, row = row->next) {
        int32_t adapter = adapter_of(names, row->text);
        MUST(ml_st_write(w, i, 0, (const char *)t->data + (size_t)i * bytes, bytes, &err));
        MUST(ml_st_write(w, n + i, 0, &adapter, sizeof adapter, &err));
    }
    MUST(ml_st_commit(w, &err));
    return n;
}

static void check_rows(const golden_case *c, const ml_st_file *out, int32_t n,
                       const char *what) {
    const ml_st_tensor *t = ml_st_find(c->golden, ml_str_of(what));
    size_t bytes = t->bytes / (size_t)n;
    char name[32];

    for (int32_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s.%d", what, i);
        compare("multi", name, ml_st_find(out, ml_str_of(name)),
                (const char *)t->data + (size_t)i * bytes, bytes, LOGITS_BOUND);
    }
}

static void mixed_batch(void) {
    const char *in = ml_test_path("in.safetensors"),
               *path = ml_test_path("out.safetensors");
    const char *flags = "--lora-paths";
    ml_st_file *out = NULL;
    golden_case c;
    int32_t n;

    open_case(&c, "multi_qwen3");
    n = write_rows(&c, in);
    for (const ml_json *e = ml_json_get(c.root, "adapters")->child; e; e = e->next)
        flags = ml_arena_printf(&c.arena, "%s %.*s=%s/%.*s", flags, (int)e->text.len,
                                e->text.ptr, c.dir, (int)e->text.len, e->text.ptr);
    score(&c, in, path, flags);
    MUST(ml_st_open(&out, path, &err));
    check_rows(&c, out, n, "logits");
    check_rows(&c, out, n, "logprobs");
    for (int32_t i = 0; i < c.golden->n; i++) {
        const ml_st_tensor *t = &c.golden->tensor[i];
        if (starts(t->name, "grad."))
            compare("multi", t->name.ptr, ml_st_find(out, t->name), t->data, t->bytes,
                    GRAD_BOUND);
    }
    ml_st_close(out);
    close_case(&c);
}

static const ml_test tests[] = {
    { "adapters have the logits and gradients of PEFT", all_cases, 300 },
    { "merged adapters have the logits of PEFT", all_merged, 300 },
    { "five steps of AdamW give the adapters of PEFT", all_training, 300 },
    { "a batch of two adapters has the logits and gradients of PEFT", mixed_batch, 60 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
