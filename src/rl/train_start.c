#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "engine/remote.h"
#include "rl/train_run.h"

/* --- which weights ---------------------------------------------------------- */

/* The snapshot of a directory: that of the step, or the newest; NULL: there is none. */
static ml_status find_snapshot(ml_train_run *r, const char *dir, int64_t step,
                               const char **out, ml_err *err) {
    ml_status st = step < 0 ? ml_snapshot_latest(&step, dir, err) : ML_OK;

    *out = NULL;
    if (st != ML_OK || step < 0)
        return st;
    *out = ml_snapshot_path(&r->arena, dir, step);
    return ml_snapshot_check(*out, err);
}

/* A checkpoint, by its own name or as a snapshot. */
static ml_status find_checkpoint(ml_train_run *r, const char *dir, int64_t step,
                                 const char **out, ml_err *err) {
    ml_status st = find_snapshot(r, dir, step, out, err);
    if (st == ML_OK && !*out)
        *out = dir;
    return st;
}

static ml_status load_weights(ml_train_run *r, ml_weights *out, const char *dir,
                              ml_err *err) {
    ml_checkpoint *own = NULL;
    ml_status st = dir ? ml_checkpoint_open(&own, dir, err) : ML_OK;

    /* The actor's weights decide: servers of the run are started with their dtype. */
    if (st == ML_OK && out == &r->weights)
        ml_spec_keep_kv(&r->spec,
                        ml_weights_kv_dtype(&r->spec, own ? own : r->from, r->opts.dtype));
    if (st == ML_OK)
        st = ml_weights_load(out, &r->spec, own ? own : r->from, r->opts.dtype, &r->be,
                             &r->arena, err);
    ml_checkpoint_close(own);
    return st;
}

/* Miles' rule: what --load has; without a snapshot there, what --ref-load has; the actor
 * begins anew then. */
static ml_status load_actor(ml_train_run *r, const char *snapshot, ml_err *err) {
    const ml_train_run_opts *o = &r->opts;
    const char *dir = snapshot;
    ml_status st = ML_OK;

    if (!snapshot && o->ref_load)
        st = find_checkpoint(r, o->ref_load, o->ref_step, &dir, err);
    if (st == ML_OK)
        st = load_weights(r, &r->weights, dir, err);
    r->started = dir ? dir : o->hf_checkpoint;
    return st;
}

static ml_status load_other(ml_train_run *r, ml_weights *out, const char *flag,
                            const char *dir, int64_t step, ml_err *err) {
    const char *path = NULL;
    ml_status st = dir ? find_checkpoint(r, dir, step, &path, err) : ML_OK;

    if (st == ML_OK)
        st = load_weights(r, out, path, err);
    if (st != ML_OK)
        ml_err_prefix(err, "%s", flag);
    return st;
}

static ml_status load_reference(ml_train_run *r, ml_err *err) {
    const ml_train_run_opts *o = &r->opts;
    ml_status st;

    if (!o->wants_ref)
        return ML_OK;
    st = load_other(r, &r->ref, "--ref-load", o->ref_load, o->ref_step, err);
    if (st == ML_OK && o->ref_interval && !ml_weights_alike(&r->ref, &r->weights))
        st = ml_fail(err, ML_EUSAGE,
                     "--ref-update-interval: the reference has other dtypes on disk than "
                     "the actor; name one for both with --dtype");
    return st;
}

static ml_status load_teacher(ml_train_run *r, ml_err *err) {
    const ml_train_run_opts *o = &r->opts;

    if (o->n_teacher_url)
        return ml_remote_open(&r->teachers,
                              &(ml_remote_opts){ .url = o->teacher_url,
                                                 .n_url = o->n_teacher_url,
                                                 .spec = &r->spec,
                                                 .sglang = true,
                                                 .n_attempt = 60,
                                                 .retry_s = 1,
                                                 .connect_s = 10,
                                                 .request_s = o->teacher_request_s,
                                                 .check_s = 30,
                                                 .check_timeout_s = 30,
                                                 .warn_s = 30 },
                              err);
    if (!o->teacher_load)
        return ML_OK;
    return load_other(r, &r->teacher, "--opd-teacher-load", o->teacher_load,
                      o->teacher_step, err);
}

/* --- the critic ------------------------------------------------------------- */

static ml_trainer_opts critic_opts(const ml_train_run_opts *o) {
    ml_trainer_opts t = o->trainer;

    t.lr.lr = o->critic_lr;
    t.lr.warmup_iters = o->critic_warmup_iters;
    t.dump_score = t.dump_train = NULL;   /* the actor is what is looked at */
    t.optimizer.freeze = NULL;            /* patterns name the actor's tensors */
    memset(t.replay, 0, sizeof t.replay); /* what was chosen is the actor's, too */
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

/* The critic's snapshot that belongs to the actor's. */
static ml_status find_critic(ml_train_run *r, int64_t iteration, const char **out,
                             ml_err *err) {
    const char *dir = critic_dir(r, r->opts.critic_load, r->opts.load);
    struct stat sb;

    *out = ml_snapshot_path(&r->arena, dir, iteration);
    if (stat(*out, &sb) != 0)
        return ml_fail(err, ML_EIO,
                       "%s is not there, but the actor goes on after rollout %lld: name "
                       "the directory of the critic's snapshots with --critic-load, or "
                       "start both anew with --finetune",
                       *out, (long long)iteration);
    return ml_snapshot_check(*out, err);
}

static ml_status start_critic(ml_train_run *r, const char *snapshot, ml_err *err) {
    ml_trainer_opts opts = critic_opts(&r->opts);
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
                                                   .no_optim = r->opts.no_load_optim },
                              &state, &r->arena, err);
    return st;
}

/* --- starting and going on -------------------------------------------------- */

static ml_status go_on_from(ml_train_run *r, const char *snapshot, ml_err *err) {
    ml_save_state state;
    ml_str config = r->opts.config;
    ml_status st =
        ml_snapshot_load(snapshot,
                         &(ml_snapshot_into){ .trainer = r->trainer,
                                              .ref = r->opts.ref_interval ? &r->ref : NULL,
                                              .no_optim = r->opts.no_load_optim },
                         &state, &r->arena, err);

    if (st == ML_OK && r->source)
        st = ml_data_source_load(r->source, state.data, snapshot, err);
    if (st == ML_OK && r->critic.from)
        st = critic_goes_on(r, state.iteration, err);
    if (st != ML_OK)
        return st;
    if (!ml_str_eq(state.config, config))
        ml_log(ML_LOG_WARN, "%s was saved with other flags: %.*s; now they are %.*s",
               snapshot, (int)state.config.len, state.config.ptr, (int)config.len,
               config.ptr);
    r->rollout = state.iteration + 1;
    r->snapshot = snapshot;
    r->saved = state.data;
    return ML_OK;
}

static ml_status open_output(ml_train_run *r, ml_err *err) {
    const ml_train_run_opts *o = &r->opts;
    bool critic = r->critic.from != NULL;
    ml_status st;

    if (!o->save)
        return ML_OK;
    st = ml_saver_open(
        &r->saver,
        &(ml_saver_opts){ .dir = o->save,
                          .from = r->from,
                          .critic_dir =
                              critic ? critic_dir(r, o->critic_save, o->save) : NULL,
                          .critic_from = r->critic.from,
                          .hf = o->save_hf,
                          .keep_last = (int32_t)o->keep_last,
                          .retain_interval = o->retain_interval,
                          .async = o->async_save,
                          .no_optim = o->no_save_optim },
        err);
    r->opts.log.dir = o->save;
    r->opts.log.flop_per_token = 6.0 * (double)ml_spec_param_count(&r->spec);
    return st == ML_OK ? ml_run_log_open(&r->log, &r->opts.log, r->rollout, err) : st;
}

static void make_learner(ml_train_run *r) {
    const ml_train_run_opts *o = &r->opts;

    r->learner = (ml_learner){ .recipe = &o->recipe,
                               .trainer = r->trainer,
                               .weights = &r->weights,
                               .hooks = o->hooks,
                               .ref = o->wants_ref ? &r->ref : NULL,
                               .teacher = o->teacher_load ? &r->teacher : NULL,
                               .teachers = r->teachers,
                               .critic = r->critic.trainer,
                               .n_critic_only = o->n_critic_only,
                               .ref_interval = o->ref_interval,
                               .keep_old_actor = o->keep_old_actor,
                               .reset_optimizer = o->reset_optimizer,
                               .on_policy = o->on_policy,
                               .entropy = o->entropy };
    for (int i = 0; i < ML_ROUTES; i++) {
        r->learner.replay[i] = o->replay_rollout[i];
        r->learner.record[i] = o->trainer.replay[i] && !o->replay_rollout[i];
    }
}

/* The trainer, and where it goes on. */
static ml_status start_training(ml_train_run *r, const char *snapshot, ml_err *err) {
    const ml_train_run_opts *o = &r->opts;
    ml_status st = load_reference(r, err);

    if (st == ML_OK)
        st = load_teacher(r, err);
    if (st == ML_OK)
        st = ml_trainer_open(&r->trainer, &r->spec, &r->weights, &r->be, &o->trainer, err);
    if (st == ML_OK && snapshot && !o->finetune)
        st = go_on_from(r, snapshot, err);
    else if (st == ML_OK && r->critic.from)
        st = start_critic(r, NULL, err);
    if (st == ML_OK && o->start_rollout >= 0)
        r->rollout = o->start_rollout;
    return st;
}

ml_status ml_train_run_start(ml_train_run *r, ml_err *err) {
    const ml_train_run_opts *o = &r->opts;
    const char *snapshot = NULL;
    ml_status st =
        o->load ? find_snapshot(r, o->load, o->ckpt_step, &snapshot, err) : ML_OK;

    if (st == ML_OK)
        st = load_actor(r, snapshot, err);
    r->weights.version = 1; /* 0 is what weights have that nobody gave a version */
    if (st != ML_OK || o->learns_nothing)
        return st;
    st = start_training(r, snapshot, err);
    if (st == ML_OK)
        make_learner(r);
    return st == ML_OK ? open_output(r, err) : st;
}
