#include "rl/events.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "base/map.h"
#include "io/jsonl.h"

#define WITNESS "witness_snapshot_param"

struct ml_events {
    FILE *file;
    bool failed;
    char *path;
};

static void path_of(ml_text *out, const char *dir) {
    ml_text_printf(out, "%s/events.jsonl", dir);
}

ml_status ml_events_open(ml_events **out, const char *dir, ml_err *err) {
    ml_events *e;
    ml_text path = { 0 };
    ml_status st = ml_dir_make(dir, err);

    if (st != ML_OK)
        return st;
    path_of(&path, dir);
    e = calloc(1, sizeof *e);
    if (e)
        e->file = fopen(path.ptr, "a");
    if (!e || !e->file) {
        st = ml_fail(err, ML_EIO, "%s: cannot be opened: %s", path.ptr, strerror(errno));
        free(e);
        ml_text_release(&path);
        return st;
    }
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

/* A line that was begun; its end is written and the line with it. */
static void write_line(ml_events *e, ml_text *line) {
    ml_text_printf(line, "}\n");
    e->failed |=
        fwrite(line->ptr, 1, line->len, e->file) != line->len || fflush(e->file) != 0;
    ml_text_release(line);
}

static void begin_line(ml_text *line, const char *type, int64_t rollout) {
    ml_text_printf(line, "{\"type\": \"%s\", \"rollout\": %lld", type, (long long)rollout);
}

void ml_events_step_end(ml_events *e, int64_t rollout, int64_t step) {
    ml_text line = { 0 };

    if (!e)
        return;
    begin_line(&line, "train_group_step_end", rollout);
    ml_text_printf(&line, ", \"step\": %lld", (long long)step);
    write_line(e, &line);
}

void ml_events_figures(ml_events *e, const char *type, int64_t rollout,
                       const ml_figures *figures) {
    ml_text line = { 0 };

    if (!e || !figures->first)
        return;
    begin_line(&line, type, rollout);
    ml_text_printf(&line, ", ");
    ml_figures_write(&line, figures);
    write_line(e, &line);
}

void ml_events_checksum(ml_events *e, const char *whose, int64_t rollout, uint64_t version,
                        uint64_t hash) {
    ml_text line = { 0 };

    if (!e)
        return;
    begin_line(&line, whose, rollout);
    ml_text_printf(&line, ", \"version\": %llu, \"checksum\": \"%016llx\"",
                   (unsigned long long)version, (unsigned long long)hash);
    write_line(e, &line);
}

void ml_events_witness(ml_events *e, int64_t rollout, int64_t step, int64_t sample,
                       double weight) {
    ml_text line = { 0 };

    if (!e)
        return;
    begin_line(&line, WITNESS, rollout);
    ml_text_printf(&line, ", \"step\": %lld, \"sample\": %lld, \"gradient\": %.17g",
                   (long long)step, (long long)sample, weight);
    write_line(e, &line);
}

ml_status ml_events_check(const ml_events *e, ml_err *err) {
    return e && e->failed
               ? ml_fail(err, ML_EIO, "%s: cannot be written: is the disk full?", e->path)
               : ML_OK;
}

/* --- the analysis ------------------------------------------------------------- */

/* A fact that has but one value in a run, and the row that said it first. */
typedef struct fact {
    const char *of;    /* "version 3" */
    const char *value; /* "checksum 00ab" */
} fact;

typedef struct analysis {
    const char *path;
    ml_arena arena;
    ml_map first; /* a fact to the row that said it first */
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
        return (fact){ ml_arena_printf(&an->arena, "version %.*s of the weights",
                                       (int)version.len, version.ptr),
                       ml_arena_printf(&an->arena, "the checksum %.*s", (int)sum.len,
                                       sum.ptr) };
    if (ml_str_is(type, WITNESS) && sample.len)
        return (
            fact){ ml_arena_printf(&an->arena, "sample %.*s", (int)sample.len, sample.ptr),
                   ml_arena_printf(&an->arena, "a part in rollout %.*s", (int)rollout.len,
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

ml_status ml_events_analyse(const char *dir, ml_err *err) {
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
