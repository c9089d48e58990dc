/* Computes the memory that a model needs from its config.json: the numbers of docs/models.md.
 *
 *     model_memory DIR/config.json...
 *
 * One line per file, tab-separated: parameters, bytes of weights in bf16, bytes of training
 * (bf16 weights, f32 gradients, master weights and Adam moments, activations of a
 * micro-batch of TOKENS with recomputation of every layer), bytes of the KV cache for 1,024
 * tokens, and bytes of serving. */
#include <stdio.h>

#include "base/file.h"
#include "model/plan.h"
#include "train/optimizer.h"

enum { TOKENS = 8192, STEP_ROWS = 512, STEP_REQUESTS = 64 };

typedef struct needs {
    int64_t params;
    size_t weights, training, kv, serving;
} needs;

static ml_status plan_bytes(size_t *out, const ml_spec *s, ml_backend *be, ml_plan_opts o,
                            ml_err *err) {
    ml_plan *p;
    ml_status st = ml_plan_new(&p, s, be, o, err);

    if (st != ML_OK)
        return st;
    *out = ml_plan_act_bytes(p) + ml_plan_scratch_bytes(p);
    ml_plan_free(p);
    return ML_OK;
}

static ml_status find_needs(needs *n, ml_spec *s, ml_backend *be, ml_err *err) {
    const ml_optimizer_opts adam = { .rule.kind = ML_OPTIMIZER_ADAM };
    ml_plan_opts train = { .caps = { TOKENS, STEP_REQUESTS, TOKENS,
                                     TOKENS / ML_PAGE + STEP_REQUESTS },
                           .backward = true,
                           .recompute = { .granularity = ML_RECOMPUTE_FULL } };
    ml_plan_opts serve = { .caps = { STEP_ROWS, STEP_REQUESTS, STEP_REQUESTS, 65536 },
                           .logits = true,
                           .kv_shared = true };
    size_t act = 0, step = 0;
    ml_status st;

    ml_spec_keep_kv(s, ml_weights_kv_dtype(s, NULL, ML_WEIGHT_BF16));
    st = plan_bytes(&act, s, be, train, err);
    if (st == ML_OK)
        st = plan_bytes(&step, s, be, serve, err);
    n->params = ml_spec_param_count(s);
    n->weights = ml_weights_bytes(s, NULL, ML_WEIGHT_BF16);
    n->training = n->weights + ml_weights_bytes(s, NULL, ML_WEIGHT_F32) +
                  ml_optimizer_bytes(s, &adam, true) + act;
    n->kv = ml_kv_bytes(s, be, 1024 / ML_PAGE);
    n->serving = n->weights + step;
    return st;
}

static ml_status show(const char *path, ml_backend *be, ml_err *err) {
    ml_file f;
    ml_spec s;
    needs n;
    ml_status st = ml_file_map(&f, path, err);

    if (st != ML_OK)
        return st;
    st = ml_spec_parse(&s, f.bytes, path, err);
    if (st == ML_OK) {
        st = find_needs(&n, &s, be, err);
        if (st == ML_OK)
            printf("%s\t%s\t%lld\t%zu\t%zu\t%zu\t%zu\n", path, s.family,
                   (long long)n.params, n.weights, n.training, n.kv, n.serving);
        ml_spec_close(&s);
    }
    ml_file_unmap(&f);
    return st;
}

int main(int argc, char **argv) {
    ml_err err = { 0 };
    ml_backend be;
    ml_status st = ml_backend_cpu_open(&be, 1, NULL, &err);

    for (int i = 1; i < argc && st == ML_OK; i++)
        st = show(argv[i], &be, &err);
    if (st != ML_OK)
        fprintf(stderr, "model_memory: %s\n", err.msg);
    return st != ML_OK;
}
