/* engine.c - opening and closing an engine, and its operations between steps. */
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "engine/engine_priv.h"

/* Limit of a step's logits of scored prompt tokens. */
#define SCORE_BYTES ((size_t)32 << 20)

/* Rows that a step computes in about the time of one: reading the weights takes longer than
 * the products with so many rows. */
enum { CPU_ROWS = 32, GPU_ROWS = 128 };

/* --- sizes -------------------------------------------------------------------- */

/* Maximum rows of a step that score prompt tokens. */
static int32_t score_rows(const ml_spec *s, const ml_engine_opts *o) {
    size_t n = SCORE_BYTES / ((size_t)s->n_vocab * sizeof(float));
    n = n < 16 ? 16 : n;
    return n < (size_t)o->chunk ? (int32_t)n : o->chunk;
}

ml_batch_caps ml_engine_caps(const ml_spec *s, const ml_engine_opts *o) {
    int32_t n_group = ml_dp_groups(s), n_seq = ml_dp_share(s, o->max_running) * n_group;
    int32_t rows = n_seq + ml_draft_room(o);

    return (ml_batch_caps){ .n_token = rows + ml_dp_share(s, o->chunk) * n_group,
                            .n_seq = rows,
                            .n_loss = rows + score_rows(s, o),
                            .n_page = rows * ml_kv_pages_for(o->context) };
}

/* Of a DP group. */
static int32_t pool_pages(const ml_spec *s, const ml_backend *be, const ml_engine_opts *o) {
    int64_t most = (int64_t)ml_dp_share(s, o->max_running) * ml_kv_pages_for(o->context);
    int64_t have = o->kv_bytes ? (int64_t)(o->kv_bytes / ml_kv_bytes(s, be, 1)) : most;
    return (int32_t)(have < most || o->kv_bytes ? have : most);
}

/* State slots: one per running request, one for each that may have draft tokens in a step,
 * and some for copies in the prefix cache. */
enum { MIN_COPIES = 2, MAX_COPIES = 32 };

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static int32_t slot_count(const ml_spec *s, const ml_backend *be, const ml_engine_opts *o) {
    int32_t n = ml_dp_share(s, o->max_running), drafts = least(n, ml_draft_room(o));

    if (!ml_kv_slot_bytes(s, be))
        return 0;
    if (o->no_prefix_cache)
        return n + drafts;
    return n + drafts + (n < MIN_COPIES ? MIN_COPIES : least(n, MAX_COPIES));
}

size_t ml_engine_slot_bytes(const ml_spec *s, const ml_backend *be,
                            const ml_engine_opts *o) {
    return ml_kv_slot_bytes(s, be) * (size_t)slot_count(s, be, o);
}

static ml_status check_opts(const ml_spec *s, const ml_backend *be, const ml_engine_opts *o,
                            ml_err *err) {
    ML_BUG_IF(o->context < 1 || o->max_running < 1 || o->chunk < 1 || o->max_top < 0);
    if (ml_draft_has_net(&o->draft) && ml_dp_groups(s) > 1)
        return ml_fail(err, ML_EUNSUP,
                       "--speculative-algorithm: a network that drafts has no "
                       "data-parallel attention; remove --enable-dp-attention, or use "
                       "NGRAM");
    if (o->draft.topk > 1 && ml_kv_slot_bytes(s, be))
        return ml_fail(
            err, ML_EUNSUP,
            "--speculative-eagle-topk %d: a %s model has recurrent layers, which "
            "verify chains of draft tokens only; use --speculative-eagle-topk 1",
            o->draft.topk, s->family);
    if (pool_pages(s, be, o) < ml_kv_pages_for(o->context))
        return ml_fail(err, ML_ENOMEM,
                       "a KV cache of %.1f MiB holds %d tokens, less than one context of "
                       "%d: increase the memory or reduce the context length",
                       (double)o->kv_bytes / 0x1p20, pool_pages(s, be, o) * ML_PAGE,
                       o->context);
    return ML_OK;
}

static size_t drawn_bytes(const ml_spec *s, const ml_engine_opts *o) {
    return (size_t)ml_engine_caps(s, o).n_loss * sizeof(int32_t);
}

static ml_status plan_opts(ml_plan_opts *out, const ml_spec *s, const ml_engine_opts *o,
                           ml_err *err) {
    *out = (ml_plan_opts){ .caps = ml_engine_caps(s, o),
                           .logits = true,
                           .only_logits = true,
                           .kv_shared = true,
                           .record_rows = o->record_rows,
                           .group = { [ML_GROUP_TP] = o->comm } };
    return ml_draft_net_keep(out, &o->draft, s, err);
}

/* Approximate bytes of a request that uses the whole context. */
static size_t request_bytes(const ml_engine_opts *o) {
    return sizeof(ml_request) + (size_t)o->context * sizeof(int32_t) * 2;
}

static ml_engine_opts with_defaults(const ml_engine_opts *o, const ml_backend *be) {
    ml_engine_opts with = *o;

    if (!with.draft.max_rows)
        with.draft.max_rows = be->dev->host ? CPU_ROWS : GPU_ROWS;
    return with;
}

ml_status ml_engine_measure(ml_engine_memory *out, const ml_spec *s, ml_backend *be,
                            const ml_engine_opts *asked, ml_err *err) {
    ml_engine_opts with = with_defaults(asked, be), *opts = &with;
    ml_plan *p = NULL;
    ml_plan_opts plan;
    size_t draft = 0;
    ml_status st = check_opts(s, be, opts, err);

    if (st == ML_OK)
        st = ml_draft_net_measure(&draft, s, be, opts, pool_pages(s, be, opts), err);
    if (st == ML_OK)
        st = plan_opts(&plan, s, opts, err);
    if (st == ML_OK)
        st = ml_plan_new(&p, s, be, plan, err);
    if (st != ML_OK)
        return st;
    *out = (ml_engine_memory){
        .n_page = pool_pages(s, be, opts),
        .kv =
            ml_kv_bytes(s, be, pool_pages(s, be, opts)) + ml_engine_slot_bytes(s, be, opts),
        .act = ml_plan_act_bytes(p) + draft,
        .scratch = ml_plan_scratch_bytes(p) +
                   be->ops->sample_scratch(be->stream, s->n_vocab) + drawn_bytes(s, opts),
        .routing_record =
            ml_routing_record_bytes(s, opts, pool_pages(s, be, opts) * ml_dp_groups(s),
                                    ml_engine_caps(s, opts).n_token),
        .requests = request_bytes(opts) * (size_t)(opts->max_running + opts->max_waiting),
    };
    ml_plan_free(p);
    return ML_OK;
}

/* --- opening and closing ------------------------------------------------------ */

ml_status ml_engine_take_kv(ml_engine *e, ml_err *err) {
    ml_status st;
    if (e->has_kv)
        return ML_OK;
    st = ml_kv_open(&e->kv, e->spec, e->group->prefix_cache.n, e->group->slots.n, e->be,
                    &e->kv_arena, err);
    if (st == ML_OK)
        st = ml_routing_record_open(&e->routing_record, e->spec, &e->opts,
                                    e->group->prefix_cache.n, e->n_group,
                                    e->batch.caps.n_token, err);
    if (st == ML_OK)
        st = ml_draft_net_take_kv(e, err);
    e->has_kv = st == ML_OK;
    return st;
}

static void open_groups(ml_engine *e) {
    for (int32_t i = 0; i < e->n_group; i++) {
        ml_dp_group *g = &e->group[i];
        ml_prefix_cache_init(&g->prefix_cache, &e->arena,
                             pool_pages(e->spec, e->be, &e->opts));
        ml_state_slots_init(&g->slots, &e->arena, slot_count(e->spec, e->be, &e->opts),
                            g->prefix_cache.n);
        g->prefix_cache.slots = &g->slots;
    }
}

static ml_status take_memory(ml_engine *e, ml_err *err) {
    ml_batch_caps caps = ml_engine_caps(e->spec, &e->opts);
    ml_plan_opts plan;
    ml_device *dev = e->be->dev;
    ml_status st = plan_opts(&plan, e->spec, &e->opts, err);

    open_groups(e);
    ml_batch_init(&e->batch, &e->arena, caps);
    e->target = ML_NEW(&e->arena, int32_t, e->opts.chunk + e->opts.draft.n);
    if (e->opts.draft.ngram)
        ml_ngram_init(&e->draft.ngram, &e->arena);
    for (int i = 0; i < 2; i++) {
        e->inflight[i].entry = ML_NEW(&e->arena, ml_batch_entry, caps.n_seq);
        e->inflight[i].draw = ML_NEW(&e->arena, ml_draw, caps.n_loss);
    }
    plan.dp_cols = e->dp.cols;
    plan.dp_rows = e->dp.rows;
    if (st == ML_OK)
        st = ml_plan_new(&e->plan, e->spec, e->be, plan, err);
    if (st == ML_OK)
        st = ml_plan_alloc(e->plan, err);
    if (st == ML_OK) {
        ml_plan_dump_to(e->plan, e->opts.dump);
        ml_plan_spans_to(e->plan, e->opts.spans, ML_TRACK_ROLLOUT);
        st = dev->alloc(dev, &e->sample_scratch,
                        e->be->ops->sample_scratch(e->be->stream, e->spec->n_vocab),
                        ML_MEM_SCRATCH, err);
    }
    if (st == ML_OK)
        st =
            dev->alloc(dev, &e->drawn, drawn_bytes(e->spec, &e->opts), ML_MEM_SCRATCH, err);
    e->batch.rows.drawn = e->drawn.ptr;
    if (st == ML_OK && ml_draft_has_net(&e->opts.draft))
        st = ml_draft_net_open(e, err);
    return st == ML_OK ? ml_engine_take_kv(e, err) : st;
}

ml_status ml_engine_least(ml_comm *comm, int64_t *n, ml_err *err) {
    ml_arena arena;
    ml_tensor in = ml_comm_bytes(n, sizeof *n), out;
    int64_t *all;
    ml_status st;

    if (!comm)
        return ML_OK;
    ml_arena_init(&arena, "numbers of ranks");
    all = ML_NEW(&arena, int64_t, comm->size);
    out = ml_comm_bytes(all, (size_t)comm->size * sizeof *all);
    st = comm->allgather(comm, NULL, &out, &in, err);
    for (int32_t r = 0; r < comm->size && st == ML_OK; r++)
        *n = all[r] < *n ? all[r] : *n;
    ml_arena_release(&arena);
    return st;
}

/* The ranks have equal shapes, so that a page takes the same bytes on each. */
static ml_status agree_on_pages(ml_engine *e, ml_err *err) {
    int64_t n = pool_pages(e->spec, e->be, &e->opts);
    ml_status st = ml_engine_least(e->opts.comm, &n, err);

    if (e->opts.comm)
        e->opts.kv_bytes = ml_kv_bytes(e->spec, e->be, (int32_t)n);
    return st;
}

ml_status ml_engine_open(ml_engine **out, const ml_spec *s, const ml_weights *w,
                         ml_backend *be, const ml_engine_opts *opts, ml_err *err) {
    ml_engine *e;
    ml_status st = check_opts(s, be, opts, err);

    if (st != ML_OK)
        return st;
    e = calloc(1, sizeof *e);
    if (!e)
        return ml_fail(err, ML_ENOMEM, "out of memory for an engine");
    e->spec = s;
    e->weights = w;
    e->version = w->version;
    e->be = be;
    e->opts = with_defaults(opts, be);
    ml_arena_init(&e->arena, "engine");
    ml_arena_init(&e->kv_arena, "KV cache");
    e->opts.eos = memcpy(ML_NEW(&e->arena, int32_t, opts->n_eos + 1),
                         opts->n_eos ? opts->eos : (const int32_t[]){ 0 },
                         (size_t)opts->n_eos * sizeof *opts->eos);
    st = agree_on_pages(e, err);
    if (st == ML_OK)
        st = ml_dp_open(e, err);
    if (st == ML_OK)
        st = take_memory(e, err);
    if (st != ML_OK) {
        ml_engine_close(e);
        return st;
    }
    *out = e;
    return ML_OK;
}

static void free_all(ml_request_list *l) {
    while (l->first) {
        ml_request *r = l->first;
        ml_list_remove(l, r);
        ml_request_free(r);
    }
}

void ml_engine_close(ml_engine *e) {
    if (!e)
        return;
    if (e->pending) /* its outputs are dropped, but the device must finish */
        e->be->ops->sampled(e->be->stream, e->pending->draw, e->pending->n_draw);
    free_all(&e->waiting);
    free_all(&e->running);
    ml_draft_net_close(&e->draft.net);
    ml_plan_free(e->plan);
    ml_dp_close(e);
    ml_kv_close(&e->kv);
    ml_routing_record_close(&e->routing_record);
    if (e->sample_scratch.dev)
        e->be->dev->free(&e->sample_scratch);
    if (e->drawn.dev)
        e->be->dev->free(&e->drawn);
    ml_arena_release(&e->kv_arena);
    ml_arena_release(&e->arena);
    free(e);
}

/* --- requests ----------------------------------------------------------------- */

void ml_engine_add(ml_engine *e, ml_request *r) {
    r->arrival = e->n_arrival++;
    r->group = ml_dp_choose(e, r);
    e->group[r->group].n_request++;
    ml_list_insert(&e->waiting, r);
}

ml_status ml_engine_submit(ml_engine *e, const ml_gen_request *r, ml_gen_fn *fn, void *ud,
                           uint64_t ticket, ml_err *err) {
    ml_request *q;
    ml_status st;

    if (e->waiting.n >= e->opts.max_waiting)
        return ml_fail(err, ML_EAGAIN, "the queue is full: %d requests are waiting",
                       e->waiting.n);
    st = ml_request_new(&q, &e->opts, e->spec->n_vocab, r, err);
    if (st != ML_OK)
        return st;
    q->ticket = ticket;
    q->fn = fn;
    q->ud = ud;
    ml_engine_add(e, q);
    return ML_OK;
}

bool ml_engine_abort(ml_engine *e, uint64_t ticket, const char *why) {
    ml_request_list *lists[] = { &e->running, &e->waiting };
    for (int i = 0; i < 2; i++) {
        ml_request *r = ml_list_find(lists[i], ticket);
        if (r) {
            ml_engine_end(e, lists[i], r, why);
            return true;
        }
    }
    return false;
}

void ml_engine_abort_all(ml_engine *e, const char *why) {
    while (e->running.last)
        ml_engine_end(e, &e->running, e->running.last, why);
    while (e->waiting.last)
        ml_engine_end(e, &e->waiting, e->waiting.last, why);
}

/* --- weights and memory -------------------------------------------------------- */

static void preempt_all(ml_engine *e) {
    while (e->running.last)
        ml_engine_preempt(e, e->running.last);
}

static void abort_begun(ml_engine *e) {
    ml_request *next;
    while (e->running.last)
        ml_engine_end(e, &e->running, e->running.last, "the weights changed");
    for (ml_request *r = e->waiting.first; r; r = next) {
        next = r->next;
        if (ml_has_begun(r))
            ml_engine_end(e, &e->waiting, r, "the weights changed");
    }
}

static bool any_begun(const ml_engine *e) {
    for (const ml_request *r = e->waiting.first; r; r = r->next)
        if (ml_has_begun(r))
            return true;
    return e->running.n > 0;
}

/* Running requests continue with keys and values of older weights: they must not share. */
static void mark_mixed(ml_engine *e) {
    for (ml_request *r = e->running.first; r; r = r->next) {
        r->mixed = true;
        r->n_shared = 0;
    }
}

static void clear_pages(ml_engine *e) {
    for (int32_t g = 0; g < e->n_group; g++)
        ml_prefix_cache_clear(&e->group[g].prefix_cache);
}

ml_status ml_engine_switch(ml_engine *e, const ml_weights *w, ml_switch how) {
    e->draining = how == ML_SWITCH_FINISH && any_begun(e);
    if (e->draining)
        return ML_EAGAIN;
    ml_engine_complete_pending(e);
    switch (how) {
    case ML_SWITCH_FINISH: break;
    case ML_SWITCH_RECOMPUTE: preempt_all(e); break;
    case ML_SWITCH_ABORT: abort_begun(e); break;
    case ML_SWITCH_INEXACT_KV: mark_mixed(e); break;
    }
    clear_pages(e);
    e->weights = w;
    e->version = w->version;
    return ML_OK;
}

bool ml_engine_flush(ml_engine *e) {
    if (e->running.n || e->waiting.n)
        return false;
    for (int32_t g = 0; g < e->n_group; g++)
        ml_prefix_cache_evict_all(&e->group[g].prefix_cache);
    return true;
}

void ml_engine_release_kv(ml_engine *e) {
    ml_engine_complete_pending(e);
    preempt_all(e);
    clear_pages(e);
    ml_kv_close(&e->kv);
    ml_routing_record_close(&e->routing_record);
    ml_draft_net_release_kv(&e->draft.net);
    ml_arena_release(&e->kv_arena);
    e->has_kv = false;
}

void ml_engine_stats(const ml_engine *e, ml_gen_stats *out) {
    *out = e->stats;
    out->n_running = e->running.n;
    out->n_waiting = e->waiting.n;
    out->n_page = out->n_page_free = out->n_page_cached = 0;
    for (int32_t g = 0; g < e->n_group; g++) {
        out->n_page += e->group[g].prefix_cache.n;
        out->n_page_free += e->group[g].prefix_cache.n_free;
        out->n_page_cached += e->group[g].prefix_cache.n_unused;
    }
    out->version = e->version;
    out->page_tokens = ML_PAGE;
    out->context = e->opts.context;
    out->max_running = e->opts.max_running;
}

ml_status ml_engine_check(const ml_engine *e, ml_err *err) {
    return ml_plan_check(e->plan, err);
}

static uint64_t mixed(uint64_t h, int64_t x) {
    return (h ^ (uint64_t)x) * 0x100000001b3u; /* FNV-1a, by words */
}

uint64_t ml_engine_hash(const ml_engine *e) {
    uint64_t h = 0xcbf29ce484222325u;

    h = mixed(mixed(h, e->stats.n_step), e->waiting.n);
    for (int32_t g = 0; g < e->n_group; g++)
        h = mixed(h, e->group[g].prefix_cache.n_free);
    for (const ml_request *r = e->running.first; r; r = r->next) {
        h = mixed(mixed(mixed(h, (int64_t)r->ticket), r->n_token), r->n_kv);
        h = mixed(mixed(h, r->token[r->n_token - 1]), r->n_page);
        h = mixed(h, r->n_page ? r->page[r->n_page - 1] : ML_NO_PAGE);
    }
    return h;
}
