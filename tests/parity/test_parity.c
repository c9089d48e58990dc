/* Batch invariance: however a sequence is split into steps, and whatever else is in the
 * batch, its log-probs are the same bits.
 *
 * The tests drive plans directly: chunks of every size through shared pages, pages in any
 * order, sequences mixed with others, gradients packed and one by one, routing replay. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/plan.h"
#include "tests/support/test.h"

#define DATA "tests/golden/data/"
#define N_SEQ 4
#define MAX_LEN 160

typedef struct fixture {
    ml_arena arena;
    ml_spec spec;
    ml_checkpoint *checkpoint;
    ml_backend be;
    ml_weights weights;
    ml_st_file *golden;
    const int32_t *id[N_SEQ];
    int32_t len[N_SEQ];
} fixture;

static void open_fixture(fixture *f, const char *dir, ml_weight_dtype dtype, int n_thread) {
    char path[256], name[32];
    ml_err err = { 0 };

    *f = (fixture){ 0 };
    ml_arena_init(&f->arena, "parity");
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    if (ml_spec_open(&f->spec, dir, &err) ||
        ml_checkpoint_open(&f->checkpoint, dir, &err) ||
        ml_backend_cpu_open(&f->be, n_thread, NULL, &err) ||
        ml_weights_load(&f->weights, &f->spec, f->checkpoint, dtype, &f->be, &f->arena,
                        &err) ||
        ml_st_open(&f->golden, path, &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        exit(1);
    }
    ml_spec_keep_kv(&f->spec, ml_weights_kv_dtype(&f->spec, f->checkpoint, dtype));
    for (int i = 0; i < N_SEQ; i++) {
        const ml_st_tensor *t;
        snprintf(name, sizeof name, "tokens.%d", i);
        t = ml_st_find(f->golden, ml_str_of(name));
        f->id[i] = t->data;
        f->len[i] = (int32_t)t->shape[0];
    }
}

static void close_fixture(fixture *f) {
    ml_st_close(f->golden);
    ml_weights_close(&f->weights);
    ml_backend_close(&f->be);
    ml_checkpoint_close(f->checkpoint);
    ml_spec_close(&f->spec);
    ml_arena_release(&f->arena);
}

static ml_plan *open_plan(fixture *f, ml_plan_opts opts) {
    ml_plan *p = NULL;
    ml_err err = { 0 };
    if (ml_plan_new(&p, &f->spec, &f->be, opts, &err) || ml_plan_alloc(p, &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        exit(1);
    }
    return p;
}

static void targets(const fixture *f, int i, int32_t *target) {
    for (int32_t k = 0; k < f->len[i]; k++)
        target[k] = k + 1 < f->len[i] ? f->id[i][k + 1] : ML_TARGET_NONE;
}

static const ml_batch_caps caps = {
    .n_token = 512, .n_seq = 8, .n_loss = 512, .n_page = 64
};

/* Sequences order[0..n) in one batch; out gets their log-probs, concatenated. */
static void score_packed(fixture *f, const int *order, int n, float *out) {
    ml_plan *p = open_plan(f, (ml_plan_opts){ .caps = caps });
    ml_batch b;
    int32_t target[MAX_LEN];

    ml_batch_init(&b, &f->arena, caps);
    for (int i = 0; i < n; i++) {
        targets(f, order[i], target);
        ml_batch_add(&b, f->id[order[i]], target, f->len[order[i]], 0, NULL);
    }
    ml_plan_forward(p, &(ml_run){ .weights = &f->weights, .rows = &b.rows });
    ml_plan_read(p, &b.rows, out, NULL, NULL);
    ml_plan_free(p);
}

/* Sequence i in chunks, through shared pages in scattered order. */
static void score_chunked(fixture *f, int i, int32_t chunk, float *out) {
    ml_plan *p = open_plan(f, (ml_plan_opts){ .caps = caps, .kv_shared = true });
    ml_kv kv;
    ml_batch b;
    int32_t target[MAX_LEN], page[32], n_page = ml_kv_pages_for(f->len[i]);

    CHECK(ml_kv_open(&kv, &f->spec, 40, 2, &f->be, &f->arena, NULL) == ML_OK);
    memset(kv.buf.ptr, 0xff, kv.buf.bytes); /* NaN reveals reads of unwritten memory */
    for (int32_t k = 0; k < n_page; k++)
        page[k] = (k * 7 + 3) % 40;
    targets(f, i, target);
    ml_batch_init(&b, &f->arena, caps);
    for (int32_t at = 0; at < f->len[i]; at += chunk) {
        int32_t n = f->len[i] - at < chunk ? f->len[i] - at : chunk;
        ml_batch_clear(&b);
        ml_batch_add(&b, f->id[i] + at, target + at, n, at, page);
        ml_batch_set_slot(&b, 1);
        ml_plan_forward(p, &(ml_run){ .weights = &f->weights, .kv = &kv, .rows = &b.rows });
        ml_plan_read(p, &b.rows, out + at, NULL, NULL);
    }
    ml_kv_close(&kv);
    ml_plan_free(p);
}

static void same_bits(const char *what, const float *a, const float *b, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0) {
            ml_test_fail(__FILE__, __LINE__, "%s: position %d of %d is %a, expected %a",
                         what, i, n, (double)b[i], (double)a[i]);
            return;
        }
}

static void check_forward(const char *dir, ml_weight_dtype dtype) {
    static const int32_t chunks[] = { 1, 2, 7, 15, 16, 17, 64, 100 };
    static const int forth[] = { 0, 1, 2, 3 }, back[] = { 3, 2, 1, 0 };
    fixture f;
    float alone[N_SEQ][MAX_LEN], got[4 * MAX_LEN];
    int32_t at = 0;

    open_fixture(&f, dir, dtype, 2);
    for (int i = 0; i < N_SEQ; i++)
        score_packed(&f, &forth[i], 1, alone[i]);
    score_packed(&f, forth, N_SEQ, got);
    for (int i = 0; i < N_SEQ; at += f.len[i++])
        same_bits("packed", alone[i], got + at, f.len[i]);
    score_packed(&f, back, N_SEQ, got);
    at = 0;
    for (int i = N_SEQ - 1; i >= 0; at += f.len[i--])
        same_bits("packed in reverse", alone[i], got + at, f.len[i]);
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
        for (int i = 0; i < N_SEQ; i++) {
            char what[64];
            snprintf(what, sizeof what, "sequence %d in chunks of %d", i, chunks[c]);
            score_chunked(&f, i, chunks[c], got);
            same_bits(what, alone[i], got, f.len[i]);
        }
    close_fixture(&f);
}

/* A step of decode rows, a chunk of prefill and a fresh prompt in one batch. */
static void check_mixed(const char *dir) {
    fixture f;
    float alone[N_SEQ][MAX_LEN], got[MAX_LEN];
    ml_plan *p;
    ml_kv kv;
    ml_batch b;
    int32_t target[N_SEQ][MAX_LEN], page[N_SEQ][16], done[N_SEQ] = { 0 }, step = 0;
    static const int32_t stride[N_SEQ] = { 1, 5, 1, 33 };

    open_fixture(&f, dir, ML_WEIGHT_AUTO, 3);
    p = open_plan(&f, (ml_plan_opts){ .caps = caps, .kv_shared = true });
    CHECK(ml_kv_open(&kv, &f.spec, 64, N_SEQ, &f.be, &f.arena, NULL) == ML_OK);
    memset(kv.buf.ptr, 0xff, kv.buf.bytes);
    ml_batch_init(&b, &f.arena, caps);
    for (int i = 0; i < N_SEQ; i++) {
        score_packed(&f, &i, 1, alone[i]);
        targets(&f, i, target[i]);
        for (int32_t k = 0; k < 16; k++)
            page[i][k] = k * N_SEQ + i;
    }
    for (bool more = true; more; step++) {
        int32_t n[N_SEQ] = { 0 }, row = 0;
        more = false;
        ml_batch_clear(&b);
        for (int i = 0; i < N_SEQ; i++) {
            if (step < i * 4 || done[i] == f.len[i]) /* later ones join a running batch */
                continue;
            n[i] = f.len[i] - done[i] < stride[i] ? f.len[i] - done[i] : stride[i];
            ml_batch_add(&b, f.id[i] + done[i], target[i] + done[i], n[i], done[i],
                         page[i]);
            ml_batch_set_slot(&b, i);
        }
        ml_plan_forward(p, &(ml_run){ .weights = &f.weights, .kv = &kv, .rows = &b.rows });
        ml_plan_read(p, &b.rows, got, NULL, NULL);
        for (int i = 0; i < N_SEQ; row += n[i++]) {
            same_bits("mixed", alone[i] + done[i], got + row, n[i]);
            done[i] += n[i];
            more = more || done[i] < f.len[i];
        }
    }
    ml_kv_close(&kv);
    ml_plan_free(p);
    close_fixture(&f);
}

static void gradients(fixture *f, ml_weights *g, bool packed) {
    ml_plan *p = open_plan(f, (ml_plan_opts){ .caps = caps, .backward = true });
    ml_batch b;
    int32_t target[MAX_LEN];
    float d[512], h[512];

    CHECK(ml_weights_zeros(g, &f->spec, &f->be, &f->arena, NULL) == ML_OK);
    for (int i = 0; i < 512; i++) {
        d[i] = -0.01f;
        h[i] = 0.002f;
    }
    ml_batch_init(&b, &f->arena, caps);
    for (int i = 0; i < N_SEQ; i++) {
        ml_run run = { .weights = &f->weights, .grads = g, .rows = &b.rows };
        targets(f, i, target);
        target[f->len[i] - 1] = ML_TARGET_SKIP;
        ml_batch_add(&b, f->id[i], target, f->len[i], 0, NULL);
        if (packed && i + 1 < N_SEQ)
            continue;
        ml_plan_forward(p, &run);
        ml_plan_backward(p, &run, d, h);
        ml_batch_clear(&b);
    }
    ml_plan_free(p);
}

/* Gradient sums over rows continue from one batch to the next in the same order, so packing
 * does not change gradients, unless one matrix is used twice (a tied head: each batch adds
 * head, then embedding).  The trainer sums the two uses apart (test_train_parity.c). */
static bool used_again(const ml_spec *s, int32_t param) {
    for (int32_t i = 0; i < s->n_node; i++)
        for (int k = 0; k < ML_OP_W; k++)
            if (s->node[i].again && s->node[i].w[k] == param)
                return true;
    return false;
}

static void check_gradients(const char *dir) {
    fixture f;
    ml_weights one, all;

    open_fixture(&f, dir, ML_WEIGHT_AUTO, 2);
    gradients(&f, &one, false);
    gradients(&f, &all, true);
    for (int32_t i = f.spec.tied ? 1 : 0; i < f.spec.n_param; i++)
        if (!used_again(&f.spec, i) &&
            memcmp(one.t[i].data, all.t[i].data, ml_tensor_bytes(&one.t[i])) != 0)
            ml_test_fail(__FILE__, __LINE__, "gradient of %s depends on packing",
                         f.spec.param[i].name);
    ml_weights_close(&one);
    ml_weights_close(&all);
    close_fixture(&f);
}

/* ---- routing replay ---- */

/* Negates the routers' weights, so that they select other experts. */
static void turn_routers(fixture *f) {
    for (int32_t i = 0; i < f->spec.n_node; i++) {
        const ml_node *n = &f->spec.node[i];
        const ml_tensor *t;
        if (n->op != ML_OP_MOE_ROUTE)
            continue;
        t = &f->weights.t[f->spec.node[i - 1].w[0]]; /* the node that computes the logits */
        for (size_t k = 0; k < ml_tensor_bytes(t) / sizeof(float); k++)
            ((float *)t->data)[k] *= -1.0f;
    }
}

typedef struct replayed {
    float logprob[MAX_LEN];
    int32_t *chosen;
    size_t bytes;
    ml_weights grads;
} replayed;

/* Forward and backward of sequence 1. */
static replayed run_given(fixture *f, ml_routing_kind route, ml_recompute again,
                          const int32_t *given) {
    ml_plan_opts opts = { .caps = caps, .backward = true, .recompute = again };
    ml_plan *p;
    int32_t target[MAX_LEN];
    float ones[MAX_LEN];
    ml_batch batch;
    ml_run run = { .weights = &f->weights, .rows = &batch.rows };
    int64_t n = f->len[1] * ml_spec_routing_width(&f->spec, route);
    replayed out = { .chosen = ML_NEW(&f->arena, int32_t, n), .bytes = (size_t)n * 4 };

    opts.given[route] = true;
    p = open_plan(f, opts);
    ml_batch_init(&batch, &f->arena, caps);
    targets(f, 1, target);
    ml_batch_add(&batch, f->id[1], target, f->len[1], 0, NULL);
    CHECK(ml_weights_zeros(&out.grads, &f->spec, &f->be, &f->arena, NULL) == ML_OK);
    run.grads = &out.grads;
    run.chosen[route] = out.chosen;
    run.given[route] = given;
    for (int i = 0; i < MAX_LEN; i++)
        ones[i] = 1.0f;
    ml_plan_forward(p, &run);
    ml_plan_read(p, &batch.rows, out.logprob, NULL, NULL);
    ml_plan_backward(p, &run, ones, NULL);
    ml_plan_free(p);
    return out;
}

static bool same_run(const fixture *f, const replayed *a, const replayed *b) {
    return memcmp(a->chosen, b->chosen, a->bytes) == 0 &&
           memcmp(a->logprob, b->logprob, (size_t)f->len[1] * sizeof(float)) == 0 &&
           memcmp(a->grads.buf.ptr, b->grads.buf.ptr, a->grads.buf.bytes) == 0;
}

static void all_finite(const fixture *f, const replayed *r) {
    const float *g = r->grads.buf.ptr;
    for (int32_t t = 0; t < f->len[1]; t++)
        CHECK(isfinite(r->logprob[t]));
    for (size_t i = 0; i < r->grads.buf.bytes / sizeof *g; i++)
        if (!isfinite(g[i])) {
            ml_test_fail(__FILE__, __LINE__, "gradient %zu is %g", i, (double)g[i]);
            return;
        }
}

/* Replayed in the model that recorded it, a selection changes nothing.  Another model uses
 * the recorded selection instead of its own, also in the recomputation of backward. */
static void check_replay(const char *dir) {
    const ml_recompute none = { 0 }, full = { .granularity = ML_RECOMPUTE_FULL };
    replayed first, same, other, given, again;
    fixture f;

    open_fixture(&f, dir, ML_WEIGHT_F32, 2);
    first = run_given(&f, ML_ROUTING_EXPERTS, none, NULL);
    same = run_given(&f, ML_ROUTING_EXPERTS, none, first.chosen);
    CHECK(first.bytes > 0 && same_run(&f, &first, &same));
    turn_routers(&f);
    other = run_given(&f, ML_ROUTING_EXPERTS, none, NULL);
    given = run_given(&f, ML_ROUTING_EXPERTS, none, first.chosen);
    again = run_given(&f, ML_ROUTING_EXPERTS, full, first.chosen);
    CHECK(memcmp(first.chosen, other.chosen, first.bytes) != 0);
    CHECK(memcmp(first.chosen, given.chosen, first.bytes) == 0);
    CHECK(memcmp(other.logprob, given.logprob, sizeof(float)) != 0);
    CHECK(memcmp(first.logprob, given.logprob, sizeof(float)) != 0); /* other weights */
    CHECK(same_run(&f, &given, &again));
    all_finite(&f, &given);
    ml_weights_close(&first.grads);
    ml_weights_close(&same.grads);
    ml_weights_close(&other.grads);
    ml_weights_close(&given.grads);
    ml_weights_close(&again.grads);
    close_fixture(&f);
}

/* Keys that no indexer would select: each row's own and every second one before it. */
static int32_t *own_keys(fixture *f) {
    int32_t k = f->spec.route[ML_ROUTING_KEYS].top_k, n = f->len[1];
    int32_t *key =
        ML_NEW(&f->arena, int32_t, n * f->spec.route[ML_ROUTING_KEYS].n_layer * k);

    for (int64_t i = 0; i < (int64_t)n * f->spec.route[ML_ROUTING_KEYS].n_layer * k; i++) {
        int64_t t = i / k % n, at = t - 2 * (i % k);
        key[i] = at >= 0 ? (int32_t)at : -1;
    }
    return key;
}

static void check_keys(const char *dir) {
    const ml_recompute none = { 0 }, full = { .granularity = ML_RECOMPUTE_FULL };
    replayed first, same, given, again;
    int32_t *key;
    fixture f;

    open_fixture(&f, dir, ML_WEIGHT_F32, 2);
    key = own_keys(&f);
    first = run_given(&f, ML_ROUTING_KEYS, none, NULL);
    same = run_given(&f, ML_ROUTING_KEYS, none, first.chosen);
    CHECK(first.bytes > 0 && same_run(&f, &first, &same));
    given = run_given(&f, ML_ROUTING_KEYS, none, key);
    again = run_given(&f, ML_ROUTING_KEYS, full, key);
    CHECK(memcmp(first.logprob, given.logprob, sizeof(float)) == 0); /* one key only */
    CHECK(memcmp(&first.logprob[5], &given.logprob[5], sizeof(float)) != 0);
    CHECK(same_run(&f, &given, &again));
    all_finite(&f, &given);
    ml_weights_close(&first.grads);
    ml_weights_close(&same.grads);
    ml_weights_close(&given.grads);
    ml_weights_close(&again.grads);
    close_fixture(&f);
}

static void replays_keys(void) {
    check_keys(DATA "deepseek_v32");
    check_keys(DATA "glm_moe_dsa");
}

static void replays_softmax(void) {
    check_replay(DATA "qwen3_moe");
}

static void replays_sigmoid(void) {
    check_replay(DATA "deepseek_v3");
}

#define MODELS(X)                                                                          \
    X(llama)                                                                               \
    X(llama_tied)                                                                          \
    X(mistral)                                                                             \
    X(qwen2)                                                                               \
    X(qwen3)                                                                               \
    X(qwen3_moe)                                                                           \
    X(qwen3_moe_raw)                                                                       \
    X(gemma2)                                                                              \
    X(gemma3_text)                                                                         \
    X(gemma4_text)                                                                         \
    X(gemma4_text_moe)                                                                     \
    X(glm4)                                                                                \
    X(phi3)                                                                                \
    X(smollm3)                                                                             \
    X(llama4_text)                                                                         \
    X(gemma3n_text)                                                                        \
    X(olmo2)                                                                               \
    X(mixtral)                                                                             \
    X(glm4_moe)                                                                            \
    X(minimax_m2)                                                                          \
    X(gpt_oss)                                                                             \
    X(glm4_moe_lite)                                                                       \
    X(deepseek_v3)                                                                         \
    X(deepseek_v32)                                                                        \
    X(deepseek_v4)                                                                         \
    X(glm_moe_dsa)                                                                         \
    X(qwen3_next)                                                                          \
    X(qwen3_5_text)                                                                        \
    X(nemotron_h)                                                                          \
    X(nemotron_h_latent)

#define TESTS(name)                                                                        \
    static void forward_##name(void) {                                                     \
        check_forward(DATA #name, ML_WEIGHT_AUTO);                                         \
    }                                                                                      \
    static void bf16_##name(void) {                                                        \
        check_forward(DATA #name, ML_WEIGHT_BF16);                                         \
    }                                                                                      \
    static void mixed_##name(void) {                                                       \
        check_mixed(DATA #name);                                                           \
    }                                                                                      \
    static void gradients_##name(void) {                                                   \
        check_gradients(DATA #name);                                                       \
    }
MODELS(TESTS)

#define ROWS(name)                                                                         \
    { "forward of " #name " is the same bits in any batch", forward_##name },              \
        { "bf16 forward of " #name " is the same bits in any batch", bf16_##name },        \
        { "prefill and decode of " #name " have the same bits mixed", mixed_##name },      \
        { "gradients of " #name " are the same bits in any batch", gradients_##name },

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        MODELS(ROWS){ "qwen3_moe replays expert choices", replays_softmax },
        { "deepseek_v3 replays expert choices", replays_sigmoid },
        { "sparse attention replays its choice of keys", replays_keys },
        { 0 }
    };
    return ml_test_main(argc, argv, tests);
}
