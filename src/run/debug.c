#include "run/debug.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static ml_status set_variables(const char *json, ml_err *err) {
    const ml_json *doc;
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "--train-env-vars");
    st = ml_json_parse(&doc, &a, ml_str_of(json), "--train-env-vars", err);
    if (st == ML_OK && doc->type != ML_JSON_OBJECT)
        st = ml_fail(err, ML_EUSAGE, "--train-env-vars: expected an object, not %s",
                     ml_json_what(doc));
    for (const ml_json *m = st == ML_OK ? doc->child : NULL; m && st == ML_OK;
         m = m->next) {
        const char *name = ml_arena_str(&a, m->key.ptr, m->key.len);
        if (m->type != ML_JSON_STRING && m->type != ML_JSON_NUMBER)
            st = ml_fail(err, ML_EUSAGE, "--train-env-vars: \"%s\" is %s, not a string",
                         name, ml_json_what(m));
        else if (setenv(name, ml_arena_str(&a, m->text.ptr, m->text.len), 1) != 0)
            st = ml_fail(err, ML_EUSAGE,
                         "--train-env-vars: \"%s\" is no name of a variable", name);
    }
    ml_arena_release(&a);
    return st;
}

ml_status ml_train_debug_begin(const ml_run_opts *c, ml_err *err) {
    return c->debug.env_vars ? set_variables(c->debug.env_vars, err) : ML_OK;
}

static ml_diagnostics_opts diagnostics_of(const ml_run_opts *c,
                                          const ml_train_dumps *dumps) {
    return (ml_diagnostics_opts){
        .analyse = c->record.analyse,
        .n_masters = c->record.masters ? 2 : 0,
        .n_coverage = c->record.coverage ? c->record.coverage_rows : 0,
        .memory = { .dir = c->record.memory ? c->record.memory_dir : NULL,
                    .n_round = c->record.memory_rollouts,
                    .view = (ml_memory_view)c->record.recorder },
        .dump = { dumps->inference, dumps->score, dumps->train },
    };
}

/* The path of an output: its own flag's, or below --dump-details. */
static const char *place(ml_arena *a, const char *own, const char *dump, const char *name) {
    return own || !dump ? own : ml_arena_printf(a, "%s/%s", dump, name);
}

ml_status ml_train_debug_open(ml_train_debug *d, ml_train_loop *loop,
                              const ml_train_dumps *dumps, const ml_run_opts *c,
                              ml_err *err) {
    ml_invariants_opts checks = c->invariants;
    ml_diagnostics_opts diagnostics = diagnostics_of(c, dumps);
    const char *dump = c->debug.dump;
    ml_status st;

    ml_arena_init(&d->arena, "debugging");
    checks.determinism = c->debug.determinism || c->debug.checksum;
    loop->run->learner.record_path =
        place(&d->arena, c->record.train, dump, "train_data/{rollout_id}_{rank}.jsonl.zst");
    loop->record = place(&d->arena, c->rollout.save_debug, dump,
                         "rollout_data/{rollout_id}.jsonl.zst");
    loop->debug = (ml_loop_debug){
        .checks = &d->checks,
        .diagnostics = &d->diagnostics,
        .sync_skip = { .part = c->debug.sync_skip.word, .n = c->debug.sync_skip.n },
        .trajectory = place(&d->arena, c->debug.trajectory, dump,
                            "trajectory_data/{rollout_id}.jsonl"),
        .print_every = c->debug.print_every,
        .exit_after = c->debug.exit_after,
        .sentinel = c->debug.sentinel,
        .tell_sync = c->debug.weight_sync,
        .check_sync =
            c->debug.check_sync || (c->invariants.fresh_steps && !c->debug.ci_no_sync),
    };
    diagnostics.events = place(&d->arena, c->record.events, dump, "event_data");
    st = ml_invariants_open(&d->checks, &checks, err);
    return st == ML_OK ? ml_diagnostics_open(&d->diagnostics, &diagnostics, err) : st;
}

void ml_train_debug_close(ml_train_debug *d) {
    ml_diagnostics_close(&d->diagnostics);
    ml_invariants_close(&d->checks);
    ml_arena_release(&d->arena);
}

/* --- tensor dumps ------------------------------------------------------------------- */

bool ml_dump_option(bool *enable, const char **filter, const char *word) {
    const char *value = strchr(word, '=');
    size_t n = value ? (size_t)(value - word) : 0;

    value = value ? value + 1 : "";
    if (n == 6 && strncmp(word, "filter", n) == 0 && *value)
        *filter = value;
    else if (n == 6 && strncmp(word, "enable", n) == 0 && strchr("01tf", value[0]))
        *enable = value[0] == '1' || value[0] == 't';
    else
        return false;
    return true;
}

static ml_status open_dump(ml_plan_dump **out, const ml_run_opts *c, const char *name,
                           const ml_string_list *words, ml_err *err) {
    bool enable = c->dump.enable;
    const char *filter = NULL;
    ml_text dir = { 0 };
    ml_status st = ML_OK;

    for (int i = 0; i < words->n; i++)
        ml_dump_option(&enable, &filter, words->word[i]);
    ml_text_printf(&dir, "%s/%s", c->dump.dir, name);
    if (enable && !c->dry_run)
        st = ml_plan_dump_open(out, dir.ptr, filter, err);
    ml_text_release(&dir);
    return st;
}

ml_status ml_train_dumps_open(ml_train_dumps *d, const ml_run_opts *c, ml_err *err) {
    ml_status st;

    *d = (ml_train_dumps){ 0 };
    st = open_dump(&d->inference, c, "inference", &c->dump.inference, err);
    if (st == ML_OK)
        st = open_dump(&d->score, c, "fwd-only", &c->dump.score, err);
    if (st == ML_OK)
        st = open_dump(&d->train, c, "fwd-bwd", &c->dump.train, err);
    return st;
}

void ml_train_dumps_close(ml_train_dumps *d) {
    ml_plan_dump_close(d->inference);
    ml_plan_dump_close(d->score);
    ml_plan_dump_close(d->train);
    *d = (ml_train_dumps){ 0 };
}
