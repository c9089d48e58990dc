#include <math.h>
#include <string.h>

#include "base/proto.h"
#include "tinker/sample_job.h"

enum { REPLY_SEQUENCES = 1, REPLY_PROMPT, REPLY_TOP, REPLY_CACHED, REPLY_TARGETS };
enum { SEQ_STOP = 1, SEQ_TOKENS, SEQ_LOGPROBS, SEQ_TOP };
enum { TOP_IDS = 1, TOP_LOGPROBS, TOP_K, TOP_LENGTH };
enum { TENSOR_DENSE = 1, TENSOR_SPARSE, TENSOR_DTYPE, TENSOR_SHAPE };

static void add_floats(ml_text *to, const float *v, int64_t n) {
    if (n)
        ml_text_add(to, (const char *)v, (size_t)n * sizeof *v);
}

static ml_str view(const ml_text *t) {
    return (ml_str){ t->ptr, t->len };
}

/* The first k of `from` top tokens at each of n positions, after `skip` without any. */
static void put_top(ml_text *out, int32_t field, const ml_text *id, const ml_text *logprob,
                    int32_t from, int32_t k, int64_t skip) {
    int64_t n = from ? (int64_t)(id->len / 4) / from : 0;
    ml_text ids = { 0 }, values = { 0 }, m = { 0 };

    for (int64_t i = -skip; i < n; i++)
        for (int32_t j = 0; j < k; j++) {
            int32_t token = -1;
            float value = 0;
            if (i >= 0) {
                memcpy(&token, id->ptr + 4 * (i * from + j), 4);
                memcpy(&value, logprob->ptr + 4 * (i * from + j), 4);
            }
            if (token < 0) { /* what the SDK reads as none */
                token = 0;
                value = -99999.0f;
            }
            ml_text_add(&ids, (const char *)&token, sizeof token);
            add_floats(&values, &value, 1);
        }
    ml_proto_put_bytes(&m, TOP_IDS, view(&ids));
    ml_proto_put_bytes(&m, TOP_LOGPROBS, view(&values));
    ml_proto_put_int(&m, TOP_K, (uint64_t)k);
    ml_proto_put_int(&m, TOP_LENGTH, (uint64_t)(n + skip));
    ml_proto_put_bytes(out, field, view(&m));
    ml_text_release(&ids);
    ml_text_release(&values);
    ml_text_release(&m);
}

static void put_sequence(ml_text *out, const ml_sample_job *j, const ml_sample_choice *c) {
    int32_t from = ml_sample_choice_top(j, c->kind);
    ml_text m = { 0 };

    ml_proto_put_int(&m, SEQ_STOP, c->finish == ML_FINISH_LENGTH);
    ml_proto_put_bytes(&m, SEQ_TOKENS, view(&c->token));
    ml_proto_put_bytes(&m, SEQ_LOGPROBS, view(&c->logprob));
    if (j->k_answer)
        put_top(&m, SEQ_TOP, &c->top_id, &c->top, from, j->k_answer, 0);
    ml_proto_put_bytes(out, REPLY_SEQUENCES, view(&m));
    ml_text_release(&m);
}

static void put_prompt(ml_text *out, const ml_sample_job *j, const ml_sample_choice *c) {
    int32_t from = ml_sample_choice_top(j, c->kind);
    ml_text all = { 0 };
    float none = NAN;

    for (int32_t i = 0; i < j->score_from; i++)
        add_floats(&all, &none, 1);
    ml_text_add(&all, c->prompt.ptr, c->prompt.len);
    ml_proto_put_bytes(out, REPLY_PROMPT, view(&all));
    if (j->k_prompt)
        put_top(out, REPLY_TOP, &c->prompt_id, &c->prompt_top, from, j->k_prompt,
                j->score_from);
    ml_text_release(&all);
}

/* In the layout of the request: dense, or the cells that it lists. */
static void put_targets(ml_text *out, const ml_sample_job *j, const ml_sample_choice *c) {
    int64_t n = j->request.n_prompt - 1;
    ml_text values = { 0 }, m = { 0 }, sparse = { 0 };

    for (int64_t i = 0; i < n; i++)
        add_floats(&values, (const float *)(const void *)c->also.ptr + i * j->n_also,
                   j->crow[i + 1] - j->crow[i]);
    if (j->col) {
        ml_proto_put_bytes(&sparse, 1, view(&values));
        ml_proto_put_bytes(&sparse, 2,
                           (ml_str){ (const char *)j->crow, (size_t)(n + 1) * 8 });
        ml_proto_put_bytes(&sparse, 3,
                           (ml_str){ (const char *)j->col, (size_t)j->crow[n] * 8 });
        ml_proto_put_bytes(&m, TENSOR_SPARSE, view(&sparse));
    } else {
        ml_proto_put_bytes(&m, TENSOR_DENSE, view(&values));
    }
    ml_proto_put_int(&m, TENSOR_DTYPE, 1);
    ml_proto_put_int(&m, TENSOR_SHAPE, (uint64_t)n);
    ml_proto_put_int(&m, TENSOR_SHAPE, (uint64_t)j->n_col);
    ml_proto_put_bytes(out, REPLY_TARGETS, view(&m));
    ml_text_release(&values);
    ml_text_release(&sparse);
    ml_text_release(&m);
}

void ml_sample_job_write(ml_text *out, const ml_sample_job *j) {
    int32_t n_cached = 0;

    for (int32_t i = 0; i < j->n_choice; i++) {
        const ml_sample_choice *c = &j->choice[i];
        if (c->kind == ML_CHOICE_SAMPLE || c->kind == ML_CHOICE_BOTH) {
            put_sequence(out, j, c);
            n_cached = c->index ? n_cached : c->n_cached;
        }
        if (c->kind == ML_CHOICE_SCORE || c->kind == ML_CHOICE_BOTH)
            put_prompt(out, j, c);
        if (c->kind == ML_CHOICE_TARGET)
            put_targets(out, j, c);
    }
    ml_proto_put_int(out, REPLY_CACHED, (uint64_t)n_cached);
}
