/* compare.c - comparison and hash of bits. */
#include <stdio.h>
#include <string.h>

#include "tests/checkop/checkop.h"

/* NaNs with any payload are mapped to one. */
static uint32_t element(const ml_tensor *t, int64_t i) {
    uint32_t u;
    if (ml_dtype_bytes(t->dtype) == 1)
        return ((const uint8_t *)t->data)[i];
    if (t->dtype == ML_BF16 || t->dtype == ML_F16)
        return ((const uint16_t *)t->data)[i];
    memcpy(&u, (const char *)t->data + i * 4, sizeof u);
    if (t->dtype == ML_F32 && (u & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc00000u;
    return u;
}

static int64_t n_element(const ml_tensor *t) {
    return t->data ? (int64_t)(ml_tensor_bytes(t) / ml_dtype_bytes(t->dtype)) : 0;
}

bool ck_same(ck_env *e, const char *what, const ml_tensor *a, const ml_tensor *b) {
    int64_t n = n_element(a);
    if (n != n_element(b)) {
        ck_fail(e, "%s: %lld elements instead of %lld", what, (long long)n_element(b),
                (long long)n);
        return false;
    }
    for (int64_t i = 0; i < n; i++)
        if (element(a, i) != element(b, i)) {
            ck_fail(e, "%s: element %lld is 0x%08x instead of 0x%08x", what, (long long)i,
                    element(b, i), element(a, i));
            return false;
        }
    return true;
}

static void same_all(ck_env *e, const char *what, const char *which, const ml_tensor *a,
                     const ml_tensor *b, int n) {
    char name[160];
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s: %s[%d]", what, which, i);
        if (a[i].data && b[i].data)
            ck_same(e, name, &a[i], &b[i]);
    }
}

void ck_same_result(ck_env *e, const char *what, const ck_result *a, const ck_result *b) {
    same_all(e, what, "out", a->out, b->out, ML_OP_OUT);
    same_all(e, what, "din", a->din, b->din, ML_OP_IN);
    same_all(e, what, "dw", a->dw, b->dw, ML_OP_W);
}

static uint64_t hash_all(uint64_t h, const ml_tensor *t, int n) {
    for (int k = 0; k < n; k++)
        for (int64_t i = 0; i < n_element(&t[k]); i++) {
            uint32_t u = element(&t[k], i);
            for (int byte = 0; byte < 4; byte++)
                h = (h ^ (u >> 8 * byte & 255u)) * 0x100000001b3u;
        }
    return h;
}

uint64_t ck_hash(uint64_t h, const ck_result *r) {
    h = hash_all(h, r->out, ML_OP_OUT);
    h = hash_all(h, r->din, ML_OP_IN);
    return hash_all(h, r->dw, ML_OP_W);
}
