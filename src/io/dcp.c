#include "io/dcp.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bug.h"

struct ml_dcp_file {
    ml_str name;
    ml_file file;
};

typedef struct reader {
    ml_dcp *d;
    const char *path; /* of .metadata */
    ml_map by_name;   /* tensors */
    ml_map files;
    ml_err *err;
} reader;

/* --- where it is ------------------------------------------------------------------ */

static bool has_metadata(const char *dir) {
    ml_text path = { 0 };
    struct stat st;
    bool there;

    ml_text_printf(&path, "%s/.metadata", dir);
    there = stat(path.ptr, &st) == 0 && S_ISREG(st.st_mode);
    ml_text_release(&path);
    return there;
}

bool ml_dcp_find(ml_text *out, const char *dir) {
    ml_text path = { 0 };
    ml_file f = { 0 };
    bool found = has_metadata(dir);

    if (found) {
        ml_text_printf(out, "%s", dir);
        return true;
    }
    ml_text_printf(&path, "%s/latest_checkpointed_iteration.txt", dir);
    if (ml_file_map(&f, path.ptr, NULL) == ML_OK && f.bytes.len && f.bytes.len < 16) {
        char word[16] = "";
        memcpy(word, f.bytes.ptr, f.bytes.len);
        path.len = 0;
        if (strncmp(word, "release", 7) == 0)
            ml_text_printf(&path, "%s/release", dir);
        else
            ml_text_printf(&path, "%s/iter_%07ld", dir, strtol(word, NULL, 10));
        found = has_metadata(path.ptr);
        if (found)
            ml_text_printf(out, "%s", path.ptr);
    }
    ml_file_unmap(&f);
    ml_text_release(&path);
    return found;
}

/* --- .metadata -------------------------------------------------------------------- */

static ml_status fail(const reader *r, const ml_pickle *v, const char *want) {
    return ml_fail(r->err, ML_EFORMAT,
                   "%s: byte %zu of the pickle: %s was expected, found %s", r->path,
                   v ? v->at : 0, want, ml_pickle_what(v));
}

static ml_status read_sizes(const reader *r, const ml_pickle *v, int64_t *out, int32_t *n) {
    if (ml_pickle_is_call(v, "torch.Size"))
        v = ml_pickle_arg(v, 0);
    if (!v || v->type != ML_PICKLE_TUPLE || v->n > ML_ST_DIMS)
        return fail(r, v, "a torch.Size of at most 8 dimensions");
    for (int32_t i = 0; i < v->n; i++) {
        if (v->item[i]->type != ML_PICKLE_INT || v->item[i]->i < 0)
            return fail(r, v->item[i], "a size of at least 0");
        out[i] = v->item[i]->i;
    }
    *n = v->n;
    return ML_OK;
}

/* TensorProperties: its state is a tuple that begins with the dtype, or a dict with it. */
static const ml_pickle *dtype_of(const ml_pickle *properties) {
    const ml_pickle *state =
        properties && properties->type == ML_PICKLE_CALL ? properties->call->state : NULL;

    if (state && state->type == ML_PICKLE_TUPLE && state->n)
        return state->item[0];
    return ml_pickle_get(state, "dtype");
}

static ml_status read_chunk(const reader *r, const ml_dcp_tensor *t, ml_dcp_chunk *c,
                            const ml_pickle *v) {
    int32_t n_at = 0, n_size = 0;
    ml_status st = read_sizes(r, ml_pickle_attr(v, "offsets"), c->at, &n_at);

    if (st == ML_OK)
        st = read_sizes(r, ml_pickle_attr(v, "sizes"), c->size, &n_size);
    if (st != ML_OK)
        return st;
    if (n_at != t->n_dim || n_size != t->n_dim)
        return fail(r, v, "a chunk with the dimensions of its tensor");
    for (int32_t i = 0; i < t->n_dim; i++)
        if (c->at[i] > t->shape[i] || c->size[i] > t->shape[i] - c->at[i])
            return fail(r, v, "a chunk inside its tensor");
    return ML_OK;
}

/* Chunks do not overlap in what torch writes: they cover the tensor if their sizes add up. */
static bool covers(const ml_dcp_tensor *t) {
    size_t want = 0, sum = 0;

    if (!ml_st_size(ML_ST_U8, t->shape, t->n_dim, &want))
        return false;
    for (int32_t i = 0; i < t->n_chunk; i++) {
        size_t n = 0;
        if (!ml_st_size(ML_ST_U8, t->chunk[i].size, t->n_dim, &n) ||
            __builtin_add_overflow(sum, n, &sum))
            return false;
    }
    return sum == want;
}

static ml_status read_tensor(reader *r, const ml_pickle *key, const ml_pickle *v) {
    ml_dcp *d = r->d;
    ml_dcp_tensor *t = &d->tensor[d->n];
    const ml_pickle *dtype = dtype_of(ml_pickle_attr(v, "properties"));
    const ml_pickle *chunks = ml_pickle_attr(v, "chunks");
    ml_status st = read_sizes(r, ml_pickle_attr(v, "size"), t->shape, &t->n_dim);

    if (st != ML_OK)
        return st;
    if (!dtype || dtype->type != ML_PICKLE_GLOBAL ||
        !ml_torch_dtype(dtype->text, &t->dtype))
        return fail(r, dtype, "a dtype of torch");
    if (!chunks || chunks->type != ML_PICKLE_LIST)
        return fail(r, chunks, "a list of chunks");
    t->name =
        (ml_str){ ml_arena_str(&d->arena, key->text.ptr, key->text.len), key->text.len };
    t->chunk = ML_NEW(&d->arena, ml_dcp_chunk, chunks->n);
    for (int32_t i = 0; i < chunks->n && st == ML_OK; i++)
        st = read_chunk(r, t, &t->chunk[t->n_chunk++], chunks->item[i]);
    if (st == ML_OK && !covers(t))
        st = ml_fail(r->err, ML_EFORMAT, "%s: the chunks of tensor %.200s do not cover it",
                     r->path, t->name.ptr);
    if (st == ML_OK && !ml_map_add(&r->by_name, t->name, d->n))
        st = fail(r, key, "a tensor that occurs once");
    d->n++;
    return st;
}

static ml_status read_tensors(reader *r, const ml_pickle *root) {
    const ml_pickle *all = ml_pickle_attr(root, "state_dict_metadata");
    ml_status st = ML_OK;

    if (!all || all->type != ML_PICKLE_DICT)
        return fail(r, all, "state_dict_metadata, a dict");
    r->d->tensor = ML_NEW(&r->d->arena, ml_dcp_tensor, all->n / 2);
    ml_map_init(&r->by_name, &r->d->arena, all->n / 2);
    for (int32_t i = 0; i + 1 < all->n && st == ML_OK; i += 2) {
        const ml_pickle *v = all->item[i + 1];
        if (all->item[i]->type == ML_PICKLE_STR &&
            ml_pickle_is_call(
                v, "torch.distributed.checkpoint.metadata.TensorStorageMetadata"))
            st = read_tensor(r, all->item[i], v);
    }
    return st;
}

/* --- .distcp ---------------------------------------------------------------------- */

static bool is_plain_name(ml_str s) {
    return s.len && s.len < 200 && !memchr(s.ptr, '/', s.len) && !memchr(s.ptr, 0, s.len) &&
           !ml_str_is(s, "..") && !ml_str_is(s, ".");
}

static ml_status map_file(reader *r, const ml_pickle *name, const ml_file **out) {
    ml_dcp *d = r->d;
    int64_t i;
    ml_status st;

    if (!name || name->type != ML_PICKLE_STR || !is_plain_name(name->text))
        return fail(r, name, "the name of a file in the same directory");
    i = ml_map_get(&r->files, name->text, -1);
    if (i < 0) {
        const char *path = ml_arena_printf(&d->arena, "%s/%.*s", d->dir,
                                           (int)name->text.len, name->text.ptr);
        st = ml_file_map(&d->file[d->n_file].file, path, r->err);
        if (st != ML_OK)
            return st;
        d->file[d->n_file].name = name->text;
        i = d->n_file++;
        ml_map_add(&r->files, name->text, i);
    }
    *out = &d->file[i].file;
    return ML_OK;
}

static ml_dcp_chunk *find_chunk(const ml_dcp_tensor *t, const int64_t *at) {
    for (int32_t i = 0; i < t->n_chunk; i++)
        if (!memcmp(t->chunk[i].at, at, sizeof *at * (size_t)t->n_dim))
            return &t->chunk[i];
    return NULL;
}

/* An item is a tensor written by torch.save; its storage stays in the mapped file. */
static ml_status read_item(const reader *r, const ml_dcp_tensor *t, ml_dcp_chunk *c,
                           ml_str item, const char *path) {
    const char *name =
        ml_arena_printf(&r->d->arena, "%s (tensor %.200s)", path, t->name.ptr);
    ml_torch_file *f = NULL;
    ml_status st = ml_torch_open_image(&f, item, name, r->err);

    if (st == ML_OK)
        st = ml_torch_tensor_of(&c->t, f, f->root, r->err);
    ml_torch_close(f);
    if (st == ML_OK && (c->t.dtype != t->dtype || c->t.n_dim != t->n_dim ||
                        memcmp(c->t.shape, c->size, sizeof *c->size * (size_t)t->n_dim)))
        st = ml_fail(r->err, ML_EFORMAT,
                     "%s: the chunk has another dtype or shape than .metadata says", name);
    return st;
}

/* MetadataIndex -> _StorageInfo */
static ml_status read_place(reader *r, const ml_pickle *index, const ml_pickle *info) {
    const ml_pickle *name = ml_pickle_attr(index, "fqn"),
                    *at = ml_pickle_attr(index, "offset");
    const ml_pickle *from = ml_pickle_attr(info, "offset");
    const ml_pickle *length = ml_pickle_attr(info, "length");
    int64_t i =
        name && name->type == ML_PICKLE_STR ? ml_map_get(&r->by_name, name->text, -1) : -1;
    const ml_dcp_tensor *t = i < 0 ? NULL : &r->d->tensor[i];
    int64_t where[ML_ST_DIMS] = { 0 };
    const ml_file *file = NULL;
    ml_dcp_chunk *c;
    int32_t n = 0;
    ml_status st;

    if (!t) /* not a tensor */
        return ML_OK;
    st = at && at->type != ML_PICKLE_NONE ? read_sizes(r, at, where, &n) : ML_OK;
    if (st == ML_OK)
        st = map_file(r, ml_pickle_attr(info, "relative_path"), &file);
    if (st != ML_OK)
        return st;
    c = find_chunk(t, where);
    if (!c || !from || from->type != ML_PICKLE_INT || !length ||
        length->type != ML_PICKLE_INT || from->i < 0 || length->i < 0)
        return fail(r, info, "the place of a chunk that its tensor has");
    if ((uint64_t)from->i > file->bytes.len ||
        (uint64_t)length->i > file->bytes.len - (uint64_t)from->i)
        return ml_fail(
            r->err, ML_EFORMAT,
            "%s: %s ends at byte %zu; the chunk of tensor %.200s at byte %" PRId64
            " needs %" PRId64 " bytes",
            r->path, file->path, file->bytes.len, t->name.ptr, from->i, length->i);
    return read_item(r, t, c, (ml_str){ file->bytes.ptr + from->i, (size_t)length->i },
                     file->path);
}

static ml_status read_places(reader *r, const ml_pickle *root) {
    const ml_pickle *all = ml_pickle_attr(root, "storage_data");
    ml_status st = ML_OK;

    if (!all || all->type != ML_PICKLE_DICT)
        return fail(r, all, "storage_data, a dict");
    r->d->file = ML_NEW(&r->d->arena, struct ml_dcp_file, all->n / 2);
    ml_map_init(&r->files, &r->d->arena, 64);
    for (int32_t i = 0; i + 1 < all->n && st == ML_OK; i += 2)
        st = read_place(r, all->item[i], all->item[i + 1]);
    for (int32_t i = 0; i < r->d->n && st == ML_OK; i++)
        for (int32_t k = 0; k < r->d->tensor[i].n_chunk && st == ML_OK; k++)
            if (!r->d->tensor[i].chunk[k].t.data)
                st = ml_fail(r->err, ML_EFORMAT,
                             "%s: storage_data has no place for a chunk of tensor %.200s",
                             r->path, r->d->tensor[i].name.ptr);
    return st;
}

/* --- open and close --------------------------------------------------------------- */

ml_status ml_dcp_open(ml_dcp **out, const char *dir, ml_err *err) {
    reader r = { .err = err };
    ml_pickle_doc doc;
    ml_file meta = { 0 };
    ml_arena a, scratch;
    ml_status st;

    ml_arena_init(&a, "a distributed checkpoint");
    ml_arena_init(&scratch, "the metadata of a checkpoint");
    r.d = ML_NEW(&a, ml_dcp, 1);
    r.d->dir = ml_arena_str(&a, dir, strlen(dir));
    r.path = ml_arena_printf(&a, "%s/.metadata", dir);
    r.d->arena = a; /* it lives in its own arena */
    st = ml_file_map(&meta, r.path, err);
    if (st == ML_OK)
        st = ml_pickle_parse(&doc, &scratch, meta.bytes, 0, r.path, err);
    if (st == ML_OK)
        st = read_tensors(&r, doc.root);
    if (st == ML_OK)
        st = read_places(&r, doc.root);
    ml_arena_release(&scratch);
    ml_file_unmap(&meta);
    if (st == ML_OK)
        *out = r.d;
    else
        ml_dcp_close(r.d);
    return st;
}

void ml_dcp_close(ml_dcp *d) {
    ml_arena a;

    if (!d)
        return;
    for (int32_t i = 0; i < d->n_file; i++)
        ml_file_unmap(&d->file[i].file);
    a = d->arena;
    ml_arena_release(&a);
}

/* --- reading ---------------------------------------------------------------------- */

static bool contains(const ml_dcp_chunk *c, const int64_t *index, int32_t n_dim) {
    for (int32_t i = 0; i < n_dim; i++)
        if (index[i] < c->at[i] || index[i] >= c->at[i] + c->size[i])
            return false;
    return true;
}

void ml_dcp_read(const ml_dcp_tensor *t, const int64_t *index, int64_t n, void *out) {
    int64_t at[ML_ST_DIMS] = { 0 };
    int32_t last = t->n_dim - 1;
    size_t size = 0;
    unsigned char *o = out;

    ml_st_size(t->dtype, NULL, 0, &size);
    memcpy(at, index, sizeof *at * (size_t)t->n_dim);
    while (n > 0) {
        const ml_dcp_chunk *c = NULL;
        int64_t element = 0, k;
        for (int32_t i = 0; i < t->n_chunk && !c; i++)
            c = contains(&t->chunk[i], at, t->n_dim) ? &t->chunk[i] : NULL;
        if (!c) { /* chunks that overlap leave holes */
            memset(o, 0, (size_t)n * size);
            return;
        }
        for (int32_t i = 0; i < t->n_dim; i++)
            element = element * c->size[i] + at[i] - c->at[i];
        k = last < 0 ? 1 : c->at[last] + c->size[last] - at[last];
        k = k < n ? k : n;
        ml_torch_read(&c->t, element, k, o);
        o += (size_t)k * size;
        n -= k;
        if (last >= 0)
            at[last] += k;
    }
}
