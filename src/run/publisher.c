#include "run/publisher.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "gen/local.h"
#include "gen/remote.h"
#include "gen/weight_source.h"
#include "model/spec_shard.h"
#include "model/weight_dir.h"
#include "model/weight_stream.h"
#include "model/weights_checksum.h"

ml_status ml_publisher_publish(ml_publisher *p, const ml_weights *w, ml_err *err) {
    double began = ml_clock_s();
    ml_status st;

    if (p->frozen) {
        ml_log(ML_LOG_INFO, "weight_sync: version %llu is not published",
               (unsigned long long)w->version);
        return ML_OK;
    }
    st = ml_publisher_copy_mtp(p, err);
    if (st == ML_OK)
        st = p->send(p, w, err);
    if (st == ML_OK)
        p->version = w->version;
    if (st == ML_OK && p->async)
        st = ml_async_published(p->async, w->version, err);
    if (st == ML_OK && p->generator)
        ml_generator_published(p->generator);
    ml_log(ML_LOG_INFO, "weight_sync: version %llu in %.6f s",
           (unsigned long long)w->version, ml_clock_s() - began);
    return st;
}

ml_status ml_publisher_start(ml_publisher *p, ml_generator *g, const ml_weights *w,
                             ml_err *err) {
    p->generator = g;
    p->version = w->version;
    return p->weights || p->moves ? ML_OK : p->send(p, w, err);
}

void ml_publisher_close(ml_publisher *p) {
    if (!p)
        return;
    ml_weights_close(&p->mtp_copy);
    if (p->mtp)
        ml_arena_release(&p->mtp_arena);
    p->close(p);
}

static void *make(size_t size, ml_publisher of, ml_err *err) {
    ml_publisher *p = calloc(1, size);

    if (p)
        *p = of;
    else
        ml_fail(err, ML_ENOMEM, "no memory to publish weights with");
    return p;
}

/* --- shared ----------------------------------------------------------------------- */

static ml_status send_version(ml_publisher *p, const ml_weights *w, ml_err *err) {
    return ml_local_switch(p->generator->local, w, ML_SWITCH_RECOMPUTE, err);
}

static void close_shared(ml_publisher *p) {
    free(p);
}

ml_status ml_publisher_shared(ml_publisher **out, const ml_weights *w, ml_err *err) {
    *out = make(sizeof **out,
                (ml_publisher){ .send = send_version, .close = close_shared, .weights = w },
                err);
    return *out ? ML_OK : ML_ENOMEM;
}

/* --- the base alone ----------------------------------------------------------------- */

typedef struct base_viewer {
    ml_publisher of; /* first */
    ml_weights view;
} base_viewer;

ml_status ml_publisher_base(ml_publisher **out, const ml_weights *w, ml_err *err) {
    base_viewer *b = make(sizeof *b, (ml_publisher){ .close = close_shared }, err);

    *out = b ? &b->of : NULL;
    if (!b)
        return ML_ENOMEM;
    b->view = *w;
    b->view.buf.dev = NULL; /* not owned */
    b->view.lora = NULL;
    b->view.version = 0;
    b->of.weights = &b->view;
    return ML_OK;
}

/* --- copy ------------------------------------------------------------------------- */

typedef struct copier {
    ml_publisher of; /* first */
    ml_arena arena;
    ml_weights copy;
    ml_backend *be;
} copier;

/* No step runs while the copy changes; the KV cache of requests in flight is then
 * recomputed. */
static ml_status send_copy(ml_publisher *p, const ml_weights *w, ml_err *err) {
    copier *c = (copier *)p;
    ml_gen *gen = p->generator->local;
    ml_status st;

    gen->pause(gen);
    st = ml_weights_copy(&c->copy, w, c->be, err);
    if (st == ML_OK)
        st = ml_local_switch(gen, &c->copy, ML_SWITCH_RECOMPUTE, err);
    gen->resume(gen);
    return st;
}

static void close_copy(ml_publisher *p) {
    copier *c = (copier *)p;

    ml_weights_close(&c->copy);
    ml_arena_release(&c->arena);
    free(c);
}

ml_status ml_publisher_copy(ml_publisher **out, const ml_weights *w, ml_backend *be,
                            ml_err *err) {
    copier *c =
        make(sizeof *c, (ml_publisher){ .send = send_copy, .close = close_copy }, err);

    *out = c ? &c->of : NULL;
    if (!c)
        return ML_ENOMEM;
    c->be = be;
    c->of.weights = &c->copy;
    ml_arena_init(&c->arena, "the engine's weights");
    return ml_weights_clone(&c->copy, w, be, &c->arena, err);
}

/* --- a quantized copy ------------------------------------------------------------- */

typedef struct quantizer {
    ml_publisher of; /* first */
    ml_arena arena;
    ml_weights copy, base; /* base: copies of what is not quantized; zeros: shared */
    const ml_weights *from;
    const ml_spec *spec;
    ml_backend *be;
} quantizer;

static ml_status quantize(quantizer *q, ml_err *err) {
    return ml_weights_requantize(&q->copy, q->from, q->spec, q->be->n_thread, err);
}

static ml_status send_quantized(ml_publisher *p, const ml_weights *w, ml_err *err) {
    quantizer *q = (quantizer *)p;
    ml_gen *gen = p->generator->local;
    ml_status st;

    (void)w;
    gen->pause(gen);
    st = quantize(q, err);
    if (st == ML_OK)
        st = ml_local_switch(gen, &q->copy, ML_SWITCH_RECOMPUTE, err);
    gen->resume(gen);
    return st;
}

static void close_quantized(ml_publisher *p) {
    quantizer *q = (quantizer *)p;

    ml_weights_close(&q->copy);
    ml_weights_close(&q->base);
    ml_arena_release(&q->arena);
    free(q);
}

ml_status ml_publisher_quantized(ml_publisher **out, const ml_weights *w, const ml_spec *s,
                                 ml_weight_dtype dtype, bool own, ml_backend *be,
                                 ml_err *err) {
    quantizer *q = make(
        sizeof *q, (ml_publisher){ .send = send_quantized, .close = close_quantized }, err);
    ml_status st = ML_OK;

    *out = q ? &q->of : NULL;
    if (!q)
        return ML_ENOMEM;
    q->be = be;
    q->from = w;
    q->spec = s;
    q->of.weights = &q->copy;
    ml_arena_init(&q->arena, "the engine's weights");
    if (own)
        st = ml_weights_clone(&q->base, w, be, &q->arena, err);
    if (st == ML_OK)
        st =
            ml_weights_quantize(&q->copy, own ? &q->base : w, s, dtype, be, &q->arena, err);
    return st == ML_OK ? quantize(q, err) : st;
}

/* --- an adapter's copy ------------------------------------------------------------- */

/* The base is frozen, so that the engine reads the trainer's; the adapter is copied. */
typedef struct adapter_copier {
    ml_publisher of; /* first */
    ml_arena arena;
    ml_weights view, copy;
    const ml_lora *from;
    ml_lora_table table;
    const ml_lora_site *site;
    ml_backend *be;
} adapter_copier;

static ml_status send_adapter(ml_publisher *p, const ml_weights *w, ml_err *err) {
    adapter_copier *c = (adapter_copier *)p;
    ml_gen *gen = p->generator->local;
    ml_status st;

    gen->pause(gen);
    st = ml_weights_copy(&c->copy, &c->from->weights, c->be, err);
    c->view.version = w->version;
    if (st == ML_OK)
        st = ml_local_switch(gen, &c->view, ML_SWITCH_RECOMPUTE, err);
    gen->resume(gen);
    return st;
}

static void close_adapter(ml_publisher *p) {
    adapter_copier *c = (adapter_copier *)p;

    ml_weights_close(&c->copy);
    ml_arena_release(&c->arena);
    free(c);
}

ml_status ml_publisher_adapter(ml_publisher **out, const ml_weights *w, const ml_lora *l,
                               ml_backend *be, ml_err *err) {
    adapter_copier *c = make(
        sizeof *c, (ml_publisher){ .send = send_adapter, .close = close_adapter }, err);
    ml_status st;

    *out = c ? &c->of : NULL;
    if (!c)
        return ML_ENOMEM;
    c->be = be;
    c->from = l;
    ml_arena_init(&c->arena, "the engine's adapter");
    st = ml_weights_clone(&c->copy, &l->weights, be, &c->arena, err);
    if (st != ML_OK)
        return st;
    c->site = ml_lora_sites(l, &c->copy, &c->arena);
    c->table = (ml_lora_table){ .adapter = &c->site, .n_adapter = 1, .all = true };
    c->view = *w;
    c->view.buf.dev = NULL; /* not owned */
    c->view.lora = &c->table;
    c->of.weights = &c->view;
    return ML_OK;
}

/* --- moves ------------------------------------------------------------------------ */

typedef struct mover {
    ml_publisher of; /* first */
    ml_arena arena;
    ml_comm *world, *comm; /* all ranks; comm: with the time limit of training */
    ml_moves plan;
    const ml_weights *from; /* NULL: this rank does not train */
    ml_weights set;         /* of the engine; zeros: this rank has none */
    const ml_lora *lora;    /* NULL: engines have no adapter */
    ml_moves adapter;       /* its rows: those of the base move once */
    ml_weights rows;        /* that the engine has of it */
    ml_lora_table table;
    const ml_lora_site *site;
    bool check;
} mover;

static ml_status move_set(const mover *m, const ml_moves *plan, const ml_weights *from,
                          ml_weights *to, ml_err *err) {
    ml_status st;

    if (m->check && to)
        ml_moves_spoil(plan, to);
    st = ml_moves_run(plan, m->comm, from, to, err);
    return st == ML_OK && m->check ? ml_moves_check(plan, m->comm, from, to, err) : st;
}

/* base: the rows of the weights, too, if there is an adapter. */
static ml_status move_rows(mover *m, bool base, ml_err *err) {
    bool gets = m->of.weights != NULL;
    uint64_t version = m->from ? m->from->version : 0;
    ml_status st = ml_comm_share(m->comm, &version, sizeof version, err);

    if (st == ML_OK && (base || !m->lora))
        st = move_set(m, &m->plan, m->from, gets ? &m->set : NULL, err);
    if (st == ML_OK && m->lora)
        st = move_set(m, &m->adapter, m->from ? &m->lora->weights : NULL,
                      gets ? &m->rows : NULL, err);
    m->set.version = version;
    return ml_comm_agree(m->comm, st, err);
}

/* No engine runs a step while its rows change: ranks meet when all are paused. */
static ml_status send_moves(ml_publisher *p, const ml_weights *w, ml_err *err) {
    mover *m = (mover *)p;
    ml_gen *gen = p->generator->leads ? p->generator->local : NULL;
    ml_status st;

    (void)w;
    if (gen)
        gen->pause(gen);
    st = ml_comm_meet(m->world, err);
    if (st == ML_OK)
        st = move_rows(m, false, err);
    if (st == ML_OK && gen)
        st = ml_local_switch(gen, &m->set, ML_SWITCH_RECOMPUTE, err);
    if (gen)
        gen->resume(gen);
    return st;
}

static void close_moves(ml_publisher *p) {
    mover *m = (mover *)p;

    ml_moves_close(&m->plan);
    ml_moves_close(&m->adapter);
    ml_weights_close(&m->set);
    ml_weights_close(&m->rows);
    if (m->comm)
        m->comm->close(m->comm);
    ml_arena_release(&m->arena);
    free(m);
}

static ml_status open_adapter(mover *m, ml_generator *g, ml_err *err) {
    ml_status st = ML_OK;

    if (!m->lora)
        return ML_OK;
    if (m->of.weights)
        st = ml_moves_receiver(&m->rows, &g->adapter, &m->lora->weights, &g->be, &m->arena,
                               err);
    if (st != ML_OK)
        return st;
    ml_moves_plan(&m->adapter, &g->adapter);
    if (m->of.weights)
        m->site = ml_lora_sites(m->lora, &m->rows, &m->arena);
    m->table = (ml_lora_table){ .adapter = &m->site, .n_adapter = 1, .all = true };
    m->set.lora = &m->table;
    return ML_OK;
}

/* Rank 0 has loaded the weights, and knows their dtypes and that of the KV cache. */
static ml_status share_dtypes(mover *m, ml_generator *g, ml_err *err) {
    int32_t n = g->run->spec.n_param;
    ml_dtype *dtype = ML_NEW(&m->arena, ml_dtype, n), kv = ml_spec_kv_dtype(&g->run->spec);
    ml_status st;

    for (int32_t i = 0; i < n && m->from; i++)
        dtype[i] = m->from->t[i].dtype;
    st = ml_comm_share(m->comm, dtype, (size_t)n * sizeof *dtype, err);
    if (st == ML_OK)
        st = ml_comm_share(m->comm, &kv, sizeof kv, err);
    g->moves.dtype = dtype;
    for (int32_t r = 0; r < ml_run_ranks_engine_size(&g->run->opts.ranks); r++)
        ml_spec_keep_kv(&g->part[r], kv);
    return st;
}

static ml_status open_moves(mover *m, ml_generator *g, const ml_run_ranks *ranks,
                            ml_err *err) {
    ml_status st = ranks->world->split(ranks->world, &m->comm, 0, ranks->world->rank, err);

    if (st != ML_OK)
        return st;
    m->world = ranks->world;
    m->comm->group = "publish";
    m->comm->deadline_s = ranks->publish_s;
    st = share_dtypes(m, g, err);
    if (st == ML_OK && m->of.weights)
        st = ml_moves_receiver(&m->set, &g->moves, m->from, &g->be, &m->arena, err);
    if (st != ML_OK)
        return st;
    ml_moves_plan(&m->plan, &g->moves);
    st = open_adapter(m, g, err);
    if (st == ML_OK)
        st = move_rows(m, true, err);
    if (g->run->lora.n_site && !m->lora) /* the base alone: see ml_publisher_base */
        m->set.version = 0;
    return st;
}

ml_status ml_publisher_moves(ml_publisher **out, ml_generator *g, const ml_run_ranks *ranks,
                             bool check, ml_err *err) {
    mover *m = make(
        sizeof *m,
        (ml_publisher){ .send = send_moves, .close = close_moves, .moves = true }, err);

    *out = m ? &m->of : NULL;
    if (!m)
        return ML_ENOMEM;
    m->check = check;
    m->from = ml_run_ranks_trains(ranks) ? ml_train_run_read(g->run) : NULL;
    m->lora = g->adapter.n_rank ? &g->run->lora : NULL;
    m->of.weights = ml_run_ranks_generates(ranks) ? &m->set : NULL;
    ml_arena_init(&m->arena, "the engine's weights");
    return open_moves(m, g, ranks, err);
}

/* --- collect ---------------------------------------------------------------------- */

typedef struct collector {
    ml_publisher of; /* first */
    ml_publisher *inner;
    ml_arena arena;
    ml_comm *world, *comm; /* all ranks; comm: with the time limit of training */
    ml_spec spec;          /* of the whole, as moves describe it */
    ml_moves plan;
    ml_weights set;      /* rank 0's: the whole model, or the adapter */
    const ml_lora *lora; /* NULL: none */
} collector;

/* Ranks meet without a time limit: rank 0 may still be starting engines. */
static ml_status send_collected(ml_publisher *p, const ml_weights *w, ml_err *err) {
    collector *c = (collector *)p;
    ml_status st = ml_comm_meet(c->world, err);

    if (st == ML_OK)
        st = ml_moves_run(&c->plan, c->comm, c->lora ? &c->lora->weights : w,
                          c->inner ? &c->set : NULL, err);
    c->set.version = w->version;
    if (st == ML_OK && c->inner) {
        c->inner->generator = p->generator;
        c->inner->adapter = c->lora ? &c->set : NULL;
        st = c->inner->send(c->inner, c->lora ? w : &c->set, err);
    }
    return st;
}

static void close_collected(ml_publisher *p) {
    collector *c = (collector *)p;

    ml_publisher_close(c->inner);
    ml_moves_close(&c->plan);
    ml_weights_close(&c->set);
    ml_spec_close(&c->spec);
    if (c->comm)
        c->comm->close(c->comm);
    ml_arena_release(&c->arena);
    free(c);
}

/* Rank 0 has loaded the weights, and knows their dtypes. */
static ml_status describe_moves(collector *c, ml_moves_opts *o, ml_train_run *run,
                                const ml_run_ranks *ranks, ml_err *err) {
    int32_t n_rank = c->world->size, n = o->whole->n_param;
    ml_dtype *dtype = ML_NEW(&c->arena, ml_dtype, n);
    const ml_shard_range **from = ML_NEW(&c->arena, const ml_shard_range *, n_rank);
    const ml_spec **to = ML_NEW(&c->arena, const ml_spec *, n_rank);
    ml_shard_map map;

    if (c->lora)
        ml_lora_map(&map, &c->arena, c->lora, &ranks->sizes);
    else
        ml_shard_map_init(&map, &c->arena, &run->spec, run->be.linear, &ranks->sizes,
                          run->opts.trainer.stage);
    for (int32_t r = 0; r < n_rank; r++)
        from[r] = ml_shard_residents(&map, &c->arena, r);
    to[0] = c->lora ? o->whole : &c->spec;
    for (int32_t i = 0; i < n; i++)
        dtype[i] = c->lora ? ML_F32 : run->weights.t[i].dtype;
    o->dtype = dtype;
    o->from = from;
    o->to = to;
    return ml_comm_share(c->comm, dtype, (size_t)n * sizeof *dtype, err);
}

static ml_status open_collected(collector *c, ml_train_run *run, const ml_run_ranks *ranks,
                                int64_t bucket_bytes, ml_err *err) {
    ml_moves_opts o = { .whole = c->lora ? &c->lora->spec : &run->spec,
                        .linear = run->be.linear,
                        .n_rank = ranks->world->size,
                        .rank = ranks->world->rank,
                        .bucket_bytes = (size_t)bucket_bytes,
                        .in_place = true };
    const ml_weights *have = c->lora ? &c->lora->weights : &run->weights;
    ml_status st = ranks->world->split(ranks->world, &c->comm, 0, ranks->world->rank, err);

    if (st != ML_OK)
        return st;
    c->world = ranks->world;
    c->comm->group = "publish";
    c->comm->deadline_s = ranks->publish_s;
    st = ml_spec_shard_copy(&c->spec, &run->spec, 1, 0, err);
    if (st == ML_OK)
        st = describe_moves(c, &o, run, ranks, err);
    if (st == ML_OK && c->inner)
        st = ml_moves_receiver(&c->set, &o, have, &run->be, &c->arena, err);
    if (st == ML_OK)
        ml_moves_plan(&c->plan, &o);
    return st;
}

ml_status ml_publisher_collect(ml_publisher **out, ml_publisher *inner, ml_train_run *run,
                               const ml_run_ranks *ranks, int64_t bucket_bytes,
                               ml_err *err) {
    collector *c = make(
        sizeof *c, (ml_publisher){ .send = send_collected, .close = close_collected }, err);

    if (!c)
        return ML_ENOMEM;
    *out = &c->of;
    c->inner = inner;
    c->lora = run->lora.n_site ? &run->lora : NULL;
    ml_arena_init(&c->arena, "collected weights");
    return open_collected(c, run, ranks, bucket_bytes, err);
}

/* --- tcp -------------------------------------------------------------------------- */

#define GROUP "miles"
#define NO_LIMIT_S 1e8 /* years */

typedef struct tcp {
    ml_publisher of; /* first */
    ml_arena arena;
    ml_train_run *run;
    ml_weight_source *source;
    const char *address;
    int64_t bucket_bytes;
    double timeout_s;
    const char **bucket; /* [n_bucket] bodies that name the tensors; the same every time */
    int32_t n_bucket;
} tcp;

static ml_status add_tensor(void *ud, const ml_st_tensor *t, ml_err *err) {
    return ml_weight_source_add(ud, t, err);
}

static ml_status fill_source(tcp *p, const ml_weights *w, bool *f32, ml_err *err) {
    ml_export_opts how = ml_weight_dir_how(w);
    ml_status st;

    *f32 = !how.keep_dtype;
    ml_weight_source_begin(p->source, w->version);
    st = ml_export_each(w, &p->run->spec, p->run->from, &how, add_tensor, p->source, err);
    if (st == ML_OK)
        ml_weight_source_commit(p->source);
    return st;
}

/* As PyTorch names it; NULL: no parameter has it, and engines do not ask for it. */
static const char *dtype_name(ml_st_dtype t) {
    switch (t) {
    case ML_ST_F32: return "float32";
    case ML_ST_BF16: return "bfloat16";
    case ML_ST_F16: return "float16";
    case ML_ST_I64: return "int64";
    case ML_ST_I32: return "int32";
    default: return NULL;
    }
}

/* Tensors [first, end) as the body of a request. */
static const char *write_bucket(tcp *p, int32_t first, int32_t end) {
    ml_text names = { 0 }, dtypes = { 0 }, shapes = { 0 };
    const char *body, *comma = "";

    for (int32_t i = first; i < end; i++) {
        const ml_st_tensor *t = ml_weight_source_tensor(p->source, i);
        if (!dtype_name(t->dtype))
            continue;
        ml_text_printf(&names, "%s", comma);
        ml_json_quote(&names, t->name);
        ml_text_printf(&dtypes, "%s\"%s\"", comma, dtype_name(t->dtype));
        ml_text_printf(&shapes, "%s[", comma);
        for (int32_t k = 0; k < t->n_dim; k++)
            ml_text_printf(&shapes, "%s%lld", k ? "," : "", (long long)t->shape[k]);
        ml_text_printf(&shapes, "]");
        comma = ",";
    }
    body = ml_arena_printf(&p->arena,
                           "{\"group_name\":\"" GROUP "\",\"names\":[%s],\"dtypes\":[%s],"
                           "\"shapes\":[%s]}",
                           names.ptr ? names.ptr : "", dtypes.ptr ? dtypes.ptr : "",
                           shapes.ptr ? shapes.ptr : "");
    ml_text_release(&names);
    ml_text_release(&dtypes);
    ml_text_release(&shapes);
    return body;
}

/* Fills a bucket until the next tensor would exceed the limit. */
static void divide(tcp *p) {
    int32_t n = ml_weight_source_count(p->source), first = 0;
    int64_t bytes = 0;

    p->bucket = ML_NEW(&p->arena, const char *, n + 1);
    for (int32_t i = 0; i < n; i++) {
        int64_t more = (int64_t)ml_weight_source_tensor(p->source, i)->bytes;
        if (i > first && bytes + more > p->bucket_bytes) {
            p->bucket[p->n_bucket++] = write_bucket(p, first, i);
            first = i;
            bytes = 0;
        }
        bytes += more;
    }
    p->bucket[p->n_bucket++] = write_bucket(p, first, n);
}

static ml_remote_step init_step(ml_arena *a, const char *address,
                                const ml_weight_source *source, double timeout_s) {
    return (ml_remote_step){
        "/init_weights_update_group",
        ml_arena_printf(a,
                        "{\"master_address\":\"%s\",\"master_port\":%d,\"rank_offset\":1,"
                        "\"world_size\":2,\"group_name\":\"" GROUP
                        "\",\"backend\":\"tcp\",\"group_key\":\"%s\",\"timeout_s\":%d}",
                        address, ml_weight_source_port(source),
                        ml_weight_source_key(source), (int)timeout_s)
    };
}

/* The requests that give an engine the newest version. */
static const ml_remote_step *list_steps(tcp *p, uint64_t version, bool f32, uint64_t crc) {
    ml_remote_step *step = ML_NEW(&p->arena, ml_remote_step, p->n_bucket + 3), *at = step;
    unsigned long long v = version;

    *at++ = init_step(&p->arena, p->address, p->source, p->timeout_s);
    *at++ = (ml_remote_step){ "/begin_weight_update",
                              ml_arena_printf(&p->arena, "{\"weight_version\":\"%llu\"%s}",
                                              v, f32 ? ",\"dtype\":\"float32\"" : "") };
    for (int32_t i = 0; i < p->n_bucket; i++)
        *at++ = (ml_remote_step){ "/update_weights_from_distributed", p->bucket[i] };
    *at = (ml_remote_step){
        "/end_weight_update",
        ml_arena_printf(&p->arena,
                        "{\"weight_version\":\"%llu\",\"weights_crc64\":\"%016llx\"}", v,
                        (unsigned long long)crc)
    };
    return step;
}

static ml_status send_tcp(ml_publisher *of, const ml_weights *w, ml_err *err) {
    tcp *p = (tcp *)of;
    ml_gen *gen = of->generator->gen;
    const ml_remote_step *step;
    uint64_t crc = 0;
    bool f32 = false;
    ml_status st = fill_source(p, w, &f32, err);

    if (st == ML_OK)
        st = ml_weights_crc64(&crc, w, &p->run->spec, err);
    if (st != ML_OK)
        return st;
    if (!p->bucket)
        divide(p);
    step = list_steps(p, w->version, f32, crc);
    gen->pause(gen); /* requests in flight are recomputed, not waited for */
    st = ml_remote_update(gen, step, p->n_bucket + 3, w->version, err);
    gen->resume(gen);
    return st;
}

static void close_tcp(ml_publisher *of) {
    tcp *p = (tcp *)of;

    ml_weight_source_close(p->source);
    ml_arena_release(&p->arena);
    free(p);
}

/* Whole seconds; 0: no limit. */
static double wait_of(double timeout_s) {
    return timeout_s >= 1 ? timeout_s : timeout_s > 0 ? 1 : NO_LIMIT_S;
}

/* Processes of other machines connect only if engines are there. */
static const char *listens_at(const char *address) {
    if (strncmp(address, "127.", 4) == 0 || strcmp(address, "localhost") == 0)
        return "127.0.0.1";
    return strchr(address, ':') ? "::" : "0.0.0.0";
}

ml_status ml_publisher_tcp(ml_publisher **out, const char *address, int64_t bucket_bytes,
                           double timeout_s, ml_train_run *run, ml_err *err) {
    tcp *p = make(sizeof *p, (ml_publisher){ .send = send_tcp, .close = close_tcp }, err);
    ml_status st;

    *out = p ? &p->of : NULL;
    if (!p)
        return ML_ENOMEM;
    ml_arena_init(&p->arena, "weights over TCP");
    p->run = run;
    p->address = ml_arena_printf(&p->arena, "%s", address);
    p->bucket_bytes = bucket_bytes;
    p->timeout_s = wait_of(timeout_s);
    p->of.bytes = ml_weights_bytes(&run->spec, run->from, run->opts.dtype);
    st = ml_weight_source_open(&p->source, listens_at(address), p->timeout_s, err);
    if (st != ML_OK)
        ml_err_prefix(err, "--update-weight-transfer-mode broadcast");
    return st;
}

/* --- an adapter, to other processes -------------------------------------------------- */

typedef struct adapter_sender {
    ml_publisher of; /* first */
    ml_arena arena;
    ml_train_run *run;
    const char *dir; /* NULL: over TCP */
    const char *address;
    double timeout_s;
    ml_weight_source *source;
    uint64_t crc64; /* of the base */
} adapter_sender;

/* The whole adapter. */
static const ml_weights *values_of(const adapter_sender *p) {
    return p->of.adapter ? p->of.adapter : &p->run->lora.weights;
}

/* The members that both ways of sending have. */
static const char *write_adapter(adapter_sender *p, uint64_t version) {
    const char *crc64 = ml_arena_printf(&p->arena, ",\"base_crc64\":\"%016llx\"",
                                        (unsigned long long)p->crc64);

    return ml_arena_printf(&p->arena,
                           "\"lora_name\":\"" ML_TRAINED_ADAPTER "\",\"upsert\":true,"
                           "\"weight_version\":\"%llu\"%s",
                           (unsigned long long)version, p->crc64 ? crc64 : "");
}

static ml_status write_files(adapter_sender *p, ml_remote_step *step, uint64_t version,
                             ml_err *err) {
    ml_text path = { 0 }, quoted = { 0 };
    ml_status st = ml_weight_dir_write_adapter(&path, p->dir, &p->run->lora, values_of(p),
                                               version, err);

    if (st == ML_OK) {
        ml_json_quote(&quoted, ml_str_of(path.ptr));
        *step = (ml_remote_step){ "/load_lora_adapter",
                                  ml_arena_printf(&p->arena, "{%s,\"lora_path\":%s}",
                                                  write_adapter(p, version), quoted.ptr) };
    }
    ml_text_release(&quoted);
    ml_text_release(&path);
    return st;
}

/* Copies the adapter's tensors to the source, and their names and shapes into the lists. */
static ml_status copy_tensors(adapter_sender *p, ml_text list[2], ml_err *err) {
    const ml_lora *l = &p->run->lora;
    ml_arena a;
    int32_t n;
    const ml_named *named;
    ml_status st = ML_OK;

    ml_arena_init(&a, "an adapter's tensors");
    named = ml_lora_tensors(l, &a, &n);
    for (int32_t i = 0; i < n && st == ML_OK; i++) {
        ml_st_tensor t = { .name = ml_str_of(named[i].name),
                           .dtype = ML_ST_F32,
                           .n_dim = named[i].n_dim };
        ml_slices all = ml_named_slices(&named[i]);
        float *v = ML_NEW(&a, float, all.n_slice *all.n_value);
        memcpy(t.shape, named[i].shape, sizeof named[i].shape);
        t.bytes = (size_t)(all.n_slice * all.n_value) * sizeof *v;
        t.data = v;
        ml_named_read(values_of(p), &l->spec, &named[i], 0, all.n_slice, ML_F32, v);
        st = ml_weight_source_add(p->source, &t, err);
        ml_text_printf(&list[0], i ? "," : "");
        ml_json_quote(&list[0], t.name);
        ml_text_printf(&list[1], "%s[", i ? "," : "");
        for (int32_t k = 0; k < t.n_dim; k++)
            ml_text_printf(&list[1], "%s%lld", k ? "," : "", (long long)t.shape[k]);
        ml_text_printf(&list[1], "]");
    }
    ml_arena_release(&a);
    return st;
}

static const char *write_received(adapter_sender *p, const ml_text list[2], int32_t n,
                                  uint64_t version) {
    ml_text config = { 0 }, dtypes = { 0 };
    const char *body;

    ml_json_quote(&config, p->run->lora.config.text);
    for (int32_t i = 0; i < n; i++)
        ml_text_printf(&dtypes, "%s\"float32\"", i ? "," : "");
    body = ml_arena_printf(&p->arena,
                           "{%s,\"group_name\":\"" GROUP "\",\"config_text\":%s,"
                           "\"names\":[%s],\"shapes\":[%s],\"dtypes\":[%s]}",
                           write_adapter(p, version), config.ptr, list[0].ptr, list[1].ptr,
                           dtypes.ptr);
    ml_text_release(&config);
    ml_text_release(&dtypes);
    return body;
}

static ml_status fill_adapter(adapter_sender *p, ml_remote_step step[2], uint64_t version,
                              ml_err *err) {
    ml_text list[2] = { { 0 }, { 0 } };
    ml_status st;

    ml_weight_source_begin(p->source, version);
    st = copy_tensors(p, list, err);
    if (st == ML_OK) {
        ml_weight_source_commit(p->source);
        step[0] = init_step(&p->arena, p->address, p->source, p->timeout_s);
        step[1] =
            (ml_remote_step){ "/load_lora_adapter_from_distributed",
                              write_received(p, list, ml_weight_source_count(p->source),
                                             version) };
    }
    ml_text_release(&list[0]);
    ml_text_release(&list[1]);
    return st;
}

static ml_status send_remote_adapter(ml_publisher *of, const ml_weights *w, ml_err *err) {
    adapter_sender *p = (adapter_sender *)of;
    ml_gen *gen = of->generator->gen;
    ml_remote_step *step = ML_NEW(&p->arena, ml_remote_step, 2);
    ml_status st = ML_OK;

    if (!p->crc64 && !w->range) /* of ranks that divide the base, none has the checksum */
        st = ml_weights_crc64(&p->crc64, w, &p->run->spec, err);
    if (st == ML_OK)
        st = p->dir ? write_files(p, step, w->version, err)
                    : fill_adapter(p, step, w->version, err);
    if (st != ML_OK)
        return st;
    gen->pause(gen); /* requests in flight are recomputed, not waited for */
    st = ml_remote_update(gen, step, p->dir ? 1 : 2, w->version, err);
    gen->resume(gen);
    return st;
}

static void close_remote_adapter(ml_publisher *of) {
    adapter_sender *p = (adapter_sender *)of;

    ml_weight_source_close(p->source);
    ml_arena_release(&p->arena);
    free(p);
}

ml_status ml_publisher_remote_adapter(ml_publisher **out, const char *dir,
                                      const char *address, double timeout_s,
                                      ml_train_run *run, ml_err *err) {
    adapter_sender *p = make(
        sizeof *p,
        (ml_publisher){ .send = send_remote_adapter, .close = close_remote_adapter }, err);
    ml_status st;

    *out = p ? &p->of : NULL;
    if (!p)
        return ML_ENOMEM;
    ml_arena_init(&p->arena, "the adapter for engines");
    p->run = run;
    p->dir = dir;
    if (dir)
        return ML_OK;
    p->address = ml_arena_printf(&p->arena, "%s", address);
    p->timeout_s = wait_of(timeout_s);
    p->of.bytes = ml_weights_bytes(&run->lora.spec, NULL, ML_WEIGHT_F32);
    st = ml_weight_source_open(&p->source, listens_at(address), p->timeout_s, err);
    if (st != ML_OK)
        ml_err_prefix(err, "--update-weight-transfer-mode broadcast");
    return st;
}

/* --- disk ------------------------------------------------------------------------- */

typedef struct disk {
    ml_publisher of; /* first */
    ml_publish_opts opts;
    ml_train_run *run;
    ml_weight_stream *stream; /* NULL: full weights, each time */
    ml_pull pull;
} disk;

static ml_status tell_observers(disk *d, const char *dir, ml_err *err) {
    return ml_observe(&d->run->observers,
                      &(ml_loop_event){ .kind = ML_ON_WEIGHTS_WRITTEN,
                                        .rollout = d->run->rollout,
                                        .what = dir },
                      err);
}

static ml_status send_whole(ml_publisher *p, const ml_weights *w, ml_err *err) {
    disk *d = (disk *)p;
    ml_gen *gen = p->generator->gen;
    ml_text path = { 0 };
    ml_status st = ml_weight_dir_write(&path, d->opts.dir, w, &d->run->spec, d->run->from,
                                       d->opts.shard_bytes, err);

    if (st == ML_OK)
        st = tell_observers(d, path.ptr, err);
    if (st == ML_OK) {
        gen->pause(gen); /* requests in flight are recomputed, not waited for */
        st = gen->load(gen, path.ptr, w->version, ML_SWITCH_RECOMPUTE, err);
        gen->resume(gen);
    }
    ml_text_release(&path);
    return st;
}

/* On the first pull, engines discard copies of another run's versions. */
static ml_status pull(disk *d, int64_t version, ml_err *err) {
    ml_status st = ML_OK;

    if (d->pull.version < 0) {
        d->pull.version = 0;
        st = ml_remote_pull(d->of.generator->gen, &d->pull, err);
    }
    if (st != ML_OK || version == 0)
        return st;
    d->pull.version = version;
    return ml_remote_pull(d->of.generator->gen, &d->pull, err);
}

static ml_status deliver(disk *d, const ml_weight_update *update, const ml_weights *w,
                         ml_err *err) {
    ml_gen *gen = d->of.generator->gen;
    ml_status st = update->dir ? tell_observers(d, update->dir, err) : ML_OK;

    if (st == ML_OK)
        st = pull(d, update->version, err);
    if (st != ML_OK)
        return st;
    gen->pause(gen);
    st = ml_remote_load_pulled(gen, &d->pull, w->version, ML_SWITCH_RECOMPUTE, err);
    gen->resume(gen);
    return st;
}

static void report(const ml_weight_update *n) {
    if (!n->dir)
        ml_log(ML_LOG_INFO, "weight_sync: engines start with the weights they have");
    else if (n->is_whole)
        ml_log(ML_LOG_INFO, "weight_sync: %s is complete, %zu bytes", n->dir, n->n_byte);
    else
        ml_log(ML_LOG_INFO, "weight_sync: %s is a delta of %zu bytes; %zu of %zu changed",
               n->dir, n->n_written, n->n_changed, n->n_byte);
}

/* Miles' metrics; for full weights the changed fraction is not known. */
static void record(disk *d, const ml_weight_update *n) {
    ml_metrics metrics;
    ml_arena a;

    if (!n->dir)
        return;
    ml_arena_init(&a, "metrics of weights");
    ml_metrics_init(&metrics, &a);
    if (!n->is_whole)
        ml_metrics_add(&metrics, "perf/", "update_weights_density",
                       (double)n->n_changed / (double)n->n_byte);
    ml_metrics_add(&metrics, "perf/", "update_weights_wire_bytes",
                   (double)(n->is_whole ? n->n_byte : n->n_written));
    ml_run_log_timing(&d->run->log, d->run->rollout, &metrics);
    ml_arena_release(&a);
}

static ml_status send_update(ml_weight_update *out, disk *d, const ml_weights *w,
                             bool whole, ml_err *err) {
    ml_status st = ml_weight_stream_publish(out, d->stream, w, whole, err);

    if (st != ML_OK)
        return st;
    report(out);
    record(d, out);
    return deliver(d, out, w, err);
}

/* If an engine cannot apply a delta, the full weights are published. */
static ml_status send_delta(ml_publisher *p, const ml_weights *w, ml_err *err) {
    disk *d = (disk *)p;
    ml_weight_update update;
    ml_err why = { 0 };
    ml_status st = send_update(&update, d, w, false, &why);

    if (st == ML_EPEER && !update.is_whole) {
        ml_log(ML_LOG_WARN, "%s; publishing all weights instead", why.msg);
        return send_update(&update, d, w, true, err);
    }
    if (st != ML_OK && err)
        *err = why;
    return st;
}

static void close_disk(ml_publisher *p) {
    disk *d = (disk *)p;

    ml_weight_stream_close(d->stream);
    free(d);
}

ml_status ml_publisher_disk(ml_publisher **out, const ml_publish_opts *o, ml_train_run *run,
                            ml_err *err) {
    ml_weight_stream_opts stream = { .delta = o->write,
                                     .spec = &run->spec,
                                     .from = run->from };
    disk *d = make(
        sizeof *d,
        (ml_publisher){ .send = o->delta ? send_delta : send_whole, .close = close_disk },
        err);

    *out = d ? &d->of : NULL;
    if (!d)
        return ML_ENOMEM;
    d->opts = *o;
    d->run = run;
    if (!o->delta)
        return ML_OK;
    d->pull = (ml_pull){ .local = o->copy, .source = o->dir, .version = -1 };
    d->of.bytes = ml_weights_bytes(&run->spec, run->from, run->opts.dtype);
    return ml_weight_stream_open(&d->stream, &stream, err);
}
