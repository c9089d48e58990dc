#include "engine/draft_net.h"

#include <string.h>

#include "base/bug.h"
#include "engine/engine_priv.h"
#include "tensor/codes.h"

/* --- open and close ------------------------------------------------------------- */

static ml_status check(const ml_engine *e, const ml_draft_net *d, ml_err *err) {
    const ml_draft_opts *o = &e->opts.draft;

    if (!o->eagle3 && d->spec.n_vocab != e->spec->n_vocab)
        return ml_fail(err, ML_EUSAGE,
                       "--speculative-draft-model-path %s: the draft model has %lld tokens "
                       "and the model %lld; use one with the same tokenizer",
                       o->model, (long long)d->spec.n_vocab, (long long)e->spec->n_vocab);
    if (ml_kv_slot_bytes(&d->spec, e->be))
        return ml_fail(
            err, ML_EUNSUP,
            "--speculative-draft-model-path %s: a %s model has recurrent layers, "
            "which a draft model cannot have; use another one",
            o->model, d->spec.family);
    return ML_OK;
}

static const char *dir_of(const ml_draft_opts *o) {
    return o->mtp ? o->mtp : o->eagle3 ? o->eagle3 : o->model;
}

/* A set of the same memory, with a table of its own. */
static void refer_to(ml_draft_net *d, const ml_weights *w) {
    d->weights = *w;
    d->weights.buf.dev = NULL; /* not owned */
    d->weights.t = ML_NEW(&d->arena, ml_tensor, w->n);
    memcpy(d->weights.t, w->t, (size_t)w->n * sizeof *w->t);
}

/* Keys and values as the trunk has them; codes are for the trunk alone. */
static void keep_kv_like(ml_spec *s, const ml_spec *trunk) {
    const ml_dtype dtype = ml_spec_kv_dtype(trunk);

    ml_spec_keep_kv(s, ml_dtype_is_kv_codes(dtype) ? ML_BF16 : dtype);
}

/* The weights of a trainer, which changes them. */
static ml_status use_trained(ml_engine *e, ml_draft_net *d, ml_err *err) {
    const ml_draft_opts *o = &e->opts.draft;
    ml_checkpoint *c;
    ml_status st;

    keep_kv_like(&d->spec, e->spec);
    refer_to(d, o->mtp_weights);
    if (!o->eagle3)
        return ML_OK;
    st = ml_checkpoint_open(&c, o->eagle3, err);
    if (st != ML_OK)
        return st;
    st = ml_eagle3_vocab(&d->vocab, &d->spec, c, &d->arena, err);
    ml_checkpoint_close(c);
    return st;
}

static ml_status load(ml_engine *e, ml_draft_net *d, ml_err *err) {
    const ml_draft_opts *o = &e->opts.draft;
    ml_checkpoint *c;
    ml_status st;

    if (o->mtp_weights)
        return use_trained(e, d, err);
    st = ml_checkpoint_open(&c, dir_of(o), err);
    if (st != ML_OK)
        return st;
    ml_spec_keep_kv(&d->spec, ml_weights_kv_dtype(&d->spec, c, o->dtype));
    if (o->eagle3)
        st = ml_eagle3_vocab(&d->vocab, &d->spec, c, &d->arena, err);
    if (st == ML_OK && d->spec.mtp)
        st = ml_mtp_load(&d->weights, &d->spec, c, o->dtype, e->spec, e->weights, e->be,
                         &d->arena, err);
    else if (st == ML_OK)
        st = ml_weights_load(&d->weights, &d->spec, c, o->dtype, e->be, &d->arena, err);
    ml_checkpoint_close(c);
    return st;
}

static ml_plan_opts plan_opts(const ml_spec *s, ml_batch_caps caps) {
    caps.n_token += caps.n_seq; /* the tokens that a step drew */
    caps.n_loss = caps.n_seq;
    return (ml_plan_opts){ .caps = caps,
                           .logits = true,
                           .only_logits = true,
                           .keep = { s->module.hidden },
                           .n_keep = s->mtp,
                           .kv_shared = true,
                           .first = s->mtp ? ML_MTP_FIRST : 0,
                           .end = s->mtp ? s->n_node : 0 };
}

static size_t drawn_bytes(ml_batch_caps caps) {
    return (size_t)caps.n_seq * sizeof(int32_t);
}

static size_t hidden_bytes(const ml_spec *s, ml_batch_caps caps, const ml_backend *be) {
    return (size_t)caps.n_seq * (size_t)s->n_hidden * ml_dtype_bytes(be->act);
}

/* The plan of rows that read the head's own hidden states: one of each chain. */
static ml_plan_opts own_plan_opts(const ml_spec *s, ml_batch_caps caps) {
    ml_plan_opts o = plan_opts(s, caps);

    o.caps.n_token = caps.n_seq;
    o.first = s->module.own;
    return o;
}

static bool has_own_plan(const ml_spec *s) {
    return s->mtp && s->module.own != ML_MTP_FIRST;
}

static ml_status open_spec(ml_spec *out, const ml_draft_opts *o, const ml_spec *s,
                           ml_err *err) {
    return o->mtp      ? ml_mtp_open(out, o->mtp, err)
           : o->eagle3 ? ml_eagle3_open(out, o->eagle3, s, err)
                       : ml_spec_open(out, o->model, err);
}

ml_status ml_draft_net_keep(ml_plan_opts *plan, const ml_draft_opts *o, const ml_spec *s,
                            ml_err *err) {
    ml_spec m;
    ml_status st;

    if (!o->mtp && !o->eagle3)
        return ML_OK;
    st = open_spec(&m, o, s, err);
    if (st != ML_OK)
        return st;
    ml_mtp_keep(plan, &m, s);
    ml_spec_close(&m);
    return ML_OK;
}

/* Bytes of activations and scratch. */
static ml_status measure_plan(size_t *out, const ml_spec *s, ml_backend *be, ml_plan_opts o,
                              ml_err *err) {
    ml_plan *p = NULL;
    ml_status st = ml_plan_new(&p, s, be, o, err);

    if (st == ML_OK)
        *out += ml_plan_act_bytes(p) + ml_plan_scratch_bytes(p);
    ml_plan_free(p);
    return st;
}

ml_status ml_draft_net_measure(size_t *out, const ml_spec *model, ml_backend *be,
                               const ml_engine_opts *o, int32_t n_page, ml_err *err) {
    ml_batch_caps caps = ml_engine_caps(model, o);
    ml_weight_dtype dtype = ml_weights_dtype(be, o->draft.dtype);
    ml_arena a;
    ml_spec s;
    ml_status st;

    *out = 0;
    if (!ml_draft_has_net(&o->draft))
        return ML_OK;
    st = open_spec(&s, &o->draft, model, err);
    if (st != ML_OK)
        return st;
    ml_arena_init(&a, "drafts");
    st = measure_plan(out, &s, be, plan_opts(&s, caps), err);
    if (st == ML_OK && has_own_plan(&s))
        st = measure_plan(out, &s, be, own_plan_opts(&s, caps), err);
    *out += ml_kv_bytes(&s, be, n_page) + drawn_bytes(caps) + hidden_bytes(&s, caps, be) +
            ml_weights_part_bytes(&s, NULL, dtype == ML_WEIGHT_AUTO ? ML_WEIGHT_F32 : dtype,
                                  s.mtp ? ml_mtp_parts(&s, be->linear, &a) : NULL);
    ml_arena_release(&a);
    ml_spec_close(&s);
    return st;
}

/* The nodes up to the last that writes KV pages. */
static int32_t end_of_keys(const ml_spec *s) {
    int32_t end = 0;

    for (int32_t i = 0; i < s->n_node; i++)
        for (int k = 0; k < ML_OP_OUT; k++)
            if (s->node[i].out[k] != ML_NONE &&
                s->value[s->node[i].out[k]].axis == ML_PER_PAGE)
                end = i + 1;
    return end;
}

static ml_status open_plan(ml_plan **out, ml_engine *e, ml_plan_opts opts, ml_err *err) {
    ml_status st = ml_plan_new(out, &e->draft.net.spec, e->be, opts, err);

    return st == ML_OK ? ml_plan_alloc(*out, err) : st;
}

static ml_status make_plan(ml_engine *e, ml_draft_net *d, ml_err *err) {
    ml_plan_opts opts = plan_opts(&d->spec, e->batch.caps);
    ml_batch_caps caps = opts.caps;
    ml_device *dev = e->be->dev;
    ml_status st;

    ml_batch_init(&d->batch, &d->arena, caps);
    for (int i = 0; i < 2; i++)
        d->turn[i] = (ml_draft_turn){ .draw = ML_NEW(&d->arena, ml_draw, caps.n_seq),
                                      .of = ML_NEW(&d->arena, ml_chain, caps.n_seq),
                                      .loss = ML_NEW(&d->arena, int32_t, caps.n_seq),
                                      .row = ML_NEW(&d->arena, int32_t, caps.n_seq),
                                      .wants = ML_NEW(&d->arena, int32_t, caps.n_seq) };
    d->top_id = ML_NEW(&d->arena, int32_t, (int64_t)caps.n_seq * e->opts.draft.topk);
    d->top_logprob = ML_NEW(&d->arena, float, (int64_t)caps.n_seq * e->opts.draft.topk);
    d->id = ML_NEW(&d->arena, int32_t, caps.n_token);
    d->target = ML_NEW(&d->arena, int32_t, caps.n_token);
    d->opts = ML_NEW(&d->arena, ml_draw_opts, d->vocab.n ? caps.n_seq : 0);
    opts.memory = &d->memory;
    st = open_plan(&d->plan, e, opts, err);
    if (st == ML_OK && has_own_plan(&d->spec)) {
        ml_plan_opts own = own_plan_opts(&d->spec, e->batch.caps);
        own.memory = &d->memory;
        st = open_plan(&d->own_plan, e, own, err);
    }
    if (st == ML_OK && d->spec.mtp) {
        opts.logits = opts.only_logits = false;
        opts.n_keep = 0;
        opts.end = end_of_keys(&d->spec);
        st = open_plan(&d->keys, e, opts, err);
    }
    if (st == ML_OK)
        st = dev->alloc(dev, &d->drawn, drawn_bytes(caps), ML_MEM_SCRATCH, err);
    if (st == ML_OK)
        st = dev->alloc(dev, &d->hidden, hidden_bytes(&d->spec, caps, e->be),
                        ML_MEM_SCRATCH, err);
    return st;
}

ml_status ml_draft_net_open(ml_engine *e, ml_err *err) {
    const ml_draft_opts *o = &e->opts.draft;
    ml_draft_net *d = &e->draft.net;
    ml_status st;

    ml_arena_init(&d->arena, "drafts");
    ml_arena_init(&d->kv_arena, "KV cache of drafts");
    d->on = true;
    st = open_spec(&d->spec, o, e->spec, err);
    if (st == ML_OK)
        st = check(e, d, err);
    if (st == ML_OK)
        st = load(e, d, err);
    return st == ML_OK ? make_plan(e, d, err) : st;
}

static void free_buffer(ml_buf *b) {
    if (b->dev)
        b->dev->free(b);
}

void ml_draft_net_close(ml_draft_net *d) {
    if (!d->on)
        return;
    ml_plan_free(d->keys);
    ml_plan_free(d->plan);
    ml_plan_free(d->own_plan);
    ml_plan_memory_free(&d->memory);
    free_buffer(&d->drawn);
    free_buffer(&d->hidden);
    ml_draft_net_release_kv(d);
    ml_weights_close(&d->weights);
    ml_spec_close(&d->spec);
    ml_arena_release(&d->arena);
    *d = (ml_draft_net){ 0 };
}

ml_status ml_draft_net_take_kv(ml_engine *e, ml_err *err) {
    ml_draft_net *d = &e->draft.net;

    return d->on ? ml_kv_open(&d->kv, &d->spec, e->group->prefix_cache.n, 0, e->be,
                              &d->kv_arena, err)
                 : ML_OK;
}

void ml_draft_net_release_kv(ml_draft_net *d) {
    ml_kv_close(&d->kv);
    ml_arena_release(&d->kv_arena);
}

/* --- rows of a step --------------------------------------------------------------- */

/* Adds n rows of a chain from position `first` on; a flat row is a sequence of its own and
 * has logits, so that CUDA graphs depend on the number of rows alone. */
static void add_rows(ml_draft_net *d, ml_chain c, const int32_t *id, int32_t n,
                     int32_t first, bool draws, bool flat) {
    for (int32_t i = 0; i < n; i++)
        d->target[i] = flat || (draws && i == n - 1) ? ML_TARGET_NONE : ML_TARGET_SKIP;
    for (int32_t i = 0, each = flat ? 1 : n; i < n; i += each)
        ml_batch_add(&d->batch, id + i, d->target + i, each, first + i, c.page);
}

/* The rows that the step computed right and, of a model that drafts, that of the token it
 * drew. */
static void add_entry(ml_engine *e, const ml_batch_entry *x, int32_t want) {
    ml_draft_net *d = &e->draft.net;
    ml_trunk_rows trunk = { e->spec, e->plan, &e->batch.rows };
    int32_t n = x->n_row + x->n_right, at = d->batch.rows.n_token;

    add_rows(d, ml_chain_of(x->r, 0), x->r->token + x->first + d->spec.mtp,
             n + (want && !d->spec.mtp), x->first, want > 0, ml_draft_flat(e, x));
    if (!d->spec.mtp)
        return;
    ml_mtp_take_trunk(d->plan, &d->spec, &d->batch.rows, at, trunk, x->row, x->n_row,
                      e->be);
    ml_mtp_take_trunk(d->plan, &d->spec, &d->batch.rows, at + x->n_row, trunk, x->draft_row,
                      x->n_right, e->be);
}

/* Draft tokens of the request's next step, whose pages it gets now. */
static int32_t wanted(ml_engine *e, const ml_batch_entry *x) {
    ml_request *r = x->r;
    int32_t n = x->draws ? ml_draft_allowed(e, r) : 0;

    return n > 0 && ml_engine_alloc_pages(e, r, r->n_token + n) ? n : 0;
}

static void clear(ml_draft_net *d, const ml_buf *drawn) {
    ml_batch_clear(&d->batch);
    d->batch.rows.temperature = 1;
    d->batch.rows.drawn = drawn->ptr;
}

/* Collects the rows of a step, and the requests that draft. */
static void collect(ml_engine *e, const ml_inflight_step *f, ml_draft_turn *t) {
    ml_draft_net *d = &e->draft.net;

    clear(d, &d->drawn);
    t->n = 0;
    for (int32_t i = 0; i < f->n_entry; i++) {
        const ml_batch_entry *x = &f->entry[i];
        int32_t want;
        if (!x->r)
            continue;
        x->r->n_draft = 0;
        want = wanted(e, x);
        add_entry(e, x, want);
        if (!want)
            continue;
        t->of[t->n] = ml_chain_of(x->r, 0);
        t->wants[t->n] = want;
        t->loss[t->n] = d->batch.rows.n_loss - 1;
        t->row[t->n++] = d->batch.rows.n_token - 1;
    }
}

/* --- draws ------------------------------------------------------------------------ */

static void forward(ml_draft_net *d, ml_plan *plan) {
    d->latest = plan;
    ml_plan_forward(
        plan, &(ml_run){ .weights = &d->weights, .kv = &d->kv, .rows = &d->batch.rows });
}

/* The plan of rows after the first ones. */
static ml_plan *next_plan(const ml_draft_net *d) {
    return d->own_plan ? d->own_plan : d->plan;
}

/* A draft vocabulary has ids of its own: what names tokens by those of the model is left out
 * of its draws. */
static const ml_draw_opts *opts_of(ml_draft_net *d, int32_t i, const ml_draw_opts *o) {
    if (!d->vocab.n)
        return o;
    d->opts[i] = *o;
    d->opts[i].repetition = 1;
    d->opts[i].frequency = d->opts[i].presence = 0;
    d->opts[i].n_bias = 0;
    return &d->opts[i];
}

static void name_by_model(const ml_draft_vocab *v, ml_draw *d) {
    d->id = v->target[d->id];
    for (int32_t k = 0; k < d->n_top; k++)
        d->top_id[k] = v->target[d->top_id[k]];
}

static void take_draws(ml_engine *e, ml_draft_turn *t) {
    ml_draft_net *d = &e->draft.net;

    e->be->ops->sampled(e->be->stream, t->draw, t->n_draw);
    for (int32_t i = 0; i < t->n_draw; i++) {
        if (d->vocab.n)
            name_by_model(&d->vocab, &t->draw[i]);
        t->of[i].token[t->draw[i].n_history] = t->draw[i].id;
    }
    t->n_draw = 0;
}

/* Begins to draw the next draft token of each chain, and its n_top most probable tokens. */
static void draw(ml_engine *e, ml_draft_turn *t, int32_t n_top) {
    ml_draft_net *d = &e->draft.net;
    int64_t vocab = d->vocab.n ? d->vocab.n : e->spec->n_vocab;
    const float *logits = ml_plan_logits(d->latest);

    for (int32_t i = 0; i < t->n; i++) {
        const ml_request *r = t->of[i].r;
        int32_t n_known = r->n_token + (*t->of[i].n_draft)++;
        bool ban = !d->vocab.n && n_known - r->params.n_prompt < r->params.min_new;
        t->draw[i] = (ml_draw){ .logits = logits + t->loss[i] * vocab,
                                .opts = opts_of(d, i, &r->params.draw),
                                .history = t->of[i].token,
                                .n_history = n_known,
                                .n_prompt = r->params.n_prompt,
                                .ban = ban ? r->end_id : NULL,
                                .n_ban = ban ? r->n_end : 0,
                                .given = -1,
                                .n_top = n_top,
                                .top_id = d->top_id + (size_t)i * (size_t)n_top,
                                .top_logprob = d->top_logprob + (size_t)i * (size_t)n_top };
    }
    e->be->ops->sample(e->be->stream, t->draw, t->n, vocab, e->sample_scratch.ptr,
                       d->drawn.ptr);
    t->n_draw = t->n;
    if (d->vocab.n) /* the device knows no other ids */
        take_draws(e, t);
}

/* The module's output at the row of each chain, before the next run overwrites it. */
static void keep_hidden(ml_engine *e, const ml_draft_turn *t) {
    ml_draft_net *d = &e->draft.net;
    ml_tensor y = ml_plan_kept(d->latest, &d->batch.rows, d->spec.module.hidden);
    size_t row = ml_dtype_bytes(y.dtype) * (size_t)y.shape[1];

    for (int32_t i = 0, n; i < t->n; i += n) {
        for (n = 1; i + n < t->n && t->row[i + n] == t->row[i] + n;)
            n++;
        e->be->dev->copy(e->be->stream, (unsigned char *)d->hidden.ptr + (size_t)i * row,
                         (const unsigned char *)y.data + (size_t)t->row[i] * row,
                         (size_t)n * row);
    }
}

/* A row of each chain that wants more drafts: its latest one, whose token the host may not
 * know yet. */
static void collect_next(ml_engine *e, const ml_draft_turn *t, ml_draft_turn *next) {
    ml_draft_net *d = &e->draft.net;
    ml_plan *p = next_plan(d);
    ml_tensor y = { 0 };

    if (d->spec.mtp)
        y = ml_plan_kept(d->latest, &d->batch.rows, d->spec.module.hidden);
    y.data = d->hidden.ptr;
    clear(d, &d->drawn);
    next->n = 0;
    for (int32_t i = 0; i < t->n; i++) {
        ml_chain c = t->of[i];
        int32_t k = next->n, last = c.r->n_token + *c.n_draft - 1;
        const int32_t id = t->n_draw ? ML_DEVICE_TOKEN(i) : c.token[last];
        if (*c.n_draft >= t->wants[i])
            continue;
        add_rows(d, c, &id, 1, last - d->spec.mtp, true, true);
        if (d->spec.mtp)
            ml_mtp_take(p, &d->batch.rows, k, &y, i, 1, e->be);
        next->of[k] = c;
        next->wants[k] = t->wants[i];
        next->loss[k] = next->row[k] = k;
        next->n++;
    }
}

/* The first draft tokens, and the branches that begin beside them. */
static void draw_first(ml_engine *e, ml_draft_turn *t) {
    int32_t topk = e->opts.draft.topk;

    if (!t->n)
        return;
    draw(e, t, topk > 1 ? topk : 0);
    if (topk > 1 && t->n_draw)
        take_draws(e, t);
    if (topk > 1)
        ml_tree_fork(e, t);
}

/* The device computes the rows of a turn while the host waits for the draws before it. */
void ml_draft_net_run(ml_engine *e, const ml_inflight_step *f) {
    ml_draft_net *d = &e->draft.net;
    ml_draft_turn *now = &d->turn[0], *next = &d->turn[1], *last;

    if (!d->on || ml_plan_check(e->plan, &(ml_err){ 0 }) != ML_OK)
        return;
    if (d->spec.mtp)
        ml_mtp_share(&d->weights, &d->spec, e->spec, e->weights);
    collect(e, f, now);
    if (d->batch.rows.n_token)
        forward(d, d->plan);
    draw_first(e, now);
    while (now->n) {
        if (d->spec.mtp)
            keep_hidden(e, now);
        collect_next(e, now, next);
        if (next->n)
            forward(d, next_plan(d));
        if (now->n_draw)
            take_draws(e, now);
        if (next->n)
            draw(e, next, 0);
        last = now;
        now = next;
        next = last;
    }
}

/* --- steps without drafts --------------------------------------------------------- */

/* The tokens that the rows of an entry read: a module reads the next ones, the last of which
 * may be the entry's draw. */
static const int32_t *tokens_of(ml_engine *e, const ml_batch_entry *x, int32_t draw) {
    ml_draft_net *d = &e->draft.net;
    int32_t n = x->n_row;

    if (!d->spec.mtp)
        return e->batch.id + x->row;
    for (int32_t i = 0; i < n - 1; i++)
        d->id[i] = e->batch.id[x->row + i + 1];
    d->id[n - 1] = x->draws ? ML_DEVICE_TOKEN(draw) : x->r->token[x->first + n];
    return d->id;
}

void ml_draft_net_follow(ml_engine *e) {
    ml_draft_net *d = &e->draft.net;
    const ml_inflight_step *f = e->step;
    ml_trunk_rows trunk = { e->spec, e->plan, &e->batch.rows };
    int32_t draw = 0;

    clear(d, &e->drawn);
    for (int32_t i = 0; i < f->n_entry; i++) {
        const ml_batch_entry *x = &f->entry[i];
        draw += x->n_score;
        for (int32_t k = 0; k < x->n_row; k++)
            d->target[k] = ML_TARGET_SKIP;
        ml_batch_add(&d->batch, tokens_of(e, x, draw), d->target, x->n_row, x->first,
                     x->r->page);
        draw += x->draws;
    }
    if (d->spec.mtp) {
        ml_mtp_share(&d->weights, &d->spec, e->spec, e->weights);
        ml_mtp_take_trunk(d->keys, &d->spec, &d->batch.rows, 0, trunk, 0,
                          d->batch.rows.n_token, e->be);
    }
    forward(d, d->spec.mtp ? d->keys : d->plan);
}
