/* Log-probabilities and entropies, and their derivatives by the logits, against what Miles' own
 * code gave.  The op that makes them here has the last linear layer in it: that layer is the
 * identity, so that its input is the logits and the gradient of its input theirs. */
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "tests/support/must.h"
#include "tests/support/recording.h"

/* Behind a softmax of f32 numbers. */
static const ml_tolerance soft = { 1e-4, 1e-5 };

typedef struct scored {
    ml_case *c;
    int64_t vocab;         /* columns that count */
    int64_t width;         /* all that were recorded */
    int32_t n_row, n_loss; /* rows of logits; those that score a token of an answer */
    int32_t *row, *id;     /* [n_loss] */
    float *logit, *dlogit; /* [n_row][vocab] */
    float *logprob, *entropy, *stat, *dlogprob, *dentropy;
} scored;

static float *floats(ml_case *c, int64_t n) {
    return ML_NEW(&c->arena, float, n + 1);
}

static ml_tensor rows_of(float *data, int64_t n, int64_t width) {
    return (ml_tensor){ data, ML_F32, ML_ROWS, 2, { n, width } };
}

static ml_tensor vector_of(float *data, int64_t n) {
    return (ml_tensor){ data, ML_F32, ML_ROWS, 1, { n } };
}

/* [n][n] in panels. */
static ml_tensor identity(ml_case *c, int64_t n) {
    int64_t n_panel = (n + ML_LANES - 1) / ML_LANES;
    float *w = floats(c, n_panel * n * ML_LANES);

    for (int64_t i = 0; i < n; i++)
        w[(i / ML_LANES * n + i) * ML_LANES + i % ML_LANES] = 1.0f;
    return (ml_tensor){ w, ML_F32, ML_PANELS, 2, { n, n } };
}

/* --- the case ------------------------------------------------------------------- */

static void read_logits(scored *s) {
    const ml_json *rows = ml_json_get(s->c->args, "logits");
    int64_t i = 0;

    s->n_row = (int32_t)rows->n;
    s->width = rows->child->n;
    s->vocab = ml_case_i64(s->c->args, "vocab_size", s->width);
    s->logit = floats(s->c, s->n_row * s->vocab);
    s->dlogit = floats(s->c, s->n_row * s->vocab);
    for (const ml_json *v = rows->child; v; v = v->next, i++) {
        const double *z = ml_record_row(s->c, v);
        for (int64_t j = 0; j < s->vocab; j++)
            s->logit[i * s->vocab + j] = (float)z[j];
    }
}

/* The row before a token scores it; rows of samples stand one after the other. */
static void read_tokens(scored *s) {
    const ml_json *a = s->c->args;
    int64_t n = 0, first = 0, k = 0;
    int64_t *total = ml_case_i64s(s->c, ml_json_get(a, "total_lengths"), &n);
    int64_t *response = ml_case_i64s(s->c, ml_json_get(a, "response_lengths"), &n);

    s->row = ML_NEW(&s->c->arena, int32_t, s->n_row + 1);
    s->id = ML_NEW(&s->c->arena, int32_t, s->n_row + 1);
    for (const ml_json *v = ml_json_get(a, "tokens")->child; v; v = v->next, k++) {
        int64_t *token = ml_case_i64s(s->c, v, &n);
        for (int64_t t = total[k] - response[k]; t < total[k]; t++) {
            s->row[s->n_loss] = (int32_t)(first + t - 1);
            s->id[s->n_loss++] = (int32_t)token[t];
        }
        first += total[k];
    }
}

/* A list of lists, one after the other. */
static float *flat(scored *s, const char *key) {
    float *out = floats(s->c, s->n_loss);
    int64_t n = 0;

    for (const ml_json *v = ml_json_get(s->c->args, key)->child; v; v = v->next) {
        const double *x = ml_record_row(s->c, v);
        for (int64_t i = 0; i < v->n; i++)
            out[n++] = (float)x[i];
    }
    ml_record_expect(s->c, n == s->n_loss, "another number of tokens");
    return out;
}

static void read_case(scored *s) {
    read_logits(s);
    read_tokens(s);
    s->logprob = floats(s->c, s->n_loss);
    s->entropy = floats(s->c, s->n_loss);
    s->stat = floats(s->c, 2 * s->n_loss);
    s->dlogprob = flat(s, "w_log_probs");
    s->dentropy = flat(s, "w_entropy");
}

/* --- the op ----------------------------------------------------------------------- */

static void call(ml_backend *be, ml_op_args *a, bool backward) {
    size_t bytes = be->ops->scratch(be->stream, ML_OP_LMHEAD, a, backward);
    ml_arena scratch;

    ml_arena_init(&scratch, "scratch");
    a->scratch = ml_arena_take(&scratch, bytes + 1, 64);
    (backward ? be->ops->backward : be->ops->forward)[ML_OP_LMHEAD](be->stream, a);
    ml_arena_release(&scratch);
}

static void run(scored *s, ml_backend *be) {
    double temperature = ml_record_number(ml_json_get(s->c->args, "rollout_temperature"));
    ml_op_attr attr = { 0 };
    ml_rows rows = { .n_token = s->n_row,
                     .n_loss = s->n_loss,
                     .loss_row = s->row,
                     .loss_id = s->id,
                     .temperature = temperature > 0 ? (float)temperature : 1.0f };
    ml_op_args a = { .attr = &attr, .rows = &rows };

    a.in[0] = rows_of(s->logit, s->n_row, s->vocab);
    a.w[0] = identity(s->c, s->vocab);
    a.out[0] = vector_of(s->logprob, s->n_loss);
    a.out[1] = vector_of(s->entropy, s->n_loss);
    a.out[2] = rows_of(s->stat, s->n_loss, 2);
    call(be, &a, false);
    a.din[0] = rows_of(s->dlogit, s->n_row, s->vocab);
    a.dout[0] = vector_of(s->dlogprob, s->n_loss);
    a.dout[1] = vector_of(s->dentropy, s->n_loss);
    call(be, &a, true);
}

/* --- what came out ---------------------------------------------------------------- */

static void compare_tokens(scored *s, const float *got, const char *key) {
    int64_t n = 0;

    for (const ml_json *v = ml_json_get(s->c->out, key)->child; v; v = v->next)
        for (const ml_json *x = v->child; x; x = x->next)
            ml_record_equal(s->c, (double)got[n++], x, soft, key);
    ml_record_expect(s->c, n == s->n_loss, "another number of results");
}

/* Columns that were cut off have none. */
static void compare_gradient(scored *s) {
    double *row = ML_NEW(&s->c->arena, double, s->width + 1);
    int64_t i = 0;

    for (const ml_json *v = ml_json_get(s->c->out, "grad_logits")->child; v;
         v = v->next, i++) {
        for (int64_t j = 0; j < s->vocab; j++)
            row[j] = (double)s->dlogit[i * s->vocab + j];
        ml_record_equal_row(s->c, row, s->width, v, soft, "grad_logits");
    }
    ml_record_expect(s->c, i == s->n_row, "another number of rows");
}

/* Rounding of every step to bf16 is another contract than f32's. */
static void play(ml_case *c) {
    scored s = { .c = c };
    ml_backend be;

    if (ml_case_flag(c->args, "bf16"))
        return;
    read_case(&s);
    MUST(ml_backend_cpu_open(&be, 1, NULL, &err));
    run(&s, &be);
    compare_tokens(&s, s.logprob, "log_probs");
    compare_tokens(&s, s.entropy, "entropy");
    compare_gradient(&s);
    ml_backend_close(&be);
}

static void logprob_entropy(void) {
    ml_test_cases("logprob_entropy.jsonl", play);
}

static const ml_test tests[] = {
    { "log-probs and entropies are Miles'", logprob_entropy },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
