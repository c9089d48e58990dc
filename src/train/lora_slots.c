#include "train/lora_slots.h"

#include <stdlib.h>
#include <string.h>

#include "train/snapshot.h"

struct ml_lora_slots {
    ml_lora_slots_opts opts;
    ml_lora_slot *has_plans; /* the slot that ran last; NULL: none */
};

struct ml_lora_slot {
    ml_lora_slots *all;
    ml_lora lora;
    const ml_lora_site *site;
    ml_lora_table table;
    ml_weights base; /* the same memory, with this adapter */
    ml_trainer *trainer;
    ml_weights sum; /* of gradients */
    ml_arena arena;
};

ml_status ml_lora_slots_open(ml_lora_slots **out, const ml_lora_slots_opts *o,
                             ml_err *err) {
    ml_lora_slots *all = calloc(1, sizeof *all);

    if (!all)
        return ml_fail(err, ML_ENOMEM, "out of memory for adapters");
    all->opts = *o;
    *out = all;
    return ML_OK;
}

void ml_lora_slots_close(ml_lora_slots *all) {
    free(all);
}

static ml_status open_trainer(ml_lora_slot *s, ml_err *err) {
    const ml_lora_slots_opts *o = &s->all->opts;
    ml_trainer_opts t = { .use = ML_TRAINER_STEPS,
                          .optimizer.rule = { .kind = ML_OPTIMIZER_ADAM,
                                              .beta1 = 0.9,
                                              .beta2 = 0.95,
                                              .eps = 1e-12 },
                          .lr = { .train_iters = 1, .global_batch_size = 1 },
                          .batch = { .dynamic = true, .max_tokens = o->max_tokens },
                          .recompute = o->recompute,
                          .lora = &s->lora };

    return ml_trainer_open(&s->trainer, o->spec, &s->base, o->be, &t, err);
}

ml_status ml_lora_slot_open(ml_lora_slot **out, ml_lora_slots *all, const ml_lora_opts *o,
                            ml_err *err) {
    const ml_lora_slots_opts *opts = &all->opts;
    ml_lora_slot *s = calloc(1, sizeof *s);
    ml_status st;

    if (!s)
        return ml_fail(err, ML_ENOMEM, "out of memory for an adapter");
    s->all = all;
    ml_arena_init(&s->arena, "an adapter's gradients");
    st = ml_lora_new(&s->lora, opts->spec, opts->from, o, opts->be, err);
    if (st == ML_OK)
        st = ml_lora_check(&s->lora, &opts->limits, "the new adapter", err);
    if (st == ML_OK) {
        s->site = s->lora.site;
        s->table = (ml_lora_table){ .adapter = &s->site, .n_adapter = 1, .all = true };
        s->base = *opts->base;
        s->base.lora = &s->table;
        s->lora.weights.version = 1;
        st = ml_weights_zeros(&s->sum, &s->lora.spec, opts->be, &s->arena, err);
    }
    if (st == ML_OK)
        st = open_trainer(s, err);
    if (st == ML_OK)
        *out = s;
    else
        ml_lora_slot_close(s);
    return st;
}

void ml_lora_slot_close(ml_lora_slot *s) {
    if (!s)
        return;
    if (s->all->has_plans == s)
        s->all->has_plans = NULL;
    ml_trainer_close(s->trainer);
    ml_weights_close(&s->sum);
    ml_lora_close(&s->lora);
    ml_arena_release(&s->arena);
    free(s);
}

const ml_lora *ml_lora_slot_adapter(const ml_lora_slot *s) {
    return &s->lora;
}

int64_t ml_lora_slot_steps(const ml_lora_slot *s) {
    return ml_trainer_optimizer(s->trainer)->n_step;
}

static void take_plans(ml_lora_slot *s) {
    ml_lora_slot *from = s->all->has_plans;

    if (from && from != s)
        ml_trainer_swap_plans(s->trainer, from->trainer);
    s->all->has_plans = s;
}

ml_status ml_lora_slot_score(ml_lora_slot *s, const ml_train_sample *sample, int32_t n,
                             float *const *logprob, ml_err *err) {
    take_plans(s);
    return ml_trainer_score(s->trainer, NULL, sample, n, logprob, NULL, err);
}

/* Consecutive samples, up to the limit of tokens: the order of all samples is kept. */
static ml_bins pack_in_order(ml_arena *a, const ml_train_sample *s, int32_t n,
                             int64_t cap) {
    ml_bins bins = { .bin = ML_NEW(a, ml_bin, n) };
    int32_t *item = ML_NEW(a, int32_t, n);
    int64_t room = 0;

    for (int32_t i = 0; i < n; i++) {
        item[i] = i;
        if (!bins.n || room < s[i].n_token) {
            bins.bin[bins.n++] = (ml_bin){ .item = item + i };
            room = cap;
        }
        bins.bin[bins.n - 1].n++;
        room -= s[i].n_token;
    }
    return bins;
}

ml_status ml_lora_slot_backward(ml_lora_slot *s, const ml_train_sample *sample, int32_t n,
                                ml_loss_fn *loss, void *ud, ml_err *err) {
    ml_backend *be = s->all->opts.be;
    ml_step_result result;
    ml_bins bins;
    ml_status st;
    ml_arena a;

    take_plans(s);
    ml_arena_init(&a, "micro-batches");
    bins = pack_in_order(&a, sample, n, s->all->opts.max_tokens);
    st = ml_trainer_accumulate(s->trainer,
                               &(ml_step){ .sample = sample,
                                           .micro = &bins,
                                           .n_rollout = n,
                                           .denominator = 1,
                                           .loss = loss,
                                           .ud = ud },
                               &result, err);
    ml_arena_release(&a);
    if (st == ML_OK && result.bad[0])
        return ml_fail(err, ML_EFORMAT, "%s; no gradient was added", result.bad);
    if (st != ML_OK)
        return st;
    be->optim->add(be->stream, s->sum.buf.ptr, ml_trainer_grads(s->trainer)->buf.ptr,
                   (int64_t)(s->sum.buf.bytes / sizeof(float)));
    return be->dev->sync(be->stream, err);
}

static ml_status drop_grads(ml_lora_slot *s, ml_err *err) {
    ml_backend *be = s->all->opts.be;

    be->optim->zero(be->stream, s->sum.buf.ptr, s->sum.buf.bytes);
    return be->dev->sync(be->stream, err);
}

ml_status ml_lora_slot_step(ml_lora_slot *s, const ml_slot_step *o, ml_update *out,
                            ml_err *err) {
    ml_optimizer *optim = ml_trainer_optimizer(s->trainer);
    char name[512];
    ml_status st, dropped;

    optim->opts.rule.beta1 = o->beta1;
    optim->opts.rule.beta2 = o->beta2;
    optim->opts.rule.eps = o->eps;
    optim->opts.clip_grad = o->clip_grad;
    st = ml_optimizer_step(optim, &s->sum, o->lr, o->weight_decay, o->grad_scale, out, err);
    if (st == ML_OK && out->applied)
        ml_trainer_set_samples(s->trainer, ml_trainer_samples(s->trainer) + 1);
    if (st == ML_OK && !out->applied)
        st = ml_fail(
            err, ML_EFORMAT,
            "the gradient of %s has %lld values that are not finite; the step was not "
            "taken",
            ml_param_name(&s->lora.spec.param[out->bad_param], 0, name, sizeof name),
            (long long)out->n_bad);
    dropped = drop_grads(s, st == ML_OK ? err : NULL);
    return st == ML_OK ? dropped : st;
}

/* --- files ------------------------------------------------------------------- */

ml_status ml_lora_slot_save(ml_lora_slot *s, const char *dir, ml_str config, ml_err *err) {
    ml_saver_opts o = { .dir = dir, .from = s->all->opts.from, .keep_last = 1 };
    ml_save_state state = { .iteration = ml_lora_slot_steps(s),
                            .data = ml_str_of("{}"),
                            .config = config };
    ml_saver *saver = NULL;
    ml_status st = ml_saver_open(&saver, &o, err);

    if (st == ML_OK)
        st = ml_saver_save(saver, &(ml_save_models){ .actor = s->trainer }, &state, err);
    ml_saver_close(saver);
    return st;
}

static ml_status load_snapshot(ml_lora_slot *s, const char *path, bool optim, ml_arena *a,
                               ml_err *err) {
    ml_save_state state;
    ml_status st = ml_snapshot_check(path, err);

    if (st == ML_OK)
        st = ml_lora_restore(&s->lora, s->all->opts.spec, path, err);
    if (st == ML_OK)
        st = ml_snapshot_load(
            path, &(ml_snapshot_into){ .trainer = s->trainer, .no_optim = !optim }, &state,
            a, err);
    return st;
}

ml_status ml_lora_slot_load(ml_lora_slot *s, const char *dir, bool optim, ml_err *err) {
    int64_t newest = ML_NONE;
    ml_status st = ml_snapshot_latest(&newest, dir, err);
    ml_arena a;

    ml_arena_init(&a, "a snapshot of an adapter");
    if (st == ML_OK && newest == ML_NONE)
        st = ml_fail(err, ML_EUSAGE, "%s has no complete snapshot", dir);
    if (st == ML_OK)
        st = load_snapshot(s, ml_snapshot_path(&a, dir, newest), optim, &a, err);
    ml_arena_release(&a);
    if (st != ML_OK)
        return st;
    if (!optim)
        ml_optimizer_reset(ml_trainer_optimizer(s->trainer));
    return drop_grads(s, err);
}

ml_status ml_lora_slot_load_adapter(ml_lora_slot *s, const char *dir, ml_err *err) {
    ml_status st = ml_lora_restore(&s->lora, s->all->opts.spec, dir, err);

    if (st != ML_OK)
        return st;
    ml_optimizer_reset(ml_trainer_optimizer(s->trainer));
    return drop_grads(s, err);
}
