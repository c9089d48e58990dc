/* Layers that read keys and values of earlier ones: what is kept, and what is refused. */
#include <stdio.h>

#include "backend/backend.h"
#include "model/kv.h"
#include "model/plan.h"
#include "model/spec.h"
#include "model/weights.h"
#include "tests/support/test.h"

/* A Gemma 4 of four layers, sliding and full in turn, with further keys. */
static ml_status parse(ml_spec *s, const char *more, ml_err *err) {
    char text[1024];

    snprintf(text, sizeof text,
             "{\"model_type\": \"gemma4_text\", \"vocab_size\": 32, \"hidden_size\": 32, "
             "\"intermediate_size\": 24, \"num_hidden_layers\": 4, "
             "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, "
             "\"sliding_window\": 8, \"vocab_size_per_layer_input\": 32, "
             "\"hidden_size_per_layer_input\": 4, \"layer_types\": "
             "[\"sliding_attention\", \"full_attention\", \"sliding_attention\", "
             "\"full_attention\"]%s%s}",
             more[0] ? ", " : "", more);
    return ml_spec_parse(s, ml_str_of(text), "config.json", err);
}

static void open_spec(ml_spec *s, const char *more) {
    ml_err err = { 0 };
    if (parse(s, more, &err) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
}

/* The key pages of each layer. */
static int32_t pages_of(const ml_spec *s, int32_t pages[4]) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_node; i++)
        if (s->node[i].op == ML_OP_ATTN) {
            pages[n++] = s->node[i].out[2];
            CHECK(s->node[i].layer == n - 1);
        }
    return n;
}

/* Two heads: keys of 8 and 16, values padded to 16. */
enum {
    SLIDING_BYTES = 2 * (8 + 16) * ML_PAGE * 4,
    FULL_BYTES = 2 * (16 + 16) * ML_PAGE * 4
};

static void pages_are_counted_once(void) {
    ml_backend be;
    ml_spec own, shared;
    int32_t pages[4];

    CHECK(ml_backend_cpu_open(&be, 1, NULL, NULL) == ML_OK);
    open_spec(&own, "\"global_head_dim\": 16");
    open_spec(&shared, "\"global_head_dim\": 16, \"num_kv_shared_layers\": 2");
    CHECK(ml_kv_bytes(&own, &be, 10) == 10 * 2 * (SLIDING_BYTES + FULL_BYTES));
    CHECK(ml_kv_bytes(&shared, &be, 10) == 10 * (SLIDING_BYTES + FULL_BYTES));
    CHECK(pages_of(&shared, pages) == 4);
    CHECK(pages[0] == pages[2] && pages[1] == pages[3] && pages[0] != pages[1]);
    ml_spec_close(&own);
    ml_spec_close(&shared);
    be.close(&be);
}

/* The plan of a step holds a set of pages less for each layer that has none. */
static void plans_hold_them_once(void) {
    static const char *const more[] = {
        "\"global_head_dim\": 16", "\"global_head_dim\": 16, \"num_kv_shared_layers\": 2"
    };
    ml_batch_caps caps = { .n_token = 64, .n_seq = 1, .n_loss = 1, .n_page = 400 };
    size_t bytes[2], pages = (size_t)caps.n_page * (SLIDING_BYTES + FULL_BYTES);
    ml_backend be;

    CHECK(ml_backend_cpu_open(&be, 1, NULL, NULL) == ML_OK);
    for (int i = 0; i < 2; i++) {
        ml_spec s;
        ml_plan *p = NULL;
        open_spec(&s, more[i]);
        CHECK(ml_plan_new(&p, &s, &be, (ml_plan_opts){ .caps = caps, .backward = true },
                          NULL) == ML_OK);
        bytes[i] = ml_plan_act_bytes(p);
        ml_plan_free(p);
        ml_spec_close(&s);
    }
    CHECK(bytes[0] > bytes[1] && bytes[0] - bytes[1] >= pages * 9 / 10);
    be.close(&be);
}

static size_t plan_bytes(const ml_spec *s, ml_backend *be, ml_batch_caps caps) {
    ml_plan *p = NULL;
    size_t bytes;

    CHECK(ml_plan_new(&p, s, be, (ml_plan_opts){ .caps = caps, .backward = true }, NULL) ==
          ML_OK);
    bytes = ml_plan_act_bytes(p);
    ml_plan_free(p);
    return bytes;
}

/* Beside bf16 weights pages hold bf16: half the bytes, in a pool and in a plan that trains. */
static void bf16_takes_half(void) {
    ml_batch_caps caps = { .n_token = 64, .n_seq = 1, .n_loss = 1, .n_page = 400 };
    size_t page, plan;
    ml_backend be;
    ml_spec s;

    CHECK(ml_backend_cpu_open(&be, 1, NULL, NULL) == ML_OK);
    open_spec(&s, "");
    ml_spec_keep_kv(&s, ml_weights_kv_dtype(&s, NULL, ML_WEIGHT_F32));
    page = ml_kv_bytes(&s, &be, 1);
    plan = plan_bytes(&s, &be, caps);
    ml_spec_keep_kv(&s, ml_weights_kv_dtype(&s, NULL, ML_WEIGHT_BF16));
    CHECK(2 * ml_kv_bytes(&s, &be, 1) == page);
    CHECK(plan - plan_bytes(&s, &be, caps) == (size_t)caps.n_page * page / 2);
    ml_spec_close(&s);
    be.close(&be);
}

static void refuses(void) {
    static const char *const bad[][2] = {
        { "\"num_kv_shared_layers\": 3",
          "layer 1 must share the keys of an earlier layer with "
          "full_attention, but there is none" },
        { "\"num_kv_shared_layers\": 5", "num_kv_shared_layers" },
        { "\"use_bidirectional_attention\": \"all\"", "only causal attention" },
        { "\"vocab_size_per_layer_input\": 31", "(31) is below vocab_size (32)" },
        { "\"enable_moe_block\": true", "num_experts" },
        { "\"global_head_dim\": 7", "the size must be even" },
        { "\"per_layer_config\": {\"1\": {\"head_dim\": 16}}",
          "layer 3 has 2 key heads of 8, other layers with full_attention 2 of 16" },
        { "\"per_layer_config\": {\"4\": {\"head_dim\": 16}}", "layer numbers below 4" },
        { "\"per_layer_config\": {\"x\": {}}", "layer numbers below 4" },
        { "\"per_layer_config\": 4", "\"per_layer_config\" must be an object" },
        { "\"per_layer_config\": {\"1\": {\"head_dim\": \"a\"}}",
          "\"head_dim\" of a layer" },
        { "\"per_layer_config\": {\"1\": {\"hidden_size\": 16}}", "sets \"hidden_size\"" },
        { "\"attention_k_eq_v\": true, \"num_global_key_value_heads\": 3", "a multiple" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ml_spec s;
        ml_err err = { 0 };
        if (parse(&s, bad[i][0], &err) == ML_OK)
            ml_test_fail(__FILE__, __LINE__, "%s was taken", bad[i][0]);
        CHECK_HAS(err.msg, bad[i][1]);
    }
}

static const ml_test tests[] = {
    { "pages of layers with shared KV are counted once", pages_are_counted_once },
    { "plans of layers with shared KV hold their pages once", plans_hold_them_once },
    { "bf16 KV takes half the bytes of f32", bf16_takes_half },
    { "impossible shared KV configs are refused", refuses },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
