#include "base/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAX_COUNT ((uint64_t)1 << 24) /* of keys and of tensors */

static const struct {
    const char *name;
    int16_t elements, bytes;
} types[] = {
    [ML_GGML_F32] = { "F32", 1, 4 },       [ML_GGML_F16] = { "F16", 1, 2 },
    [ML_GGML_Q4_0] = { "Q4_0", 32, 18 },   [ML_GGML_Q4_1] = { "Q4_1", 32, 20 },
    [ML_GGML_Q5_0] = { "Q5_0", 32, 22 },   [ML_GGML_Q5_1] = { "Q5_1", 32, 24 },
    [ML_GGML_Q8_0] = { "Q8_0", 32, 34 },   [ML_GGML_Q2_K] = { "Q2_K", 256, 84 },
    [ML_GGML_Q3_K] = { "Q3_K", 256, 110 }, [ML_GGML_Q4_K] = { "Q4_K", 256, 144 },
    [ML_GGML_Q5_K] = { "Q5_K", 256, 176 }, [ML_GGML_Q6_K] = { "Q6_K", 256, 210 },
    [ML_GGML_BF16] = { "BF16", 1, 2 },
};
#define N_TYPE (sizeof types / sizeof *types)

bool ml_ggml_block(uint32_t type, int64_t *elements, size_t *bytes) {
    if (type >= N_TYPE || !types[type].name)
        return false;
    *elements = types[type].elements;
    *bytes = (size_t)types[type].bytes;
    return true;
}

const char *ml_ggml_name(uint32_t type) {
    return type < N_TYPE ? types[type].name : NULL;
}

static const uint8_t value_bytes[ML_GGUF_VALUES] = {
    [ML_GGUF_U8] = 1,  [ML_GGUF_I8] = 1,  [ML_GGUF_U16] = 2, [ML_GGUF_I16] = 2,
    [ML_GGUF_U32] = 4, [ML_GGUF_I32] = 4, [ML_GGUF_F32] = 4, [ML_GGUF_BOOL] = 1,
    [ML_GGUF_U64] = 8, [ML_GGUF_I64] = 8, [ML_GGUF_F64] = 8,
};

/* --- parsing ---------------------------------------------------------------------- */

typedef struct reader {
    ml_gguf *g;
    size_t at;
    ml_err *err;
} reader;

static ml_status fail(const reader *r, const char *what) {
    return ml_fail(r->err, ML_EFORMAT, "%s: byte %zu: %s", r->g->path, r->at, what);
}

static bool take(reader *r, uint64_t n, ml_str *out) {
    if (n > r->g->image.len - r->at)
        return false;
    *out = (ml_str){ r->g->image.ptr + r->at, (size_t)n };
    r->at += (size_t)n;
    return true;
}

static uint64_t uint_of(const char *p, size_t n) {
    uint64_t v = 0;
    for (size_t i = n; i > 0; i--)
        v = v << 8 | (unsigned char)p[i - 1];
    return v;
}

static bool take_uint(reader *r, size_t n, uint64_t *out) {
    ml_str s;
    if (!take(r, n, &s))
        return false;
    *out = uint_of(s.ptr, n);
    return true;
}

static bool take_str(reader *r, ml_str *out) {
    uint64_t n;
    return take_uint(r, 8, &n) && take(r, n, out);
}

static ml_status read_array(reader *r, ml_gguf_key *k) {
    uint64_t type;
    size_t begin;

    if (!take_uint(r, 4, &type) || !take_uint(r, 8, &k->n))
        return fail(r, "the file ends inside an array; it is truncated");
    if (type >= ML_GGUF_VALUES || type == ML_GGUF_ARRAY)
        return fail(r, "an array has elements of an unknown type");
    k->type = (ml_gguf_value)type;
    k->array = true;
    if (type != ML_GGUF_STRING) {
        if (k->n > SIZE_MAX / 8 || !take(r, k->n * value_bytes[type], &k->bytes))
            return fail(r, "an array ends after the file; it is truncated");
        return ML_OK;
    }
    begin = r->at;
    for (uint64_t i = 0; i < k->n; i++) {
        ml_str s;
        if (!take_str(r, &s))
            return fail(r, "an array of strings ends after the file; it is truncated");
    }
    k->bytes = (ml_str){ r->g->image.ptr + begin, r->at - begin };
    return ML_OK;
}

static ml_status read_key(reader *r, ml_gguf_key *k) {
    uint64_t type;

    if (!take_str(r, &k->name) || !take_uint(r, 4, &type))
        return fail(r, "the file ends inside a key; it is truncated");
    if (type >= ML_GGUF_VALUES)
        return fail(r, "a key has a value of an unknown type");
    if (type == ML_GGUF_ARRAY)
        return read_array(r, k);
    k->type = (ml_gguf_value)type;
    if (type == ML_GGUF_STRING ? !take_str(r, &k->bytes)
                               : !take(r, value_bytes[type], &k->bytes))
        return fail(r, "a value ends after the file; it is truncated");
    return ML_OK;
}

static ml_status read_shape(reader *r, ml_gguf_tensor *t) {
    uint64_t n, d;

    if (!take_uint(r, 4, &n))
        return fail(r, "the file ends inside a tensor's description; it is truncated");
    if (n < 1 || n > 4)
        return fail(r, "a tensor has another number of dimensions than 1 to 4");
    t->n_dim = (int32_t)n;
    for (uint64_t i = 0; i < n; i++) {
        if (!take_uint(r, 8, &d))
            return fail(r, "the file ends inside a tensor's description; it is truncated");
        if (d < 1 || d > INT64_MAX / 2)
            return fail(r, "a tensor has a dimension of 0 or of more than 62 bits");
        t->shape[n - 1 - i] = (int64_t)d;
    }
    return ML_OK;
}

static ml_status size_tensor(const reader *r, ml_gguf_tensor *t) {
    int64_t per, columns = t->shape[t->n_dim - 1];
    size_t size;

    if (!ml_ggml_block(t->type, &per, &size))
        return ml_fail(r->err, ML_EUNSUP,
                       "%s: tensor %.*s has the type %u; supported are F32, F16, BF16, "
                       "Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and Q2_K to Q6_K",
                       r->g->path, (int)(t->name.len < 200 ? t->name.len : 200),
                       t->name.ptr, (unsigned)t->type);
    if (columns % per)
        return fail(r, "the rows of a quantized tensor are not whole blocks");
    t->bytes = size * (size_t)(columns / per);
    for (int32_t i = 0; i + 1 < t->n_dim; i++)
        if (__builtin_mul_overflow(t->bytes, (size_t)t->shape[i], &t->bytes))
            return fail(r, "the size of a tensor overflows 64 bits");
    return ML_OK;
}

static ml_status read_tensor(reader *r, ml_gguf_tensor *t) {
    uint64_t type, offset;
    ml_status st;

    if (!take_str(r, &t->name))
        return fail(r, "the file ends inside the name of a tensor; it is truncated");
    st = read_shape(r, t);
    if (st != ML_OK)
        return st;
    if (!take_uint(r, 4, &type) || !take_uint(r, 8, &offset))
        return fail(r, "the file ends inside a tensor's description; it is truncated");
    t->type = (uint32_t)type;
    t->offset = (size_t)offset;
    return size_tensor(r, t);
}

/* Offsets in the file count from the data section. */
static ml_status place_tensors(reader *r) {
    ml_gguf *g = r->g;
    int64_t align = ml_gguf_int(g, "general.alignment", 32);
    size_t begin;

    if (align < 1 || align > 1 << 20)
        return fail(r, "general.alignment is not between 1 and 1048576");
    begin = (r->at + (size_t)align - 1) / (size_t)align * (size_t)align;
    for (int64_t i = 0; i < g->n_tensor; i++) {
        ml_gguf_tensor *t = &g->tensor[i];
        size_t n = begin <= g->image.len ? g->image.len - begin : 0;
        if (t->offset > n || t->bytes > n - t->offset)
            return ml_fail(r->err, ML_EFORMAT,
                           "%s: tensor %.*s needs %zu bytes at byte %zu of the data, but "
                           "there are %zu; the file is truncated",
                           g->path, (int)(t->name.len < 200 ? t->name.len : 200),
                           t->name.ptr, t->bytes, t->offset, n);
        t->offset += begin;
    }
    return ML_OK;
}

static ml_status read_counts(reader *r, uint64_t *n_tensor, uint64_t *n_key) {
    ml_str magic;
    uint64_t version;

    if (!take(r, 4, &magic) || memcmp(magic.ptr, "GGUF", 4) != 0)
        return ml_fail(r->err, ML_EFORMAT,
                       "%s is not a GGUF file, which begins with the letters GGUF",
                       r->g->path);
    if (!take_uint(r, 4, &version) || !take_uint(r, 8, n_tensor) || !take_uint(r, 8, n_key))
        return fail(r, "the file ends inside its header; it is truncated");
    if (version < 2 || version > 3)
        return ml_fail(r->err, ML_EUNSUP,
                       "%s has version %u of GGUF; supported are 2 and 3", r->g->path,
                       (unsigned)version);
    if (*n_tensor > MAX_COUNT || *n_key > MAX_COUNT ||
        *n_tensor + *n_key > r->g->image.len / 12)
        return fail(r, "the file claims more keys and tensors than it has bytes for");
    return ML_OK;
}

static ml_status read_all(reader *r) {
    ml_gguf *g = r->g;
    uint64_t n_tensor = 0, n_key = 0;
    ml_status st = read_counts(r, &n_tensor, &n_key);

    if (st != ML_OK)
        return st;
    g->key = ML_NEW(&g->arena, ml_gguf_key, n_key);
    g->tensor = ML_NEW(&g->arena, ml_gguf_tensor, n_tensor);
    ml_map_init(&g->keys, &g->arena, (int64_t)n_key);
    ml_map_init(&g->tensors, &g->arena, (int64_t)n_tensor);
    for (uint64_t i = 0; i < n_key && st == ML_OK; i++) {
        st = read_key(r, &g->key[i]);
        if (st == ML_OK && !ml_map_add(&g->keys, g->key[i].name, g->n_key++))
            return fail(r, "a key occurs twice");
    }
    for (uint64_t i = 0; i < n_tensor && st == ML_OK; i++) {
        st = read_tensor(r, &g->tensor[i]);
        if (st == ML_OK && !ml_map_add(&g->tensors, g->tensor[i].name, g->n_tensor++))
            return fail(r, "a tensor occurs twice");
    }
    return st == ML_OK ? place_tensors(r) : st;
}

ml_status ml_gguf_parse(ml_gguf **out, ml_str image, const char *path, ml_err *err) {
    ml_arena a;
    ml_gguf *g;
    ml_status st;

    ml_arena_init(&a, "a GGUF header");
    g = ML_NEW(&a, ml_gguf, 1);
    g->path = ml_arena_str(&a, path, strlen(path));
    g->image = image;
    g->arena = a; /* it lives in its own arena */
    st = read_all(&(reader){ .g = g, .err = err });
    if (st == ML_OK)
        *out = g;
    else
        ml_gguf_free(g);
    return st;
}

void ml_gguf_free(ml_gguf *g) {
    while (g) {
        ml_arena a = g->arena;
        ml_gguf *next = g->next;
        ml_file_unmap(&g->file);
        ml_arena_release(&a);
        g = next;
    }
}

/* --- split models ------------------------------------------------------------------- */

#define SPLIT_TAIL (sizeof "-00001-of-00001.gguf" - 1)

int32_t ml_gguf_n_split(const char *path) {
    size_t n = strlen(path);
    const char *tail = n > SPLIT_TAIL ? path + n - SPLIT_TAIL : "";
    int32_t count = 0;
    int end = 0;

    if (sscanf(tail, "-00001-of-%5" SCNd32 ".gguf%n", &count, &end) != 1 || tail[end] ||
        (size_t)end != SPLIT_TAIL || count < 1)
        return 1;
    return count;
}

void ml_gguf_split_path(ml_text *out, const char *first, int32_t i) {
    int32_t n = ml_gguf_n_split(first);

    if (n == 1)
        ml_text_printf(out, "%s", first);
    else
        ml_text_printf(out, "%.*s-%05d-of-%05d.gguf", (int)(strlen(first) - SPLIT_TAIL),
                       first, i + 1, n);
}

static ml_status open_one(ml_gguf **out, const char *path, ml_err *err) {
    ml_file file = { 0 };
    ml_status st = ml_file_map(&file, path, err);

    if (st == ML_OK)
        st = ml_gguf_parse(out, file.bytes, path, err);
    if (st == ML_OK)
        (*out)->file = file;
    else
        ml_file_unmap(&file);
    return st;
}

static ml_status check_split(const ml_gguf *g, ml_err *err) {
    int64_t n = ml_gguf_int(g, "split.count", 1);

    if (n > 1 && ml_gguf_int(g, "split.no", 0) != 0)
        return ml_fail(err, ML_EUSAGE,
                       "%s is not the first of the %lld files of a split model: give the "
                       "one that ends in -00001-of-%05lld.gguf",
                       g->path, (long long)n, (long long)n);
    if (n > 1 && n != ml_gguf_n_split(g->path))
        return ml_fail(err, ML_EUSAGE,
                       "%s is one of %lld files of a split model; their names must end in "
                       "-00001-of-%05lld.gguf etc., as llama-gguf-split writes them",
                       g->path, (long long)n, (long long)n);
    return ML_OK;
}

ml_status ml_gguf_open(ml_gguf **out, const char *path, ml_err *err) {
    int32_t n = ml_gguf_n_split(path);
    ml_gguf *first = NULL, **next = &first;
    ml_text part = { 0 };
    ml_status st = ML_OK;

    for (int32_t i = 0; i < n && st == ML_OK; i++) {
        part.len = 0;
        ml_gguf_split_path(&part, path, i);
        st = open_one(next, part.ptr, err);
        if (st == ML_OK && i == 0)
            st = check_split(first, err);
        if (st == ML_OK)
            next = &(*next)->next;
    }
    ml_text_release(&part);
    if (st == ML_OK)
        *out = first;
    else
        ml_gguf_free(first);
    return st;
}

/* --- access ------------------------------------------------------------------------- */

const ml_gguf_key *ml_gguf_get(const ml_gguf *g, const char *name) {
    char buf[256];
    int64_t i;

    if (name[0] == '%') {
        ml_str arch = ml_gguf_text(g, "general.architecture");
        snprintf(buf, sizeof buf, "%.*s%s", (int)(arch.len < 100 ? arch.len : 100),
                 arch.ptr ? arch.ptr : "", name + 1);
        name = buf;
    }
    i = ml_map_get(&g->keys, ml_str_of(name), -1);
    return i < 0 ? NULL : &g->key[i];
}

const ml_gguf_tensor *ml_gguf_find(const ml_gguf *g, const char *name) {
    for (; g; g = g->next) {
        int64_t i = ml_map_get(&g->tensors, ml_str_of(name), -1);
        if (i >= 0)
            return &g->tensor[i];
    }
    return NULL;
}

ml_str ml_gguf_bytes(const ml_gguf *g, const ml_gguf_tensor *t) {
    while (t < g->tensor || t >= g->tensor + g->n_tensor)
        g = g->next;
    return (ml_str){ g->image.ptr + t->offset, t->bytes };
}

double ml_gguf_item(const ml_gguf_key *k, uint64_t i) {
    size_t n = value_bytes[k->type];
    uint64_t v = n ? uint_of(k->bytes.ptr + i * n, n) : 0;
    float f;
    double d;

    switch (k->type) {
    case ML_GGUF_I8: return (int8_t)v;
    case ML_GGUF_I16: return (int16_t)v;
    case ML_GGUF_I32: return (int32_t)v;
    case ML_GGUF_I64: return (double)(int64_t)v;
    case ML_GGUF_F32: memcpy(&f, k->bytes.ptr + i * n, sizeof f); return (double)f;
    case ML_GGUF_F64: memcpy(&d, k->bytes.ptr + i * n, sizeof d); return d;
    default: return (double)v;
    }
}

double ml_gguf_num(const ml_gguf *g, const char *name, double absent) {
    const ml_gguf_key *k = ml_gguf_get(g, name);
    return k && !k->array && k->type != ML_GGUF_STRING ? ml_gguf_item(k, 0) : absent;
}

int64_t ml_gguf_int(const ml_gguf *g, const char *name, int64_t absent) {
    const ml_gguf_key *k = ml_gguf_get(g, name);
    double x;

    if (!k || k->array || k->type == ML_GGUF_STRING || k->type == ML_GGUF_F32 ||
        k->type == ML_GGUF_F64)
        return absent;
    x = ml_gguf_item(k, 0);
    return fabs(x) <= 0x1p62 ? (int64_t)x : absent;
}

ml_str ml_gguf_text(const ml_gguf *g, const char *name) {
    const ml_gguf_key *k = ml_gguf_get(g, name);
    return k && !k->array && k->type == ML_GGUF_STRING ? k->bytes : (ml_str){ 0 };
}

ml_str ml_gguf_next(const ml_gguf_key *k, size_t *at) {
    size_t n = (size_t)uint_of(k->bytes.ptr + *at, 8);
    ml_str s = { k->bytes.ptr + *at + 8, n };
    *at += 8 + n;
    return s;
}
