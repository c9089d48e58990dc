#include "tests/support/deep_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/dir.h"
#include "io/safetensors.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

static void must(ml_status st, const ml_err *err) {
    if (st == ML_OK)
        return;
    ml_test_fail(__FILE__, __LINE__, "%s", err->msg);
    exit(1);
}

/* The config with another number of layers; a list of their kinds is repeated.  Returns the
 * number of layers it had. */
static int write_config(const char *from, const char *to, int n_layer, bool *alternates) {
    static const char key[] = "\"num_hidden_layers\": ", kinds[] = "\"layer_types\": [";
    static char text[1 << 16];
    FILE *in = fopen(from, "r"), *out = fopen(to, "w");
    size_t n = in ? fread(text, 1, sizeof text - 1, in) : 0;
    char *number, *list, *end;
    int had;

    CHECK(n > 0 && out);
    text[n] = 0;
    number = strstr(text, key);
    list = strstr(text, kinds);
    CHECK(number);
    had = atoi(number + strlen(key));
    *alternates = list != NULL;
    if (list) { /* stands before the number */
        list += strlen(kinds);
        end = strchr(list, ']');
        fprintf(out, "%.*s", (int)(list - text), text);
        for (int i = 0; i < n_layer / had; i++)
            fprintf(out, "%s%.*s", i ? "," : "", (int)(end - list), list);
        fprintf(out, "%.*s", (int)(number - end), end);
    } else {
        fprintf(out, "%.*s", (int)(number - text), text);
    }
    fprintf(out, "%s%d%s", key, n_layer, strchr(number, ','));
    fclose(in);
    fclose(out);
    return had;
}

typedef struct copy {
    ml_arena arena;
    ml_st_tensor *t;
    int32_t n;
} copy;

static void add(copy *c, const ml_st_tensor *from, const char *name) {
    c->t[c->n] = *from;
    c->t[c->n++].name = ml_str_of(name);
}

/* Tensors of layers get the numbers of all layers that copy theirs. */
static void add_copies(copy *c, const ml_st_tensor *t, int had, int n_layer,
                       bool alternates) {
    static const char key[] = "layers.";
    const char *at = strstr(t->name.ptr, key), *rest;
    int layer;

    if (!at) {
        add(c, t, t->name.ptr);
        return;
    }
    layer = atoi(at + strlen(key));
    rest = strchr(at + strlen(key), '.');
    for (int i = 0; i < n_layer + 1; i++) {
        int source = i < had ? i : alternates ? i % had : had - 1;
        if (i < n_layer ? layer == source : layer == had) /* the last one: not run */
            add(c, t,
                ml_arena_printf(&c->arena, "%.*slayers.%d%s", (int)(at - t->name.ptr),
                                t->name.ptr, i, rest));
    }
}

static void write_weights(const char *from, const char *to, int had, int n_layer,
                          bool alternates) {
    copy c = { 0 };
    ml_st_file *f;
    ml_st_writer *w;
    ml_err err = { 0 };

    ml_arena_init(&c.arena, "deep model");
    must(ml_st_open(&f, from, &err), &err);
    c.t = ML_NEW(&c.arena, ml_st_tensor, (int64_t)f->n * (n_layer + 1));
    for (int32_t i = 0; i < f->n; i++)
        add_copies(&c, &f->tensor[i], had, n_layer, alternates);
    must(ml_st_create(&w, to, &(ml_st_layout){ .n = c.n, .tensor = c.t }, &err), &err);
    for (int32_t i = 0; i < c.n; i++)
        must(ml_st_write(w, i, 0, c.t[i].data, c.t[i].bytes, &err), &err);
    must(ml_st_commit(w, &err), &err);
    ml_st_close(f);
    ml_arena_release(&c.arena);
}

const char *ml_deep_model(const char *name, int n_layer) {
    char from[512], to[512], here[256];
    const char *dir = ml_test_path(name);
    bool alternates;
    ml_err err = { 0 };
    int had;

    must(ml_dir_make(dir, &err), &err);
    snprintf(from, sizeof from, "tests/golden/data/%s/config.json", name);
    snprintf(to, sizeof to, "%s/config.json", dir);
    had = write_config(from, to, n_layer, &alternates);
    snprintf(from, sizeof from, "tests/golden/data/%s/model.safetensors", name);
    snprintf(to, sizeof to, "%s/model.safetensors", dir);
    write_weights(from, to, had, n_layer, alternates);
    CHECK(getcwd(here, sizeof here) != NULL);
    snprintf(from, sizeof from, "%s/tests/golden/data/%s/golden.safetensors", here, name);
    snprintf(to, sizeof to, "%s/golden.safetensors", dir);
    CHECK(symlink(from, to) == 0);
    return dir;
}
