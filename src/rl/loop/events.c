#include "rl/loop/events.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "base/json_out.h"
#include "base/map.h"
#include "io/jsonl.h"
#include "rl/record/hashes.h"
#include "rl/loop/iteration.h"

#define WITNESS "witness_snapshot_param"

struct ml_events {
    ml_events_opts opts;
    FILE *file;
    bool failed;
    char *path;
};

static void path_of(ml_text *out, const char *dir) {
    ml_text_printf(out, "%s/events.jsonl", dir);
}

ml_status ml_events_open(ml_events **out, const ml_events_opts *opts, ml_err *err) {
    ml_events *e;
    ml_text path = { 0 };
    ml_status st = ml_dir_make(opts->dir, err);

    if (st != ML_OK)
        return st;
    path_of(&path, opts->dir);
    e = calloc(1, sizeof *e);
    if (e)
        e->file = fopen(path.ptr, "a");
    if (!e || !e->file) {
        st = ml_fail(err, ML_EIO, "%s: cannot open: %s", path.ptr, strerror(errno));
        free(e);
        ml_text_release(&path);
        return st;
    }
    e->opts = *opts;
    e->path = path.ptr;
    *out = e;
    return ML_OK;
}

void ml_events_close(ml_events *e) {
    if (!e)
        return;
    fclose(e->file);
    free(e->path);
    free(e);
}

/* A line under construction. */
typedef struct event_line {
    ml_text text;
    ml_json_out out;
} event_line;

static void begin_line(event_line *l, const char *type, int64_t rollout) {
    *l = (event_line){ 0 };
    l->out.to = &l->text;
    ml_json_begin(&l->out, '{');
    ml_json_put_word(&l->out, "type", type);
    ml_json_put_int(&l->out, "rollout", rollout);
}

static void end_line(ml_events *e, event_line *l) {
    ml_json_end(&l->out, '}');
    ml_text_add(&l->text, "\n", 1);
    e->failed |=
        fwrite(l->text.ptr, 1, l->text.len, e->file) != l->text.len || fflush(e->file) != 0;
    ml_text_release(&l->text);
}

static void write_metrics(ml_events *e, const char *type, int64_t rollout,
                          const ml_metrics *metrics) {
    event_line l;

    begin_line(&l, type, rollout);
    for (const ml_metric *f = metrics->first; f; f = f->next) {
        ml_json_key(&l.out, f->name);
        ml_json_exact(&l.out, f->value);
    }
    end_line(e, &l);
}

static ml_status write_checksum(ml_events *e, const char *whose, int64_t rollout,
                                const ml_weights *w, ml_err *err) {
    char sum[20];
    event_line l;
    uint64_t hash;
    ml_status st = ml_hash_weights(&hash, w, NULL, err);

    if (st != ML_OK)
        return st;
    snprintf(sum, sizeof sum, "%016llx", (unsigned long long)hash);
    begin_line(&l, whose, rollout);
    ml_json_key(&l.out, "version");
    ml_json_unsigned(&l.out, w->version);
    ml_json_put_word(&l.out, "checksum", sum);
    end_line(e, &l);
    return ML_OK;
}

void ml_events_coverage(ml_events *e, int64_t rollout, int64_t step, int64_t sample,
                        double weight) {
    event_line l;

    if (!e)
        return;
    begin_line(&l, WITNESS, rollout);
    ml_json_put_int(&l.out, "step", step);
    ml_json_put_int(&l.out, "sample", sample);
    ml_json_key(&l.out, "gradient");
    ml_json_exact(&l.out, weight);
    end_line(e, &l);
}

/* --- the analysis ------------------------------------------------------------- */

/* A key that must have the same value in all rows of a run. */
typedef struct fact {
    const char *of;    /* "version 3" */
    const char *value; /* "checksum 00ab" */
} fact;

typedef struct analysis {
    const char *path;
    ml_arena arena;
    ml_map first; /* fact.of to the first row that has it */
    fact *said;   /* [rows] */
} analysis;

static ml_str text_of(const ml_json *row, const char *key) {
    const ml_json *v = ml_json_get(row, key);
    return v ? v->text : (ml_str){ "", 0 };
}

static fact fact_of(analysis *an, const ml_json *row) {
    ml_str type = text_of(row, "type"), version = text_of(row, "version"),
           sum = text_of(row, "checksum"), sample = text_of(row, "sample"),
           rollout = text_of(row, "rollout");

    if (version.len && sum.len)
        return (fact){ ml_arena_printf(&an->arena, "weight version %.*s", (int)version.len,
                                       version.ptr),
                       ml_arena_printf(&an->arena, "the checksum %.*s", (int)sum.len,
                                       sum.ptr) };
    if (ml_str_is(type, WITNESS) && sample.len)
        return (
            fact){ ml_arena_printf(&an->arena, "sample %.*s", (int)sample.len, sample.ptr),
                   ml_arena_printf(&an->arena, "gradient in rollout %.*s", (int)rollout.len,
                                   rollout.ptr) };
    return (fact){ 0 };
}

static ml_status hold_against(analysis *an, int64_t i, const ml_json *row, ml_err *err) {
    fact f = fact_of(an, row);
    int64_t at;

    if (!f.of)
        return ML_OK;
    an->said[i] = f;
    at = ml_map_get(&an->first, ml_str_of(f.of), -1);
    if (at < 0)
        ml_map_add(&an->first, ml_str_of(f.of), i);
    else if (strcmp(an->said[at].value, f.value) != 0)
        return ml_fail(err, ML_EFORMAT,
                       "--enable-event-analyzer: %s: %s has %s in row %lld and %s in row "
                       "%lld",
                       an->path, f.of, an->said[at].value, (long long)at + 1, f.value,
                       (long long)i + 1);
    return ML_OK;
}

/* Checks that all hashes of a weight version are equal, whichever process computed them,
 * and that no sample was trained on in two rollouts. */
static ml_status analyse(const char *dir, ml_err *err) {
    ml_text path = { 0 };
    analysis an = { 0 };
    ml_jsonl file = { 0 };
    ml_status st;

    path_of(&path, dir);
    an.path = path.ptr;
    ml_arena_init(&an.arena, "events of a run");
    st = ml_jsonl_open(&file, path.ptr, err);
    if (st == ML_OK) {
        ml_map_init(&an.first, &an.arena, file.n);
        an.said = ML_NEW(&an.arena, fact, file.n + 1);
    }
    for (int64_t i = 0; st == ML_OK && i < file.n; i++) {
        const ml_json *row;
        st = ml_jsonl_parse(&row, &file, i, &an.arena, err);
        if (st == ML_OK)
            st = hold_against(&an, i, row, err);
    }
    ml_jsonl_close(&file);
    ml_arena_release(&an.arena);
    ml_text_release(&path);
    return st;
}

/* --- the observer --------------------------------------------------------------- */

static ml_status write_learned(ml_events *e, const ml_iteration *r, ml_err *err) {
    const ml_learn_result *l = &r->result;
    event_line line;

    if (l->n_step == 0)
        return ML_OK;
    write_metrics(e, "train_advantage_computation", r->rollout, &l->rollout);
    for (int32_t k = 0; k < l->n_step; k++) {
        begin_line(&line, "train_group_step_end", r->rollout);
        ml_json_put_int(&line.out, "step", l->first_step + k);
        end_line(e, &line);
        write_metrics(e, "metric", r->rollout, &l->step[k].metrics);
    }
    return write_checksum(e, "train_engine_local_weight_checksum", r->rollout,
                          e->opts.weights, err);
}

ml_status ml_events_on(void *events, const ml_loop_event *on, ml_err *err) {
    ml_events *e = events;

    if (on->kind == ML_ON_LEARNED)
        return write_learned(e, on->iteration, err);
    if (on->kind == ML_ON_PUBLISHED && on->weights) /* no engine step runs meanwhile */
        return write_checksum(e, "inference_engine_weight_checksum", on->rollout,
                              on->weights, err);
    if (on->kind == ML_ON_ROLLOUT_END && e->failed)
        return ml_fail(err, ML_EIO, "%s: cannot write: is the disk full?", e->path);
    return on->kind == ML_ON_RUN_END && e->opts.analyse ? analyse(e->opts.dir, err) : ML_OK;
}
