#include "run/multi_lora.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/dir.h"
#include "base/log.h"
#include "plugin/python_host.h"
#include "run/adapter_api.h"
#include "run/adapter_run.h"

/* An adapter with a run. */
typedef struct tenant {
    struct tenant *next;
    struct service *service;
    ml_adapter_record *record;
    ml_adapter_run *run;
    bool started, ended;
} tenant;

typedef struct service {
    const ml_run_opts *flags;
    const ml_multi_lora_io *io;
    ml_arena arena;
    ml_loop_extensions extensions;
    ml_run_opts opts; /* of the base */
    ml_train_run base;
    ml_generator generator;
    const ml_lora_site **site; /* [n_slot] */
    ml_lora_table table;
    ml_weights view; /* the base, with the adapters of the engine */
    ml_tenants *tenants;
    ml_adapter_host host;
    ml_adapter_api *api;

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t change;
    ml_adapter_registry registry;
    tenant *first;
    ml_status st; /* of the first adapter that failed */
    ml_err err;
} service;

/* --- the base ---------------------------------------------------------------------------- */

/* A run that trains nothing itself. */
static ml_status open_base(service *s, ml_err *err) {
    ml_status st;

    s->opts = *s->flags;
    s->opts.save = s->opts.load = NULL;
    s->opts.data.path = NULL;
    if (s->opts.num_rollout || s->opts.num_epoch > 1)
        ml_log(ML_LOG_WARN,
               "--num-rollout and --num-epoch are ignored: num_step or num_epoch "
               "of each adapter ends its training");
    st = ml_run_opts_train(&s->opts, &s->arena, &s->extensions, err);
    s->opts.learns_nothing = s->opts.needs_tokenizer = true;
    if (st == ML_OK)
        st = ml_train_run_open(&s->base, &s->opts, err);
    if (st == ML_OK)
        ml_python_host_set(&(ml_python_parts){ .tokenizer = s->base.tokenizer,
                                               .chat_template = s->base.chat_template,
                                               .model = s->opts.hf_checkpoint });
    return st;
}

/* Weights, gradients, two moments, and the engine's copy of each adapter. */
static size_t adapter_bytes(const service *s) {
    return (size_t)s->flags->multi_lora.n_slot * 5 *
           ml_weights_bytes(&s->base.lora.spec, NULL, ML_WEIGHT_F32);
}

/* Requests in flight: what all adapters together may ask for. */
static ml_status open_generator(service *s, ml_err *err) {
    const ml_run_opts *f = s->flags;
    ml_demand demand = { .longest = ML_NONE, .usual = ML_NONE };
    ml_status st;

    demand.n_running = f->multi_lora.n_slot * f->rollout_batch_size * ml_run_per_prompt(f);
    st = ml_generator_open(&s->generator, &s->base, &demand, f, err);
    if (st == ML_OK)
        st = ml_train_run_measure(&s->base, err);
    if (st == ML_OK)
        st = ml_generator_size(&s->generator, &demand, f, err);
    s->base.opts.engine_bytes += adapter_bytes(s);
    return st == ML_OK ? ml_generator_measure(&s->generator, err) : st;
}

static ml_status start_base(service *s, ml_err *err) {
    int32_t n = (int32_t)s->flags->multi_lora.n_slot;
    ml_status st = ml_train_run_check_memory(&s->base, err);

    if (st == ML_OK)
        st = ml_train_run_start(&s->base, err);
    if (st != ML_OK)
        return st;
    s->site = ML_NEW(&s->arena, const ml_lora_site *, n);
    s->table = (ml_lora_table){ .adapter = s->site, .n_adapter = n };
    s->view = s->base.weights;
    s->view.buf.dev = NULL; /* not owned */
    s->view.lora = &s->table;
    st = ml_generator_start(&s->generator, &s->view, s->flags, err);
    if (st == ML_OK)
        st = ml_tenants_open(&s->tenants, s->generator.gen, err);
    s->host.tenants = s->tenants;
    s->host.site = s->site;
    return st;
}

/* --- adapters ------------------------------------------------------------------------------ */

static void on_published(void *ud, int64_t step) {
    tenant *t = ud;
    service *s = t->service;

    pthread_mutex_lock(&s->lock);
    s->registry.version[t->record->slot]++;
    t->record->step = step;
    if (t->record->state == ML_ADAPTER_PENDING)
        t->record->state = ML_ADAPTER_ACTIVE;
    pthread_mutex_unlock(&s->lock);
}

static void on_ended(void *ud) {
    tenant *t = ud;

    pthread_mutex_lock(&t->service->lock);
    t->ended = true;
    pthread_cond_broadcast(&t->service->change);
    pthread_mutex_unlock(&t->service->lock);
}

/* Opens the run of a record, without the lock: it reads the data. */
static ml_status open_tenant(service *s, ml_adapter_record *x, ml_err *err) {
    tenant *t = calloc(1, sizeof *t);
    ml_status st;

    if (!t)
        return ml_fail(err, ML_ENOMEM, "out of memory for an adapter");
    *t = (tenant){ .service = s, .record = x };
    st = ml_adapter_run_open(&t->run, &s->host, x->name, &x->config, x->slot, x->last_step,
                             err);
    if (st != ML_OK) {
        free(t);
        return st;
    }
    pthread_mutex_lock(&s->lock);
    x->last_step = ml_adapter_run_last_step(t->run);
    x->run = t;
    t->next = s->first;
    s->first = t;
    st = ml_adapter_registry_save(&s->registry, err);
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
    return st;
}

static ml_status add_adapter(void *ud, const char *name, ml_adapter_config *c, ml_arena *a,
                             int32_t *slot, ml_err *err) {
    service *s = ud;
    ml_adapter_record *x = NULL;
    ml_status st = ml_adapter_resolve(c, a, name, s->flags, err);

    pthread_mutex_lock(&s->lock);
    if (st == ML_OK)
        st = ml_adapter_register(&s->registry, &x, name, c, err);
    pthread_mutex_unlock(&s->lock);
    if (st != ML_OK)
        return st;
    *slot = x->slot;
    st = open_tenant(s, x, err);
    if (st != ML_OK && !x->run) {
        ml_err_prefix(err, "Adapter '%s'", name);
        pthread_mutex_lock(&s->lock);
        ml_adapter_forget(&s->registry, x);
        pthread_mutex_unlock(&s->lock);
        return st == ML_ENOMEM ? ML_EIO : st; /* a slot is free */
    }
    return st;
}

static void retire_adapter(void *ud, const char *name) {
    service *s = ud;
    ml_adapter_record *x;
    ml_err err = { 0 };

    pthread_mutex_lock(&s->lock);
    x = ml_adapter_find(&s->registry, ml_str_of(name));
    if (x && x->run && x->state <= ML_ADAPTER_ACTIVE) {
        x->state = ML_ADAPTER_RETIRING;
        ml_adapter_run_stop(((tenant *)x->run)->run);
        if (ml_adapter_registry_save(&s->registry, &err) != ML_OK)
            ml_log(ML_LOG_WARN, "%s", err.msg);
        pthread_cond_broadcast(&s->change);
    }
    pthread_mutex_unlock(&s->lock);
}

static bool stopping(const service *s) {
    return s->io->stop && *s->io->stop;
}

/* The record of an adapter whose run is closed.  A service that was told to stop goes on with
 * it when it starts again, unless it was complete. */
static ml_status end_record(service *s, ml_adapter_record *x, ml_status st,
                            const char *error, ml_err *err) {
    bool goes_on = stopping(s) && st == ML_OK && x->state != ML_ADAPTER_RETIRING &&
                   x->step < x->last_step;

    x->run = NULL;
    if (error)
        x->error = ml_arena_printf(&x->arena, "%s", error);
    if (st != ML_OK && s->st == ML_OK) {
        s->st = st;
        ml_fail(&s->err, st, "adapter '%s' has ended: %s", x->name, error);
    }
    if (!goes_on)
        ml_adapter_complete(&s->registry, x);
    return ml_adapter_registry_save(&s->registry, err);
}

/* Without the lock while the run is closed. */
static ml_status end_tenant(service *s, tenant *t, ml_err *err) {
    ml_adapter_record *x = t->record;
    const char *error = NULL;
    ml_status st = ml_adapter_run_result(t->run, &error);
    ml_text why = { 0 };
    tenant **at = &s->first;

    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    if (!stopping(s))
        x->state = ML_ADAPTER_CLEANUP;
    pthread_mutex_unlock(&s->lock);
    if (error)
        ml_text_printf(&why, "%s", error);
    ml_adapter_run_close(t->run);
    free(t);
    pthread_mutex_lock(&s->lock);
    st = end_record(s, x, st, why.ptr, err);
    ml_text_release(&why);
    return st;
}

/* --- the loop ------------------------------------------------------------------------------ */

/* With the lock.  *live: adapters are left. */
static ml_status look_after(service *s, bool *live, ml_err *err) {
    ml_status st = ML_OK;

    for (tenant *t = s->first, *next; t && st == ML_OK; t = next) {
        next = t->next;
        if (stopping(s))
            ml_adapter_run_stop(t->run);
        if (!t->started) {
            t->started = true;
            st = ml_adapter_run_start(t->run, t, err);
        } else if (t->ended) {
            st = end_tenant(s, t, err);
            next = s->first; /* the list may have changed meanwhile */
        }
    }
    *live = false;
    for (const ml_adapter_record *x = s->registry.first; x; x = x->next)
        *live |= ml_adapter_live(x) && (x->run || !stopping(s));
    return st;
}

/* A signal does not wake it. */
static void wait_for_change(service *s) {
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 200 * 1000 * 1000;
    if (until.tv_nsec >= 1000 * 1000 * 1000) {
        until.tv_sec++;
        until.tv_nsec -= 1000 * 1000 * 1000;
    }
    pthread_cond_timedwait(&s->change, &s->lock, &until);
}

static ml_status serve(service *s, ml_err *err) {
    bool live = true, idle = false;
    ml_status st = ML_OK;

    pthread_mutex_lock(&s->lock);
    for (;;) {
        st = look_after(s, &live, err);
        if (st != ML_OK || (!live && (s->flags->multi_lora.no_service || stopping(s))))
            break;
        if (!live && !idle)
            s->io->say("No adapters: waiting for registrations");
        idle = !live;
        wait_for_change(s);
    }
    pthread_mutex_unlock(&s->lock);
    if (st == ML_OK && s->flags->multi_lora.no_service && s->st != ML_OK) {
        *err = s->err;
        st = s->st;
    }
    return st;
}

/* --- start and end ---------------------------------------------------------------------------- */

/* Adapters of the registry that were not complete. */
static ml_status restore_adapters(service *s, ml_err *err) {
    ml_status st = ML_OK;

    for (ml_adapter_record *x = s->registry.first; x && st == ML_OK; x = x->next) {
        if (!ml_adapter_live(x))
            continue;
        st = open_tenant(s, x, err);
        if (st != ML_OK)
            ml_err_prefix(err, "%s: adapter '%s'", s->registry.file, x->name);
    }
    return st;
}

static ml_status add_listed(service *s, ml_err *err) {
    const ml_string_list *words = &s->flags->multi_lora.adapters;
    ml_status st = ML_OK;

    for (int i = 0; i + 1 < words->n && st == ML_OK; i += 2) {
        const char *name = words->word[i];
        const ml_adapter_record *x = ml_adapter_find(&s->registry, ml_str_of(name));
        ml_adapter_config c;
        int32_t slot;
        if (x) { /* an earlier process registered it */
            s->io->say(ml_arena_printf(&s->arena, "%s: %s in %s", name,
                                       ml_adapter_state_word(x->state), s->registry.file));
            continue;
        }
        st = ml_adapter_config_read_file(&c, words->word[i + 1], &s->arena, err);
        if (st == ML_OK && !s->flags->dry_run)
            st = add_adapter(s, name, &c, &s->arena, &slot, err);
        else if (st == ML_OK)
            st = ml_adapter_resolve(&c, &s->arena, name, s->flags, err);
    }
    return st;
}

static ml_status open_registry(service *s, ml_err *err) {
    const char *dir = NULL, *file = NULL;
    ml_status st = ML_OK;

    if (s->flags->save && !s->flags->dry_run)
        st = ml_dir_make_whole(&dir, &s->arena, s->flags->save, err);
    if (dir)
        file = ml_arena_printf(&s->arena, "%s/adapter_runs.json", dir);
    return st == ML_OK ? ml_adapter_registry_open(
                             &s->registry, (int32_t)s->flags->multi_lora.n_slot, file, err)
                       : st;
}

static ml_status open_api(service *s, ml_err *err) {
    ml_adapter_api_opts o = { .port = (int)s->flags->multi_lora.port,
                              .registry = &s->registry,
                              .lock = &s->lock,
                              .add = add_adapter,
                              .retire = retire_adapter,
                              .ud = s };
    ml_status st = ml_adapter_api_open(&s->api, &o, err);

    if (st == ML_OK)
        s->io->say(ml_arena_printf(
            &s->arena, "Multi-LoRA control API listening on http://127.0.0.1:%d",
            ml_adapter_api_port(s->api)));
    return st;
}

static ml_status run(service *s, ml_err *err) {
    ml_status st = open_base(s, err);

    if (st == ML_OK)
        st = open_generator(s, err);
    if (st == ML_OK)
        st = open_registry(s, err);
    if (st == ML_OK && s->flags->dry_run) {
        st = add_listed(s, err);
        return st == ML_OK ? ml_train_show_memory(&s->base, s->io->say, err) : st;
    }
    if (st == ML_OK)
        st = start_base(s, err);
    if (st == ML_OK)
        st = restore_adapters(s, err);
    if (st == ML_OK)
        st = add_listed(s, err);
    if (st == ML_OK)
        st = open_api(s, err);
    return st == ML_OK ? serve(s, err) : st;
}

/* Runs that go on are those of a service that failed. */
static void close_tenants(service *s) {
    for (tenant *t = s->first, *next; t; t = next) {
        next = t->next;
        ml_adapter_run_stop(t->run);
        ml_adapter_run_close(t->run);
        free(t);
    }
}

ml_status ml_multi_lora_run(const ml_run_opts *flags, const ml_multi_lora_io *io,
                            ml_err *err) {
    service s = { .flags = flags, .io = io };
    ml_status st;

    ml_arena_init(&s.arena, "the multi-LoRA service");
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.change, NULL);
    s.host = (ml_adapter_host){ .base = &s.base,
                                .generator = &s.generator,
                                .table = &s.table,
                                .flags = flags,
                                .extensions = &s.extensions,
                                .say = io->say,
                                .published = on_published,
                                .ended = on_ended };
    ml_adapter_host_init(&s.host);
    st = run(&s, err);
    ml_adapter_api_close(s.api);
    close_tenants(&s);
    ml_tenants_close(s.tenants);
    ml_generator_stop(&s.generator);
    ml_generator_close(&s.generator);
    ml_train_run_close(&s.base);
    ml_python_host_set(&(ml_python_parts){ 0 });
    ml_adapter_registry_close(&s.registry);
    ml_adapter_host_release(&s.host);
    pthread_cond_destroy(&s.change);
    pthread_mutex_destroy(&s.lock);
    ml_arena_release(&s.arena);
    return st;
}
