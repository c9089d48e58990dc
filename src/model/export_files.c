#include "model/export_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/gguf_files.h"
#include "base/json.h"

typedef struct copier {
    const char *from;
    const ml_spec *s;
    const ml_export_opts *o;
    bool index_holds;
    const char *quantization; /* of the target; NULL: none */
    ml_arena arena;
} copier;

static const char *in_dir(copier *c, const char *dir, const char *name) {
    return ml_arena_printf(&c->arena, "%s/%s", dir, name);
}

static bool ends_in(const char *name, const char *tail) {
    size_t n = strlen(name), k = strlen(tail);
    return n >= k && strcmp(name + n - k, tail) == 0;
}

static bool is_weight_file(const char *name) {
    static const char *const tails[] = {
        ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".index.json"
    };
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++)
        if (ends_in(name, tails[i]))
            return true;
    return false;
}

/* What describes a quantization that exported weights no longer have. */
static bool is_quantization_file(const char *name) {
    return !strcmp(name, "hf_quant_config.json") || !strcmp(name, "quantize_config.json") ||
           !strcmp(name, "quant_config.json");
}

static ml_status copy_file(copier *c, const char *name, ml_err *err) {
    ml_file f;
    ml_status st = ml_file_map(&f, in_dir(c, c->from, name), err);
    if (st == ML_OK) {
        st = ml_file_replace(in_dir(c, c->o->dir, name), f.bytes, err);
        ml_file_unmap(&f);
    }
    return st;
}

/* A part of config.json that is replaced. */
typedef struct edit {
    size_t begin, end;
    const char *with;
} edit;

/* A member with the comma after it, or before it if it is the last. */
static edit without(ml_str text, const ml_json *member) {
    edit e = { .begin = member->begin, .end = member->end, .with = "" };

    /* `begin` is the value's: the key is before it. */
    while (text.ptr[--e.begin] != ':') {
    }
    while (text.ptr[--e.begin] != '"') {
    }
    while (text.ptr[--e.begin] != '"') {
    }
    if (member->next) {
        while (text.ptr[e.end++] != ',') {
        }
        while (strchr(" \t\r\n", text.ptr[e.end]))
            e.end++;
    } else {
        while (e.begin && strchr(" \t\r\n", text.ptr[e.begin - 1]))
            e.begin--;
        e.begin -= text.ptr[e.begin - 1] == ',';
    }
    return e;
}

/* The dtype of the weights, and the target's quantization_config instead of the source's. */
static int list_edits(copier *c, ml_str text, const ml_json *root, edit *out) {
    static const char *const names[] = {
        [ML_F32] = "\"float32\"", [ML_BF16] = "\"bfloat16\"", [ML_F16] = "\"float16\""
    };
    const ml_json *inner = ml_json_get(root, "text_config"), *v;
    int n = 0;

    v = ml_json_get(root, "dtype");
    v = v ? v : ml_json_get(root, "torch_dtype");
    if (v && !c->o->keep_dtype)
        out[n++] = (edit){ v->begin, v->end, names[c->o->dtype] };
    v = ml_json_get(root, "quantization_config");
    if (v && c->quantization)
        out[n++] = (edit){ v->begin, v->end, c->quantization };
    else if (v)
        out[n++] = without(text, v);
    else if (c->quantization && root->child)
        out[n++] = (edit){ root->begin + 1, root->begin + 1,
                           ml_arena_printf(&c->arena, "\n  \"quantization_config\": %s,",
                                           c->quantization) };
    if (inner && inner->type == ML_JSON_OBJECT &&
        (v = ml_json_get(inner, "quantization_config")))
        out[n++] = without(text, v);
    return n;
}

/* The architecture's name with another ending after "For". */
static const char *classifier_name(copier *c, const ml_json *list) {
    ml_str name = list && list->type == ML_JSON_ARRAY && list->child ? list->child->text
                                                                     : (ml_str){ "", 0 };
    const char *whole = ml_arena_str(&c->arena, name.ptr, name.len);
    const char *end = strstr(whole, "For");

    return ml_arena_printf(&c->arena, "[\n    \"%.*sForSequenceClassification\"\n  ]",
                           end ? (int)(end - whole) : (int)name.len, whole);
}

/* Replaces a member, or inserts it at the beginning. */
static edit put_member(copier *c, const ml_json *root, const char *key, const char *value) {
    const ml_json *v = ml_json_get(root, key);

    if (v)
        return (edit){ v->begin, v->end, value };
    return (edit){ root->begin + 1, root->begin + 1,
                   ml_arena_printf(&c->arena, "\n  \"%s\": %s,", key, value) };
}

/* What transformers needs to load a reward model. */
static int list_reward_edits(copier *c, ml_str text, const ml_json *root, edit *out) {
    const ml_json *labels = ml_json_get(root, "num_labels");
    int n = 0;

    if (!c->s->reward || !root->child)
        return 0;
    out[n++] = put_member(c, root, "architectures",
                          classifier_name(c, ml_json_get(root, "architectures")));
    out[n++] = put_member(c, root, "id2label", "{\n    \"0\": \"LABEL_0\"\n  }");
    out[n++] = put_member(c, root, "label2id", "{\n    \"LABEL_0\": 0\n  }");
    if (labels)
        out[n++] = without(text, labels);
    if (c->s->pad_token != ML_NONE)
        out[n++] = put_member(c, root, "pad_token_id",
                              ml_arena_printf(&c->arena, "%d", c->s->pad_token));
    return n;
}

static int by_begin(const void *a, const void *b) {
    const edit *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return strcmp(x->with, y->with);
}

/* Writes config.json with these parts replaced, other bytes unchanged. */
static ml_status write_config(copier *c, ml_err *err) {
    const ml_json *root;
    ml_text t = { 0 };
    ml_file f;
    edit e[12];
    size_t at = 0;
    int n;
    const char *path = in_dir(c, c->from, "config.json");
    ml_status st = ml_file_map(&f, path, err);

    if (st != ML_OK)
        return st;
    st = ml_json_parse_python(&root, &c->arena, f.bytes, path, err);
    if (st == ML_OK) {
        n = list_edits(c, f.bytes, root, e);
        n += list_reward_edits(c, f.bytes, root, e + n);
        qsort(e, (size_t)n, sizeof *e, by_begin);
        for (int i = 0; i < n; i++) {
            ml_text_add(&t, f.bytes.ptr + at, e[i].begin - at);
            ml_text_printf(&t, "%s", e[i].with);
            at = e[i].end;
        }
        ml_text_add(&t, f.bytes.ptr + at, f.bytes.len - at);
        st = ml_file_replace(in_dir(c, c->o->dir, "config.json"), (ml_str){ t.ptr, t.len },
                             err);
    }
    ml_text_release(&t);
    ml_file_unmap(&f);
    return st;
}

static bool copied(const copier *c, const char *name) {
    struct stat sb;
    char path[4096];
    bool index = c->index_holds && strcmp(name, ML_EXPORT_INDEX) == 0;

    snprintf(path, sizeof path, "%s/%s", c->from, name);
    if (stat(path, &sb) != 0 || !S_ISREG(sb.st_mode) || strcmp(name, "config.json") == 0)
        return false;
    return index || !(is_weight_file(name) || is_quantization_file(name));
}

/* The files that a GGUF model has inside. */
static ml_status copy_inner(copier *c, ml_err *err) {
    ml_status st = ML_OK;

    for (const char *const *f = ml_gguf_file_names; *f && st == ML_OK; f++)
        if (strcmp(*f, "config.json") != 0)
            st = copy_file(c, *f, err);
    return st;
}

static ml_status copy_others(copier *c, ml_err *err) {
    DIR *d;
    struct dirent *e;
    ml_status st = ML_OK;
    size_t n;

    if (ml_gguf_is_file(in_dir(c, c->from, "config.json"), &n))
        return copy_inner(c, err);
    d = opendir(c->from);
    if (!d)
        return ml_fail(err, ML_EIO, "%s: %s", c->from, strerror(errno));
    while (st == ML_OK && (e = readdir(d)))
        if (copied(c, e->d_name))
            st = copy_file(c, e->d_name, err);
    closedir(d);
    return st;
}

ml_status ml_export_readable(const char *from, ml_err *err) {
    char path[4096];
    ml_status st = ML_OK;
    size_t n;

    for (const char *const *f = ml_gguf_file_names; *f && st == ML_OK; f++) {
        ml_file inner = { 0 };
        snprintf(path, sizeof path, "%s/%s", from, *f);
        if (!ml_gguf_is_file(path, &n))
            return ML_OK;
        st = ml_file_map(&inner, path, err);
        ml_file_unmap(&inner);
    }
    return st;
}

ml_status ml_export_dir(const char *dir, ml_err *err) {
    DIR *d;
    struct dirent *e;
    ml_status st = ML_OK;

    if (mkdir(dir, 0777) == 0)
        return ML_OK;
    if (errno != EEXIST)
        return ml_fail(err, ML_EIO, "%s: cannot create: %s", dir, strerror(errno));
    d = opendir(dir);
    if (!d)
        return ml_fail(err, ML_EIO, "%s: %s", dir, strerror(errno));
    while (st == ML_OK && (e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            st = ml_fail(err, ML_EIO,
                         "%s already contains %s; choose a new or empty directory", dir,
                         e->d_name);
    closedir(d);
    return st;
}

ml_status ml_export_files(const char *from, const ml_spec *s, const ml_export_opts *o,
                          bool index_holds, const char *quantization, ml_err *err) {
    copier c = { .from = from,
                 .s = s,
                 .o = o,
                 .index_holds = index_holds,
                 .quantization = quantization };
    ml_status st;

    ml_arena_init(&c.arena, "export");
    st = copy_others(&c, err);
    if (st == ML_OK)
        st = write_config(&c, err);
    ml_arena_release(&c.arena);
    return st;
}
