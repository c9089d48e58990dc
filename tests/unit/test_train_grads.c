/* Gradients of a tied table: that of the embedding has memory for the tokens that occur, and steps
 * with other tokens leave nothing of it behind.  Steps without passes leave nothing behind either. */
#include <string.h>

#include "tests/support/test.h"
#include "train/grads.h"

enum { VOCAB = 1000, WIDTH = 32, STEPS = 6, MOST = 400 };

static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 1000, \"hidden_size\": 32,"
    " \"intermediate_size\": 32, \"num_hidden_layers\": 1, \"num_attention_heads\": 2,"
    " \"num_key_value_heads\": 1, \"head_dim\": 16, \"tie_word_embeddings\": true}";

typedef struct bench {
    ml_arena arena;
    ml_spec spec;
    ml_backend be;
    ml_grads grads;
} bench;

static void open_bench(bench *b) {
    ml_err err = { 0 };

    *b = (bench){ 0 };
    ml_arena_init(&b->arena, "test");
    CHECK(ml_spec_parse(&b->spec, ml_str_of(config), "config", &err) == ML_OK);
    CHECK(ml_backend_cpu_open(&b->be, 2, NULL, &err) == ML_OK);
    CHECK(ml_grads_open(&b->grads, &b->spec, NULL, true, &b->be, &b->arena, &err) == ML_OK);
}

static void close_bench(bench *b) {
    ml_grads_close(&b->grads);
    ml_backend_close(&b->be);
    ml_spec_close(&b->spec);
    ml_arena_release(&b->arena);
}

static float *row_of(const ml_tensor *t, int32_t id, ml_row_walk *at) {
    *at = ml_tensor_row(t, id);
    return t->data;
}

/* What a backward pass does: EMBED adds to the rows of its tokens, the head to all. */
static void pass(bench *b, const int32_t *id, int32_t n, float by) {
    ml_rows rows = { .n_token = n, .id = id };
    ml_run run = { .rows = &rows };
    const int32_t table = ml_grads_tied_table(&b->spec);
    const ml_tensor *head;
    ml_row_walk at;

    ml_grads_bind(&b->grads, &run);
    CHECK(run.embed_grad != NULL);
    for (int32_t t = 0; t < n; t++) {
        float *d = row_of(run.embed_grad, id[t], &at);
        for (int64_t i = 0; i < WIDTH; i++)
            d[ml_row_at(at, i)] += by;
    }
    head = &b->grads.sum.t[table];
    if (run.unwritten[table])
        memset(head->data, 0, ml_tensor_bytes(head));
    run.unwritten[table] = false;
    for (int32_t r = 0; r < VOCAB; r++) {
        float *d = row_of(head, r, &at);
        for (int64_t i = 0; i < WIDTH; i++)
            d[ml_row_at(at, i)] += 1.0f;
    }
}

/* Few tokens, the same again, others, many, few: memory is kept and given back. */
static void steps_are_independent(void) {
    static const int32_t first[STEPS] = { 0, 0, 500, 100, 900, 901 };
    static const int32_t count[STEPS] = { 5, 5, 3, MOST, 4, 2 };
    int32_t id[MOST];
    bench b;
    ml_row_walk at;

    open_bench(&b);
    for (int s = 0; s < STEPS; s++) {
        const ml_tensor *sum = &b.grads.sum.t[ml_grads_tied_table(&b.spec)];
        for (int32_t t = 0; t < count[s]; t++)
            id[t] = first[s] + t;
        ml_grads_zero(&b.grads);
        pass(&b, id, count[s], 0.5f);
        pass(&b, id, count[s] / 2, 0.25f);
        ml_grads_join(&b.grads);
        for (int32_t r = 0; r < VOCAB; r++) {
            int32_t t = r - first[s];
            bool once = t >= 0 && t < count[s], twice = t >= 0 && t < count[s] / 2;
            float want = 2.0f + (once ? 0.5f : 0.0f) + (twice ? 0.25f : 0.0f);
            float *d = row_of(sum, r, &at);
            for (int64_t i = 0; i < WIDTH; i++)
                CHECK(d[ml_row_at(at, i)] == want);
        }
    }
    close_bench(&b);
}

/* A token past the end of the table is its first row, as in EMBED. */
static void tokens_past_the_end(void) {
    int32_t id[1] = { VOCAB + 7 };
    ml_rows rows = { .n_token = 1, .id = id };
    ml_run run = { .rows = &rows };
    bench b;
    ml_row_walk at;
    float *d;

    open_bench(&b);
    ml_grads_zero(&b.grads);
    ml_grads_bind(&b.grads, &run);
    d = row_of(run.embed_grad, 0, &at);
    d[ml_row_at(at, 3)] = 1.0f;
    ml_grads_join(&b.grads);
    d = row_of(&b.grads.sum.t[ml_grads_tied_table(&b.spec)], 0, &at);
    CHECK(d[ml_row_at(at, 3)] == 1.0f);
    close_bench(&b);
}

/* Gradients keep the numbers of the step before until a pass writes them. */
static void gradients_without_a_pass(void) {
    bench b;

    open_bench(&b);
    ml_grads_zero(&b.grads);
    memset(b.grads.sum.buf.ptr, 0x3f, b.grads.sum.buf.bytes);
    ml_grads_zero(&b.grads);
    ml_grads_join(&b.grads);
    for (int32_t i = 0; i < b.spec.n_param; i++) {
        const ml_tensor *t = &b.grads.sum.t[i];
        for (size_t k = 0; k < ml_tensor_bytes(t) / sizeof(float); k++)
            CHECK(((const float *)t->data)[k] == 0.0f);
        CHECK(!b.grads.unwritten[i]);
    }
    close_bench(&b);
}

static const ml_test tests[] = {
    { "a step has the gradients of its own tokens", steps_are_independent },
    { "tokens past the end of a table", tokens_past_the_end },
    { "a step in which no pass runs has zero gradients", gradients_without_a_pass },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
