/* Model families of a plug-in (examples/model): the rows, logits, gradients and checkpoints
 * of the built-in families, to the bit; and what is said about a plug-in that is wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "base/file.h"
#include "miles/model.h"
#include "model/spec_shard.h"
#include "plugin/model_family.h"
#include "tests/support/example.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/toy_run.h"

#define DATA "tests/golden/data/"

static const struct {
    const char *family, *model;
} built[] = { { "qwen3", "qwen3" },
              { "qwen3_moe", "qwen3_moe" },
              { "qwen3_moe", "qwen3_moe_raw" },
              { "qwen3_5", "qwen3_5_text" } };
enum { N_BUILT = sizeof built / sizeof *built };

/* "object:family", valid until the next call. */
static const char *word_of(const char *object, const char *family) {
    static char word[1200];

    snprintf(word, sizeof word, "%s:%s", object, family);
    return word;
}

/* --- rows ------------------------------------------------------------------------- */

static bool same_text(const char *a, const char *b) {
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_part(const ml_part *a, const ml_part *b) {
    return a == b || (a && b && same_text(a->name, b->name) && a->n_dim == b->n_dim &&
                      memcmp(a->shape, b->shape, sizeof a->shape) == 0 && a->at == b->at &&
                      a->member == b->member && a->row == b->row && a->col == b->col);
}

static bool same_param(const ml_param *a, const ml_param *b) {
    return same_text(a->name, b->name) && same_text(a->name_after, b->name_after) &&
           a->n_stack == b->n_stack && a->n_dim == b->n_dim && a->shape[0] == b->shape[0] &&
           a->shape[1] == b->shape[1] && a->layout == b->layout && a->shard == b->shard &&
           a->frozen == b->frozen && a->keep_f32 == b->keep_f32 &&
           same_part(a->part, b->part);
}

static bool same_value(const ml_value *a, const ml_value *b) {
    return a->axis == b->axis && a->mul == b->mul && a->width == b->width &&
           a->dtype == b->dtype && a->exact == b->exact;
}

static bool same_node(const ml_node *a, const ml_node *b) {
    return a->op == b->op && a->layer == b->layer && a->route_layer == b->route_layer &&
           memcmp(a->in, b->in, sizeof a->in) == 0 &&
           memcmp(a->out, b->out, sizeof a->out) == 0 &&
           memcmp(a->w, b->w, sizeof a->w) == 0;
}

static void compare(const ml_spec *a, const ml_spec *b, const char *what) {
    CHECK(a->n_vocab == b->n_vocab && a->n_hidden == b->n_hidden);
    CHECK(a->n_layer == b->n_layer && a->n_nextn == b->n_nextn);
    CHECK(a->max_position == b->max_position && a->tied == b->tied);
    CHECK(same_text(a->family, b->family));
    CHECK(memcmp(a->route, b->route, sizeof a->route) == 0);
    if (a->n_param != b->n_param || a->n_value != b->n_value || a->n_node != b->n_node) {
        ml_test_fail(__FILE__, __LINE__, "%s: other numbers of rows", what);
        return;
    }
    for (int32_t i = 0; i < a->n_param; i++)
        if (!same_param(&a->param[i], &b->param[i]))
            ml_test_fail(__FILE__, __LINE__, "%s: parameter %s differs", what,
                         a->param[i].name);
    for (int32_t i = 0; i < a->n_value; i++)
        if (!same_value(&a->value[i], &b->value[i]))
            ml_test_fail(__FILE__, __LINE__, "%s: value %d differs", what, i);
    for (int32_t i = 0; i < a->n_node; i++)
        if (!same_node(&a->node[i], &b->node[i]))
            ml_test_fail(__FILE__, __LINE__, "%s: op %d (%s) differs", what, i,
                         ml_op_infos[a->node[i].op].name);
}

static void open_both(ml_spec *builtin, ml_spec *plugin, const char *object, int i,
                      bool critic) {
    const char *word = word_of(object, built[i].family);
    ml_spec_opts o;
    char dir[200];

    snprintf(dir, sizeof dir, DATA "%s", built[i].model);
    MUST(ml_model_family_find(&o, &word, 1, &err));
    o.critic = critic;
    MUST(ml_spec_open_with(plugin, dir, &o, &err));
    MUST(ml_spec_open_with(builtin, dir, &(ml_spec_opts){ .critic = critic }, &err));
}

static void rows_are_equal(void) {
    const char *object = ml_test_example_model();
    ml_spec a, b;

    for (int i = 0; i < N_BUILT; i++)
        for (int critic = 0; critic < 2; critic++) {
            open_both(&a, &b, object, i, critic);
            compare(&a, &b, built[i].model);
            ml_spec_close(&a);
            ml_spec_close(&b);
        }
}

static void shards_are_equal(void) {
    const char *object = ml_test_example_model();
    ml_spec a, b;

    for (int i = 0; i < N_BUILT; i++)
        for (int32_t n = 2; n <= 3; n++)
            for (int32_t rank = 0; rank < n; rank++) {
                open_both(&a, &b, object, i, false);
                MUST(ml_spec_shard(&a, n, rank, &err));
                MUST(ml_spec_shard(&b, n, rank, &err));
                compare(&a, &b, built[i].model);
                ml_spec_close(&a);
                ml_spec_close(&b);
            }
}

/* --- results ---------------------------------------------------------------------- */

static void miles(const char *args) {
    char out[4000];

    if (ml_test_miles(out, sizeof out, args) != 0)
        ml_test_fail(__FILE__, __LINE__, "miles %s: %s", args, out);
}

static void same_bytes(const char *a, const char *b) {
    ml_file x = { 0 }, y = { 0 };

    MUST(ml_file_map(&x, a, &err));
    MUST(ml_file_map(&y, b, &err));
    if (x.bytes.len != y.bytes.len || memcmp(x.bytes.ptr, y.bytes.ptr, x.bytes.len) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s and %s differ", a, b);
    ml_file_unmap(&x);
    ml_file_unmap(&y);
}

/* Logits, log-probs, loss and gradients, on the sequences of the goldens: test_golden holds
 * those of the built-in family against transformers'. */
static void check_scores(const char *object, const char *family, const char *dir) {
    const char *a = ml_test_path("builtin.safetensors");
    const char *b = ml_test_path("plugin.safetensors");
    char line[4000];

    snprintf(line, sizeof line,
             "score --hf-checkpoint %s --input %s/golden.safetensors --output %s --logits "
             "--grads",
             dir, dir, a);
    miles(line);
    snprintf(line, sizeof line,
             "score --hf-checkpoint %s --input %s/golden.safetensors --output %s --logits "
             "--grads --spec %s:%s",
             dir, dir, b, object, family);
    miles(line);
    same_bytes(a, b);
}

static void scores_are_equal(void) {
    const char *object = ml_test_example_model();
    char dir[200];

    for (int i = 0; i < N_BUILT; i++) {
        snprintf(dir, sizeof dir, DATA "%s", built[i].model);
        check_scores(object, built[i].family, dir);
    }
}

static void larger_scores_are_equal(void) {
    static const char *const models[][2] = { { "qwen3", "qwen3" },
                                             { "qwen3_moe", "qwen3_moe" },
                                             { "qwen3_5", "qwen3_5_text" } };
    const char *object = ml_test_example_model();
    char dir[1000];

    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        snprintf(dir, sizeof dir, "%s/models/%s", ml_test_fixtures(), models[i][1]);
        check_scores(object, models[i][0], dir);
    }
}

static void converted_files_are_equal(void) {
    const char *object = ml_test_example_model();
    char line[4000], a[1000], b[1000];

    for (int i = 0; i < N_BUILT; i++) {
        snprintf(a, sizeof a, "%s/builtin_%d", ml_test_dir(), i);
        snprintf(b, sizeof b, "%s/plugin_%d", ml_test_dir(), i);
        snprintf(line, sizeof line,
                 "convert --hf-checkpoint " DATA "%s --save-hf %s --dtype bf16",
                 built[i].model, a);
        miles(line);
        snprintf(line, sizeof line,
                 "convert --hf-checkpoint " DATA
                 "%s --save-hf %s --dtype bf16 --spec %s:%s",
                 built[i].model, b, object, built[i].family);
        miles(line);
        strcat(a, "/model.safetensors");
        strcat(b, "/model.safetensors");
        same_bytes(a, b);
    }
}

/* Training, evaluation and, in a process of its own, an engine. */
static void runs_are_equal(void) {
    const char *a = ml_test_path("builtin"), *b = ml_test_path("plugin");
    const char *object = ml_test_example_model();
    char more[1500], out[8000];

    ml_toy_run_inputs();
    snprintf(more, sizeof more, "--spec %s:qwen3 --rollout-num-engines 1", object);
    if (ml_toy_run("train", a, 2, "", out, sizeof out) != 0 ||
        ml_toy_run("train", b, 2, more, out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    ml_toy_run_same(a, b, 2);
}

/* --- messages --------------------------------------------------------------------- */

static void refused(const char *word, const char *const *said) {
    char line[3000], out[8000];

    snprintf(line, sizeof line,
             "convert --hf-checkpoint " DATA "qwen3 --save-hf %s/out --spec %s",
             ml_test_dir(), word);
    CHECK(ml_test_miles(out, sizeof out, line) != 0);
    for (; *said; said++)
        CHECK_HAS(out, *said);
}
#define REFUSED(word, ...) refused(word, (const char *const[]){ __VA_ARGS__, NULL })

/* A plug-in of these lines, after the header. */
static const char *object_of(const char *name, const char *lines) {
    const char *source = ml_test_path("source.c"), *object = ml_test_path(name);
    FILE *f = fopen(source, "w");
    char line[3000];

    fprintf(f, "#include \"miles/model.h\"\n%s\n", lines);
    fclose(f);
    snprintf(line, sizeof line, "cc -std=c11 -fPIC -shared -Iinclude -o %s %s", object,
             source);
    CHECK(system(line) == 0);
    return object;
}

static void wrong_objects_are_refused(void) {
    const char *object = ml_test_example_model();

    REFUSED("./nowhere/family.so:qwen3", "--spec", "cannot load ./nowhere/family.so",
            "No such file");
    REFUSED(word_of(ml_test_example(), "qwen3"), "example.so",
            "has no function miles_model_entry", "miles/model.h");
    REFUSED(word_of(object, "qwen4"), "has no family 'qwen4'", "family.so:NAME",
            "qwen3, qwen3_moe, qwen3_5");
    REFUSED(object, "has no family ''", "qwen3, qwen3_moe, qwen3_5");
    REFUSED(word_of(object, "qwen3_moe"), "model_type is \"qwen3\"",
            "builds \"qwen3_moe\"");
    REFUSED("megatron.core.models.spec layers", "./family.so:NAME", "Miles' modules");
    REFUSED("miles_plugins.models.glm4 get_glm4_spec", "layers of glm4",
            "model_type qwen3");
}

static void wrong_versions_are_refused(void) {
    REFUSED(word_of(object_of("version.so",
                              "static const miles_model_plugin p = { sizeof p, 99, 0 };\n"
                              "const miles_model_plugin *miles_model_entry(void);\n"
                              "const miles_model_plugin *miles_model_entry(void) {\n"
                              "    return &p;\n}"),
                    "x"),
            "version.so was compiled for version 99 of the model interface",
            "has version 1", "compile it against the miles/model.h of this miles");
    REFUSED(word_of(object_of("field.so",
                              "static const miles_family f = { sizeof f, \"x\" };\n"
                              "static const miles_family *const all[] = { &f, 0 };\n"
                              "static const miles_model_plugin p = { sizeof p, 1, all };\n"
                              "const miles_model_plugin *miles_model_entry(void);\n"
                              "const miles_model_plugin *miles_model_entry(void) {\n"
                              "    return &p;\n}"),
                    "x"),
            "family 1 of", "field.so lacks a field", ".model_type and .build");
}

/* --- wrong calls ------------------------------------------------------------------ */

static const miles_linear to_eight = { .size = sizeof(miles_linear),
                                       .name = "p",
                                       .n_out = 8 };

static int32_t begin(miles_graph *g) {
    g->sizes(g, &(miles_model_sizes){ .size = sizeof(miles_model_sizes),
                                      .n_vocab = 83,
                                      .n_hidden = 8,
                                      .n_layer = 1 });
    return g->embed(g, "e", 1);
}

static void no_sizes(miles_graph *g) {
    g->embed(g, "e", 1);
}
static void no_embed(miles_graph *g) {
    g->linear(g, 0, &to_eight);
}
static void no_value(miles_graph *g) {
    begin(g);
    g->linear(g, 77, &to_eight);
}
static void no_head(miles_graph *g) {
    begin(g);
}
static void too_few_layers(miles_graph *g) {
    g->head(g, begin(g), "h", 0);
}
static void other_width(miles_graph *g) {
    int32_t x = begin(g);
    g->add(g, x,
           g->slice(g, x,
                    &(miles_slice){ .size = sizeof(miles_slice), .part = { { 0, 4 } } }));
}
static void no_heads(miles_graph *g) {
    int32_t x = begin(g);
    g->attn(g, x, x, x, &(miles_attn){ .size = sizeof(miles_attn), .head_dim = 3 });
}
static void no_size(miles_graph *g) {
    g->linear(g, begin(g), &(miles_linear){ .name = "p", .n_out = 8 });
}
static void same_name(miles_graph *g) {
    int32_t x = begin(g);
    g->begin_layer(g, 0);
    x = g->linear(g, g->linear(g, x, &to_eight), &to_eight);
    g->end_layer(g);
    g->head(g, x, "h", 0);
}
static void own_sentence(miles_graph *g) {
    g->fail(g, "the moon is full");
}
static void no_entry(miles_graph *g) {
    begin(g);
    g->list_string(g, "layer_types", 99);
}

static void wrong_calls_are_named(void) {
    static const struct {
        void (*build)(miles_graph *g);
        const char *said;
    } calls[] = {
        { no_sizes, "calls embed before sizes" },
        { no_embed, "calls linear before embed" },
        { no_value, "calls linear with x = 77, which is not a value" },
        { no_head, "calls build without head" },
        { too_few_layers, "calls head after 0 of 1 layers" },
        { other_width, "calls add with a y of width 4; expected 8" },
        { no_heads, "calls attn with head_dim = 3, which does not divide the width 8" },
        { no_size, "calls linear with options of size 0" },
        { same_name, "two parameters named model.layers.0.p.weight" },
        { own_sentence, "config.json: the moon is full" },
        { no_entry, "calls list_string for entry 99 of \"layer_types\"" },
    };

    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        miles_family f = { sizeof f, "mine", "qwen3", NULL, calls[i].build, NULL };
        ml_err err = { 0 };
        ml_spec s;

        CHECK(ml_spec_open_with(&s, DATA "qwen3", &(ml_spec_opts){ .plugin = &f }, &err) !=
              ML_OK);
        CHECK_HAS(err.msg, calls[i].said);
    }
}

static const ml_test tests[] = {
    { "a plug-in's family has the ops and parameters of the built-in one", rows_are_equal },
    { "a plug-in's family is cut over ranks like the built-in one", shards_are_equal },
    { "a plug-in's family has the built-in one's logits and gradients", scores_are_equal,
      120 },
    { "a plug-in's family has the built-in one's logits on larger models",
      larger_scores_are_equal, 300, "models" },
    { "a plug-in's family converts to the built-in one's bytes", converted_files_are_equal,
      120 },
    { "a run with a plug-in's family has the built-in one's bytes", runs_are_equal, 300 },
    { "an object that is not a model plug-in is refused with the fix",
      wrong_objects_are_refused, 120 },
    { "a model plug-in of another version is refused with the fix",
      wrong_versions_are_refused, 120 },
    { "a wrong call of a family is named with its argument", wrong_calls_are_named },
    { 0 }
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
