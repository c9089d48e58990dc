#include "run/debug.h"

#include <stdlib.h>
#include <string.h>

#include "base/bug.h"

ml_status ml_train_set_variables(const char *json, ml_err *err) {
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
                         "--train-env-vars: \"%s\" is not a valid variable name", name);
    }
    ml_arena_release(&a);
    return st;
}

static ml_invariants_opts invariants_of(ml_train_run *run, const ml_display *display,
                                        const ml_run_opts *c) {
    ml_invariants_opts o = c->invariants;

    o.weights = &run->weights;
    o.trainer = run->trainer;
    o.log = &run->log;
    o.determinism = run->opts.log.determinism;
    o.n_masters = c->record.masters ? 2 : 0;
    o.check_sync = c->debug.check_sync || (o.fresh_steps && !c->debug.ci_no_sync);
    o.sync_skip = (ml_skip){ &run->spec, c->debug.sync_skip.word, c->debug.sync_skip.n };
    o.say_sync = c->debug.weight_sync ? display->say : NULL;
    return o;
}

/* The path of an output: its own flag's, or below --dump-details. */
static const char *place(ml_arena *a, const char *own, const char *dump, const char *name) {
    return own || !dump ? own : ml_arena_printf(a, "%s/%s", dump, name);
}

/* Async rollouts cannot be repeated, so a run that is saved records them. */
static ml_recorder recorder_of(ml_arena *a, const ml_train_run *run, const ml_run_opts *c) {
    bool cannot_repeat = c->mode.fully && !c->rollout.load_debug;
    const char *dump = c->debug.dump;

    return (ml_recorder){
        .rollout =
            place(a, c->rollout.save_debug, dump || !cannot_repeat ? dump : run->opts.save,
                  "rollout_data/{rollout_id}.jsonl.zst"),
        .trajectory =
            place(a, c->debug.trajectory, dump, "trajectory_data/{rollout_id}.jsonl"),
        .train =
            place(a, c->record.train, dump, "train_data/{rollout_id}_{rank}.jsonl.zst"),
    };
}

static ml_status open_files(ml_train_debug *d, ml_train_run *run, const ml_display *display,
                            const ml_run_opts *c, ml_err *err) {
    ml_invariants_opts invariants = invariants_of(run, display, c);
    ml_events_opts events = { place(&d->arena, c->record.events, c->debug.dump,
                                    "event_data"),
                              &run->weights, c->record.analyse };
    ml_status st = ml_invariants_open(&d->invariants, &invariants, err);

    if (st == ML_OK && events.dir)
        st = ml_events_open(&d->events, &events, err);
    if (st == ML_OK && c->record.coverage)
        st = ml_coverage_open(&d->coverage, c->record.coverage_rows, d->events, err);
    return st;
}

static void observe(ml_train_debug *d, void *self,
                    ml_status (*on)(void *, const ml_loop_event *, ml_err *)) {
    ML_BUG_IF(d->n == sizeof d->at / sizeof *d->at);
    d->at[d->n++] = (ml_observer){ self, on };
}

static void set_observers(ml_train_debug *d, ml_train_run *run, const ml_display *display,
                          ml_train_dumps *dumps, const ml_run_opts *c) {
    d->console = (ml_console){ display, &run->opts.recipe, c->debug.print_every };
    d->recorder = recorder_of(&d->arena, run, c);
    /* The order is fixed: metrics are logged before a check can end the run; hooks and the
     * live view come last. */
    if (d->coverage)
        observe(d, d->coverage, ml_coverage_on);
    observe(d, &run->log, ml_iteration_log);
    observe(d, &d->console, ml_console_on);
    observe(d, &d->recorder, ml_recorder_on);
    observe(d, dumps, ml_train_dumps_on);
    if (d->events)
        observe(d, d->events, ml_events_on);
    if (c->record.memory)
        observe(d, &d->memory, ml_memory_record_on);
    observe(d, &d->invariants, ml_invariants_on);
    if (run->opts.hooks)
        observe(d, run->opts.hooks, ml_hooks_on);
    observe(d, display->progress.self, display->progress.on);
    run->observers = (ml_observers){ d->at, d->n };
}

/* Lets the trainers count micro-batches for the live view. */
static void share_count(ml_train_run *run, ml_work_count *micro) {
    run->learner.work_count = micro;
    if (run->trainer)
        ml_trainer_set_work_count(run->trainer, micro);
    if (run->critic.trainer)
        ml_trainer_set_work_count(run->critic.trainer, micro);
}

ml_status ml_train_debug_open(ml_train_debug *d, ml_train_loop *loop,
                              const ml_display *display, ml_train_dumps *dumps,
                              const ml_run_opts *c, ml_err *err) {
    ml_train_run *run = loop->run;
    ml_status st;

    ml_arena_init(&d->arena, "the observers of a run");
    d->memory = (ml_memory_record){ .run = run,
                                    .dir = c->record.memory_dir,
                                    .n_rollout = c->record.memory_rollouts,
                                    .view = (ml_memory_view)c->record.recorder };
    if (!ml_run_ranks_first(&c->ranks)) { /* rank 0 records, checks and decides */
        if (c->record.memory)
            observe(d, &d->memory, ml_memory_record_on);
        observe(d, display->progress.self, display->progress.on);
        run->observers = (ml_observers){ d->at, d->n };
        return ML_OK;
    }
    loop->exit_after = c->debug.exit_after;
    loop->sentinel = c->debug.sentinel;
    share_count(run, display->micro);
    st = open_files(d, run, display, c, err);
    if (st == ML_OK && run->opts.save && run->log.metrics)
        st =
            ml_control_open(&d->control, run->opts.save, run->opts.load, run->rollout, err);
    loop->control = d->control;
    if (st == ML_OK)
        set_observers(d, run, display, dumps, c);
    return st;
}

void ml_train_debug_close(ml_train_debug *d) {
    ml_coverage_close(d->coverage);
    ml_events_close(d->events);
    ml_invariants_close(&d->invariants);
    ml_control_close(d->control);
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

ml_status ml_train_dumps_on(void *dumps, const ml_loop_event *e, ml_err *err) {
    ml_train_dumps *d = dumps;
    ml_plan_dump *all[] = { d->inference, d->score, d->train };
    ml_status st = ML_OK;

    for (int i = 0; i < 3 && st == ML_OK; i++) {
        if (all[i] && e->kind == ML_ON_ROLLOUT_BEGIN)
            ml_plan_dump_round(all[i], e->rollout);
        if (all[i] && e->kind == ML_ON_ROLLOUT_END)
            st = ml_plan_dump_check(all[i], err);
    }
    return st;
}
