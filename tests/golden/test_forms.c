/* The forms that published checkpoints have: experts in one tensor instead of one each,
 * layers behind the last that predict further tokens, projections that nobody uses, numbers
 * that stay f32. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "io/checkpoint.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

#define QWEN3_MOE "tests/golden/data/qwen3_moe"
#define GLM4_MOE "tests/golden/data/glm4_moe"
#define BIAS "model.layers.1.mlp.gate.e_score_correction_bias"
#define DSA "tests/golden/data/deepseek_v32"
#define PROJ "model.layers.1.self_attn.indexer.weights_proj.weight"
#define FURTHER "model.layers.2.eh_proj.weight"
#define GEMMA4 "tests/golden/data/gemma4_text"
#define UNUSED "model.layers.3.self_attn.k_proj.weight"

enum { MAX_TENSOR = 256 };

/* A checkpoint to be written: tensors whose data the list owns or borrows. */
typedef struct list {
    ml_st_tensor t[MAX_TENSOR];
    int32_t n;
    ml_arena arena;
} list;

static void miles(const char *line) {
    char said[2048];
    if (ml_test_miles(said, sizeof said, line) != 0 || said[0])
        ml_test_fail(__FILE__, __LINE__, "miles %s: %s", line, said);
}

static void convert(const char *from, const char *to, const char *more) {
    char line[1024];
    snprintf(line, sizeof line, "convert --hf-checkpoint %s --save-hf %s %s", from, to,
             more);
    miles(line);
}

/* dir with these weights and the config of another checkpoint. */
static const char *write_list(list *l, const char *name, const char *like) {
    char path[1024], from[1024], cwd[512];
    const char *dir = ml_test_path(name);
    ml_st_writer *w;

    mkdir(dir, 0777);
    if (!getcwd(cwd, sizeof cwd))
        return dir;
    snprintf(from, sizeof from, "%s/%s/config.json", cwd, like);
    snprintf(path, sizeof path, "%s/config.json", dir);
    CHECK(symlink(from, path) == 0);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    CHECK(ml_st_create(&w, path, &(ml_st_layout){ .n = l->n, .tensor = l->t }, NULL) ==
          ML_OK);
    for (int32_t i = 0; i < l->n; i++)
        CHECK(ml_st_write(w, i, 0, l->t[i].data, l->t[i].bytes, NULL) == ML_OK);
    CHECK(ml_st_commit(w, NULL) == ML_OK);
    return dir;
}

static const ml_st_tensor *find_expert(const ml_checkpoint *c, ml_str stem, int e,
                                       const char *proj) {
    char name[256];
    snprintf(name, sizeof name, "%.*s%d.%s.weight", (int)stem.len, stem.ptr, e, proj);
    return ml_checkpoint_find(c, ml_str_of(name), NULL);
}

/* All experts' projections as one tensor [E, rows of all, cols]. */
static void add_stack(list *l, const ml_checkpoint *c, ml_str stem, const char *name,
                      const char *const *proj, int n_proj) {
    const ml_st_tensor *first = find_expert(c, stem, 0, proj[0]);
    ml_st_tensor *t = &l->t[l->n++];
    char *at;
    int n = 0;

    while (find_expert(c, stem, n, proj[0]))
        n++;
    *t = (ml_st_tensor){ .name = ml_str_of(ml_arena_printf(&l->arena, "%.*s%s",
                                                           (int)stem.len, stem.ptr, name)),
                         .dtype = first->dtype,
                         .n_dim = 3,
                         .shape = { n, n_proj * first->shape[0], first->shape[1] },
                         .bytes = (size_t)(n * n_proj) * first->bytes };
    at = ml_arena_take(&l->arena, t->bytes, 1);
    t->data = at;
    for (int e = 0; e < n; e++)
        for (int k = 0; k < n_proj; k++, at += first->bytes)
            memcpy(at, find_expert(c, stem, e, proj[k])->data, first->bytes);
}

static void fuse(list *l, const ml_checkpoint *c) {
    static const char *const both[] = { "gate_proj", "up_proj" }, *const down[] = {
        "down_proj"
    };
    for (int32_t i = 0; i < c->file[0]->n; i++) {
        const ml_st_tensor *t = &c->file[0]->tensor[i];
        const char *experts = strstr(t->name.ptr, ".experts.");
        if (!experts) {
            l->t[l->n++] = *t;
        } else if (strcmp(experts, ".experts.0.gate_proj.weight") == 0) {
            ml_str stem = { t->name.ptr,
                            (size_t)(experts - t->name.ptr) + strlen(".experts.") };
            add_stack(l, c, stem, "gate_up_proj", both, 2);
            add_stack(l, c, stem, "down_proj", down, 1);
        }
    }
}

static void same_file(const char *a, const char *b) {
    ml_file x = { 0 }, y = { 0 };
    CHECK(ml_file_map(&x, a, NULL) == ML_OK && ml_file_map(&y, b, NULL) == ML_OK);
    if (!ml_str_eq(x.bytes, y.bytes))
        ml_test_fail(__FILE__, __LINE__, "%s differs from %s", b, a);
    ml_file_unmap(&x);
    ml_file_unmap(&y);
}

/* The same logits, and the same bytes when it is written again. */
static void experts_in_one_tensor(void) {
    static list l;
    ml_checkpoint *c;
    const char *dir;
    char line[1024];

    ml_arena_init(&l.arena, "fused");
    CHECK(ml_checkpoint_open(&c, QWEN3_MOE, NULL) == ML_OK);
    fuse(&l, c);
    CHECK(l.n > 10);
    dir = write_list(&l, "fused", QWEN3_MOE);
    for (int i = 0; i < 2; i++) {
        snprintf(line, sizeof line,
                 "score --hf-checkpoint %s --input " QWEN3_MOE "/golden.safetensors "
                 "--output %s --logits",
                 i ? dir : QWEN3_MOE, ml_test_path(i ? "two" : "one"));
        miles(line);
    }
    same_file(ml_test_path("one"), ml_test_path("two"));
    convert(dir, ml_test_path("again"), "");
    same_file(ml_test_path("fused/model.safetensors"),
              ml_test_path("again/model.safetensors"));
    ml_checkpoint_close(c);
    ml_arena_release(&l.arena);
}

static void same_tensor(const char *name, const char *a_dir, const char *b_dir) {
    ml_checkpoint *a, *b;
    const ml_st_tensor *x, *y;

    CHECK(ml_checkpoint_open(&a, a_dir, NULL) == ML_OK);
    CHECK(ml_checkpoint_open(&b, b_dir, NULL) == ML_OK);
    x = ml_checkpoint_find(a, ml_str_of(name), NULL);
    y = ml_checkpoint_find(b, ml_str_of(name), NULL);
    if (!x || !y || x->dtype != y->dtype || memcmp(x->data, y->data, x->bytes) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s did not stay as it was", name);
    ml_checkpoint_close(a);
    ml_checkpoint_close(b);
}

/* A checkpoint with one tensor more, in "further"; it goes through two conversions. */
static void convert_with(const char *model, const char *name) {
    static const float more[4] = { 1.0f / 3, 2, 3, 4 };
    static list l;
    ml_checkpoint *c;
    const char *dir;

    ml_arena_init(&l.arena, "further");
    CHECK(ml_checkpoint_open(&c, model, NULL) == ML_OK);
    for (int32_t i = 0; i < c->file[0]->n; i++)
        l.t[l.n++] = c->file[0]->tensor[i];
    l.t[l.n++] = (ml_st_tensor){ .name = ml_str_of(name),
                                 .dtype = ML_ST_F32,
                                 .n_dim = 2,
                                 .shape = { 2, 2 },
                                 .bytes = sizeof more,
                                 .data = more };
    dir = write_list(&l, "further", model);
    convert(dir, ml_test_path("bf16"), "--dtype bf16");
    same_tensor(name, dir, ml_test_path("bf16"));
    convert(dir, ml_test_path("same"), "");
    same_file(ml_test_path("further/model.safetensors"),
              ml_test_path("same/model.safetensors"));
    ml_checkpoint_close(c);
    ml_arena_release(&l.arena);
}

/* What is not run, and what must not be rounded, come out of a bf16 copy as they were. */
static void kept_as_they_were(void) {
    convert_with(GLM4_MOE, FURTHER);
    same_tensor(BIAS, ml_test_path("further"), ml_test_path("bf16"));
    convert(DSA, ml_test_path("dsa"), "--dtype bf16");
    same_tensor(PROJ, DSA, ml_test_path("dsa"));
}

/* A layer that reads keys of an earlier one may come with a projection of its own. */
static void unused_projections(void) {
    convert_with(GEMMA4, UNUSED);
}

static const ml_test tests[] = {
    { "experts fused in one tensor load and are written back", experts_in_one_tensor },
    { "weights that are not rounded keep their bytes", kept_as_they_were },
    { "unused projections are kept", unused_projections },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
