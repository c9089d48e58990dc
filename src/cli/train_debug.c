#include "cli/train_debug.h"

#include <math.h>
#include <stdlib.h>

#include "cli/machine.h"

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

ml_status ml_train_debug_begin(const ml_config *c, ml_err *err) {
    ml_status st = c->debug.env_vars ? set_variables(c->debug.env_vars, err) : ML_OK;
    return st == ML_OK && c->debug.env_report ? ml_machine_print(err) : st;
}

void ml_train_debug_opts(ml_train_run_opts *o, const ml_config *c) {
    o->memory_margin = (size_t)c->debug.margin;
    o->log.determinism = c->debug.determinism || c->debug.checksum;
    o->log.peak_flops = 1e12 * c->debug.peak_tflops;
    if (c->debug.no_update) {
        o->trainer.lr.lr = o->trainer.lr.min_lr = o->trainer.lr.warmup_init = 0;
        o->trainer.lr.start_weight_decay = o->trainer.lr.end_weight_decay = 0;
    }
}

static ml_invariants_opts checks_of(const ml_config *c) {
    return (ml_invariants_opts){
        .determinism = c->debug.determinism || c->debug.checksum,
        .fresh_steps = c->debug.ci_test,
        .skip_kl = c->debug.ci_no_kl,
        .skip_logprob = c->debug.ci_no_logprobs,
        .metric = c->debug.metric,
        .threshold = c->debug.threshold,
        .save_grad_norm = c->debug.save_norm,
        .load_grad_norm = c->debug.load_norm,
        .save_hash = c->debug.save_hash,
        .check_hash = c->debug.check_hash,
    };
}

static ml_diagnostics_opts diagnostics_of(const ml_config *c, const ml_train_dumps *dumps) {
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
                              const ml_train_dumps *dumps, const ml_config *c,
                              ml_err *err) {
    ml_invariants_opts checks = checks_of(c);
    ml_diagnostics_opts diagnostics = diagnostics_of(c, dumps);
    const char *dump = c->debug.dump;
    ml_status st;

    ml_arena_init(&d->arena, "debugging");
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
        .check_sync = c->debug.check_sync || (c->debug.ci_test && !c->debug.ci_no_sync),
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
