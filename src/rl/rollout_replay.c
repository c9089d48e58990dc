/* Rounds on disk: recorded by one run, trained on by another. */
#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "rl/rollout.h"

static char *path_of(ml_arena *a, const char *template, int64_t rollout) {
    ml_text t = { 0 };
    char *path;

    ml_text_fill(&t, template, "{rollout_id}", rollout);
    path = ml_arena_str(a, t.ptr, t.len);
    ml_text_release(&t);
    return path;
}

static int by_index(const void *x, const void *y) {
    int64_t i = (*(const ml_sample *const *)x)->index,
            k = (*(const ml_sample *const *)y)->index;
    return i < k ? -1 : i > k;
}

static ml_status collect(void *ud, int64_t rollout, ml_harvest *out, ml_arena *a,
                         ml_err *err) {
    const ml_replay_rollout *r = ud;
    const char *path = path_of(a, r->template, rollout);
    ml_sample *sample;
    ml_status st = ml_samples_load(&sample, &out->n, a, path, err);

    if (st == ML_OK && out->n == 0)
        st = ml_fail(err, ML_EFORMAT, "%s: there is no sample in it", path);
    if (st != ML_OK)
        return st;
    out->sample = ML_NEW(a, const ml_sample *, out->n);
    for (int64_t i = 0; i < out->n; i++)
        out->sample[i] = &sample[i];
    qsort(out->sample, (size_t)out->n, sizeof *out->sample, by_index);
    return ML_OK;
}

ml_rollout ml_rollout_replay(ml_replay_rollout *r) {
    return (ml_rollout){ .collect = collect, .ud = r };
}

static ml_status make_parent(ml_arena *a, const char *path, ml_err *err) {
    const char *slash = strrchr(path, '/');
    return slash && slash > path
               ? ml_dir_make(ml_arena_str(a, path, (size_t)(slash - path)), err)
               : ML_OK;
}

ml_status ml_rollout_record(const char *template, int64_t rollout, const ml_harvest *h,
                            ml_err *err) {
    ml_arena a;
    const char *path;
    ml_status st;

    ml_arena_init(&a, "a recording");
    path = path_of(&a, template, rollout);
    st = make_parent(&a, path, err);
    if (st == ML_OK)
        st = ml_samples_save(path, h->sample, h->n, err);
    ml_arena_release(&a);
    return st;
}
