#include "io/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/json.h"
#include "io/dcp.h"
#include "base/gguf.h"
#include "io/gguf_weights.h"
#include "io/quant.h"
#include "io/torch_weights.h"

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";
static const char torch_name[] = "pytorch_model.bin";
static const char torch_index_name[] = "pytorch_model.bin.index.json";

static const char *join(ml_checkpoint *c, const char *name) {
    return ml_arena_printf(&c->arena, "%s/%s", c->dir, name);
}

/* A dangling link counts as present: opening it then reports the error. */
static bool is_there(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

static int shown(ml_str name) {
    return name.len < 200 ? (int)name.len : 200;
}

/* --- errors in the directory -------------------------------------------------- */

static ml_status check_directory(const char *dir, ml_err *err) {
    struct stat st;

    if (stat(dir, &st))
        return ml_fail(err, ML_EIO, "%s: cannot open: %s", dir, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return ml_fail(
            err, ML_EIO,
            "%s is not a directory; expected the directory with config.json and %s, or a "
            ".gguf file",
            dir, single_name);
    return ML_OK;
}

/* Weights in another format, and how to convert them. */
static const char *advice_for(const char *file) {
    static const struct {
        const char *pattern, *advice;
    } rows[] = {
        { "pytorch_model*.bin", "only pytorch_model.bin is read without an index" },
        { "*.pth", "convert it to safetensors first" },
        { "*.gguf", "give the path of the .gguf file itself" },
        { "*.safetensors", "only model.safetensors is read without an index" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (fnmatch(rows[i].pattern, file, 0) == 0)
            return rows[i].advice;
    return NULL;
}

static int is_other_weights(const struct dirent *e) {
    return advice_for(e->d_name) != NULL;
}

static ml_status fail_no_weights(const char *dir, ml_err *err) {
    struct dirent **other;
    int n = scandir(dir, &other, is_other_weights, alphasort);
    ml_status st;

    if (n < 0)
        return ml_fail(err, ML_EIO, "%s: cannot read: %s", dir, strerror(errno));
    if (n)
        st = ml_fail(err, ML_EFORMAT, "%s has %s, but neither %s nor %s; %s", dir,
                     other[0]->d_name, single_name, index_name,
                     advice_for(other[0]->d_name));
    else
        st = ml_fail(err, ML_EFORMAT, "%s has no weights: neither %s nor %s exists", dir,
                     single_name, index_name);
    for (int i = 0; i < n; i++)
        free(other[i]);
    free(other);
    return st;
}

/* --- files and their tensors --------------------------------------------------- */

static bool ends_in(const char *name, const char *tail) {
    size_t n = strlen(name), k = strlen(tail);
    return n >= k && strcasecmp(name + n - k, tail) == 0;
}

/* `path` is that of the file or, in a directory, its name. */
static ml_status open_file(ml_checkpoint *c, const char *path, const char *name,
                           ml_err *err) {
    ml_st_file **file = &c->file[c->n_file];
    ml_status st = c->distributed          ? ml_dcp_weights_open(file, path, err)
                   : ends_in(name, ".bin") ? ml_torch_weights_open(file, path, err)
                   : ends_in(name, ".gguf")
                       ? ml_gguf_weights_open(file, path, c->n_file, err)
                       : ml_st_open(file, path, err);

    if (st)
        return st;
    c->file_name[c->n_file] = name;
    c->n_tensor += c->file[c->n_file]->n;
    c->n_file++;
    return ML_OK;
}

static ml_status index_tensors(ml_checkpoint *c, ml_err *err) {
    int64_t n = 0;

    c->tensor = ML_NEW(&c->arena, ml_checkpoint_tensor, c->n_tensor);
    ml_map_init(&c->by_name, &c->arena, c->n_tensor);
    for (int32_t i = 0; i < c->n_file; i++)
        for (int32_t j = 0; j < c->file[i]->n; j++) {
            const ml_st_tensor *t = &c->file[i]->tensor[j];
            if (!ml_map_add(&c->by_name, t->name, n))
                return ml_fail(
                    err, ML_EFORMAT, "%s: tensor \"%.*s\" is in both %s and %s", c->dir,
                    shown(t->name), t->name.ptr,
                    c->file_name[c->tensor[ml_map_get(&c->by_name, t->name, 0)].file],
                    c->file_name[i]);
            c->tensor[n++] =
                (ml_checkpoint_tensor){ .t = *t, .stored = t->name, .file = i };
        }
    return ML_OK;
}

static ml_status open_single(ml_checkpoint *c, const char *path, const char *name,
                             ml_err *err) {
    ml_status st;

    c->file = ML_NEW(&c->arena, ml_st_file *, 1);
    c->file_name = ML_NEW(&c->arena, const char *, 1);
    st = open_file(c, path, name, err);
    return st ? st : index_tensors(c, err);
}

/* A GGUF file, or the files of a split model. */
static ml_status open_gguf(ml_checkpoint *c, const char *path, ml_err *err) {
    int32_t n = ml_gguf_n_split(path);
    ml_text part = { 0 };
    ml_status st = ML_OK;

    c->file = ML_NEW(&c->arena, ml_st_file *, n);
    c->file_name = ML_NEW(&c->arena, const char *, n);
    for (int32_t i = 0; i < n && !st; i++) {
        part.len = 0;
        ml_gguf_split_path(&part, path, i);
        st = open_file(c, path, ml_arena_str(&c->arena, part.ptr, part.len), err);
    }
    ml_text_release(&part);
    return st ? st : index_tensors(c, err);
}

/* --- shards --------------------------------------------------------------------- */

/* The content of the index file; `path` is its own. */
typedef struct listing {
    const char *path;
    const ml_json *weight_map; /* tensor name -> shard name */
    ml_map tensors;            /* its keys */
    int32_t n_shard;
    const char **shard; /* [n_shard], sorted */
} listing;

/* A shard is a plain file name: an index must not reach outside its directory. */
static bool is_plain_name(ml_str s) {
    return s.len && !memchr(s.ptr, '/', s.len) && !memchr(s.ptr, '\\', s.len) &&
           !memchr(s.ptr, 0, s.len) && !ml_str_is(s, ".") && !ml_str_is(s, "..");
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static ml_status list_shards(listing *l, ml_checkpoint *c, ml_arena *scratch, ml_err *err) {
    ml_map shards;

    ml_map_init(&shards, scratch, 0);
    ml_map_init(&l->tensors, scratch, l->weight_map->n);
    l->shard = ML_NEW(&c->arena, const char *, l->weight_map->n);
    for (const ml_json *m = l->weight_map->child; m; m = m->next) {
        if (m->type != ML_JSON_STRING || !is_plain_name(m->text))
            return ml_fail(err, ML_EFORMAT,
                           "%s:%u:%u: the value of tensor \"%.*s\" must be the name of a "
                           "file in the same directory, without a path",
                           l->path, (unsigned)m->line, (unsigned)m->column, shown(m->key),
                           m->key.ptr);
        if (!ml_map_add(&l->tensors, m->key, 1))
            return ml_fail(err, ML_EFORMAT, "%s:%u:%u: tensor \"%.*s\" is listed twice",
                           l->path, (unsigned)m->line, (unsigned)m->column, shown(m->key),
                           m->key.ptr);
        if (ml_map_add(&shards, m->text, 1))
            l->shard[l->n_shard++] = ml_arena_str(&c->arena, m->text.ptr, m->text.len);
    }
    qsort(l->shard, (size_t)l->n_shard, sizeof *l->shard, by_text);
    return ML_OK;
}

static ml_status open_shards(ml_checkpoint *c, const listing *l, ml_err *err) {
    c->file = ML_NEW(&c->arena, ml_st_file *, l->n_shard);
    c->file_name = ML_NEW(&c->arena, const char *, l->n_shard);
    for (int32_t i = 0; i < l->n_shard; i++) {
        ml_status st;
        if (!is_there(join(c, l->shard[i])))
            return ml_fail(err, ML_EFORMAT,
                           "%s: shard %s is missing; the download is incomplete", l->path,
                           l->shard[i]);
        st = open_file(c, join(c, l->shard[i]), l->shard[i], err);
        if (st)
            return st;
    }
    return index_tensors(c, err);
}

/* Listed names are distinct and all found, so a larger count means one is not listed. */
static ml_status fail_unlisted(const ml_checkpoint *c, const listing *l, ml_err *err) {
    for (int32_t i = 0; i < c->n_file; i++)
        for (int32_t j = 0; j < c->file[i]->n; j++) {
            ml_str name = c->file[i]->tensor[j].name;
            if (!ml_map_get(&l->tensors, name, 0))
                return ml_fail(err, ML_EFORMAT,
                               "%s: shard %s has tensor \"%.*s\", which is not listed",
                               l->path, c->file_name[i], shown(name), name.ptr);
        }
    return ML_OK;
}

static ml_status check_listing(const ml_checkpoint *c, const listing *l, ml_err *err) {
    for (const ml_json *m = l->weight_map->child; m; m = m->next) {
        int64_t at = ml_map_get(&c->by_name, m->key, -1);
        if (at < 0)
            return ml_fail(err, ML_EFORMAT,
                           "%s: tensor \"%.*s\" is listed in %.*s, which does not have it",
                           l->path, shown(m->key), m->key.ptr, shown(m->text), m->text.ptr);
        if (!ml_str_is(m->text, c->file_name[c->tensor[at].file]))
            return ml_fail(err, ML_EFORMAT,
                           "%s: tensor \"%.*s\" is listed in %.*s, but lies in %s", l->path,
                           shown(m->key), m->key.ptr, shown(m->text), m->text.ptr,
                           c->file_name[c->tensor[at].file]);
    }
    return c->n_tensor == l->weight_map->n ? ML_OK : fail_unlisted(c, l, err);
}

static ml_status read_listing(listing *l, ml_checkpoint *c, ml_str text, ml_arena *scratch,
                              ml_err *err) {
    const ml_json *top;
    ml_status st = ml_json_parse(&top, scratch, text, l->path, err);

    if (st)
        return st;
    l->weight_map = ml_json_get(top, "weight_map");
    if (!l->weight_map || l->weight_map->type != ML_JSON_OBJECT || !l->weight_map->n)
        return ml_fail(err, ML_EFORMAT,
                       "%s: expected weight_map, an object of tensor and shard names",
                       l->path);
    return list_shards(l, c, scratch, err);
}

static ml_status open_index(ml_checkpoint *c, const char *name, ml_err *err) {
    listing l = { .path = join(c, name) };
    ml_file text = { 0 };
    ml_arena scratch;
    ml_status st;

    ml_arena_init(&scratch, "a checkpoint index");
    st = ml_file_map(&text, l.path, err);
    if (!st)
        st = read_listing(&l, c, text.bytes, &scratch, err);
    if (!st)
        st = open_shards(c, &l, err);
    if (!st)
        st = check_listing(c, &l, err);
    ml_arena_release(&scratch);
    ml_file_unmap(&text);
    return st;
}

/* --- other names ------------------------------------------------------------------- */

/* Where multimodal models have their text model, in transformers before and since 4.52;
 * released checkpoints of DeepSeek-V4, whose names transformers changes. */
static const struct {
    const char *stored, *name;
} text_prefixes[] = {
    { "language_model.model.", "model." },      { "language_model.lm_head.", "lm_head." },
    { "model.language_model.", "model." },      { "layers.", "model.layers." },
    { "embed.", "model.embed_tokens." },        { "norm.", "model.norm." },
    { "embed_tokens.", "model.embed_tokens." }, { "hc_head_", "model.hc_head.hc_" },
};

const char *ml_checkpoint_text_name(ml_arena *a, ml_str stored) {
    for (size_t i = 0; i < sizeof text_prefixes / sizeof *text_prefixes; i++) {
        size_t n = strlen(text_prefixes[i].stored);
        if (stored.len > n && memcmp(stored.ptr, text_prefixes[i].stored, n) == 0)
            return ml_arena_printf(a, "%s%.*s", text_prefixes[i].name,
                                   (int)(stored.len - n), stored.ptr + n);
    }
    return NULL;
}

static ml_status name_text_tensors(ml_checkpoint *c, ml_err *err) {
    for (int64_t i = 0; i < c->n_tensor; i++) {
        const char *name = ml_checkpoint_text_name(&c->arena, c->tensor[i].stored);
        if (!name)
            continue;
        c->tensor[i].t.name = ml_str_of(name);
        if (!ml_map_add(&c->by_name, c->tensor[i].t.name, i))
            return ml_fail(err, ML_EFORMAT,
                           "%s: has both tensors %s and %s; a text model is stored once",
                           c->dir, name, c->tensor[i].stored.ptr);
    }
    return ML_OK;
}

/* --- open and close -------------------------------------------------------------- */

static ml_checkpoint *new_checkpoint(const char *dir) {
    ml_arena a;
    ml_checkpoint *c;

    ml_arena_init(&a, "a checkpoint");
    c = ML_NEW(&a, ml_checkpoint, 1);
    c->dir = ml_arena_str(&a, dir, strlen(dir));
    c->arena = a; /* the checkpoint lives in its own arena */
    return c;
}

/* With a single file and an index there, transformers reads the single file; so do we. */
static ml_status open_directory(ml_checkpoint *c, ml_err *err) {
    ml_text found = { 0 };
    ml_status st = check_directory(c->dir, err);

    if (st)
        return st;
    if (is_there(join(c, single_name)))
        return open_single(c, join(c, single_name), single_name, err);
    if (is_there(join(c, index_name)))
        return open_index(c, index_name, err);
    if (is_there(join(c, torch_name)))
        return open_single(c, join(c, torch_name), torch_name, err);
    if (is_there(join(c, torch_index_name)))
        return open_index(c, torch_index_name, err);
    if (ml_dcp_find(&found, c->dir)) {
        const char *dir = ml_arena_str(&c->arena, found.ptr, found.len);
        ml_text_release(&found);
        c->distributed = true;
        return open_single(c, dir, dir, err);
    }
    return fail_no_weights(c->dir, err);
}

ml_status ml_checkpoint_open(ml_checkpoint **out, const char *dir, ml_err *err) {
    ml_checkpoint *c = new_checkpoint(dir);
    struct stat sb;
    bool gguf = ends_in(dir, ".gguf") && stat(dir, &sb) == 0 && S_ISREG(sb.st_mode);
    ml_status st = gguf ? open_gguf(c, dir, err) : open_directory(c, err);

    if (!st && !gguf)
        st = ml_quant_resolve(c, err);
    for (int64_t i = 0; !st && gguf && i < c->n_tensor; i++)
        c->quantized = c->quantized || c->tensor[i].t.quant;
    if (!st)
        st = name_text_tensors(c, err);
    if (st)
        ml_checkpoint_close(c);
    else
        *out = c;
    return st;
}

void ml_checkpoint_close(ml_checkpoint *c) {
    ml_arena a;

    if (!c)
        return;
    for (int32_t i = 0; i < c->n_file; i++)
        ml_st_close(c->file[i]);
    a = c->arena;
    ml_arena_release(&a);
}

const ml_st_tensor *ml_checkpoint_find(const ml_checkpoint *c, ml_str name,
                                       const ml_st_file **file) {
    int64_t i = ml_map_get(&c->by_name, name, -1);

    if (i < 0)
        return NULL;
    if (file)
        *file = c->file[c->tensor[i].file];
    return &c->tensor[i].t;
}
