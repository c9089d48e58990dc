/* local_commands.c - operations of a local generator between steps, and its weights.  On
 * several ranks each runs on every rank, and succeeds on all of them or on none. */
#include <stdlib.h>
#include <string.h>

#include "base/oom.h"
#include "gen/local_priv.h"
#include "model/weights_checksum.h"

/* --- weights ------------------------------------------------------------------ */

void ml_weight_set_free(ml_weight_set *s) {
    if (!s)
        return;
    ml_weights_close(&s->w);
    ml_arena_release(&s->arena);
    free(s);
}

/* The checksum is one of whole matrices. */
static ml_status read_set(const ml_local_opts *o, ml_weight_set *s, const char *dir,
                          ml_err *err) {
    ml_checkpoint *c = NULL;
    ml_status st;

    if (!dir)
        return ml_weights_dummy(&s->w, o->spec, o->dtype, o->seed, o->be, &s->arena, err);
    st = ml_checkpoint_open(&c, dir, err);
    if (st == ML_OK)
        st = ml_weights_load(&s->w, o->spec, c, o->dtype, o->be, &s->arena, err);
    if (st == ML_OK && !o->spec->n_rank)
        st = ml_weights_check_checksum(&s->w, o->spec, dir, err);
    ml_checkpoint_close(c);
    return st;
}

ml_status ml_weight_set_new(ml_weight_set **out, const ml_local_opts *o, const char *dir,
                            uint64_t version, ml_err *err) {
    ml_weight_set *s = calloc(1, sizeof *s);
    ml_status st;

    if (!s)
        return ml_fail(err, ML_ENOMEM, "out of memory for a set of weights");
    ml_arena_init(&s->arena, "weights");
    st = read_set(o, s, dir, err);
    if (st != ML_OK) {
        ml_weight_set_free(s);
        return st;
    }
    s->w.version = version;
    *out = s;
    return ML_OK;
}

/* --- adapters ----------------------------------------------------------------- */

void ml_local_adopt(ml_local *l, ml_weight_set *s) {
    s->w.lora = l->opts.lora ? &l->adapters.table : NULL;
    l->adapters.checked = NULL;
}

void ml_local_close_adapters(ml_local *l) {
    for (int32_t i = 0; i < l->adapters.n; i++)
        ml_lora_close(&l->adapters.lora[i]);
    free(l->adapters.lora);
    free(l->adapters.site);
}

static void add_slots(ml_local_adapters *a, int32_t n) {
    if (n <= a->n)
        return;
    a->lora = ml_memory_grow(a->lora, (size_t)n * sizeof *a->lora, "adapters");
    a->site = ml_memory_grow(a->site, (size_t)n * sizeof *a->site, "adapters");
    for (; a->n < n; a->n++) {
        a->lora[a->n] = (ml_lora){ 0 };
        a->site[a->n] = NULL;
    }
    a->table.adapter = a->site;
    a->table.n_adapter = a->n;
}

/* An adapter of another base would silently be another model. */
static ml_status check_base(ml_local *l, const ml_command *c) {
    ml_local_adapters *a = &l->adapters;
    const ml_weights *w = l->own ? &l->own->w : NULL;
    ml_status st = ML_OK;

    if (!c->flag[1] || !w || l->no_weights || l->opts.spec->n_rank)
        return ML_OK;
    if (a->checked != w)
        st = ml_weights_crc64(&a->crc64, w, l->opts.spec, c->err);
    a->checked = st == ML_OK ? w : NULL;
    if (st == ML_OK && a->crc64 != c->crc64)
        st = ml_fail(c->err, ML_EUSAGE,
                     "the base weights of the adapter have checksum %016llx, but those of "
                     "this engine %016llx: start it with the trainer's checkpoint and "
                     "--dtype",
                     (unsigned long long)c->crc64, (unsigned long long)a->crc64);
    return st;
}

static ml_status read_adapter(ml_local *l, ml_lora *out, const ml_command *c) {
    const char *where = c->flag[0] ? "the adapter over TCP" : c->dir;
    ml_status st = check_base(l, c);

    if (st == ML_OK)
        st = c->flag[0] ? ml_local_receive_adapter(l, out, c->dir, c->err)
                        : ml_lora_load(out, l->opts.spec, c->dir, l->opts.be, c->err);
    if (st != ML_OK)
        return st;
    st = ml_lora_check(out, l->opts.lora, where, c->err);
    if (st == ML_OK && !l->opts.spec->n_rank)
        st = ml_lora_round(out, c->err);
    if (st != ML_OK)
        ml_lora_close(out);
    return st;
}

/* Requests in flight continue with the adapter's new values. */
static ml_status switch_version(ml_local *l, const ml_command *c) {
    if (!c->version || !l->own)
        return ML_OK;
    l->own->w.version = c->version;
    return ml_engine_switch(l->engine, &l->own->w, c->how);
}

static ml_status do_adapter(ml_local *l, ml_command *c) {
    ml_lora fresh = { 0 };
    ml_status st = c->dir ? read_adapter(l, &fresh, c) : ML_OK;

    st = ml_rank_group_agree(&l->group, st, c->err);
    if (st != ML_OK) {
        ml_lora_close(&fresh);
        return st;
    }
    add_slots(&l->adapters, c->slot + 1);
    ml_lora_close(&l->adapters.lora[c->slot]);
    l->adapters.lora[c->slot] = fresh;
    l->adapters.site[c->slot] = fresh.site;
    l->adapters.table.version++;
    free(c->dir);
    c->dir = NULL;
    return switch_version(l, c);
}

/* --- operations ----------------------------------------------------------------- */

/* Switches the weights; frees those that this generator owned before. */
static ml_status switch_weights(ml_local *l, ml_command *c) {
    ml_status st = ml_engine_switch(l->engine, c->weights, c->how);

    if (st == ML_EAGAIN && !ml_local_may_step(l))
        return ml_fail(c->err, ML_EUSAGE,
                       "generation is paused with requests in flight, which cannot finish: "
                       "continue it, abort them, or let their KV cache be recomputed");
    if (st != ML_OK)
        return st;
    ml_weight_set_free(l->own);
    l->own = c->set;
    l->no_weights = false;
    return ML_OK;
}

ml_status ml_local_replace(ml_local *l, ml_command *c) {
    c->weights = &c->set->w;
    ml_local_adopt(l, c->set);
    return switch_weights(l, c);
}

/* Every rank of a group has a set of its own. */
static ml_status do_switch(ml_local *l, ml_command *c) {
    if (l->group.orders && !l->opts.weights)
        return ml_fail(c->err, ML_EUNSUP,
                       "an engine of several ranks that has loaded a checkpoint cannot "
                       "switch to weights in the memory of its first rank");
    if (l->group.orders)
        c->weights = l->opts.weights;
    return switch_weights(l, c);
}

/* When the first rank is told that it is paused, no rank runs a step. */
static ml_status do_pause(ml_local *l, ml_command *c) {
    l->paused = c->flag[0];
    return ml_rank_group_meet(&l->group, c->err);
}

static ml_status do_load(ml_local *l, ml_command *c) {
    ml_gen_stats now;
    ml_status st = ML_OK;

    ml_engine_stats(l->engine, &now);
    if (!c->set) { /* else this is a retry */
        st = ml_weight_set_new(&c->set, &l->opts, c->dir,
                               c->version ? c->version : now.version + 1, c->err);
        st = ml_rank_group_agree(&l->group, st, c->err);
    }
    if (st != ML_OK)
        return st;
    st = ml_local_replace(l, c);
    if (st == ML_OK) {
        free(l->dir);
        l->dir = c->dir;
    }
    return st;
}

static void drop_weights(ml_local *l) {
    uint64_t version = l->own->w.version;

    ml_weights_close(&l->own->w);
    l->own->w.version = version; /* stats need it meanwhile */
    l->no_weights = true;
}

static ml_status do_release(ml_local *l, ml_command *c) {
    if (c->flag[0] && !l->no_kv) {
        ml_engine_release_kv(l->engine);
        l->no_kv = true;
    }
    if (c->flag[1] && l->own && !l->own->received) /* else they could not be restored */
        drop_weights(l);
    return ml_rank_group_meet(&l->group, c->err);
}

static ml_status take_weights(ml_local *l, ml_err *err) {
    uint64_t version = l->own->w.version;
    ml_status st;

    ml_arena_release(&l->own->arena);
    st = read_set(&l->opts, l->own, l->dir, err);
    l->own->w.version = version;
    ml_local_adopt(l, l->own);
    st = ml_rank_group_agree(&l->group, st, err);
    l->no_weights = false;
    if (st != ML_OK)
        drop_weights(l);
    return st;
}

static ml_status take_kv(ml_local *l, ml_err *err) {
    ml_status st = ml_engine_take_kv(l->engine, err), all;

    all = ml_rank_group_agree(&l->group, st, err);
    if (all != ML_OK && st == ML_OK)
        ml_engine_release_kv(l->engine);
    l->no_kv = all != ML_OK;
    return all;
}

static ml_status do_take(ml_local *l, ml_command *c) {
    ml_status st = ML_OK;

    if (c->flag[1] && l->no_weights)
        st = take_weights(l, c->err);
    if (c->flag[0] && l->no_kv && st == ML_OK)
        st = take_kv(l, c->err);
    return st;
}

static ml_status do_embed(ml_local *l, ml_command *c) {
    const ml_embed_request *q = c->embed;
    const ml_weights *w = l->own ? &l->own->w : l->opts.weights;

    if (!l->embedder || l->no_weights)
        return ml_fail(c->err, ML_EUSAGE, "%s",
                       l->embedder ? "the weights are released: resume the memory first"
                                   : "this engine computes no embeddings");
    return ml_embedder_run(l->embedder, w, q->in, q->n, q->pooling, q->width, q->out,
                           c->err);
}

ml_status ml_local_do(ml_local *l, ml_command *c) {
    switch (c->kind) {
    case ML_DO_ABORT_ALL: ml_engine_abort_all(l->engine, "aborted"); break;
    case ML_DO_PAUSE: return do_pause(l, c);
    case ML_DO_FLUSH: c->flag[0] = ml_engine_flush(l->engine); break;
    case ML_DO_LOAD: return do_load(l, c);
    case ML_DO_RELEASE: return do_release(l, c);
    case ML_DO_TAKE: return do_take(l, c);
    case ML_DO_SWITCH: return do_switch(l, c);
    case ML_DO_GROUP: return ml_local_do_group(l, c);
    case ML_DO_ADAPTER: return do_adapter(l, c);
    case ML_DO_EMBED: return do_embed(l, c);
    case ML_DO_SET_STEP_END:
        l->step_end = c->step_end;
        l->step_end_ud = c->ud;
        break;
    }
    return ML_OK;
}
