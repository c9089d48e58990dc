#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc64.h"
#include "train/snapshot_priv.h"

/* torch's names for the moments. */
const char *const ml_snapshot_prefix[ML_STATE_SETS] = { "master", "exp_avg", "exp_avg_sq",
                                                        "reference" };

const char *ml_snapshot_path(ml_arena *a, const char *dir, int64_t iteration) {
    return ml_arena_printf(a, "%s/iter_%07lld", dir, (long long)iteration);
}

const char *ml_snapshot_tensor(char *buf, size_t cap, int k, const ml_param *p, int32_t e) {
    char name[512];
    snprintf(buf, cap, "%s.%s", ml_snapshot_prefix[k],
             ml_param_name(p, e, name, sizeof name));
    return buf;
}

ml_status ml_snapshot_sum(ml_text *out, const char *path, const char *name, ml_err *err) {
    ml_text full = { 0 };
    ml_file f = { 0 };
    ml_status st;

    ml_text_printf(&full, "%s/%s", path, name);
    st = ml_file_map(&f, full.ptr, err);
    if (st == ML_OK)
        ml_text_printf(out, "%016llx %zu %s\n",
                       (unsigned long long)ml_crc64(0, f.bytes.ptr, f.bytes.len),
                       f.bytes.len, name);
    ml_file_unmap(&f);
    ml_text_release(&full);
    return st;
}

ml_status ml_snapshot_latest(int64_t *out, const char *dir, ml_err *err) {
    ml_text path = { 0 };
    ml_file f = { 0 };
    ml_status st = ML_OK;
    char digits[24] = "", *end = digits;

    *out = ML_NONE;
    ml_text_printf(&path, "%s/%s", dir, ML_SNAPSHOT_TRACKER);
    if (access(path.ptr, F_OK) == 0) {
        st = ml_file_map(&f, path.ptr, err);
        if (st == ML_OK && f.bytes.len && f.bytes.len < sizeof digits) {
            memcpy(digits, f.bytes.ptr, f.bytes.len);
            *out = strtoll(digits, &end, 10);
        }
        if (st == ML_OK && (end == digits || (*end && *end != '\n') || *out < 0))
            st = ml_fail(err, ML_EFORMAT, "%s: expected the number of an iteration",
                         path.ptr);
    }
    ml_file_unmap(&f);
    ml_text_release(&path);
    return st;
}
