#include "cli/commands/sequences.h"

#include <stdio.h>
#include <string.h>

#define MAX_LEN (1 << 30) /* positions are int32 */

static const ml_st_tensor *find(const ml_st_file *f, int32_t i) {
    char name[32];
    snprintf(name, sizeof name, "tokens.%d", i);
    return ml_st_find(f, ml_str_of(name));
}

static ml_status check(const ml_st_file *f, const ml_st_tensor *t, const int32_t *id,
                       int64_t n_vocab, ml_err *err) {
    for (int64_t k = 0; k < t->shape[0]; k++)
        if (id[k] < 0 || id[k] >= n_vocab)
            return ml_fail(
                err, ML_EFORMAT,
                "%s: %s holds %d at index %lld; token ids of this model are 0 to %lld",
                f->path, t->name.ptr, id[k], (long long)k, (long long)n_vocab - 1);
    return ML_OK;
}

static ml_status read_one(ml_sequences *out, ml_arena *a, const ml_st_file *f, int32_t i,
                          int64_t n_vocab, ml_err *err) {
    const ml_st_tensor *t = find(f, i);
    int32_t *id;

    if (t->dtype != ML_ST_I32 || t->n_dim != 1)
        return ml_fail(err, ML_EFORMAT,
                       "%s: %s has dtype %s and %d dimensions; expected I32 and one",
                       f->path, t->name.ptr, ml_st_dtype_name(t->dtype), t->n_dim);
    if (t->shape[0] < 1 || t->shape[0] > MAX_LEN)
        return ml_fail(err, ML_EFORMAT, "%s: %s has %lld tokens; expected 1 to %d", f->path,
                       t->name.ptr, (long long)t->shape[0], MAX_LEN);
    id = ML_NEW(a, int32_t, t->shape[0]);
    memcpy(id, t->data, t->bytes);
    out->id[i] = id;
    out->len[i] = (int32_t)t->shape[0];
    if (out->len[i] > out->max_len)
        out->max_len = out->len[i];
    out->n_next += out->len[i] - 1;
    return check(f, t, id, n_vocab, err);
}

static int32_t count(const ml_st_file *f) {
    int32_t n = 0;
    while (find(f, n))
        n++;
    return n;
}

/* A gap in the numbers would silently leave sequences unscored. */
static ml_status check_names(const ml_st_file *f, int32_t n, ml_err *err) {
    static const char prefix[] = "tokens.";
    int32_t named = 0;

    for (int32_t i = 0; i < f->n; i++)
        named += f->tensor[i].name.len >= sizeof prefix - 1 &&
                 memcmp(f->tensor[i].name.ptr, prefix, sizeof prefix - 1) == 0;
    if (n == 0 || named != n)
        return ml_fail(err, ML_EFORMAT,
                       "%s: expected int32 tensors tokens.0, tokens.1, ... without gaps; "
                       "found %d such tensors, numbered from 0 to %d",
                       f->path, named, n - 1);
    return ML_OK;
}

ml_status ml_sequences_read(ml_sequences *out, ml_arena *a, const char *path,
                            int64_t n_vocab, ml_err *err) {
    ml_st_file *f;
    ml_status st = ml_st_open(&f, path, err);

    *out = (ml_sequences){ 0 };
    if (st != ML_OK)
        return st;
    out->n = count(f);
    st = check_names(f, out->n, err);
    out->id = ML_NEW(a, const int32_t *, out->n);
    out->len = ML_NEW(a, int32_t, out->n);
    for (int32_t i = 0; i < out->n && st == ML_OK; i++)
        st = read_one(out, a, f, i, n_vocab, err);
    ml_st_close(f);
    return st;
}
