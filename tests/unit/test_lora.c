/* Adapter files: what is written is read back, and adapters that do not fit are rejected with
 * the name of the tensor. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "base/file.h"
#include "model/lora.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"

typedef struct fixture {
    ml_spec spec;
    ml_backend be;
    ml_checkpoint *checkpoint;
    ml_arena arena;
} fixture;

static void open_fixture(fixture *f, const char *family) {
    const char *dir;

    *f = (fixture){ 0 };
    ml_arena_init(&f->arena, "test");
    dir = ml_arena_printf(&f->arena, "tests/golden/data/%s", family);
    MUST(ml_spec_open(&f->spec, dir, &err));
    MUST(ml_checkpoint_open(&f->checkpoint, dir, &err));
    MUST(ml_backend_cpu_open(&f->be, 1, NULL, &err));
}

static void close_fixture(fixture *f) {
    ml_checkpoint_close(f->checkpoint);
    ml_spec_close(&f->spec);
    ml_backend_close(&f->be);
    ml_arena_release(&f->arena);
}

static ml_lora made(fixture *f, ml_lora_opts o) {
    ml_lora l;
    MUST(ml_lora_new(&l, &f->spec, f->checkpoint, &o, &f->be, &err));
    return l;
}

static bool same_file(const char *a, const char *b) {
    ml_file x = { 0 }, y = { 0 };
    bool same;

    MUST(ml_file_map(&x, a, &err));
    MUST(ml_file_map(&y, b, &err));
    same = ml_str_eq(x.bytes, y.bytes);
    ml_file_unmap(&x);
    ml_file_unmap(&y);
    return same;
}

static const char *folder(const char *name) {
    const char *dir = ml_test_path(name);
    MUST(ml_dir_make(dir, &err));
    return dir;
}

/* Saved, loaded, and saved again. */
static void check_round_trip(const char *family, ml_lora_opts o, int32_t n_alias) {
    fixture f;
    ml_lora a, b;
    const char *x = folder(family), *y;

    open_fixture(&f, family);
    y = folder(ml_arena_printf(&f.arena, "%s.again", family));
    a = made(&f, o);
    MUST(ml_lora_save(&a, &a.weights, x, &err));
    MUST(ml_lora_load(&b, &f.spec, x, &f.be, &err));
    CHECK(a.spec.n_param == b.spec.n_param && a.weights.buf.bytes == b.weights.buf.bytes);
    CHECK(memcmp(a.weights.buf.ptr, b.weights.buf.ptr, a.weights.buf.bytes) == 0);
    CHECK(a.n_alias == b.n_alias && (a.n_alias > 0) == (n_alias > 0));
    for (int32_t i = 0; i < a.n_site; i++)
        CHECK(memcmp(&a.link[i], &b.link[i], sizeof a.link[i]) == 0);
    MUST(ml_lora_save(&b, &b.weights, y, &err));
    CHECK(same_file(ml_arena_printf(&f.arena, "%s/%s", x, ML_LORA_FILE),
                    ml_arena_printf(&f.arena, "%s/%s", y, ML_LORA_FILE)));
    CHECK(same_file(ml_arena_printf(&f.arena, "%s/%s", x, ML_LORA_CONFIG),
                    ml_arena_printf(&f.arena, "%s/%s", y, ML_LORA_CONFIG)));
    ml_lora_close(&a);
    ml_lora_close(&b);
    close_fixture(&f);
}

static void round_trips(void) {
    static const char *const families[] = { "qwen3",   "qwen3_moe", "deepseek_v3", "phi3",
                                            "gpt_oss", "mixtral",   "qwen3_next" };
    ml_lora_opts o = { .rank = 4, .alpha = 8, .target = "all-linear", .seed = 5 };

    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        check_round_trip(families[i], o, 0);
}

static void shared_round_trips(void) {
    ml_lora_opts o = { .rank = 2,
                       .alpha = 8,
                       .target = "all-linear",
                       .fused = true,
                       .shared_outer = true,
                       .seed = 6 };

    check_round_trip("qwen3", o, 1);
    check_round_trip("qwen3_moe", o, 1);
}

static void targets(void) {
    fixture f;
    ml_lora l;
    ml_lora_opts o = { .rank = 2, .alpha = 4, .target = "q_proj, layers.1.mlp.down_proj" };
    int32_t n = 0;

    open_fixture(&f, "qwen3");
    l = made(&f, o);
    for (int32_t i = 0; i < l.n_site; i++)
        n += l.link[i].a != ML_NONE;
    CHECK(n == f.spec.n_layer + 1);
    CHECK_HAS(l.config.text.ptr, "[\"q_proj\", \"down_proj\"]");
    ml_lora_close(&l);
    o.target = "all-linear";
    o.exclude = "q_proj,k_proj,v_proj,o_proj,up_proj,down_proj";
    l = made(&f, o);
    CHECK(l.spec.n_param == 2 * f.spec.n_layer);
    ml_lora_close(&l);
    o.target = "nothing";
    o.exclude = NULL;
    {
        ml_err err = { 0 };
        CHECK(ml_lora_new(&l, &f.spec, NULL, &o, &f.be, &err) == ML_EUSAGE);
        CHECK_HAS(err.msg, "--target-modules \"nothing\" names no linear layer");
    }
    close_fixture(&f);
}

/* --- adapters that do not fit --------------------------------------------------------- */

#define Q "base_model.model.model.layers.0.self_attn.q_proj."

typedef struct one {
    const char *name;
    ml_st_dtype dtype;
    int32_t n_dim;
    int64_t shape[3];
} one;

/* Loads an adapter of these tensors, which are zeros, and returns the message. */
static const char *refused(const char *config, const one *t, int32_t n) {
    static ml_err why;
    fixture f;
    ml_lora l;
    const char *dir = folder("refused");
    ml_st_tensor list[4] = { 0 };
    static const char zeros[1 << 16];
    ml_st_writer *w;
    char path[1024];

    open_fixture(&f, "qwen3");
    snprintf(path, sizeof path, "%s/%s", dir, ML_LORA_CONFIG);
    MUST(ml_file_replace(path, ml_str_of(config), &err));
    for (int32_t i = 0; i < n; i++) {
        list[i] = (ml_st_tensor){ .name = ml_str_of(t[i].name),
                                  .dtype = t[i].dtype,
                                  .n_dim = t[i].n_dim };
        memcpy(list[i].shape, t[i].shape, sizeof t[i].shape);
        ml_st_size(list[i].dtype, list[i].shape, list[i].n_dim, &list[i].bytes);
    }
    snprintf(path, sizeof path, "%s/%s", dir, ML_LORA_FILE);
    MUST(ml_st_create(&w, path, &(ml_st_layout){ .n = n, .tensor = list }, &err));
    for (int32_t i = 0; i < n; i++)
        MUST(ml_st_write(w, i, 0, zeros, list[i].bytes, &err));
    MUST(ml_st_commit(w, &err));
    why = (ml_err){ 0 };
    if (ml_lora_load(&l, &f.spec, dir, &f.be, &why) == ML_OK) {
        snprintf(why.msg, sizeof why.msg, "loaded");
        ml_lora_close(&l);
    }
    close_fixture(&f);
    return why.msg;
}

static void refusals(void) {
    static const char fine[] =
        "{\"r\": 2, \"lora_alpha\": 4, \"target_modules\": [\"q_proj\"]}";
    const one a = { Q "lora_A.weight", ML_ST_F32, 2, { 2, 48 } };
    const one b = { Q "lora_B.weight", ML_ST_BF16, 2, { 48, 2 } };
    one x[3] = { a, b };

    CHECK_HAS(refused(fine, x, 2), "loaded");
    CHECK_HAS(refused(fine, x, 1), "tensor " Q "lora_B.weight is missing");
    CHECK_HAS(refused(fine, x + 1, 1), "tensor " Q "lora_A.weight is missing");
    x[1].shape[0] = 5;
    CHECK_HAS(refused(fine, x, 2), "tensor " Q "lora_B.weight has shape [5, 2]");
    x[1] = b;
    x[1].dtype = ML_ST_I32;
    CHECK_HAS(refused(fine, x, 2), Q "lora_B.weight has dtype I32");
    x[1] = b;
    CHECK_HAS(refused("{\"r\": 4, \"target_modules\": [\"q_proj\"]}", x, 2),
              Q "lora_A.weight has shape [2, 48]; the model and a rank of 4");
    CHECK_HAS(refused("{\"r\": 2, \"target_modules\": [\"k_proj\"]}", x, 2),
              "which adapter_config.json does not name as a target");
    x[2] = (one){ "base_model.model.lm_head.lora_A.weight", ML_ST_F32, 2, { 2, 48 } };
    CHECK_HAS(refused(fine, x, 3), "lm_head.lora_A.weight adapts no linear layer");
}

static void configs(void) {
    static const struct {
        const char *text, *message;
    } rows[] = {
        { "[]", "must be an object" },
        { "{\"peft_type\": \"IA3\"}", "\"peft_type\" must be \"LORA\"" },
        { "{\"bias\": \"all\"}", "\"bias\" must be \"none\"" },
        { "{\"use_dora\": true}", "\"use_dora\" is not supported" },
        { "{\"modules_to_save\": [\"lm_head\"]}", "\"modules_to_save\" is not supported" },
        { "{\"r\": 0}", "\"r\" must be a number from 1" },
        { "{\"r\": 1.5}", "\"r\" must be a whole number" },
        { "{\"target_modules\": 3}", "\"target_modules\" must be a list or text" },
        { "{\"target_modules\": [3]}", "must contain names" },
        { "{\"target_modules\": \"(\"}", "is not a regular expression" },
        { "{\"rank_pattern\": {\"q\": \"x\"}}",
          "\"rank_pattern\": \"q\" must be a number" },
        { "{\"layers_to_transform\": [-1]}", "must contain layer numbers" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ml_err err = { 0 };
        ml_peft_config c;
        ml_arena a;
        ml_arena_init(&a, "config");
        CHECK(ml_peft_config_parse(&c, &a, ml_str_of(rows[i].text), "c.json", &err) !=
              ML_OK);
        CHECK_HAS(err.msg, rows[i].message);
        ml_arena_release(&a);
    }
}

static void patterns(void) {
    static const char text[] =
        "{\"r\": 4, \"lora_alpha\": 8, \"target_modules\": \".*\\\\.(q|k)_proj\", "
        "\"exclude_modules\": [\"layers.0.self_attn.k_proj\"], \"layers_to_transform\": "
        "[0, 2], "
        "\"rank_pattern\": {\"q_proj\": 2, \"layers.2.self_attn.q_proj\": 16}, "
        "\"alpha_pattern\": {\"layers.2.*\": 5}, \"use_rslora\": true}";
    static const struct {
        const char *module;
        bool target;
        int32_t rank;
        float scale;
    } rows[] = {
        { "model.layers.0.self_attn.q_proj", true, 2, 5.656854f },
        { "model.layers.0.self_attn.k_proj", false, 4, 4 },
        { "model.layers.2.self_attn.k_proj", true, 4, 2.5f },
        { "model.layers.2.self_attn.q_proj", true, 2, 3.535534f },
        { "model.layers.1.self_attn.q_proj", false, 2, 5.656854f },
        { "model.layers.0.self_attn.v_proj", false, 4, 4 },
        { "model.layers.0.xq_proj", false, 4, 4 },
    };
    ml_peft_config c;
    ml_arena a;

    ml_arena_init(&a, "config");
    MUST(ml_peft_config_parse(&c, &a, ml_str_of(text), "c.json", &err));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool target = false;
        int32_t rank = 0;
        float scale = 0;
        MUST(ml_peft_is_target(&c, rows[i].module, &target, &err));
        MUST(ml_peft_rank_of(&c, rows[i].module, &rank, &err));
        MUST(ml_peft_scale_of(&c, rows[i].module, rank, &scale, &err));
        if (target != rows[i].target || rank != rows[i].rank || scale != rows[i].scale)
            ml_test_fail(__FILE__, __LINE__, "%s: target %d, rank %d, scale %.7g",
                         rows[i].module, target, rank, (double)scale);
    }
    ml_peft_config_close(&c);
    ml_arena_release(&a);
}

static const ml_test tests[] = {
    { "an adapter is written and read back", round_trips },
    { "what layers share is written again and shared when read", shared_round_trips },
    { "target modules select layers", targets },
    { "adapters that do not fit are rejected with the tensor", refusals },
    { "configurations that are not supported are rejected", configs },
    { "patterns of adapter_config.json mean what they mean in PEFT", patterns },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
