/* miles train and train-async: reinforcement learning.  miles sft: supervised fine-tuning on
 * conversations, by the same loop; miles dpo: on preferences; miles reward-model: of a reward
 * model.  Every rank of a job runs this. */
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/machine.h"
#include "cli/progress.h"
#include "cli/rank_log.h"
#include "cli/stop.h"
#include "run/assembly.h"
#include "run/debug.h"
#include "run/heartbeat.h"
#include "run/multi_lora.h"
#include "run/rank_messages.h"
#include "run/rank_spans.h"

typedef struct train_job {
    const ml_config *config;
    ml_run_opts opts; /* of this rank */
    ml_heartbeat *heartbeat;
    ml_cmd cmd;
    ml_arena arena; /* of options */
    ml_loop_extensions extensions;
    ml_train_dumps dumps;
    ml_train_run run;
    ml_assembly parts;
} train_job;

static bool is_first(const train_job *j) {
    return ml_run_ranks_first(&j->opts.ranks);
}

/* Ops per rollout and track that a profile shows. */
enum { OPS = 1 << 15 };

/* Before the groups of ranks are opened, which get it from the world. */
static ml_status open_timeline(train_job *j, ml_err *err) {
    ml_comm *world = j->config->run.ranks.world;

    if (!j->opts.log.profile)
        return ML_OK;
    j->opts.log.ops = ml_timeline_new(OPS);
    if (!j->opts.log.ops)
        return ml_fail(err, ML_ENOMEM, "out of memory for the ops of --profile");
    if (world)
        world->spans = j->opts.log.ops;
    return ML_OK;
}

static void close_timeline(train_job *j) {
    if (j->config->run.ranks.world)
        j->config->run.ranks.world->spans = NULL;
    ml_timeline_free(j->opts.log.ops);
}

/* The loop has not noticed that a rank is lost: it waits for something else. */
static void end_at_once(void *ud, const ml_err *why) {
    ml_text line = { 0 };

    (void)ud;
    ml_text_printf(&line, "miles: %s; this rank ends at once: its loop is busy elsewhere",
                   why->msg);
    ml_rank_log_line(line.ptr);
    fprintf(stderr, "%s\n", line.ptr);
    _exit(ml_exit_code(ML_EPEER));
}

/* The options of this rank: it has a part of its host, and trains with the others. */
static ml_status place_rank(train_job *j, ml_err *err) {
    ml_run_opts *o = &j->opts;
    ml_heartbeat_opts beats = ml_heartbeat_times(&o->place);
    ml_status st = open_timeline(j, err);

    beats.lost = end_at_once;
    beats.say = ml_rank_log_line;
    ml_run_ranks_place(o);
    if (st == ML_OK)
        st = ml_run_ranks_open(&o->ranks, j->config->run.ranks.world, &o->place, err);
    if (st == ML_OK)
        st = ml_run_ranks_check(&o->ranks, o, err);
    if (st == ML_OK)
        st = ml_heartbeat_open(&j->heartbeat, o->ranks.world, &beats, err);
    o->backend.n_thread = ml_run_ranks_threads(&o->ranks, o->backend.n_thread);
    if (ml_run_ranks_trains(&o->ranks) &&
        (o->ranks.train || ml_run_ranks_divides(&o->ranks)))
        o->trainer.mesh = &o->ranks.mesh;
    o->saver.comm = o->ranks.actors;
    return st;
}

static ml_status resolve(train_job *j, ml_run_opts *opts, ml_err *err) {
    switch ((int)j->cmd) {
    case ML_CMD_DPO: return ml_run_opts_dpo(opts, &j->arena, err);
    case ML_CMD_REWARD_MODEL: return ml_run_opts_reward_model(opts, &j->arena, err);
    case ML_CMD_SFT: return ml_run_opts_sft(opts, &j->arena, err);
    default: return ml_run_opts_train(opts, &j->arena, &j->extensions, err);
    }
}

static ml_status open_job(train_job *j, ml_err *err) {
    const ml_run_opts *c = &j->opts;
    bool sft = j->cmd & ML_CMD_SFT;
    ml_run_opts opts = *c;
    ml_status st = ML_OK;

    if (c->debug.env_vars)
        st = ml_train_set_variables(c->debug.env_vars, err);
    if (st == ML_OK && c->debug.env_report && is_first(j))
        st = ml_machine_print(err);
    if (st == ML_OK)
        st = ml_train_dumps_open(&j->dumps, c, err);
    if (st == ML_OK)
        st = resolve(j, &opts, err);
    if (st != ML_OK)
        return st;
    opts.trainer.dump_score = j->dumps.score;
    opts.trainer.dump_train = j->dumps.train;
    st = ml_train_run_open(&j->run, &opts, err);
    if (st == ML_OK && !sft)
        st = ml_reward_models_open(&j->opts, err);
    if (st == ML_OK)
        st = ml_assembly_open(&j->parts, c, sft ? NULL : &j->extensions, &j->run, err);
    j->parts.generator.engine.dump = j->dumps.inference;
    j->parts.generator.engine.spans = ml_train_run_ops(&j->run, ML_SPAN_OTHER);
    return st;
}

/* Those who read the files of the run while it writes them. */
typedef struct readers {
    ml_run_dash *dash, *gauges;
    ml_trackers *trackers;
} readers;

static ml_status open_readers(readers *r, train_job *j, const ml_display *display,
                              ml_err *err) {
    const ml_run_opts *c = &j->opts;
    ml_run_dash_opts gauges = { .host = c->dash.host,
                                .port = c->prometheus.port,
                                .key_file = c->dash.key_file,
                                .label = c->prometheus.run_name ? c->prometheus.run_name
                                                                : c->trackers.wandb_group,
                                .what = "gauges" };
    ml_status st = ML_OK;

    if (!is_first(j) ||
        !(c->dash.use || c->prometheus.use || ml_trackers_wanted(&c->trackers)))
        return ML_OK;
    if (!j->run.log.metrics) {
        ml_log(ML_LOG_WARN, "dashboard and trackers read the files of a run, and this one "
                            "writes none: set --save DIR");
        return ML_OK;
    }
    if (c->dash.use)
        st = ml_run_dash_open(&r->dash, &c->dash, j->run.opts.save, display->say, err);
    if (st == ML_OK && c->prometheus.use)
        st = ml_run_dash_open(&r->gauges, &gauges, j->run.opts.save, display->say, err);
    if (st == ML_OK && ml_trackers_wanted(&c->trackers))
        st = ml_trackers_open(&r->trackers, &c->trackers, j->run.opts.save, err);
    return st;
}

static void close_readers(readers *r) {
    ml_run_dash_close(r->dash);
    ml_run_dash_close(r->gauges);
    ml_trackers_close(r->trackers);
}

static ml_status run_loop(train_job *j, ml_train_loop *loop, const ml_display *display,
                          ml_err *err) {
    const ml_run_opts *c = &j->opts;
    ml_train_debug debug = { 0 };
    readers files = { 0 };
    ml_status st = ml_train_debug_open(&debug, loop, display, &j->dumps, c, err);

    if (st == ML_OK)
        st = open_readers(&files, j, display, err);
    if (st == ML_OK)
        st = ml_assembly_start(&j->parts, c, err);
    if (st == ML_OK)
        st = ml_assembly_join(&j->parts, loop, display, c, err);
    if (st == ML_OK && j->opts.log.ops)
        st = ml_rank_clock_offset(&loop->clock_offset_s, c->ranks.world, err);
    if (st == ML_OK)
        st = ml_rank_messages_meet(c->ranks.world, err);
    if (st == ML_OK)
        st = ml_train_loop_run(loop, err);
    ml_rollouts_stop(&j->parts.rollouts);
    close_readers(&files);
    ml_train_debug_close(&debug);
    return st;
}

/* Ranks write to their logs in the run directory; rank 0 writes the rest of it, and to the
 * terminal. */
static ml_status start(train_job *j, const ml_display *display, ml_err *err) {
    ml_comm *world = j->opts.ranks.world;
    ml_status st = ml_train_start(&j->run, &j->opts, display->say, err);

    if (st == ML_OK && ml_comm_size(world) > 1)
        st = ml_rank_log_open(j->run.opts.save, world->rank, err);
    if (st == ML_OK)
        st = ml_rank_messages_meet(world, err);
    if (st != ML_OK || !is_first(j))
        return st;
    return ml_flags_save(j->cmd, j->config, j->run.saver ? j->run.opts.save : NULL,
                         j->run.snapshot ? j->run.opts.load : NULL, err);
}

/* mpirun makes its standard output look like a terminal wherever it writes. */
static ml_live_view live_view(const train_job *j, bool several) {
    ml_live_view view = (ml_live_view)j->config->live_view;

    return several && view == ML_VIEW_AUTO ? ML_VIEW_OFF : view;
}

static ml_status train(train_job *j, ml_err *err) {
    ml_train_loop loop = { .run = &j->run, .stop = ml_stop_on_signals() };
    bool several = ml_run_ranks_size(&j->opts.ranks) > 1;
    ml_display terminal = { 0 }, display = ml_rank_log_display(NULL);
    ml_status st;

    if (is_first(j)) {
        terminal = ml_progress_open(loop.stop, j->opts.save, live_view(j, several));
        display = several ? ml_rank_log_display(&terminal) : terminal;
    }
    st = start(j, &display, err);

    if (st == ML_OK)
        st = run_loop(j, &loop, &display, err);
    ml_progress_end();
    if (st == ML_OK && is_first(j))
        ml_stop_tell(&loop, j->config);
    return st;
}

static void say_line(const char *line) {
    puts(line);
    fflush(stdout);
}

/* Several adapters at once, each of them a run. */
static ml_status serve_adapters(train_job *j, ml_err *err) {
    ml_multi_lora_io io = { .say = say_line, .stop = ml_stop_on_signals() };

    if (ml_run_ranks_size(&j->opts.ranks) > 1)
        return ml_fail(err, ML_EUNSUP,
                       "--multi-lora-n-adapters runs on one rank: remove "
                       "--actor-num-nodes and --actor-num-gpus-per-node");
    return ml_multi_lora_run(&j->opts, &io, err);
}

static ml_status run_train(train_job *j, ml_err *err) {
    ml_status st = open_job(j, err);

    if (st == ML_OK && !j->config->run.dry_run)
        return train(j, err);
    return st == ML_OK && is_first(j) ? ml_train_show_memory(&j->run, ml_print_line, err)
                                      : st;
}

static ml_status run_command(const ml_config *c, ml_cmd cmd, ml_err *err) {
    train_job j = { .config = c, .cmd = cmd, .opts = c->run };
    ml_status st;

    ml_arena_init(&j.arena, "options");
    if (c->ft_components.n && !c->run.supervisor.restart)
        ml_log(ML_LOG_WARN, "--ft-components is ignored without --use-fault-tolerance");
    st = place_rank(&j, err);
    if (st == ML_OK)
        st = c->run.multi_lora.n_slot ? serve_adapters(&j, err) : run_train(&j, err);
    st = ml_comm_agree(j.opts.ranks.world, st, err);
    if (st == ML_OK)
        st = ml_rank_messages_meet(j.opts.ranks.world, err);
    ml_assembly_close(&j.parts);
    ml_reward_models_close(&j.opts.reward);
    ml_train_run_close(&j.run);
    ml_train_dumps_close(&j.dumps);
    ml_loop_extensions_close();
    ml_heartbeat_close(j.heartbeat);
    ml_run_ranks_close(&j.opts.ranks);
    close_timeline(&j);
    ml_arena_release(&j.arena);
    return st;
}

ml_status ml_cmd_train(const ml_config *c, ml_err *err) {
    return run_command(c, ML_CMD_TRAIN, err);
}

ml_status ml_cmd_sft(const ml_config *c, ml_err *err) {
    return run_command(c, ML_CMD_SFT, err);
}

ml_status ml_cmd_dpo(const ml_config *c, ml_err *err) {
    return run_command(c, ML_CMD_DPO, err);
}

ml_status ml_cmd_reward_model(const ml_config *c, ml_err *err) {
    return run_command(c, ML_CMD_REWARD_MODEL, err);
}
