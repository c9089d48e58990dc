/* Rollout batches on disk: recorded by one run, trained on by another. */
#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json_out.h"
#include "rl/rollout/rollout.h"
#include "rl/record/round_path.h"
#include "rl/sample_torch.h"

static int by_index(const void *x, const void *y) {
    int64_t i = (*(const ml_sample *const *)x)->index,
            k = (*(const ml_sample *const *)y)->index;
    return i < k ? -1 : i > k;
}

/* As in Miles: keeps half of the share from the start, the rest from the end. */
static void thin_out(ml_rollout_batch *h, double keep) {
    int64_t n = (int64_t)((double)h->n * keep), first = n / 2;

    for (int64_t i = first; i < n; i++)
        h->sample[i] = h->sample[h->n - n + i];
    h->n = n;
}

static ml_status collect(void *ud, int64_t rollout, ml_rollout_batch *out, ml_arena *a,
                         ml_err *err) {
    const ml_replay_rollout *r = ud;
    const char *path = ml_round_path(a, r->template, rollout);
    ml_sample *sample;
    ml_status st = ml_samples_load(&sample, &out->n, a, path, err);

    if (st == ML_OK && out->n == 0)
        st = ml_fail(err, ML_EFORMAT, "%s contains no sample", path);
    if (st != ML_OK)
        return st;
    out->sample = ML_NEW(a, const ml_sample *, out->n);
    for (int64_t i = 0; i < out->n && st == ML_OK; i++) {
        st = ml_sample_check(&sample[i], r->n_vocab, path, err);
        out->sample[i] = &sample[i];
    }
    if (st != ML_OK)
        return st;
    qsort(out->sample, (size_t)out->n, sizeof *out->sample, by_index);
    if (r->keep > 0)
        thin_out(out, r->keep);
    return ML_OK;
}

ml_rollout ml_rollout_replay(ml_replay_rollout *r) {
    return (ml_rollout){ .collect = collect, .ud = r };
}

ml_status ml_rollout_record(const char *template, int64_t rollout,
                            const ml_rollout_batch *h, ml_err *err) {
    ml_arena a;
    char *path;
    ml_status st;

    ml_arena_init(&a, "a recording");
    st = ml_round_path_make(&path, &a, template, rollout, err);
    if (st == ML_OK)
        st = ml_samples_are_torch(path)
                 ? ml_samples_save_torch(path, rollout, h->sample, h->n, err)
                 : ml_samples_save(path, h->sample, h->n, err);
    ml_arena_release(&a);
    return st;
}

static void write_text(ml_text *out, const ml_sample *s) {
    ml_json_out o = { .to = out };

    ml_json_begin(&o, '{');
    ml_json_put_int(&o, "sample_index", s->index);
    ml_json_put_int(&o, "group_index", s->group);
    ml_json_put_word(&o, "status", ml_sample_status_name(s->status));
    ml_json_key(&o, "reward");
    ml_json_exact(&o, s->has_reward ? s->reward : (double)NAN);
    ml_json_key(&o, "label");
    ml_json_raw(&o, s->label.len ? s->label : ml_str_of("null"));
    ml_json_put_str(&o, "prompt", s->prompt);
    ml_json_put_str(&o, "response", s->response);
    ml_json_end(&o, '}');
    ml_text_add(out, "\n", 1);
}

ml_status ml_rollout_record_text(const char *template, int64_t rollout,
                                 const ml_rollout_batch *h, ml_err *err) {
    ml_text lines = { 0 };
    ml_arena a;
    char *path;
    ml_status st;

    ml_arena_init(&a, "a recording");
    st = ml_round_path_make(&path, &a, template, rollout, err);
    for (int64_t i = 0; i < h->n; i++)
        write_text(&lines, h->sample[i]);
    if (st == ML_OK)
        st = ml_file_replace(path, (ml_str){ lines.ptr ? lines.ptr : "", lines.len }, err);
    ml_text_release(&lines);
    ml_arena_release(&a);
    return st;
}
