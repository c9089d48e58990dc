#include "run/adapter_run.h"

#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "base/log.h"
#include "run/debug.h"
#include "run/inputs.h"

struct ml_adapter_run {
    ml_publisher publisher; /* first */
    ml_adapter_host *host;
    const char *name;
    ml_run_opts opts; /* as flags would give them */
    int32_t slot;
    ml_arena arena;
    ml_train_run run;
    ml_assembly parts; /* of which it has the rollouts */
    ml_gen *gen;
    ml_train_loop loop;
    ml_trainer_turn turn;
    atomic_int stop;
    /* The engine's copy of the adapter. */
    ml_weights copy, view;
    ml_lora_table table;
    const ml_lora_site *site;
    /* The thread. */
    pthread_t thread;
    bool running;
    void *ud;
    ml_status st;
    ml_err err;
};

/* --- turns ---------------------------------------------------------------------------- */

void ml_adapter_host_init(ml_adapter_host *h) {
    pthread_mutex_init(&h->turn, NULL);
    h->has_plans = NULL;
}

void ml_adapter_host_release(ml_adapter_host *h) {
    pthread_mutex_destroy(&h->turn);
}

static void take_turn(void *ud) {
    ml_adapter_run *x = ud, *last;

    pthread_mutex_lock(&x->host->turn);
    last = x->host->has_plans;
    if (last && last != x && x->run.trainer)
        ml_trainer_swap_plans(x->run.trainer, last->run.trainer);
    if (x->run.trainer)
        x->host->has_plans = x;
}

static void give_turn(void *ud) {
    ml_adapter_run *x = ud;
    pthread_mutex_unlock(&x->host->turn);
}

/* --- the engine's adapter --------------------------------------------------------------- */

static void set_site(ml_adapter_run *x, const ml_lora_site *site) {
    x->gen->pause(x->gen);
    x->host->site[x->slot] = site;
    x->host->table->version++;
    x->gen->resume(x->gen);
}

/* No request of this run is in flight; those of others read other slots. */
static ml_status publish(ml_publisher *p, const ml_weights *w, ml_err *err) {
    ml_adapter_run *x = (ml_adapter_run *)p;
    ml_status st;

    x->gen->pause(x->gen);
    st = ml_weights_copy(&x->copy, &x->run.lora.weights, &x->host->generator->be, err);
    x->gen->resume(x->gen);
    x->view.version = w->version;
    ml_tenant_gen_renew(x->gen, w->version);
    if (st == ML_OK)
        x->host->published(x->ud, x->run.rollout + 1);
    return st;
}

static ml_status give_adapter(ml_adapter_run *x, ml_err *err) {
    const ml_weights *w = ml_train_run_read(&x->run);
    ml_status st = ml_weights_clone(&x->copy, &x->run.lora.weights, &x->host->generator->be,
                                    &x->arena, err);

    if (st != ML_OK)
        return st;
    x->site = ml_lora_sites(&x->run.lora, &x->copy, &x->arena);
    x->table = (ml_lora_table){ .adapter = &x->site, .n_adapter = 1, .all = true };
    x->view = *w;
    x->view.buf.dev = NULL; /* not owned */
    x->view.lora = &x->table;
    x->publisher =
        (ml_publisher){ .send = publish, .weights = &x->view, .version = w->version };
    set_site(x, x->site);
    ml_tenant_gen_renew(x->gen, w->version);
    return ML_OK;
}

/* --- open ------------------------------------------------------------------------------- */

/* The options of miles train-async that train this adapter alone. */
static ml_run_opts opts_of(const ml_run_opts *flags, const ml_adapter_config *c) {
    ml_run_opts o = *flags;

    o.multi_lora.n_slot = 0;
    o.lora.rank = c->rank;
    o.lora.alpha = c->alpha;
    o.data.path = c->data;
    o.data.input_key = c->input_key;
    o.data.label_key = c->label_key;
    o.data.metadata_key = c->metadata_key;
    if (c->rm_type || c->custom_rm_path) {
        o.reward.rm_type = c->rm_type;
        o.custom_rm_path = c->custom_rm_path;
    }
    o.rollout_batch_size = c->rollout_batch_size;
    o.source.n_samples_per_prompt = (int32_t)c->n_samples_per_prompt;
    o.num_steps_per_rollout = 1;
    o.num_epoch = c->num_epoch ? c->num_epoch : 1;
    o.save = o.load = c->save;
    o.mode.async = o.mode.max_stale != 0; /* data of the current adapter, or of the last */
    o.mode.max_stale = -1;
    return o;
}

/* num_step counts from the snapshot that it continues from. */
static ml_status find_last_step(ml_adapter_run *x, const ml_adapter_config *c,
                                int64_t last_step, ml_err *err) {
    int64_t done = ML_NONE;
    ml_status st = ML_OK;

    if (!last_step && c->num_step) {
        st = ml_snapshot_latest(&done, c->save, err);
        last_step = (done < 0 ? 0 : done + 1) + c->num_step;
    }
    x->opts.num_rollout = last_step;
    return st;
}

static ml_status open_parts(ml_adapter_run *x, const ml_adapter_config *c, ml_err *err) {
    ml_run_opts opts = x->opts;
    ml_adapter_host *h = x->host;
    ml_status st = ml_run_opts_train_with(&opts, &x->arena, h->extensions, err);

    opts.backend = h->base->opts.backend;
    if (st == ML_OK)
        st = ml_dir_make_whole(&opts.save, &x->arena, c->save, err);
    opts.load = opts.save;
    if (st == ML_OK)
        st = ml_train_run_open_on(&x->run, &opts, h->base, err);
    if (st == ML_OK)
        st = ml_rollouts_open(&x->parts.rollouts, &x->arena, h->extensions, &x->run,
                              &x->opts, err);
    if (st == ML_OK) /* there are none: rules between flags exclude them */
        st = ml_run_teachers_open(&x->parts.teachers, &x->run, 0, err);
    return st == ML_OK ? ml_tenant_gen_open(&x->gen, h->tenants, x->slot, err) : st;
}

ml_status ml_adapter_run_open(ml_adapter_run **out, ml_adapter_host *h, const char *name,
                              const ml_adapter_config *c, int32_t slot, int64_t last_step,
                              ml_err *err) {
    ml_adapter_run *x = calloc(1, sizeof *x);
    ml_status st;

    if (!x)
        return ml_fail(err, ML_ENOMEM, "out of memory for an adapter");
    x->host = h;
    x->name = name;
    x->slot = slot;
    x->opts = opts_of(h->flags, c);
    ml_arena_init(&x->arena, "an adapter's run");
    x->parts = (ml_assembly){ .run = &x->run, .extensions = h->extensions };
    ml_arena_init(&x->parts.arena, "an adapter's rollouts");
    st = find_last_step(x, c, last_step, err);
    if (st == ML_OK)
        st = open_parts(x, c, err);
    if (st == ML_OK)
        *out = x;
    else
        ml_adapter_run_close(x);
    return st;
}

void ml_adapter_run_close(ml_adapter_run *x) {
    if (!x)
        return;
    if (x->running)
        pthread_join(x->thread, NULL);
    pthread_mutex_lock(&x->host->turn);
    if (x->host->has_plans == x)
        x->host->has_plans = NULL;
    if (x->site)
        set_site(x, NULL);
    ml_weights_close(&x->copy);
    ml_run_teachers_close(&x->parts.teachers);
    ml_rollouts_close(&x->parts.rollouts);
    if (x->gen)
        x->gen->close(x->gen);
    if (x->run.host)
        ml_train_run_close(&x->run);
    pthread_mutex_unlock(&x->host->turn);
    ml_arena_release(&x->parts.arena);
    ml_arena_release(&x->arena);
    free(x);
}

int64_t ml_adapter_run_last_step(const ml_adapter_run *x) {
    return x->run.num_rollout;
}

/* --- running ------------------------------------------------------------------------------ */

static _Thread_local const ml_adapter_run *speaker;

static void say_with_name(const char *line) {
    ml_text t = { 0 };

    ml_text_printf(&t, "%s: %s", speaker->name, line);
    speaker->host->say(t.ptr);
    ml_text_release(&t);
}

static ml_status show_nothing(void *self, const ml_loop_event *e, ml_err *err) {
    (void)self;
    (void)e;
    (void)err;
    return ML_OK;
}

static ml_status start_training(ml_adapter_run *x, ml_err *err) {
    ml_status st;

    take_turn(x);
    st = ml_train_run_adapt(&x->run, err);
    if (st == ML_OK)
        st = ml_train_run_check_disk(&x->run, err);
    if (st == ML_OK)
        st = ml_train_run_start(&x->run, err);
    if (st == ML_OK)
        st = ml_run_inputs_record(&x->run, &x->opts, err);
    if (st == ML_OK)
        st = give_adapter(x, err);
    give_turn(x);
    return st;
}

static ml_status join_loop(ml_adapter_run *x, ml_err *err) {
    const ml_generator *g = x->host->generator;
    ml_train_run *run = &x->run;
    ml_gen_ctx ctx = { .gen = x->gen,
                       .rewards = x->parts.rollouts.rewards,
                       .tokenizer = run->tokenizer,
                       .chat_template = run->chat_template,
                       .n_vocab = run->spec.n_vocab,
                       .end = g->eos.id,
                       .n_end = g->eos.n,
                       .context = g->engine.context };
    ml_status st;

    x->turn = (ml_trainer_turn){ take_turn, give_turn, x };
    x->loop = (ml_train_loop){ .run = run,
                               .turn = &x->turn,
                               .stop = &x->stop,
                               .publisher = &x->publisher,
                               .publishes = true,
                               .prefetch = x->opts.mode.async };
    x->parts.generator.gen = x->gen;
    st = ml_rollouts_start(&x->parts.rollouts, &x->loop.rollout, &ctx, run, &x->opts,
                           say_with_name, err);
    if (st == ML_OK)
        x->loop.rollout = ml_assembly_hook(&x->parts, x->loop.rollout, &x->opts);
    return st;
}

static ml_status train(ml_adapter_run *x, ml_err *err) {
    ml_display display = { .say = say_with_name, .progress = { NULL, show_nothing } };
    ml_train_debug debug = { 0 };
    ml_train_dumps dumps = { 0 };
    ml_status st = start_training(x, err);

    if (st != ML_OK)
        return st;
    x->host->published(x->ud, x->run.rollout);
    st = join_loop(x, err);
    if (st == ML_OK)
        st = ml_train_debug_open(&debug, &x->loop, &display, &dumps, &x->opts, err);
    if (st == ML_OK)
        st = ml_train_loop_run(&x->loop, err);
    ml_rollouts_stop(&x->parts.rollouts);
    ml_train_debug_close(&debug);
    return st;
}

static void *run_thread(void *ud) {
    ml_adapter_run *x = ud;

    speaker = x;
    x->st = train(x, &x->err);
    if (x->st != ML_OK)
        ml_log(ML_LOG_WARN, "adapter %s has ended: %s", x->name, x->err.msg);
    x->host->ended(x->ud);
    return NULL;
}

ml_status ml_adapter_run_start(ml_adapter_run *x, void *ud, ml_err *err) {
    x->ud = ud;
    x->running = pthread_create(&x->thread, NULL, run_thread, x) == 0;
    return x->running ? ML_OK
                      : ml_fail(err, ML_ENOMEM, "cannot create a thread for adapter '%s'",
                                x->name);
}

void ml_adapter_run_stop(ml_adapter_run *x) {
    atomic_store(&x->stop, 1);
}

ml_status ml_adapter_run_result(const ml_adapter_run *x, const char **error) {
    *error = x->st == ML_OK ? NULL : x->err.msg;
    return x->st;
}
