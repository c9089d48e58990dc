#include "io/delta.h"

#include <stdlib.h>
#include <string.h>

#include "io/zst.h"

#define LEVEL 1 /* the transfer is faster than a higher compression level */

const char *const ml_delta_name[ML_N_DELTA + 1] = { "xor", "overwrite" };

bool ml_delta_find(ml_delta_encoding *out, ml_str name) {
    for (int i = 0; i < ML_N_DELTA; i++)
        if (ml_str_is(name, ml_delta_name[i])) {
            *out = (ml_delta_encoding)i;
            return true;
        }
    return false;
}

/* --- encoding ----------------------------------------------------------------------- */

static size_t count_changed(const uint8_t *a, const uint8_t *b, size_t n) {
    size_t changed = 0;

    for (size_t i = 0; i < n; i++)
        changed += a[i] != b[i];
    return changed;
}

static void write_xor(uint8_t *out, const uint8_t *a, const uint8_t *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] ^ b[i];
}

/* Numbers are written in native byte order: all our targets are little-endian. */
static void write_changed(uint8_t *out, const uint8_t *old, const uint8_t *now, size_t n,
                          uint32_t n_changed) {
    uint8_t *position = out + sizeof n_changed,
            *value = position + sizeof n_changed * n_changed;

    memcpy(out, &n_changed, sizeof n_changed);
    for (size_t i = 0; i < n; i++)
        if (old[i] != now[i]) {
            uint32_t at = (uint32_t)i;
            memcpy(position, &at, sizeof at);
            position += sizeof at;
            *value++ = now[i];
        }
}

ml_status ml_delta_encode(ml_text *out, ml_delta_encoding how, const void *old,
                          const void *now, size_t n, size_t *n_changed, ml_err *err) {
    size_t size = n;
    uint8_t *raw;
    ml_status st;

    *n_changed = count_changed(old, now, n);
    if (*n_changed == 0)
        return ML_OK;
    if (how == ML_DELTA_OVERWRITE && n > UINT32_MAX)
        return ml_fail(err, ML_EUNSUP,
                       "a tensor of %zu bytes is too large for u32 positions; use "
                       "--update-weight-delta-encoding xor",
                       n);
    if (how == ML_DELTA_OVERWRITE)
        size = sizeof(uint32_t) + *n_changed * (sizeof(uint32_t) + 1);
    raw = malloc(size);
    if (!raw)
        return ml_fail(err, ML_ENOMEM, "out of memory for a delta of %zu bytes", size);
    if (how == ML_DELTA_XOR)
        write_xor(raw, old, now, n);
    else
        write_changed(raw, old, now, n, (uint32_t)*n_changed);
    st = ml_zst_pack(out, (ml_str){ (const char *)raw, size }, LEVEL, err);
    free(raw);
    return st;
}

/* --- applying ------------------------------------------------------------------------- */

static ml_status apply_xor(uint8_t *bytes, size_t n, const uint8_t *raw, size_t size,
                           const char *name, ml_err *err) {
    if (size != n)
        return ml_fail(err, ML_EFORMAT,
                       "the delta of %s has %zu bytes, but the tensor has %zu", name, size,
                       n);
    for (size_t i = 0; i < n; i++)
        bytes[i] ^= raw[i];
    return ML_OK;
}

static ml_status apply_overwrite(uint8_t *bytes, size_t n, const uint8_t *raw, size_t size,
                                 const char *name, ml_err *err) {
    uint32_t count = 0, at;

    if (size >= sizeof count)
        memcpy(&count, raw, sizeof count);
    if (size != sizeof count + count * (sizeof at + 1))
        return ml_fail(err, ML_EFORMAT, "the delta of %s has %u changes, but %zu bytes",
                       name, (unsigned)count, size);
    raw += sizeof count;
    for (uint32_t i = 0; i < count; i++) {
        memcpy(&at, raw + i * sizeof at, sizeof at);
        if (at >= n)
            return ml_fail(err, ML_EFORMAT,
                           "the delta of %s changes byte %u, but the tensor has %zu", name,
                           (unsigned)at, n);
        bytes[at] = raw[count * sizeof at + i];
    }
    return ML_OK;
}

/* The maximum size of a delta of n bytes. */
static size_t bound(ml_delta_encoding how, size_t n) {
    return how == ML_DELTA_XOR ? n : sizeof(uint32_t) + n * (sizeof(uint32_t) + 1);
}

ml_status ml_delta_apply(void *bytes, size_t n, ml_delta_encoding how, ml_str delta,
                         const char *name, ml_err *err) {
    void *raw = NULL;
    size_t size;
    ml_status st = ml_zst_unpack(&raw, &size, delta, bound(how, n), err);

    if (st != ML_OK) {
        ml_err_prefix(err, "the delta of %s", name);
        return st;
    }
    st =
        (how == ML_DELTA_XOR ? apply_xor : apply_overwrite)(bytes, n, raw, size, name, err);
    free(raw);
    return st;
}
