#include "rl/record/run_log.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/dir.h"
#include "io/jsonl.h"

/* --- queued for the background writer ----------------------------------------- */

typedef enum entry_kind { METRICS, TIMING, SPAN, EVENT, ANSWERS, RANK_OPS } entry_kind;

typedef struct entry {
    struct entry *next;
    entry_kind kind;
    int64_t rollout, step;
    ml_metrics metrics;
    const char *name; /* name of a span; text of an event */
    ml_span_kind span;
    double begin_s, end_s, unix_s;  /* unix_s: the end in seconds since 1970 */
    const ml_eval_answers *answers; /* in the arena */
    int32_t rank;
    ml_timeline_taken ops; /* of the rank, in the arena */
    ml_arena arena;
} entry;

struct ml_log_batch {
    ml_arena own;   /* this batch and its entries */
    ml_arena round; /* owns the samples, once the log has taken it */
    ml_run_log *log;
    entry *first, **last;
    const ml_sample *const *sample;  /* [n_sample] */
    ml_sample_advantages *advantage; /* [n_advantage] */
    int64_t n_sample, n_advantage, rollout;
    ml_timeline_taken ops;
};

static ml_log_batch *batch_of(ml_run_log *l) {
    ml_arena a;

    if (!l->now) {
        ml_arena_init(&a, "log of a run");
        l->now = ML_NEW(&a, ml_log_batch, 1);
        *l->now = (ml_log_batch){ .own = a, .log = l };
        l->now->last = &l->now->first;
    }
    return l->now;
}

static entry *add_entry(ml_run_log *l, entry_kind kind, int64_t rollout) {
    ml_log_batch *b = batch_of(l);
    entry *e = ML_NEW(&b->own, entry, 1);

    *e = (entry){ .kind = kind, .rollout = rollout, .step = -1 };
    *b->last = e;
    b->last = &e->next;
    return e;
}

static void add_metrics(ml_run_log *l, entry_kind kind, int64_t rollout, int64_t step,
                        const ml_metrics *metrics) {
    entry *e = add_entry(l, kind, rollout);

    e->step = step;
    ml_metrics_init(&e->metrics, &l->now->own);
    for (const ml_metric *f = metrics->first; f; f = f->next)
        ml_metrics_add(&e->metrics, f->name, "", f->value);
}

static void release_batch(ml_log_batch *b) {
    ml_arena own;

    if (!b)
        return;
    for (entry *e = b->first; e; e = e->next)
        ml_arena_release(&e->arena);
    ml_arena_release(&b->round);
    own = b->own; /* the batch itself is allocated in it */
    ml_arena_release(&own);
}

/* --- the store, TensorBoard, the trace --------------------------------------- */

static ml_status store_entry(ml_run_store *s, const entry *e, ml_err *err) {
    ml_status st = ML_OK;

    if (e->kind == ANSWERS)
        return ml_run_store_add_answers(s, e->rollout, e->answers, err);
    if (e->kind == EVENT)
        return ml_run_store_add_event(s, e->rollout, e->name, err);
    if (e->kind == SPAN)
        return ml_run_store_add_span(s, e->rollout, "loop", e->name,
                                     e->unix_s - (e->end_s - e->begin_s), e->unix_s, err);
    for (const ml_metric *f = e->metrics.first; f && st == ML_OK; f = f->next)
        st = e->kind == METRICS
                 ? ml_run_store_add_metric(s, e->rollout, e->step, f->name, f->value, err)
                 : ml_run_store_add_timing(s, e->rollout, f->name, f->value, err);
    return st;
}

static ml_status write_store(const ml_log_batch *b, ml_err *err) {
    ml_run_store *s = b->log->store;
    ml_status st = ml_run_store_begin(s, err);

    if (st == ML_OK)
        st = ml_run_store_add_samples(s, b->rollout, b->sample, b->n_sample,
                                      b->n_advantage == b->n_sample ? b->advantage : NULL,
                                      err);
    for (const entry *e = b->first; e && st == ML_OK; e = e->next)
        st = store_entry(s, e, err);
    return st == ML_OK ? ml_run_store_end(s, err) : st;
}

static ml_status write_events(const ml_log_batch *b, ml_err *err) {
    ml_event_file *out = &b->log->events;
    double now = ml_clock_unix_s();

    for (const entry *e = b->first; e; e = e->next)
        for (const ml_metric *f = e->metrics.first; f; f = f->next)
            ml_event_file_add(out, &(ml_event){ .time_s = now,
                                                .step = e->step >= 0 ? e->step : e->rollout,
                                                .tag = ml_str_of(f->name),
                                                .value = (float)f->value });
    return ml_event_file_flush(out, err);
}

enum { SPANS_AT_ONCE = 256 }; /* of a write call */

static ml_trace_span span_of(int32_t rank, const ml_time_span *s) {
    return (ml_trace_span){ .name = s->name,
                            .row = rank,
                            .lane = (int)s->track,
                            .begin_s = s->begin_s,
                            .end_s = s->end_s,
                            .key = s->layer < 0 ? NULL : "layer",
                            .value = s->layer,
                            .group = s->group };
}

static ml_status write_left_out(ml_trace_file *to, int32_t rank,
                                const ml_timeline_taken *ops, ml_err *err) {
    ml_trace_span left[ML_TRACKS];
    double now = ml_clock_s();
    int n = 0;

    for (int k = 0; k < ML_TRACKS; k++)
        if (ops->left_out[k])
            left[n++] = (ml_trace_span){ .name = "omitted ops",
                                         .row = rank,
                                         .lane = k,
                                         .begin_s = now,
                                         .end_s = now,
                                         .key = "n",
                                         .value = ops->left_out[k] };
    return ml_trace_file_spans(to, left, n, err);
}

static ml_status write_ops(ml_trace_file *to, int32_t rank, const ml_timeline_taken *ops,
                           ml_err *err) {
    ml_trace_span span[SPANS_AT_ONCE];
    ml_status st = ML_OK;

    for (int64_t i = 0, n; i < ops->n && st == ML_OK; i += n) {
        for (n = 0; n < SPANS_AT_ONCE && i + n < ops->n; n++)
            span[n] = span_of(rank, &ops->span[i + n]);
        st = ml_trace_file_spans(to, span, n, err);
    }
    return st == ML_OK ? write_left_out(to, rank, ops, err) : st;
}

static ml_status write_spans(const ml_log_batch *b, ml_err *err) {
    ml_trace_file *to = &b->log->trace;
    ml_status st = ML_OK;

    for (const entry *e = b->first; e && st == ML_OK; e = e->next)
        if (e->kind == RANK_OPS)
            st = write_ops(to, e->rank, &e->ops, err);
        else if (e->kind == SPAN && (b->log->spans & e->span))
            st = ml_trace_file_spans(to,
                                     &(ml_trace_span){ .name = e->name,
                                                       .lane = ML_TRACK_LOOP,
                                                       .begin_s = e->begin_s,
                                                       .end_s = e->end_s,
                                                       .key = "rollout",
                                                       .value = e->rollout },
                                     1, err);
    return st == ML_OK ? write_ops(to, 0, &b->ops, err) : st;
}

static ml_status write_batch(void *batch, ml_err *err) {
    const ml_log_batch *b = batch;
    ml_status st = b->log->store ? write_store(b, err) : ML_OK;

    if (st == ML_OK && b->log->events.f)
        st = write_events(b, err);
    return st == ML_OK && b->log->trace.at ? write_spans(b, err) : st;
}

/* --- opening ----------------------------------------------------------------- */

static bool is_evaluation(ml_str name) {
    return name.len > 5 && memcmp(name.ptr, "eval/", 5) == 0;
}

static bool has_evaluation(const ml_json *row) {
    for (const ml_json *m = row->child; m; m = m->next)
        if (is_evaluation(m->key))
            return true;
    return false;
}

/* Also drops a row that a crash left incomplete. */
static void keep_rows(ml_text *out, const ml_jsonl *f, int64_t rollout) {
    ml_arena a;

    ml_arena_init(&a, "rows of a log");
    for (int64_t i = 0; i < f->n; i++) {
        const ml_json *row;
        int64_t of;
        ml_str line = ml_jsonl_row(f, i);
        if (ml_jsonl_parse(&row, f, i, &a, NULL) == ML_OK &&
            ml_json_i64(ml_json_get(row, "rollout"), &of) &&
            of < rollout - has_evaluation(row))
            ml_text_printf(out, "%.*s\n", (int)line.len, line.ptr);
    }
    ml_arena_release(&a);
}

static ml_status open_rows(FILE **out, const char *dir, const char *name, int64_t rollout,
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
        st = ml_fail(err, ML_EIO, "%s: cannot open: %s", path.ptr, strerror(errno));
    ml_text_release(&kept);
    ml_text_release(&path);
    return st;
}

/* TensorBoard numbers events of optimizer steps by step, not by rollout.  They follow the
 * ROUND_TAG event, which has the number of their rollout. */
typedef struct place {
    int64_t rollout, current;
} place;

#define ROUND_TAG "rollout/step"

static bool keep_event(void *ud, const ml_event *e) {
    place *p = ud;

    if (ml_str_is(e->tag, ROUND_TAG))
        p->current = e->step;
    return is_evaluation(e->tag) ? e->step < p->rollout - 1 : p->current < p->rollout;
}

static void event_dir(ml_text *out, const ml_run_log_opts *o) {
    if (o->tensorboard)
        ml_text_printf(out, "%s", o->tensorboard);
    else if (o->project)
        ml_text_printf(out, "tensorboard_log/%s/%s", o->project,
                       o->experiment ? o->experiment : ".");
    else
        ml_text_printf(out, "%s/tensorboard", o->dir);
}

#define EVENT_FILE "/events.out.tfevents.miles"

void ml_run_log_event_path(ml_text *out, const ml_run_log_opts *opts) {
    event_dir(out, opts);
    ml_text_printf(out, EVENT_FILE);
}

static ml_status open_events(ml_run_log *l, const ml_run_log_opts *o, int64_t rollout,
                             ml_err *err) {
    place p = { .rollout = rollout, .current = -1 };
    ml_text path = { 0 };
    ml_status st;

    event_dir(&path, o);
    st = ml_dir_make(path.ptr, err);
    ml_text_printf(&path, EVENT_FILE);
    if (st == ML_OK)
        st = ml_event_file_open(&l->events, path.ptr, rollout > 0 ? keep_event : NULL, &p,
                                err);
    ml_text_release(&path);
    return st;
}

static ml_status open_store(ml_run_log *l, const char *dir, int64_t rollout, ml_err *err) {
    ml_text path = { 0 };
    ml_status st;

    ml_text_printf(&path, "%s/run.db", dir);
    st = ml_run_store_open(&l->store, path.ptr, rollout, err);
    ml_text_release(&path);
    return st;
}

static const char *const track_name[ML_TRACKS] = { "rounds", "training", "rollout",
                                                   "collectives" };

static ml_status name_rows(ml_run_log *l, ml_err *err) {
    int n_lane = l->n_rank > 1 ? ML_TRACKS : ML_TRACK_COMM;
    ml_status st = ML_OK;

    for (int32_t r = 0; r < l->n_rank && st == ML_OK; r++) {
        char name[32] = "miles";
        if (l->n_rank > 1)
            snprintf(name, sizeof name, "rank %d", (int)r);
        st = ml_trace_file_row(&l->trace, r, name, track_name, n_lane, err);
    }
    return st;
}

static ml_status open_trace(ml_run_log *l, const char *dir, int64_t rollout, ml_err *err) {
    ml_text path = { 0 };
    ml_status st;

    ml_text_printf(&path, "%s/trace_%lld.json", dir, (long long)rollout);
    st = ml_trace_file_open(&l->trace, path.ptr, err);
    if (st == ML_OK)
        st = name_rows(l, err);
    ml_text_release(&path);
    return st;
}

ml_status ml_run_log_open(ml_run_log *l, const ml_run_log_opts *o, int64_t rollout,
                          ml_err *err) {
    ml_status st;

    l->spans = !o->profile ? 0 : o->spans ? o->spans : ML_SPAN_ALL;
    l->ops = o->profile ? o->ops : NULL;
    l->n_rank = o->n_rank > 1 ? o->n_rank : 1;
    l->flop_per_token = o->flop_per_token;
    l->peak_flops = o->peak_flops;
    st = open_rows(&l->metrics, o->dir, "metrics.jsonl", rollout, err);

    if (st == ML_OK)
        st = open_rows(&l->timing, o->dir, "timing.jsonl", rollout, err);
    if (st == ML_OK && o->determinism)
        st = open_rows(&l->hashes, o->dir, "determinism.jsonl", rollout, err);
    if (st == ML_OK && !o->no_store)
        st = open_store(l, o->dir, rollout, err);
    if (st == ML_OK && o->profile)
        st = open_trace(l, o->dir, rollout, err);
    return st == ML_OK ? open_events(l, o, rollout, err) : st;
}

void ml_run_log_close(ml_run_log *l) {
    (void)ml_run_log_settle(l, NULL); /* callers that need the error have settled before */
    if (l->metrics)
        fclose(l->metrics);
    if (l->timing)
        fclose(l->timing);
    if (l->hashes)
        fclose(l->hashes);
    ml_event_file_close(&l->events);
    ml_trace_file_close(&l->trace);
    ml_run_store_close(l->store);
    *l = (ml_run_log){ 0 };
}

/* --- rows -------------------------------------------------------------------- */

static void note(ml_run_log *l, ml_status st, const ml_err *err) {
    if (st != ML_OK && l->st == ML_OK) {
        l->st = st;
        l->err = *err;
    }
}

/* A row that is not written ends the run before its next save, so that a resumed run
 * writes it again. */
static void write_line(ml_run_log *l, FILE *f, const ml_text *t) {
    ml_err err = { 0 };

    if (fwrite(t->ptr, 1, t->len, f) == t->len && fflush(f) == 0)
        return;
    note(l,
         ml_fail(&err, ML_EIO,
                 "cannot write metrics.jsonl, timing.jsonl or determinism.jsonl: %s; free "
                 "disk space and run the same command again",
                 strerror(errno)),
         &err);
}

static void write_row(ml_run_log *l, FILE *f, int64_t rollout, int64_t step,
                      const ml_metrics *metrics) {
    ml_text t = { 0 };

    ml_text_printf(&t, "{\"rollout\": %lld", (long long)rollout);
    if (step >= 0)
        ml_text_printf(&t, ", \"step\": %lld", (long long)step);
    ml_text_printf(&t, "%s", metrics->first ? ", " : "");
    ml_metrics_write(&t, metrics);
    ml_text_printf(&t, "}\n");
    write_line(l, f, &t);
    ml_text_release(&t);
}

void ml_run_log_metrics(ml_run_log *l, int64_t rollout, int64_t step,
                        const ml_metrics *metrics) {
    if (!l->metrics)
        return;
    write_row(l, l->metrics, rollout, step, metrics);
    add_metrics(l, METRICS, rollout, step, metrics);
}

void ml_run_log_timing(ml_run_log *l, int64_t rollout, const ml_metrics *metrics) {
    if (!l->timing)
        return;
    write_row(l, l->timing, rollout, -1, metrics);
    add_metrics(l, TIMING, rollout, -1, metrics);
}

void ml_run_log_hashes(ml_run_log *l, const char *head, uint64_t samples,
                       uint64_t gradients, uint64_t weights) {
    ml_text t = { 0 };

    if (!l->hashes)
        return;
    ml_text_printf(&t,
                   "%s, \"samples\": \"%016llx\", \"gradients\": \"%016llx\", "
                   "\"weights\": \"%016llx\"}\n",
                   head, (unsigned long long)samples, (unsigned long long)gradients,
                   (unsigned long long)weights);
    write_line(l, l->hashes, &t);
    ml_text_release(&t);
}

void ml_run_log_samples(ml_run_log *l, int64_t rollout, const ml_sample *const *sample,
                        int64_t n) {
    ml_log_batch *b;
    entry *e;

    if (!l->metrics)
        return;
    e = add_entry(l, METRICS, rollout);
    b = l->now;
    ml_metrics_init(&e->metrics, &b->own);
    ml_metrics_add(&e->metrics, ROUND_TAG, "", (double)rollout);
    b->sample = sample;
    b->n_sample = n;
    b->rollout = rollout;
}

/* Most estimators give all tokens of a sample the same advantage: then one is enough. */
static ml_sample_advantages advantages_of(const miles_sample *s, ml_arena *a) {
    bool same = true;
    float *copy;

    if (!s->advantage || !s->n)
        return (ml_sample_advantages){ 0 };
    for (int64_t i = 1; i < s->n; i++)
        same = same && s->advantage[i] == s->advantage[0];
    copy = ML_NEW(a, float, same ? 1 : s->n);
    for (int64_t i = 0; i < (same ? 1 : s->n); i++)
        copy[i] = (float)s->advantage[i];
    return (ml_sample_advantages){ copy, same ? 1 : (int32_t)s->n };
}

void ml_run_log_advantages(ml_run_log *l, const miles_batch *batch) {
    ml_log_batch *b;

    if (!l->store)
        return;
    b = batch_of(l);
    b->advantage = ML_NEW(&b->own, ml_sample_advantages, batch->n);
    b->n_advantage = batch->n;
    for (int64_t i = 0; i < batch->n; i++)
        b->advantage[i] = advantages_of(batch->sample[i], &b->own);
}

void ml_run_log_answers(ml_run_log *l, int64_t rollout, const ml_eval_answers *first,
                        ml_arena *a) {
    entry *e;

    if (!l->store || !first)
        return;
    e = add_entry(l, ANSWERS, rollout);
    e->answers = first;
    e->arena = *a;
    *a = (ml_arena){ 0 };
}

void ml_run_log_span(ml_run_log *l, int64_t rollout, ml_span_kind kind, const char *name,
                     double begin_s, double end_s) {
    entry *e;

    if (!(l->spans & kind) && !l->store)
        return;
    e = add_entry(l, SPAN, rollout);
    e->name = name;
    e->span = kind;
    e->begin_s = begin_s;
    e->end_s = end_s;
    e->unix_s = ml_clock_unix_s() - (ml_clock_s() - end_s);
}

void ml_run_log_rank_ops(ml_run_log *l, int32_t rank, ml_timeline_taken ops, ml_arena *a) {
    entry *e = add_entry(l, RANK_OPS, -1);

    e->rank = rank;
    e->ops = ops;
    e->arena = *a;
    *a = (ml_arena){ 0 };
}

void ml_run_log_event(ml_run_log *l, int64_t rollout, const char *what) {
    entry *e;

    if (!l->store)
        return;
    e = add_entry(l, EVENT, rollout);
    e->name = ml_arena_printf(&l->now->own, "%s", what);
}

/* --- batches ----------------------------------------------------------------- */

static void wait_for_writer(ml_run_log *l) {
    ml_err err = { 0 };

    note(l, ml_background_wait(&l->writer, &err), &err);
    release_batch(l->writing);
    l->writing = NULL;
}

static void take_ops(ml_run_log *l) {
    if (l->ops) {
        ml_log_batch *b = batch_of(l);
        b->ops = ml_timeline_take(l->ops, &b->own);
    }
}

void ml_run_log_post(ml_run_log *l, ml_arena *round) {
    ml_err err = { 0 };
    ml_status st;

    take_ops(l);
    if (!l->now) {
        ml_arena_release(round);
        return;
    }
    wait_for_writer(l);
    l->now->round = *round;
    *round = (ml_arena){ 0 };
    l->writing = l->now;
    l->now = NULL;
    st = ml_background_start(&l->writer, write_batch, l->writing, &err);
    note(l, st, &err);
}

ml_status ml_run_log_settle(ml_run_log *l, ml_err *err) {
    ml_err why = { 0 };

    wait_for_writer(l);
    take_ops(l);
    if (l->now)
        note(l, write_batch(l->now, &why), &why);
    release_batch(l->now);
    l->now = NULL;
    return ml_run_log_check(l, err);
}

ml_status ml_run_log_check(ml_run_log *l, ml_err *err) {
    if (l->st != ML_OK && err)
        *err = l->err;
    return l->st;
}
