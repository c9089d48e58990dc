#include <string.h>
#include <unistd.h>
#include <sys/stat.h>

#include "base/dir.h"
#include "base/log.h"
#include "io/dcp.h"
#include "plugin/python_prompts.h"
#include "run/inputs.h"
#include "run/run.h"
#include "train/memory.h"

/* --- which weights ---------------------------------------------------------- */

static bool exists(const char *path) {
    struct stat sb;
    return stat(path, &sb) == 0;
}

/* The snapshot in a directory: that of the step, or the newest; NULL: there is none.  A
 * snapshot that was renamed aside was being replaced when a process died (base/dir.h). */
static ml_status find_snapshot(ml_train_run *r, const char *dir, int64_t step,
                               const char **out, ml_err *err) {
    ml_status st = step < 0 ? ml_snapshot_latest(&step, dir, err) : ML_OK;
    const char *aside;

    *out = NULL;
    if (st != ML_OK || step < 0)
        return st;
    *out = ml_snapshot_path(&r->arena, dir, step);
    aside = ml_arena_printf(&r->arena, "%s" ML_DIR_REPLACED, *out);
    if (!exists(*out) && exists(aside))
        *out = aside;
    if (!exists(*out))
        return ml_fail(err, ML_EIO,
                       "%s does not exist: select an existing snapshot with --ckpt-step",
                       *out);
    return ml_snapshot_check(*out, err);
}

/* A distributed checkpoint of torch or Megatron; NULL: none.  It has weights only. */
static const char *find_distributed(ml_train_run *r, const char *dir) {
    ml_text found = { 0 };
    const char *path = NULL;

    if (dir && ml_dcp_find(&found, dir))
        path = ml_arena_str(&r->arena, found.ptr, found.len);
    ml_text_release(&found);
    return path;
}

/* Rank 0's path, or NULL, on all ranks. */
static ml_status share_path(ml_train_run *r, const char **path, ml_err *err) {
    ml_text t = { 0 };
    ml_status st;

    if (ml_run_ranks_size(&r->opts.ranks) == 1)
        return ML_OK;
    ml_text_printf(&t, "%s", *path ? *path : "");
    st = ml_comm_share_text(r->opts.ranks.world, &t, err);
    if (st == ML_OK)
        *path = t.len ? ml_arena_str(&r->arena, t.ptr, t.len) : NULL;
    ml_text_release(&t);
    return st;
}

ml_status ml_train_run_find(ml_train_run *r, const char *dir, int64_t step,
                            const char **out, ml_err *err) {
    ml_status st;

    *out = find_distributed(r, dir);
    if (*out)
        return ML_OK;
    st = find_snapshot(r, dir, step, out, err);
    if (st == ML_OK && !*out)
        *out = dir;
    return st;
}

const ml_shard_range *ml_train_run_parts(ml_train_run *r, const ml_spec *s) {
    const ml_trainer_opts *t = &r->opts.trainer;
    return ml_trainer_parts(&r->arena, s, t->mesh, t->stage, r->be.linear);
}

void ml_train_run_mark_codes(ml_train_run *r, const ml_checkpoint *from) {
    const ml_run_opts *o = &r->opts;

    ml_weights_mark_codes(&r->spec, from,
                          o->qat             ? o->qat
                          : o->rollout_dtype ? o->rollout_dtype
                                             : o->dtype);
}

static ml_status load_weights(ml_train_run *r, ml_weights *out, const char *dir,
                              ml_err *err) {
    ml_checkpoint *own = NULL;
    ml_status st = dir ? ml_checkpoint_open(&own, dir, err) : ML_OK;

    /* The actor's weights decide: the run's servers are started with their dtype. */
    if (st == ML_OK && out == &r->weights) {
        st = ml_weights_keep_kv(&r->spec, own ? own : r->from, r->opts.dtype,
                                r->opts.kv_dtype, err);
        ml_train_run_mark_codes(r, own ? own : r->from);
    }
    if (st == ML_OK)
        st = ml_weights_load_part(out, &r->spec, own ? own : r->from, r->opts.dtype,
                                  ml_train_run_parts(r, &r->spec), &r->be, &r->arena, err);
    ml_checkpoint_close(own);
    return st;
}

/* The same memory, which stays the host's. */
static void borrow_weights(ml_train_run *r) {
    r->weights = r->host->weights;
    r->weights.buf.dev = NULL;
    r->weights.lora = NULL;
}

/* A snapshot of an adapter has no model; that is the base's. */
static ml_status attach_lora(ml_train_run *r, const char *snapshot, ml_err *err) {
    r->weights.lora = &r->lora_table;
    r->lora.weights.version = 1;
    ml_lora_take_head(&r->lora, &r->weights, snapshot || r->opts.lora.path);
    return snapshot ? ml_lora_restore(&r->lora, &r->spec, snapshot, err) : ML_OK;
}

/* Miles' rule: load from --load; if it has no snapshot, load from --ref-load and start at
 * the first rollout. */
static ml_status load_actor(ml_train_run *r, const char *snapshot, ml_err *err) {
    const ml_run_opts *o = &r->opts;
    const char *dir = ml_run_has_lora(o) ? NULL : snapshot;
    ml_status st = ML_OK;

    if (!snapshot)
        dir = find_distributed(r, o->load);
    if (!dir && o->ref_load)
        st = ml_train_run_find(r, o->ref_load, o->ref_step, &dir, err);
    if (st == ML_OK && r->host)
        borrow_weights(r);
    else if (st == ML_OK)
        st = load_weights(r, &r->weights, dir, err);
    if (st == ML_OK && ml_run_has_lora(o))
        st = attach_lora(r, snapshot, err);
    r->started = dir ? dir : o->hf_checkpoint;
    return st;
}

static ml_status load_other(ml_train_run *r, ml_weights *out, const char *flag,
                            const char *dir, int64_t step, ml_err *err) {
    const char *path = NULL;
    ml_status st = dir ? ml_train_run_find(r, dir, step, &path, err) : ML_OK;

    if (st == ML_OK)
        st = load_weights(r, out, path, err);
    if (st != ML_OK)
        ml_err_prefix(err, "%s", flag);
    return st;
}

/* --- fake quantization ------------------------------------------------------------ */

/* A quantized copy that is read instead of a set. */
static ml_status quantize(ml_train_run *r, ml_weights *out, const ml_weights *from,
                          ml_err *err) {
    ml_status st =
        ml_weights_quantize(out, from, &r->spec, r->opts.qat, &r->be, &r->arena, err);
    return st == ML_OK ? ml_weights_requantize(out, from, &r->spec, r->be.n_thread, err)
                       : st;
}

ml_weights *ml_train_run_read(ml_train_run *r) {
    return r->opts.qat ? &r->quantized : &r->weights;
}

static ml_status quantize_actor(ml_train_run *r, ml_err *err) {
    if (r->opts.qat && !ml_weights_code_bytes(&r->spec, r->opts.qat))
        return ml_fail(
            err, ML_EUSAGE,
            "--fake-quantization, --fp8-format: no layer of %s is left to quantize: "
            "INT4 needs rows of whole groups (use groups of 32, int4), and "
            "--first-last-layers-bf16 and --extra-high-precision-layers-hf "
            "exclude layers; change these, or remove the flag",
            r->opts.hf_checkpoint);
    r->opts.trainer.trained = r->opts.qat ? &r->weights : NULL;
    return r->opts.qat ? quantize(r, &r->quantized, &r->weights, err) : ML_OK;
}

/* --- other models --------------------------------------------------------------- */

static ml_status load_reference(ml_train_run *r, ml_err *err) {
    const ml_run_opts *o = &r->opts;
    ml_status st;

    if (!o->wants_ref)
        return ML_OK;
    if (ml_run_has_lora(o)) { /* the same memory, without the adapter */
        r->ref = r->weights;
        r->ref.lora = NULL;
        r->ref.buf.dev = NULL;
        return ML_OK;
    }
    st = load_other(r, &r->ref, "--ref-load", o->ref_load, o->ref_step, err);
    if (st == ML_OK && o->ref_interval && !ml_weights_alike(&r->ref, &r->weights))
        st = ml_fail(err, ML_EUSAGE,
                     "--ref-update-interval: the dtypes of the reference on disk differ "
                     "from the actor's; set one for both with --dtype");
    return st == ML_OK && o->qat ? quantize(r, &r->quantized_ref, &r->ref, err) : st;
}

static ml_status load_teacher(ml_train_run *r, ml_err *err) {
    const ml_run_opts *o = &r->opts;

    if (!o->teacher_load || r->teacher_engine)
        return ML_OK;
    return load_other(r, &r->teacher, "--opd-teacher-load", o->teacher_load,
                      o->teacher_step, err);
}

/* --- the critic ------------------------------------------------------------- */

static ml_trainer_opts critic_opts(const ml_run_opts *o) {
    ml_trainer_opts t = o->trainer;

    t.lr.lr = o->critic_lr;
    t.lr.warmup_iters = o->critic_warmup_iters;
    t.dump_score = t.dump_train = NULL; /* dumps are of the actor only */
    t.optimizer.freeze = NULL;          /* its patterns name the actor's tensors */
    t.lora = NULL;                      /* it has no adapter */
    t.trained = NULL;                   /* and is not quantized */
    t.mtp = NULL;
    t.dropout = false;
    memset(t.replay, 0, sizeof t.replay); /* the routing record is the actor's, too */
    return t;
}

static const char *critic_dir(ml_train_run *r, const char *own, const char *actors) {
    size_t n = actors ? strlen(actors) : 0;

    while (n > 1 && actors[n - 1] == '/')
        n--;
    if (own || !actors)
        return own;
    return ml_arena_printf(&r->arena, "%.*s_critic", (int)n, actors);
}

/* The critic's snapshot of the same rollout as the actor's. */
static ml_status find_critic(ml_train_run *r, int64_t iteration, const char **out,
                             ml_err *err) {
    const char *dir = critic_dir(r, r->opts.critic_load, r->opts.load);

    *out = ml_snapshot_path(&r->arena, dir, iteration);
    if (!exists(*out))
        return ml_fail(err, ML_EIO,
                       "%s does not exist, but the actor resumes after rollout %lld: set "
                       "the directory of the critic's snapshots with --critic-load, or "
                       "restart both with --finetune",
                       *out, (long long)iteration);
    return ml_snapshot_check(*out, err);
}

static ml_status start_critic(ml_train_run *r, const char *snapshot, ml_err *err) {
    ml_trainer_opts opts = critic_opts(&r->opts);

    opts.stage = r->critic.stage;
    return ml_critic_start(&r->critic, snapshot, r->opts.dtype, &r->be, &opts, &r->arena,
                           err);
}

static ml_status critic_goes_on(ml_train_run *r, int64_t iteration, ml_err *err) {
    const char *path;
    ml_save_state state;
    ml_status st = find_critic(r, iteration, &path, err);

    if (st == ML_OK)
        st = start_critic(r, path, err);
    if (st == ML_OK)
        st = ml_snapshot_load(path,
                              &(ml_snapshot_into){ .trainer = r->critic.trainer,
                                                   .no_optim = !r->opts.load_optim },
                              &state, &r->arena, err);
    return st;
}

/* --- starting and resuming ---------------------------------------------------- */

/* An integer of the configuration with which a snapshot was saved; `absent` if it has
 * none. */
static int64_t saved_number(ml_train_run *r, ml_str config, const char *key,
                            int64_t absent) {
    const ml_json *v = NULL;
    int64_t n = absent;

    if (ml_json_parse(&v, &r->arena, config, "config", NULL) == ML_OK &&
        ml_json_i64(ml_json_get(v, key), &n))
        return n;
    return absent;
}

/* True if the batch sizes differ from those with which the snapshot was saved. */
static bool sizes_changed(ml_train_run *r, ml_str config) {
    const ml_run_opts *o = &r->opts;
    int64_t batch = o->trainer.lr.global_batch_size, n = o->source.n_samples_per_prompt;

    return saved_number(r, config, "global_batch_size", batch) != batch ||
           saved_number(r, config, "rollout_batch_size", o->rollout_batch_size) !=
               o->rollout_batch_size ||
           saved_number(r, config, "n_samples_per_prompt", n) != n;
}

#define REMEDIES                                                                           \
    "use the batch sizes of the saved run, a larger --num-rollout or --lr-decay-iters, "   \
    "--min-lr, or --lr-decay-style constant"

/* The schedule counts samples, and its length follows from the batch sizes: with smaller
 * ones a snapshot may be beyond its end, where the learning rate is 0, or reach the end
 * before the run does. */
static ml_status check_rate(ml_train_run *r, ml_str config, ml_err *err) {
    const ml_run_opts *o = &r->opts;
    int64_t n = ml_trainer_samples(r->trainer), left = r->num_rollout - r->rollout;
    int64_t per_rollout = o->rollout_batch_size * o->source.n_samples_per_prompt;
    bool changed = sizes_changed(r, config);
    ml_lr lr;
    ml_status st = ml_lr_init(&lr, &o->trainer.lr, err);

    if (st != ML_OK || o->trainer.lr.lr == 0 || left < 1 ||
        (double)(n + (left - 1) * per_rollout) < lr.decay ||
        ml_lr_at(&lr, (int64_t)lr.decay + 1) > 0)
        return st;
    if ((double)n >= lr.decay && changed)
        return ml_fail(err, ML_EUSAGE,
                       "the snapshot was trained on %lld samples, but with the batch sizes "
                       "of this run the schedule ends after %.0f: the learning rate would "
                       "be 0 in every step; " REMEDIES,
                       (long long)n, lr.decay);
    if ((double)n >= lr.decay || changed)
        ml_log(ML_LOG_WARN,
               "the learning rate is 0 from rollout %lld on: its schedule ends after %.0f "
               "samples, and the snapshot was trained on %lld; " REMEDIES,
               (long long)(r->rollout +
                           ((double)n >= lr.decay
                                ? 0
                                : (int64_t)((lr.decay - (double)n) / (double)per_rollout))),
               lr.decay, (long long)n);
    return ML_OK;
}

static ml_status go_on_from(ml_train_run *r, const char *snapshot, ml_err *err) {
    ml_save_state state;
    ml_status st =
        ml_snapshot_load(snapshot,
                         &(ml_snapshot_into){ .trainer = r->trainer,
                                              .ref = r->opts.ref_interval ? &r->ref : NULL,
                                              .no_optim = !r->opts.load_optim },
                         &state, &r->arena, err);

    if (st == ML_OK && r->source)
        st = ml_data_source_load(r->source, state.data, snapshot, err);
    if (st == ML_OK && r->critic.from)
        st = critic_goes_on(r, state.iteration, err);
    if (st != ML_OK)
        return st;
    r->rollout = state.iteration + 1;
    r->snapshot = snapshot;
    r->saved = state.data;
    return check_rate(r, state.config, err);
}

/* --- output directories ------------------------------------------------------- */

static ml_run_dir_opts dir_opts(ml_train_run *r, bool critic) {
    const ml_run_opts *o = &r->opts;
    ml_run_log_opts log = o->log;
    ml_text events = { 0 };
    ml_run_dir_opts d = {
        .dir = critic ? critic_dir(r, o->critic_save, o->save) : o->save,
        .load = critic ? critic_dir(r, o->critic_load, o->load) : o->load,
        .flag_save = critic ? "--critic-save" : "--save",
        .flag_load = critic ? "--critic-load" : "--load",
        .restart = o->finetune || o->start_rollout == 0,
        .overwrite = o->overwrite,
    };

    log.dir = o->save;
    ml_run_log_event_path(&events, &log);
    if (!critic && (log.tensorboard || log.project))
        d.events = ml_arena_str(&r->arena, events.ptr, events.len);
    ml_text_release(&events);
    return d;
}

/* Number of directories of runs that this rank opens: rank 0 does so for all. */
static int count_dirs(const ml_train_run *r) {
    if (!r->opts.save || r->opts.learns_nothing || !ml_run_ranks_first(&r->opts.ranks))
        return 0;
    return r->critic.from ? 2 : 1;
}

ml_status ml_train_run_check_dirs(ml_train_run *r, ml_err *err) {
    ml_status st = ML_OK;

    for (int i = 0; i < count_dirs(r) && st == ML_OK; i++) {
        ml_run_dir_opts o = dir_opts(r, i);
        st = ml_run_dir_check(&o, err);
    }
    return st;
}

static ml_status open_dirs(ml_train_run *r, ml_err *err) {
    ml_status st = ML_OK;

    for (int i = 0; i < count_dirs(r) && st == ML_OK; i++) {
        ml_run_dir_opts o = dir_opts(r, i);
        st = ml_run_dir_open(&r->dir[i], &o, err);
    }
    return st;
}

static ml_status open_output(ml_train_run *r, ml_err *err) {
    const ml_run_opts *o = &r->opts;
    bool critic = r->critic.from != NULL;
    ml_saver_opts saver = o->saver;
    ml_status st;

    if (!o->save)
        return ML_OK;
    saver.dir = o->save;
    saver.from = r->from;
    saver.critic_dir = critic ? critic_dir(r, o->critic_save, o->save) : NULL;
    saver.critic_from = r->critic.from;
    saver.no_optim = !o->save_optim;
    st = ml_saver_open(&r->saver, &saver, err);
    r->opts.log.dir = o->save;
    r->opts.log.n_rank = ml_run_ranks_size(&o->ranks);
    r->opts.log.flop_per_token = /* frozen weights have no gradients */
        (ml_run_has_lora(o) ? 4.0 : 6.0) * (double)ml_spec_param_count(&r->spec);
    return st == ML_OK && ml_run_ranks_first(&o->ranks)
               ? ml_run_log_open(&r->log, &r->opts.log, r->rollout, err)
               : st;
}

static void make_learner(ml_train_run *r) {
    const ml_run_opts *o = &r->opts;

    r->learner =
        (ml_learner){ .recipe = &o->recipe,
                      .trainer = r->trainer,
                      .weights = ml_train_run_read(r),
                      .observers = &r->observers,
                      .steps_per_rollout = o->rollout_batch_size *
                                           o->source.n_samples_per_prompt /
                                           o->trainer.batch.global_batch_size,
                      .ref = !o->wants_ref ? NULL
                             : o->qat      ? &r->quantized_ref
                                           : &r->ref,
                      .teacher = o->teacher_load && !r->teacher_engine ? &r->teacher : NULL,
                      .critic = r->critic.trainer,
                      .n_critic_only = o->n_critic_only,
                      .ref_interval = o->ref_interval,
                      .keep_old_actor = o->keep_old_actor,
                      .reset_optimizer = o->reset_optimizer,
                      .inexact = o->rollout_dtype != ML_WEIGHT_AUTO,
                      .on_policy = o->on_policy,
                      .entropy = o->entropy };
    r->learner.step_hook = o->hooks && o->hooks->at[MILES_BEFORE_TRAIN_STEP];
    for (int i = 0; i < ML_N_ROUTING; i++) {
        r->learner.replay[i] = o->replay_rollout[i];
        r->learner.record[i] = o->trainer.replay[i] && !o->replay_rollout[i];
    }
}

/* A device's memory is taken as it was planned, from the first batch on.  The host's pages are
 * taken when they are used. */
static void plan_batches(ml_train_run *r) {
    ml_trainer_opts *o = &r->opts.trainer;
    ml_memory_request req;

    ml_train_run_memory(r, &req);
    if (!r->be.dev->host)
        ml_memory_plan_caps(&req, &o->train_caps, &o->score_caps);
}

/* Opens the checkpoint that has the module's weights, if it is not the one they begin with. */
static ml_status open_module(ml_checkpoint **out, ml_train_run *r, ml_err *err) {
    const char *draft = ml_arena_printf(&r->arena, "%s/" ML_SNAPSHOT_DRAFT, r->started);

    if (r->mtp.head)
        return access(draft, F_OK) == 0 ? ml_checkpoint_open(out, draft, err) : ML_OK;
    return strcmp(r->started, r->opts.hf_checkpoint) != 0
               ? ml_checkpoint_open(out, r->started, err)
               : ML_OK;
}

/* The module of the checkpoint that the actor was loaded from, or the head saved with it. */
static ml_status start_mtp(ml_train_run *r, ml_err *err) {
    const ml_checkpoint *first = r->mtp.head ? r->mtp.head : r->from;
    ml_checkpoint *own = NULL;
    ml_optimizer_opts opts = r->opts.trainer.optimizer;
    ml_status st;

    if (!r->mtp.be)
        return ML_OK;
    opts.mesh = r->opts.trainer.mesh;
    opts.stage = r->opts.trainer.stage;
    st = open_module(&own, r, err);
    if (st == ML_OK)
        st = ml_mtp_trainer_start(&r->mtp, own ? own : first, r->opts.dtype, &r->spec,
                                  ml_train_run_read(r), &opts, err);
    ml_checkpoint_close(own);
    return st;
}

/* Creates the trainer, and restores its position. */
static ml_status start_training(ml_train_run *r, const char *snapshot, ml_err *err) {
    const ml_run_opts *o = &r->opts;
    ml_status st = load_reference(r, err);

    plan_batches(r);

    if (st == ML_OK)
        st = load_teacher(r, err);
    if (st == ML_OK)
        st = start_mtp(r, err);
    if (st == ML_OK)
        st = ml_trainer_open(&r->trainer, r->host ? &r->host->spec : &r->spec,
                             ml_train_run_read(r), r->host ? &r->host->be : &r->be,
                             &o->trainer, err);
    if (st == ML_OK && snapshot && !o->finetune)
        st = go_on_from(r, snapshot, err);
    else if (st == ML_OK && r->critic.from)
        st = start_critic(r, NULL, err);
    if (st == ML_OK && o->qat) /* a snapshot may have changed the weights */
        st = ml_weights_requantize(&r->quantized, &r->weights, &r->spec, r->be.n_thread,
                                   err);
    if (st == ML_OK && o->start_rollout >= 0)
        r->rollout = o->start_rollout;
    return st;
}

/* Rank 0 finds and checks the snapshot of --load; all ranks read it. */
static ml_status find_start(ml_train_run *r, const char **out, ml_err *err) {
    const ml_run_opts *o = &r->opts;
    ml_status st = ML_OK;

    *out = NULL;
    if (o->load && ml_run_ranks_first(&o->ranks) && !find_distributed(r, o->load))
        st = find_snapshot(r, o->load, o->ckpt_step, out, err);
    return st == ML_OK && o->load ? share_path(r, out, err) : st;
}

/* Ranks that do not train learn which rollout is the first. */
static ml_status share_position(ml_train_run *r, ml_err *err) {
    return r->opts.ranks.n_actor
               ? ml_comm_share(r->opts.ranks.world, &r->rollout, sizeof r->rollout, err)
               : ML_OK;
}

static ml_status start_run(ml_train_run *r, ml_err *err) {
    const ml_run_opts *o = &r->opts;
    const char *snapshot = NULL;
    ml_status st = open_dirs(r, err);

    if (st == ML_OK)
        st = find_start(r, &snapshot, err);
    if (st == ML_OK && ml_run_ranks_trains(&o->ranks))
        st = load_actor(r, snapshot, err);
    r->weights.version = 1; /* 0 means that weights have no version */
    if (st == ML_OK && ml_run_ranks_trains(&o->ranks))
        st = quantize_actor(r, err);
    if (st != ML_OK || o->learns_nothing)
        return st;
    if (ml_run_ranks_trains(&o->ranks))
        st = start_training(r, snapshot, err);
    if (st == ML_OK)
        st = share_position(r, err);
    if (st != ML_OK || !ml_run_ranks_trains(&o->ranks))
        return st;
    make_learner(r);
    return open_output(r, err);
}

/* A data source in Python continues after the last rollout of the snapshot. */
static ml_status load_source(ml_train_run *r, ml_err *err) {
    if (!r->source || !ml_python_prompts_are(r->opts.data.make))
        return ML_OK;
    return ml_python_prompts_load(r->rollout - 1, r->opts.save,
                                  ml_data_source_next_group(r->source), r->saved, err);
}

ml_status ml_train_run_start(ml_train_run *r, ml_err *err) {
    ml_status st = start_run(r, err);
    return st == ML_OK ? load_source(r, err) : st;
}

/* If --load has no snapshot, the run starts from another checkpoint, as in Miles. */
const char *ml_train_run_origin(ml_train_run *r) {
    const ml_run_opts *o = &r->opts;

    if (r->snapshot)
        return ml_arena_printf(&r->arena,
                               "Loaded checkpoint from %s; resuming at rollout %lld",
                               r->snapshot, (long long)r->rollout);
    if (!o->load || strncmp(r->started, o->load, strlen(o->load)) == 0)
        return ""; /* or the weights of a snapshot start a new run */
    return ml_arena_printf(
        &r->arena,
        "--load %s has no snapshot: the run starts from %s %s at rollout "
        "%lld",
        o->load, o->ref_load ? "--ref-load" : "--hf-checkpoint", r->started,
        (long long)r->rollout);
}

/* --- the whole start ------------------------------------------------------------ */

ml_status ml_train_run_check_memory(ml_train_run *r, ml_err *err) {
    size_t free_bytes, margin;
    ml_memory_request req;

    ml_train_run_memory(r, &req);
    free_bytes = ml_train_run_free_bytes(r, &r->be);
    margin = (size_t)r->opts.memory_margin;
    return ml_memory_check(&req, free_bytes > margin ? free_bytes - margin : 0, err);
}

ml_status ml_train_show_memory(ml_train_run *r, void (*say)(const char *), ml_err *err) {
    ml_memory_request req;
    ml_memory m;
    ml_text t = { 0 };
    ml_status st;

    ml_train_run_memory(r, &req);
    st = ml_memory_plan(&m, &req, err);
    if (st != ML_OK)
        return st;
    ml_text_printf(&t, "memory plan of %s, %lld parameters:\n", r->spec.family,
                   (long long)ml_spec_param_count(&r->spec));
    ml_memory_text(&t, &m);
    t.ptr[t.len - 1] = 0; /* the last newline, which say adds */
    say(t.ptr);
    ml_text_release(&t);
    st = ml_train_run_check_memory(r, err);
    return st == ML_OK ? ml_train_run_check_disk(r, err) : st;
}

static void say_shared_device(ml_train_run *r, void (*say)(const char *)) {
    int32_t n = r->opts.ranks.n_device;

    if (n > 1 && r->free_bytes)
        say(ml_arena_printf(&r->arena,
                            "%d ranks share the GPU of rank 0; each has a part of its free "
                            "memory: %.2f GiB",
                            (int)n, (double)r->free_bytes / 0x1p30));
}

ml_status ml_train_start(ml_train_run *r, const ml_run_opts *c, void (*say)(const char *),
                         ml_err *err) {
    bool first = ml_run_ranks_first(&r->opts.ranks);
    ml_status st = ml_train_run_check_memory(r, err);

    if (first)
        say_shared_device(r, say);
    if (st == ML_OK && first)
        st = ml_save_dir_choose(r, c, say, err);
    if (st == ML_OK) /* before any rank allocates what another one has measured */
        st = share_path(r, &r->opts.save, err);
    if (st == ML_OK)
        st = ml_train_run_check_disk(r, err);
    if (st == ML_OK)
        st = ml_train_run_start(r, err);
    if (st == ML_OK && first)
        st = ml_run_inputs_record(r, c, err);
    if (st != ML_OK && first)
        ml_save_dir_drop(r, c);
    return st;
}
