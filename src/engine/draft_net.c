#include "engine/draft_net.h"

#include <string.h>

#include "base/bug.h"
#include "engine/engine_priv.h"

/* --- open and close ------------------------------------------------------------- */

static ml_status check(const ml_engine *e, const ml_draft_net *d, ml_err *err) {
    const ml_draft_opts *o = &e->opts.draft;

    if (o->eagle3 && !e->be->dev->host)
        return ml_fail(err, ML_EUNSUP,
                       "--speculative-algorithm EAGLE3: the backend %s does not draft with "
                       "EAGLE-3 heads yet; use another algorithm, or --device cpu",
                       e->be->name);
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

static ml_status load(ml_engine *e, ml_draft_net *d, ml_err *err) {
    const ml_draft_opts *o = &e->opts.draft;
    ml_checkpoint *c;
    ml_status st = ml_checkpoint_open(&c, dir_of(o), err);

    if (st != ML_OK)
        return st;
    ml_spec_keep_kv(&d->spec, ml_weights_kv_dtype(&d->spec, c, o->dtype));
    if (o->eagle3)
        st = ml_eagle3_vocab(&d->vocab, &d->spec, c, &d->arena, err);
    if (st == ML_OK && o->mtp_weights)
        refer_to(d, o->mtp_weights);
    else if (st == ML_OK && d->spec.mtp)
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
                           .keep = { s->module.hidden },
                           .n_keep = s->mtp,
                           .kv_shared = true,
                           .first = s->mtp ? ML_MTP_FIRST : 0,
                           .end = s->mtp ? s->n_node : 0 };
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
    *out += ml_kv_bytes(&s, be, n_page) +
            ml_weights_part_bytes(&s, NULL, dtype == ML_WEIGHT_AUTO ? ML_WEIGHT_F32 : dtype,
                                  s.mtp ? ml_mtp_parts(&s, be->linear, &a) : NULL);
    ml_arena_release(&a);
    ml_spec_close(&s);
    return st;
}

static ml_status make_plan(ml_engine *e, ml_draft_net *d, ml_err *err) {
    ml_plan_opts opts = plan_opts(&d->spec, e->batch.caps);
    ml_batch_caps caps = opts.caps;
    ml_status st;

    ml_batch_init(&d->batch, &d->arena, caps);
    d->draw = ML_NEW(&d->arena, ml_draw, caps.n_seq);
    d->of = ML_NEW(&d->arena, ml_chain, caps.n_seq);
    d->top_id = ML_NEW(&d->arena, int32_t, (int64_t)caps.n_seq * e->opts.draft.topk);
    d->top_logprob = ML_NEW(&d->arena, float, (int64_t)caps.n_seq * e->opts.draft.topk);
    d->last = ML_NEW(&d->arena, int32_t, caps.n_seq);
    d->wants = ML_NEW(&d->arena, int32_t, caps.n_seq);
    d->drawn = ML_NEW(&d->arena, int32_t, caps.n_seq);
    d->target = ML_NEW(&d->arena, int32_t, caps.n_token);
    d->hidden = ML_NEW(&d->arena, float, (int64_t)caps.n_seq * d->spec.n_hidden);
    st = ml_plan_new(&d->plan, &d->spec, e->be, opts, err);
    if (st == ML_OK)
        st = ml_plan_alloc(d->plan, err);
    if (st != ML_OK || !has_own_plan(&d->spec))
        return st;
    st = ml_plan_new(&d->own_plan, &d->spec, e->be, own_plan_opts(&d->spec, e->batch.caps),
                     err);
    return st == ML_OK ? ml_plan_alloc(d->own_plan, err) : st;
}

/* Tokens that are not in the draft vocabulary are never drawn. */
static void make_logits(ml_engine *e, ml_draft_net *d) {
    int64_t n = e->batch.caps.n_seq * e->spec->n_vocab;

    d->logits = ML_NEW(&d->arena, float, n);
    for (int64_t i = 0; i < n; i++)
        d->logits[i] = -1e30f;
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
    if (st == ML_OK && d->vocab.n)
        make_logits(e, d);
    return st == ML_OK ? make_plan(e, d, err) : st;
}

void ml_draft_net_close(ml_draft_net *d) {
    if (!d->on)
        return;
    ml_plan_free(d->plan);
    ml_plan_free(d->own_plan);
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

/* Adds rows of the tokens at first .. end-1.  A module reads the token after each. */
static void add_rows(ml_draft_net *d, ml_chain c, int32_t first, int32_t end, bool draws) {
    int32_t n = end - first;

    for (int32_t i = 0; i < n; i++)
        d->target[i] = draws && i == n - 1 ? ML_TARGET_NONE : ML_TARGET_SKIP;
    ml_batch_add(&d->batch, c.token + first + d->spec.mtp, d->target, n, first, c.page);
}

/* The rows that the step computed right and, of a model that drafts, that of the token it
 * drew. */
static void add_entry(ml_engine *e, const ml_batch_entry *x, int32_t want) {
    ml_draft_net *d = &e->draft.net;
    ml_trunk_rows trunk = { e->spec, e->plan, &e->batch.rows };
    int32_t n = x->n_row + x->n_right, at = d->batch.rows.n_token;

    add_rows(d, ml_chain_of(x->r, 0), x->first, x->first + n + (want && !d->spec.mtp),
             want > 0);
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

/* Collects the rows; returns the number of requests that draft. */
static int32_t collect(ml_engine *e, const ml_inflight_step *f) {
    ml_draft_net *d = &e->draft.net;
    int32_t n = 0;

    ml_batch_clear(&d->batch);
    d->batch.rows.temperature = 1;
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
        d->of[n] = ml_chain_of(x->r, 0);
        d->wants[n] = want;
        d->last[n++] = d->batch.rows.n_token - 1;
    }
    return n;
}

/* --- draws ------------------------------------------------------------------------ */

static void forward(ml_engine *e, ml_plan *p) {
    ml_draft_net *d = &e->draft.net;

    d->latest = p;
    ml_plan_forward(
        p, &(ml_run){ .weights = &d->weights, .kv = &d->kv, .rows = &d->batch.rows });
}

/* The logits of n rows over the model's vocabulary. */
static const float *logits_of(ml_engine *e, int32_t n) {
    ml_draft_net *d = &e->draft.net;
    const float *from = ml_plan_logits(d->latest);

    if (!d->vocab.n)
        return from;
    for (int64_t row = 0; row < n; row++)
        for (int64_t i = 0; i < d->vocab.n; i++)
            d->logits[row * e->spec->n_vocab + d->vocab.target[i]] =
                from[row * d->vocab.n + i];
    return d->logits;
}

/* Draws the next draft token of n chains, from their rows of logits in order; and the n_top
 * most probable tokens of each. */
static void draw(ml_engine *e, int32_t n, int32_t n_top) {
    ml_draft_net *d = &e->draft.net;
    int64_t vocab = e->spec->n_vocab;
    const float *logits = logits_of(e, n);

    for (int32_t i = 0; i < n; i++) {
        const ml_request *r = d->of[i].r;
        int32_t n_known = r->n_token + *d->of[i].n_draft;
        bool ban = n_known - r->params.n_prompt < r->params.min_new;
        d->draw[i] = (ml_draw){ .logits = logits + i * vocab,
                                .opts = &r->params.draw,
                                .history = d->of[i].token,
                                .n_history = n_known,
                                .n_prompt = r->params.n_prompt,
                                .ban = ban ? r->end_id : NULL,
                                .n_ban = ban ? r->n_end : 0,
                                .given = -1,
                                .n_top = n_top,
                                .top_id = d->top_id + (size_t)i * (size_t)n_top,
                                .top_logprob = d->top_logprob + (size_t)i * (size_t)n_top };
    }
    e->be->ops->sample(e->be->stream, d->draw, n, vocab, e->sample_scratch.ptr, d->drawn);
    e->be->ops->sampled(e->be->stream, d->draw, n);
    for (int32_t i = 0; i < n; i++) {
        ml_chain c = d->of[i];
        c.token[c.r->n_token + (*c.n_draft)++] = d->draw[i].id;
    }
}

/* The module's output at the last row of each chain, before the next run overwrites it. */
static void keep_hidden(ml_engine *e, int32_t n) {
    ml_draft_net *d = &e->draft.net;
    ml_tensor y = ml_plan_kept(d->latest, &d->batch.rows, d->spec.module.hidden);
    size_t row = ml_dtype_bytes(y.dtype) * (size_t)y.shape[1];

    for (int32_t i = 0; i < n; i++)
        e->be->dev->copy(e->be->stream, (unsigned char *)d->hidden + (size_t)i * row,
                         (const unsigned char *)y.data + (size_t)d->last[i] * row, row);
}

/* A row of each chain that wants more drafts: its latest one.  Returns their number. */
static int32_t collect_next(ml_engine *e, int32_t n) {
    ml_draft_net *d = &e->draft.net;
    ml_plan *p = d->own_plan ? d->own_plan : d->plan;
    ml_tensor y = { 0 };
    int32_t k = 0;

    if (d->spec.mtp)
        y = ml_plan_kept(d->latest, &d->batch.rows, d->spec.module.hidden);
    y.data = d->hidden;
    ml_batch_clear(&d->batch);
    for (int32_t i = 0; i < n; i++) {
        ml_chain c = d->of[i];
        int32_t at = c.r->n_token - 1 - d->spec.mtp + *c.n_draft;
        if (*c.n_draft >= d->wants[i])
            continue;
        add_rows(d, c, at, at + 1, true);
        if (d->spec.mtp)
            ml_mtp_take(p, &d->batch.rows, k, &y, i, 1, e->be);
        d->of[k] = c;
        d->wants[k] = d->wants[i];
        d->last[k] = k;
        k++;
    }
    return k;
}

void ml_draft_net_run(ml_engine *e, const ml_inflight_step *f) {
    ml_draft_net *d = &e->draft.net;
    int32_t n;

    if (!d->on || ml_plan_check(e->plan, &(ml_err){ 0 }) != ML_OK)
        return;
    if (d->spec.mtp)
        ml_mtp_share(&d->weights, &d->spec, e->spec, e->weights);
    n = collect(e, f);
    if (!d->batch.rows.n_token)
        return;
    forward(e, d->plan);
    for (bool first = true; n; first = false) {
        draw(e, n, first && e->opts.draft.topk > 1 ? e->opts.draft.topk : 0);
        if (first)
            n = ml_tree_fork(e, n);
        if (d->spec.mtp)
            keep_hidden(e, n);
        n = collect_next(e, n);
        if (n)
            forward(e, d->own_plan ? d->own_plan : d->plan);
    }
}
