#include "rl/run_log.h"

#include <errno.h>
#include <string.h>

#include "io/jsonl.h"

static bool is_evaluation(const ml_json *row) {
    for (const ml_json *m = row->child; m; m = m->next)
        if (m->key.len > 5 && memcmp(m->key.ptr, "eval/", 5) == 0)
            return true;
    return false;
}

/* What was cut off by a crash goes, too. */
static void keep_rows(ml_text *out, const ml_jsonl *f, int64_t rollout) {
    ml_arena a;

    ml_arena_init(&a, "rows of a log");
    for (int64_t i = 0; i < f->n; i++) {
        const ml_json *row;
        int64_t of;
        ml_str line = ml_jsonl_row(f, i);
        if (ml_jsonl_parse(&row, f, i, &a, NULL) == ML_OK &&
            ml_json_i64(ml_json_get(row, "rollout"), &of) &&
            of < rollout - is_evaluation(row))
            ml_text_printf(out, "%.*s\n", (int)line.len, line.ptr);
    }
    ml_arena_release(&a);
}

static ml_status open_file(FILE **out, const char *dir, const char *name, int64_t rollout,
                           ml_err *err) {
    ml_text path = { 0 }, kept = { 0 };
    ml_jsonl old = { 0 };
    ml_status st;

    ml_text_printf(&path, "%s/%s", dir, name);
    if (rollout > 0 && ml_jsonl_open(&old, path.ptr, NULL) == ML_OK)
        keep_rows(&kept, &old, rollout);
    ml_jsonl_close(&old);
    st = ml_file_replace(path.ptr, (ml_str){ kept.ptr ? kept.ptr : "", kept.len }, err);
    *out = st == ML_OK ? fopen(path.ptr, "a") : NULL;
    if (st == ML_OK && !*out)
        st = ml_fail(err, ML_EIO, "%s: cannot be opened: %s", path.ptr, strerror(errno));
    ml_text_release(&kept);
    ml_text_release(&path);
    return st;
}

ml_status ml_run_log_open(ml_run_log *l, const char *dir, int64_t rollout, ml_err *err) {
    ml_status st = open_file(&l->metrics, dir, "metrics.jsonl", rollout, err);
    return st == ML_OK ? open_file(&l->timing, dir, "timing.jsonl", rollout, err) : st;
}

void ml_run_log_close(ml_run_log *l) {
    if (l->metrics)
        fclose(l->metrics);
    if (l->timing)
        fclose(l->timing);
    *l = (ml_run_log){ 0 };
}

void ml_run_log_row(FILE *f, int64_t rollout, const char *extra,
                    const ml_figures *figures) {
    ml_text t = { 0 };

    if (!f)
        return;
    ml_text_printf(&t, "{\"rollout\": %lld%s%s", (long long)rollout, extra,
                   figures->first ? ", " : "");
    ml_figures_write(&t, figures);
    ml_text_printf(&t, "}\n");
    fwrite(t.ptr, 1, t.len, f);
    fflush(f);
    ml_text_release(&t);
}

ml_status ml_run_log_check(const ml_run_log *l, ml_err *err) {
    if ((l->metrics && ferror(l->metrics)) || (l->timing && ferror(l->timing)))
        return ml_fail(
            err, ML_EIO,
            "metrics.jsonl or timing.jsonl cannot be written: is the disk full?");
    return ML_OK;
}
