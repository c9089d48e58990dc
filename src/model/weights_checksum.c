#include "model/weights_checksum.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/file.h"

#define PIECE_VALUES ((int64_t)1 << 18)

/* Adds one member of a parameter, a few rows at a time. */
static uint64_t add_member(uint64_t crc, const ml_weights *w, const ml_param *p, int32_t i,
                           int32_t e, float *piece, int64_t cap) {
    int64_t rows = p->n_dim == 2 ? p->shape[0] : 1,
            cols = p->n_dim == 2 ? p->shape[1] : p->shape[0], step = cap / cols;

    for (int64_t r = 0; r < rows; r += step) {
        int64_t n = rows - r < step ? rows - r : step;
        ml_weights_unpack(w, i, e, r, n, ML_F32, piece);
        crc = ml_crc64(crc, piece, (size_t)(n * cols) * sizeof *piece);
    }
    return crc;
}

ml_status ml_weights_crc64(uint64_t *out, const ml_weights *w, const ml_spec *s,
                           ml_err *err) {
    int64_t cap = PIECE_VALUES;
    float *piece;

    for (int32_t i = 0; i < s->n_param; i++) {
        const ml_param *p = &s->param[i];
        int64_t cols = p->n_dim == 2 ? p->shape[1] : p->shape[0];
        cap = cols > cap ? cols : cap;
    }
    piece = malloc((size_t)cap * sizeof *piece);
    if (!piece)
        return ml_fail(err, ML_ENOMEM, "out of memory for a checksum of weights");
    *out = 0;
    for (int32_t i = 0; i < s->n_param; i++)
        for (int32_t e = 0; e < s->param[i].n_stack; e++)
            *out = add_member(*out, w, &s->param[i], i, e, piece, cap);
    free(piece);
    return ML_OK;
}

static void path_of(ml_text *out, const char *dir) {
    ml_text_printf(out, "%s/weights.crc64", dir);
}

ml_status ml_weights_checksum(const ml_weights *w, const ml_spec *s, const char *dir,
                              ml_err *err) {
    uint64_t crc;
    ml_text path = { 0 };
    char line[24];
    ml_status st = ml_weights_crc64(&crc, w, s, err);

    if (st != ML_OK)
        return st;
    path_of(&path, dir);
    snprintf(line, sizeof line, "%016llx\n", (unsigned long long)crc);
    st = ml_file_replace(path.ptr, ml_str_of(line), err);
    ml_text_release(&path);
    return st;
}

static ml_status compare(const ml_weights *w, const ml_spec *s, const char *path,
                         ml_err *err) {
    ml_file f = { 0 };
    char line[24] = "";
    uint64_t crc = 0, want;
    ml_status st = ml_file_map(&f, path, err);

    if (st != ML_OK)
        return st;
    snprintf(line, sizeof line, "%.*s", (int)f.bytes.len, f.bytes.ptr);
    want = strtoull(line, NULL, 16);
    ml_file_unmap(&f);
    st = ml_weights_crc64(&crc, w, s, err);
    if (st == ML_OK && crc != want)
        st = ml_fail(err, ML_EFORMAT,
                     "%s: the published weights have checksum %016llx, but the loaded ones "
                     "%016llx: the files are damaged, or were loaded with another dtype",
                     path, (unsigned long long)want, (unsigned long long)crc);
    return st;
}

ml_status ml_weights_check_checksum(const ml_weights *w, const ml_spec *s, const char *dir,
                                    ml_err *err) {
    ml_text path = { 0 };
    ml_status st = ML_OK;

    path_of(&path, dir);
    if (access(path.ptr, F_OK) == 0)
        st = compare(w, s, path.ptr, err);
    ml_text_release(&path);
    return st;
}
