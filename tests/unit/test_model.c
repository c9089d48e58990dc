/* Specs, weights and plans: what is refused and in which words, what is laid out where. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "model/plan.h"
#include "model/source.h"
#include "model/spec_context.h"
#include "tests/support/log_text.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

#define LLAMA "tests/golden/data/llama"

/* --- config.json ------------------------------------------------------------ */

static const char base[] =
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"],\n"
    "\"vocab_size\": 32, \"hidden_size\": 16, \"intermediate_size\": 24,\n"
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,\n"
    "\"rms_norm_eps\": 1e-6, \"max_position_embeddings\": 64 EXTRA}\n";

/* The config above with `from` replaced by `to`. */
static ml_status parse(const char *from, const char *to, ml_spec *spec, ml_err *err) {
    ml_text t = { 0 };
    const char *at = strstr(base, from);
    ml_status st;

    if (!at) {
        ml_test_fail(__FILE__, __LINE__, "%s is not in the config", from);
        return ML_EFORMAT;
    }
    ml_text_add(&t, base, (size_t)(at - base));
    ml_text_printf(&t, "%s%s", to, at + strlen(from));
    at = strstr(t.ptr, "EXTRA");
    if (at)
        memset(t.ptr + (at - t.ptr), ' ', 5);
    st = ml_spec_parse(spec, (ml_str){ t.ptr, t.len }, "config.json", err);
    ml_text_release(&t);
    return st;
}

static const struct {
    const char *from, *to, *words;
} bad_configs[] = {
    { "\"llama\"", "\"t5\"",
      "model_type \"t5\" is not supported; supported are llama, mistral" },
    { "\"llama\"", "7", "\"model_type\" is a number; expected a string" },
    { "LlamaForCausalLM", "LlamaForTokenClassification",
      "architecture \"LlamaForTokenClassification\" is not supported; supported are "
      "LlamaFor" },
    { "\"vocab_size\": 32", "\"vocab_size\": NaN", "config.json:2:" },
    { "\"vocab_size\": 32", "\"vocab_size\": -5",
      "\"vocab_size\" is -5; expected an integer" },
    { "\"vocab_size\": 32", "\"vocab_size\": 3.5",
      "\"vocab_size\" is 3.5; expected an integer" },
    { "\"vocab_size\": 32", "\"vocab_size\": 1e99", "\"vocab_size\" is 1e99" },
    { "\"vocab_size\": 32", "\"vocab_size\": \"32\"", "\"vocab_size\" is a string" },
    { "\"vocab_size\": 32,", "", "\"vocab_size\" is missing" },
    { "\"vocab_size\": 32", "\"vocab_size\": null", "\"vocab_size\" is missing" },
    { "\"hidden_size\": 16", "\"hidden_size\": 99999999999",
      "\"hidden_size\" is 99999999999" },
    { "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 0",
      "\"num_hidden_layers\" is 0" },
    { "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1000000",
      "expected an integer from 1" },
    { "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3",
      "num_attention_heads (4) is not a multiple of num_key_value_heads (3)" },
    { "1e-6", "2", "\"rms_norm_eps\" is 2; expected a number from 0 to 1" },
    { "EXTRA", ", \"hidden_act\": \"relu\"",
      "\"hidden_act\" is \"relu\"; supported are silu" },
    { "EXTRA", ", \"head_dim\": 7", "head_dim (7) is odd" },
    { "EXTRA", ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}",
      "rope_type is \"dynamic\"; supported are default, linear, llama3, yarn and "
      "proportional" },
    { "EXTRA", ", \"rope_scaling\": {\"rope_type\": \"linear\"}",
      "\"rope_scaling.factor\" is missing" },
    { "EXTRA", ", \"rope_scaling\": 4", "\"rope_scaling\" must be an object" },
    { "EXTRA", ", \"rope_theta\": \"big\"", "\"rope_theta\" is a string" },
    { "EXTRA", ", \"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8}",
      "\"rope_parameters.low_freq_factor\" is missing" },
    { "EXTRA", ", \"partial_rotary_factor\": 0.1", "leaves 0 rotated dimensions" },
    { "EXTRA", ", \"tie_word_embeddings\": \"yes\"", "expected true or false" },
    { "EXTRA", ", \"quantization_config\": {\"quant_method\": \"bitsandbytes\"}",
      "the weights are quantized by the method bitsandbytes; supported are fp8" },
    { "\"vocab_size\": 32, \"hidden_size\": 16, \"intermediate_size\": 24",
      "\"vocab_size\": 16777216, \"hidden_size\": 1048576, \"intermediate_size\": 1048576",
      "parameters; the maximum is" },
    { "{\"model_type\"", "[\"model_type\"", "config.json:1:" },
};

static void refuses_bad_configs(void) {
    for (size_t i = 0; i < sizeof bad_configs / sizeof *bad_configs; i++) {
        ml_spec spec;
        ml_err err = { 0 };
        if (parse(bad_configs[i].from, bad_configs[i].to, &spec, &err) == ML_OK)
            ml_test_fail(__FILE__, __LINE__, "%s was taken", bad_configs[i].to);
        CHECK_HAS(err.msg, bad_configs[i].words);
        CHECK_HAS(err.msg, "config.json");
    }
}

static void refuses_moe_and_window_configs(void) {
    static const char *const bad[][2] = {
        { "\"layer_types\": [\"full_attention\"]",
          "\"layer_types\" must be an array of 2 strings" },
        { "\"layer_types\": [\"full_attention\", \"linear_attention\"]",
          "has \"linear_attention\" for layer 1; supported are full_attention" },
        { "\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
          "layer 1 is sliding_attention but no \"sliding_window\" is set" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[1024];
        ml_spec spec;
        ml_err err = { 0 };
        snprintf(text, sizeof text,
                 "{\"model_type\": \"qwen3\", \"vocab_size\": 32, \"hidden_size\": 16, "
                 "\"intermediate_size\": 24, \"num_hidden_layers\": 2, "
                 "\"num_attention_heads\": 4, "
                 "\"num_key_value_heads\": 2, %s}",
                 bad[i][0]);
        CHECK(ml_spec_parse(&spec, ml_str_of(text), "config.json", &err) != ML_OK);
        CHECK_HAS(err.msg, bad[i][1]);
    }
}

static void refuses_gemma3n_configs(void) {
    static const struct {
        const char *more, *words;
    } bad[] = {
        { "\"altup_active_idx\": 2",
          "altup_active_idx (2) must be below altup_num_inputs (2)" },
        { "\"altup_num_inputs\": 9", "\"altup_num_inputs\"" },
        { "\"intermediate_size\": [16]",
          "\"intermediate_size\" has 1 numbers; expected 2" },
        { "\"intermediate_size\": [16, \"x\"]", "\"intermediate_size\" must have numbers" },
        { "\"activation_sparsity_pattern\": [0.5, 1]",
          "\"activation_sparsity_pattern\" must have numbers from 0 to" },
        { "\"hidden_size_per_layer_input\": 0",
          "without per-layer inputs is not supported" },
        { "\"num_kv_shared_layers\": 2", "num_kv_shared_layers is too large" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ml_spec spec;
        ml_err err = { 0 };
        char text[768];
        snprintf(
            text, sizeof text,
            "{\"model_type\": \"gemma3n_text\", \"vocab_size\": 32, \"hidden_size\": 16, "
            "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"head_dim\": 8, "
            "\"altup_num_inputs\": 2, \"num_kv_shared_layers\": 0, %s}",
            bad[i].more);
        CHECK(ml_spec_parse(&spec, ml_str_of(text), "config.json", &err) != ML_OK);
        CHECK_HAS(err.msg, bad[i].words);
    }
}

static void refuses_deepseek_v4_configs(void) {
    static const struct {
        const char *more, *words;
    } bad[] = {
        { "\"layer_types\": [\"sliding_attention\"]",
          "\"layer_types\" must be an array with an element for each of 2 layers" },
        { "\"layer_types\": [\"sliding_attention\", \"full_attention\"]",
          "\"layer_types\" of layer 1 must be sliding_attention, compressed_sparse" },
        { "\"compress_ratios\": [0, 8]", "of layer 1 must be 0, 4 or 128" },
        { "\"compress_rates\": {\"heavily_compressed_attention\": 256}",
          "compress_rates.heavily_compressed_attention" },
        { "\"mlp_layer_types\": [\"hash_moe\", \"dense\"]",
          "\"mlp_layer_types\" of layer 1 must be hash_moe or moe" },
        { "\"o_groups\": 3", "(4) is not a multiple of o_groups (3)" },
        { "\"scoring_func\": \"tanh\"", "supported are sqrtsoftplus, sigmoid and softmax" },
        { "\"n_shared_experts\": 2", "supported is 1 shared expert" },
        { "\"hc_mult\": 9", "\"hc_mult\"" },
        { "\"rope_parameters\": {\"rope_type\": \"default\"}",
          "must have the objects main and compress" },
        { "\"index_head_dim\": 2", "\"index_head_dim\"" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ml_spec spec;
        ml_err err = { 0 };
        char text[768];
        snprintf(text, sizeof text,
                 "{\"model_type\": \"deepseek_v4\", \"vocab_size\": 32, "
                 "\"hidden_size\": 16, \"num_hidden_layers\": 2, \"head_dim\": 8, "
                 "\"num_attention_heads\": 4, \"qk_rope_head_dim\": 4, \"q_lora_rank\": 4, "
                 "\"o_groups\": 2, \"o_lora_rank\": 4, %s}",
                 bad[i].more);
        CHECK(ml_spec_parse(&spec, ml_str_of(text), "config.json", &err) != ML_OK);
        CHECK_HAS(err.msg, bad[i].words);
    }
}

/* What transformers itself writes into a config.json, and exporters beside it. */
static const char transformers_keys[] =
    ", \"_name_or_path\": \"a/b\", \"_commit_hash\": \"0\", \"return_dict\": true, "
    "\"_attn_implementation_autoset\": true, \"torchscript\": false, "
    "\"use_bfloat16\": false, \"tf_legacy_loss\": false, \"pruned_heads\": {}, "
    "\"chunk_size_feed_forward\": 0, \"is_encoder_decoder\": false, "
    "\"is_decoder\": false, \"add_cross_attention\": false, "
    "\"tie_encoder_decoder\": false, \"id2label\": {\"0\": \"LABEL_0\"}, "
    "\"label2id\": {\"LABEL_0\": 0}, \"num_labels\": 1, \"max_length\": 20, "
    "\"min_length\": 0, \"do_sample\": false, \"early_stopping\": false, "
    "\"num_beams\": 1, \"num_beam_groups\": 1, \"diversity_penalty\": 0.0, "
    "\"temperature\": 1.0, \"top_k\": 50, \"top_p\": 1.0, \"typical_p\": 1.0, "
    "\"repetition_penalty\": 1.0, \"length_penalty\": 1.0, "
    "\"no_repeat_ngram_size\": 0, \"encoder_no_repeat_ngram_size\": 0, "
    "\"num_return_sequences\": 1, \"output_scores\": false, "
    "\"return_dict_in_generate\": false, \"remove_invalid_values\": false, "
    "\"gradient_checkpointing\": false, \"tokenizer_class\": \"T\", "
    "\"is_llama_config\": true, \"rope_interleaved\": false, \"use_mrope\": false, "
    "\"transformers.js_config\": {\"kv_cache_dtype\": {\"fp16\": \"float16\"}}";

static void warns_of_unknown_keys(void) {
    ml_text log = { 0 };
    ml_spec spec;
    ml_err err = { 0 };

    ml_log_to_text(&log);
    CHECK(parse("EXTRA", ", \"initializer_range\": 0.1, \"x\": null", &spec, &err) ==
          ML_OK);
    CHECK(log.len == 0);
    ml_spec_close(&spec);
    CHECK(parse("EXTRA", transformers_keys, &spec, &err) == ML_OK);
    if (log.len)
        ml_test_fail(__FILE__, __LINE__, "%s", log.ptr);
    ml_spec_close(&spec);
    CHECK(parse("EXTRA", ", \"rope_interleaved\": true", &spec, &err) == ML_OK);
    CHECK_HAS(log.ptr, "unknown key \"rope_interleaved\" has no effect");
    ml_spec_close(&spec);
    CHECK(parse("EXTRA", ", \"surprise\": 1", &spec, &err) == ML_OK);
    CHECK_HAS(log.ptr, "config.json:4: unknown key \"surprise\" has no effect");
    ml_spec_close(&spec);
    ml_text_release(&log);
}

/* Keys of releases that no other test's config has: none may be unknown. */
static void takes_released_configs(void) {
    static const struct {
        const char *name, *family;
        double billions; /* parameters of the text model */
    } all[] = { { "GLM-4.7-Flash", "glm4_moe_lite", 29.94 },
                { "Gemma-3n-E4B", "gemma3n_text", 6.84 },
                { "Kimi-K2.5", "kimi_k2", 1026.41 },
                { "Qwen3.6-27B", "qwen3_5_text", 26.90 },
                { "Qwen3.6-35B-A3B", "qwen3_5_moe_text", 34.66 } };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char path[256];
        ml_text log = { 0 };
        ml_file file = { 0 };
        ml_spec spec = { 0 };
        ml_err err = { 0 };
        double n;

        snprintf(path, sizeof path, "tests/golden/configs/%s.json", all[i].name);
        ml_log_to_text(&log);
        CHECK(ml_file_map(&file, path, &err) == ML_OK);
        if (ml_spec_parse(&spec, file.bytes, path, &err) != ML_OK || log.len)
            ml_test_fail(__FILE__, __LINE__, "%s: %s%s", path, err.msg,
                         log.len ? log.ptr : "");
        n = (double)ml_spec_param_count(&spec) / 1e9;
        if (n < all[i].billions - 0.01 || n > all[i].billions + 0.01)
            ml_test_fail(__FILE__, __LINE__, "%s has %.3f billion parameters", path, n);
        CHECK(!strcmp(spec.family, all[i].family));
        ml_spec_close(&spec);
        ml_file_unmap(&file);
        ml_text_release(&log);
    }
}

/* --- weights ---------------------------------------------------------------- */

#define V4 "tests/golden/data/deepseek_v4"

/* A copy of the model whose first token has expert `number` of 8. */
static void write_table(int64_t number) {
    static const char name[] = "model.layers.0.ffn.gate.tid2eid";
    ml_file model = { 0 }, config = { 0 };
    ml_st_file *f = NULL;
    ml_text copy = { 0 };

    CHECK(ml_file_map(&config, V4 "/config.json", NULL) == ML_OK);
    CHECK(ml_file_map(&model, V4 "/model.safetensors", NULL) == ML_OK);
    CHECK(ml_st_open(&f, V4 "/model.safetensors", NULL) == ML_OK);
    ml_text_add(&copy, model.bytes.ptr, model.bytes.len);
    memcpy(copy.ptr + ml_st_find(f, ml_str_of(name))->offset, &number, sizeof number);
    CHECK(ml_file_replace(ml_test_path("config.json"), config.bytes, NULL) == ML_OK);
    CHECK(ml_file_replace(ml_test_path("model.safetensors"), (ml_str){ copy.ptr, copy.len },
                          NULL) == ML_OK);
    ml_text_release(&copy);
    ml_st_close(f);
    ml_file_unmap(&model);
    ml_file_unmap(&config);
}

static void checks_tables_of_experts(void) {
    static const int64_t number[] = { 7, 8, -1 };

    for (int i = 0; i < 3; i++) {
        const char *dir = ml_test_path("");
        ml_spec spec;
        ml_checkpoint *c = NULL;
        ml_err err = { 0 };

        write_table(number[i]);
        CHECK(ml_spec_open(&spec, dir, &err) == ML_OK);
        CHECK(ml_checkpoint_open(&c, dir, &err) == ML_OK);
        CHECK((ml_weights_check(&spec, c, &err) == ML_OK) == (i == 0));
        if (i)
            CHECK_HAS(err.msg, "in row 0; expected are 0 to 7");
        ml_checkpoint_close(c);
        ml_spec_close(&spec);
    }
}

static void refuses_pieces_of_windows(void) {
    ml_spec spec, piece;
    ml_err err = { 0 };

    CHECK(ml_spec_open(&spec, V4, &err) == ML_OK);
    CHECK(ml_spec_context(&piece, &spec, 2, 0, NULL, &err) == ML_EUNSUP);
    CHECK_HAS(err.msg, "--context-parallel-size: layer 1 of deepseek_v4 compresses");
    ml_spec_close(&spec);
}

typedef struct edit {
    const char *name;   /* tensor to change */
    const char *rename; /* or NULL */
    int64_t shape0;     /* or 0 */
    ml_st_dtype dtype;  /* or F32 */
    bool drop;
    const char *words;
} edit;

#define Q0 "model.layers.0.self_attn.q_proj.weight"

static const edit edits[] = {
    { .name = Q0,
      .drop = true,
      .dtype = ML_ST_F32,
      .words = "tensor " Q0 " is missing; expected shape [48, 48]" },
    { .name = Q0, .rename = "extra.weight", .dtype = ML_ST_F32, .words = "is missing" },
    { .name = Q0,
      .shape0 = 32,
      .dtype = ML_ST_F32,
      .words = "tensor " Q0 " has shape [32, 48]; config.json requires [48, 48]" },
    { .name = "lm_head.weight",
      .dtype = ML_ST_I32,
      .words = "tensor lm_head.weight has dtype I32; supported are F32, BF16, F16" },
    { .name = "model.norm.weight",
      .shape0 = 47,
      .dtype = ML_ST_F32,
      .words = "model.norm.weight has shape [47]" },
};

/* The llama golden with one tensor changed, in a directory of its own. */
static const char *edited(const edit *e, const char *extra) {
    ml_st_file *f;
    ml_st_writer *w;
    ml_st_tensor t[64];
    int32_t from[64], n = 0;
    const char *dir = ml_test_dir();

    CHECK(ml_st_open(&f, LLAMA "/model.safetensors", NULL) == ML_OK);
    for (int32_t i = 0; i < f->n; i++) {
        bool hit = e && ml_str_is(f->tensor[i].name, e->name);
        if (hit && e->drop)
            continue;
        t[n] = f->tensor[i];
        if (hit && e->rename)
            t[n].name = ml_str_of(e->rename);
        if (hit && e->shape0)
            t[n].shape[0] = e->shape0;
        if (hit)
            t[n].dtype = e->dtype;
        from[n++] = i;
    }
    if (extra) {
        t[n] = t[0];
        t[n].name = ml_str_of(extra);
        from[n++] = from[0];
    }
    CHECK(ml_st_create(&w, ml_test_path("model.safetensors"),
                       &(ml_st_layout){ .n = n, .tensor = t }, NULL) == ML_OK);
    for (int32_t i = 0; i < n; i++) {
        size_t bytes;
        CHECK(ml_st_size(t[i].dtype, t[i].shape, t[i].n_dim, &bytes));
        CHECK(ml_st_write(w, i, 0, f->tensor[from[i]].data, bytes, NULL) == ML_OK);
    }
    CHECK(ml_st_commit(w, NULL) == ML_OK);
    ml_st_close(f);
    return dir;
}

static ml_status check_dir(const char *dir, ml_err *err) {
    ml_spec spec;
    ml_checkpoint *c = NULL;
    ml_status st = ml_spec_open(&spec, LLAMA, err);

    if (st == ML_OK)
        st = ml_checkpoint_open(&c, dir, err);
    if (st == ML_OK)
        st = ml_weights_check(&spec, c, err);
    ml_checkpoint_close(c);
    ml_spec_close(&spec);
    return st;
}

static void refuses_bad_weights(void) {
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        ml_err err = { 0 };
        CHECK(check_dir(edited(&edits[i], NULL), &err) != ML_OK);
        CHECK_HAS(err.msg, edits[i].words);
    }
}

static void refuses_extra_weights(void) {
    ml_err err = { 0 };
    CHECK(check_dir(edited(NULL, "model.layers.9.mlp.up_proj.weight"), &err) != ML_OK);
    CHECK_HAS(err.msg,
              "tensor model.layers.9.mlp.up_proj.weight is not part of a llama model");
    /* What old checkpoints carry along and nobody reads is fine. */
    CHECK(check_dir(edited(NULL, "model.layers.0.self_attn.rotary_emb.inv_freq"), &err) ==
          ML_OK);
}

/* --- plans ------------------------------------------------------------------ */

typedef struct fixture {
    ml_arena arena;
    ml_spec spec;
    ml_checkpoint *c;
    ml_backend be;
    ml_weights w, g;
} fixture;

static void open_fixture(fixture *x, const char *dir) {
    ml_err err = { 0 };
    ml_arena_init(&x->arena, "test");
    if (ml_spec_open(&x->spec, dir, &err) || ml_checkpoint_open(&x->c, dir, &err) ||
        ml_backend_cpu_open(&x->be, 2, NULL, &err) ||
        ml_weights_load(&x->w, &x->spec, x->c, ML_WEIGHT_AUTO, &x->be, &x->arena, &err) ||
        ml_weights_zeros(&x->g, &x->spec, &x->be, &x->arena, &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        exit(1);
    }
}

static void close_fixture(fixture *x) {
    ml_weights_close(&x->w);
    ml_weights_close(&x->g);
    ml_backend_close(&x->be);
    ml_checkpoint_close(x->c);
    ml_spec_close(&x->spec);
    ml_arena_release(&x->arena);
}

/* A plan without backward keeps no more than a layer's worth; one with, all of them. */
static void memory_follows_lifetimes(void) {
    fixture x;
    ml_plan *small, *large;
    ml_batch_caps caps = { 64, 2, 64, 8 };
    size_t logits = 64 * 83 * sizeof(float);
    ml_plan *with;

    open_fixture(&x, LLAMA);
    CHECK(ml_plan_new(&small, &x.spec, &x.be, (ml_plan_opts){ .caps = caps }, NULL) ==
          ML_OK);
    CHECK(ml_plan_new(&large, &x.spec, &x.be,
                      (ml_plan_opts){ .caps = caps, .backward = true }, NULL) == ML_OK);
    CHECK(ml_plan_new(&with, &x.spec, &x.be, (ml_plan_opts){ .caps = caps, .logits = true },
                      NULL) == ML_OK);
    CHECK(ml_plan_act_bytes(large) > 2 * ml_plan_act_bytes(small));
    CHECK(ml_plan_act_bytes(with) >= logits);
    CHECK(ml_plan_act_bytes(small) < 64 * (48 * 8 + 64 * 2) * sizeof(float) * 2);
    ml_plan_free(small);
    ml_plan_free(large);
    ml_plan_free(with);
    close_fixture(&x);
}

/* Counted by the wrappers below, while `counting`. */
static bool counting;
static long n_alloc;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

void *__wrap_malloc(size_t n) {
    n_alloc += counting;
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size) {
    n_alloc += counting;
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n) {
    n_alloc += counting;
    return __real_realloc(p, n);
}

static void steps_do_not_allocate(void) {
    static const char *const models[] = { LLAMA, "tests/golden/data/qwen3_moe",
                                          "tests/golden/data/gemma2" };
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        fixture x = { 0 };
        ml_plan *p;
        ml_batch b;
        ml_batch_caps caps = { 40, 2, 40, 8 };
        int32_t id[40], target[40];
        float d[40] = { 0 };
        ml_run run = { 0 };

        for (int i = 0; i < 40; i++) {
            id[i] = i * 7 % 83;
            target[i] = (i * 5 + 1) % 83;
        }
        open_fixture(&x, models[m]);
        CHECK(ml_plan_new(&p, &x.spec, &x.be,
                          (ml_plan_opts){ .caps = caps, .backward = true }, NULL) == ML_OK);
        CHECK(ml_plan_alloc(p, NULL) == ML_OK);
        ml_batch_init(&b, &x.arena, caps);
        run = (ml_run){ .weights = &x.w, .grads = &x.g, .rows = &b.rows };
        counting = true;
        for (int step = 0; step < 3; step++) {
            ml_batch_clear(&b);
            ml_batch_add(&b, id, target, 17 + step, 0, NULL);
            ml_batch_add(&b, id + 5, target, 20, 0, NULL);
            ml_plan_forward(p, &run);
            ml_plan_read(p, &b.rows, d, NULL, NULL);
            ml_plan_backward(p, &run, d, d);
        }
        counting = false;
        if (n_alloc)
            ml_test_fail(__FILE__, __LINE__, "%s: %ld allocations in 3 steps", models[m],
                         n_alloc);
        n_alloc = 0;
        ml_plan_free(p);
        close_fixture(&x);
    }
}

/* Each op of a forward once, and of a backward with recomputation; one after the other. */
static void ops_tell_when_they_ran(void) {
    fixture x = { 0 };
    ml_plan *p;
    ml_batch b;
    ml_batch_caps caps = { 40, 2, 40, 8 };
    int32_t id[20] = { 3, 1, 4 }, target[20] = { 1, 5, 9 };
    float d[20] = { 0 };
    ml_timeline *told = ml_timeline_new(1000);
    ml_timeline_taken t;
    int n_forward = 0, n_again = 0, n_backward = 0;

    open_fixture(&x, LLAMA);
    CHECK(ml_plan_new(&p, &x.spec, &x.be,
                      (ml_plan_opts){ .caps = caps,
                                      .backward = true,
                                      .recompute = { .granularity = ML_RECOMPUTE_FULL } },
                      NULL) == ML_OK);
    CHECK(ml_plan_alloc(p, NULL) == ML_OK);
    ml_plan_spans_to(p, told, ML_TRACK_TRAIN);
    ml_batch_init(&b, &x.arena, caps);
    ml_batch_add(&b, id, target, 20, 0, NULL);
    ml_plan_forward(p, &(ml_run){ .weights = &x.w, .rows = &b.rows });
    ml_plan_backward(p, &(ml_run){ .weights = &x.w, .grads = &x.g, .rows = &b.rows }, d, d);
    t = ml_timeline_take(told, &x.arena);
    for (int64_t i = 0; i < t.n; i++) {
        const ml_time_span *s = &t.span[i];
        n_again += strstr(s->name, " again") != NULL;
        n_backward += strstr(s->name, " backward") != NULL;
        n_forward += !strchr(s->name, ' ');
        CHECK(s->track == ML_TRACK_TRAIN && s->layer < x.spec.n_layer);
        CHECK(s->end_s >= s->begin_s && (!i || s->begin_s >= t.span[i - 1].end_s));
    }
    /* Calls that are one piece of work tell together: q, k and v, gate and up. */
    CHECK(n_forward == x.spec.n_node - 3 * x.spec.n_layer);
    CHECK(n_again > x.spec.n_layer * 10);
    CHECK(n_backward > n_again && t.left_out[ML_TRACK_TRAIN] == 0);
    ml_plan_spans_to(p, NULL, ML_TRACK_TRAIN);
    ml_plan_forward(p, &(ml_run){ .weights = &x.w, .rows = &b.rows });
    CHECK(ml_timeline_take(told, &x.arena).n == 0);
    ml_timeline_free(told);
    ml_plan_free(p);
    close_fixture(&x);
}

static void open_batch(ml_batch *b, ml_arena *a) {
    const ml_batch_caps caps = { .n_token = 64, .n_seq = 8, .n_loss = 1, .n_page = 32 };

    ml_arena_init(a, "rows");
    ml_batch_init(b, a, caps);
}

/* Decoding sequences come first in a batch; those of one row after a longer one are not counted. */
static void counts_single_rows(void) {
    const int32_t id[20] = { 0 }, pages[4] = { 4, 5, 6, 7 };
    ml_arena a;
    ml_batch b;
    ml_rows r = { 0 };

    open_batch(&b, &a);
    ml_batch_add(&b, id, NULL, 1, 40, pages); /* its third page */
    ml_batch_add(&b, id, NULL, 1, 3, pages);
    ml_rows_count_single(&r, &b.rows);
    CHECK(r.n_single == 2 && r.single_page == 4);
    ml_batch_add(&b, id, NULL, 20, 0, pages);
    ml_batch_add(&b, id, NULL, 1, 0, pages);
    ml_rows_count_single(&r, &b.rows);
    CHECK(r.n_single == 2 && r.single_page == 4);
    ml_batch_clear(&b);
    ml_batch_add(&b, id, NULL, 20, 0, pages);
    ml_rows_count_single(&r, &b.rows);
    CHECK(r.n_single == 0 && r.single_page == 0);
    ml_arena_release(&a);
}

static void finds_rows_of_one_request(void) {
    const int32_t id[1] = { 0 }, pages[4] = { 4, 5, 6, 7 }, other[4] = { 4, 5, 9, 8 };
    ml_arena a;
    ml_batch b;
    ml_rows r = { 0 };

    open_batch(&b, &a);
    ml_batch_add(&b, id, NULL, 1, 33, pages);
    ml_batch_add(&b, id, NULL, 1, 34, other); /* they share two whole pages */
    ml_rows_find_separate(&r, &b.rows);
    CHECK(r.separate);
    ml_batch_add(&b, id, NULL, 1, 50, pages); /* a token after that at 33 */
    ml_rows_find_separate(&r, &b.rows);
    CHECK(!r.separate);
    ml_batch_clear(&b);
    ml_batch_add(&b, id, NULL, 1, 3, pages);
    ml_rows_find_separate(&r, &b.rows);
    CHECK(r.separate);
    ml_arena_release(&a);
}

static const ml_test tests[] = {
    { "sequences of one row that share a request's keys are found",
      finds_rows_of_one_request },
    { "a bad config.json is refused with the key", refuses_bad_configs },
    { "bad MoE and sliding-window configs are refused", refuses_moe_and_window_configs },
    { "bad Gemma 3n configs are refused", refuses_gemma3n_configs },
    { "bad DeepSeek-V4 configs are refused", refuses_deepseek_v4_configs },
    { "tables of experts are checked", checks_tables_of_experts },
    { "compressed keys are refused with context parallelism", refuses_pieces_of_windows },
    { "unknown keys of config.json are warned of", warns_of_unknown_keys },
    { "configs of releases have no unknown keys", takes_released_configs },
    { "weights of a wrong shape, type or name are refused", refuses_bad_weights },
    { "weights that no layer reads are refused", refuses_extra_weights },
    { "a plan without backward reuses activation memory", memory_follows_lifetimes },
    { "steps of a plan allocate no memory", steps_do_not_allocate },
    { "the timeline has every op of forward and backward once", ops_tell_when_they_ran },
    { "sequences of one row are counted", counts_single_rows },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
