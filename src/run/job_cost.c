#include "run/job_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "model/kv.h"
#include "train/grads.h"
#include "train/pipeline.h"

const char *const ml_job_memory_names[ML_JOB_MEMORY_ROWS] = {
    "device context",
    "communicators",
    "weights",
    "gradients",
    "optimizer state",
    "gathered weights",
    "rank exchange",
    "activations",
    "scratch",
    "forward-only activations",
    "forward-only scratch",
};

const char *const ml_job_traffic_names[ML_TRAFFICS] = {
    "gathered weights",
    "keys and values",
    "rows of experts",
    "between stages",
    "gradients and weights of the step",
};

/* --- collectives ------------------------------------------------------------ */

ml_job_group ml_job_group_of(int32_t stride, int32_t size, int32_t gpus_per_node) {
    int32_t here = gpus_per_node / stride;

    here = here < 1 ? 1 : here;
    return (ml_job_group){ .size = size, .in_node = here < size ? here : size };
}

static double slower(const ml_speeds *s, const double bytes[ML_LINKS], double n,
                     double moved[ML_LINKS]) {
    double most = 0;

    for (int l = 0; l < ML_LINKS; l++) {
        most = fmax(most, ml_link_seconds(s, (ml_link_kind)l, bytes[l], n));
        moved[l] += bytes[l];
    }
    return most;
}

/* Each rank fetches its share over the network; the ranks of a node exchange these. */
double ml_job_gather_seconds(const ml_speeds *s, ml_job_group g, double bytes,
                             double moved[ML_LINKS]) {
    double nodes = g.size / g.in_node;
    double by_link[ML_LINKS] = {
        [ML_LINK_NODE] = bytes * (g.in_node - 1) / g.in_node,
        [ML_LINK_NETWORK] = bytes * (nodes - 1) / nodes / g.in_node,
    };
    return slower(s, by_link, 1, moved);
}

double ml_job_swap_seconds(const ml_speeds *s, ml_job_group g, double bytes,
                           double moved[ML_LINKS]) {
    double by_link[ML_LINKS] = {
        [ML_LINK_NODE] = bytes * (g.in_node - 1) / g.size,
        [ML_LINK_NETWORK] = bytes * (g.size - g.in_node) / g.size,
    };
    return slower(s, by_link, 1, moved);
}
/* --- groups of a mesh --------------------------------------------------------- */

typedef struct groups {
    ml_job_group gather, replica, expert, expert_data, expert_gather, context, stage;
    double n_place; /* ranks of a stage */
} groups;

static groups groups_of(const ml_mesh_sizes *m, int32_t per_node) {
    int32_t tp = m->size[ML_MESH_TP], cp = m->size[ML_MESH_CP];
    int32_t n_place = tp * cp * m->size[ML_MESH_DP], gather = m->gather;
    int32_t here = n_place < per_node ? n_place : per_node, parts = m->etp * m->ep;
    int32_t runs_here = per_node / (tp * cp), replicas = n_place / gather;
    groups g = { .n_place = n_place,
                 .expert = ml_job_group_of(m->etp, m->ep, per_node),
                 .expert_data = ml_job_group_of(parts, n_place / parts, per_node),
                 .expert_gather = ml_job_group_of(1, m->etp, per_node),
                 .context = ml_job_group_of(tp, cp, per_node),
                 .stage = ml_job_group_of(n_place, m->size[ML_MESH_PP], per_node) };

    /* Data places are tp x dp: with context parallelism, runs of tp ranks. */
    g.gather = ml_job_group_of(1, gather, per_node);
    if (cp > 1 && runs_here)
        g.gather.in_node = fmin(gather, (double)runs_here * tp);
    else if (cp > 1)
        g.gather.in_node = fmin(fmin(gather, tp), per_node);
    g.replica.size = replicas;
    g.replica.in_node = fmax(1, fmin(g.replica.size, here / g.gather.in_node));
    return g;
}

/* --- a layout ----------------------------------------------------------------- */

typedef struct layout_cost {
    ml_job_planner *p;
    const ml_job_request *req;
    ml_job_cost *out;
    groups g;
    int32_t ep_index;
    int32_t n_stage, n_chunk;   /* of the pipeline; of a rank */
    ml_job_stage **stage;       /* [n_stage * n_chunk] in the order of the model */
    double *forward, *backward; /* [n_stage * n_chunk] seconds of a micro-batch */
    double *exposed;            /* [n_stage * n_chunk] of both */
    ml_arena a;
} layout_cost;

static double weight_size(const layout_cost *c) {
    return c->req->bf16 ? 2 : 4;
}

/* Elements of a unit that are gathered before use, from the ranks that divide the weights;
 * and from those that divide the experts of a rank. */
static double gathered_dense(const layout_cost *c, const ml_job_unit *u) {
    const ml_mesh_sizes *m = &c->out->mesh;

    if (m->gather == 1)
        return 0;
    return u->dense + (m->ep * m->etp > 1 ? 0 : u->expert);
}

static double gathered_expert(const layout_cost *c, const ml_job_unit *u) {
    const ml_mesh_sizes *m = &c->out->mesh;
    return m->etp == 1 ? 0 : u->expert / m->ep;
}

/* Seconds to gather a unit's weights, or to sum its gradients: `size` bytes an element. */
static double gather_seconds(const layout_cost *c, const ml_job_unit *u, double size,
                             double *by_link) {
    const ml_speeds *v = c->req->speeds;
    double expert = size * gathered_expert(c, u);
    double s = ml_job_gather_seconds(v, c->g.gather, size * gathered_dense(c, u), by_link);

    if (expert > 0)
        s += ml_job_gather_seconds(v, c->g.expert_gather, expert, by_link);
    return s;
}

/* Ranks that divide the experts of a stage. */
static double expert_parts(const ml_mesh_sizes *m) {
    return m->ep * m->etp > 1 ? m->ep * m->etp : m->gather;
}

/* What a micro-batch communicates in a pass, besides weights: compute waits for it. */
static double wait_seconds(const layout_cost *c, const ml_job_unit *u, bool back,
                           double moved[ML_TRAFFICS][ML_LINKS]) {
    const ml_speeds *s = c->req->speeds;
    double cp = c->g.context.size, t = 0;

    if (cp > 1) {
        t += ml_job_gather_seconds(s, c->g.context, cp * (back ? u->keys_back : u->keys),
                                   moved[ML_TRAFFIC_KEYS]);
        t += ml_job_swap_seconds(s, c->g.context, back ? u->heads_back : u->heads,
                                 moved[ML_TRAFFIC_KEYS]);
    }
    if (c->g.expert.size > 1)
        t += ml_job_swap_seconds(s, c->g.expert, back ? u->rows_back : u->rows,
                                 moved[ML_TRAFFIC_EXPERTS]);
    return t;
}

/* A pass of a stage: the weights of the next unit arrive, and the gradients of the last
 * one leave, while this one computes.  Returns the seconds beyond compute. */
static double pass_seconds(const layout_cost *c, const ml_job_stage *s, bool back,
                           double moved[ML_TRAFFICS][ML_LINKS], double *comm,
                           double *compute_s) {
    const ml_speeds *v = c->req->speeds;
    double *by_link = moved[ML_TRAFFIC_GATHER], extra = 0, left = 0;

    for (int32_t i = 0; i < s->n_unit; i++) {
        const ml_job_unit *u = &s->unit[back ? s->n_unit - 1 - i : i];
        const ml_job_unit *next = i + 1 == s->n_unit ? NULL : back ? u - 1 : u + 1;
        double wait = wait_seconds(c, u, back, moved), beside = left;
        double work = ml_job_unit_seconds(c->p, u, back, c->ep_index);
        double compute = work + wait, first = 0;
        if (i == 0)
            first = gather_seconds(c, u, weight_size(c), by_link);
        if (next)
            beside += gather_seconds(c, next, weight_size(c), by_link);
        left = back ? gather_seconds(c, u, 4, by_link) : 0;
        extra += first + wait + (v->overlap ? fmax(0, beside - compute) : beside);
        *comm += first + wait + beside;
        *compute_s += work;
    }
    *comm += left;
    return extra + left;
}

/* Which stage has each node; the last answer is kept, for other layouts. */
static ml_status deal_nodes(layout_cost *c, const int32_t **out, ml_err *err) {
    ml_job_planner *p = c->p;
    ml_stage_opts o = c->req->stages;
    ml_status st = ML_OK;

    *out = p->node_stage;
    if (p->n_pp == c->n_stage && p->n_chunk == c->n_chunk)
        return ML_OK;
    p->n_pp = 0;
    o.n_stage = c->n_stage;
    o.n_chunk = c->n_chunk;
    st = ml_stage_of_nodes(p->node_stage, c->req->spec, &o, err);
    if (st == ML_OK) {
        p->n_pp = c->n_stage;
        p->n_chunk = c->n_chunk;
    }
    return st;
}

static ml_status plan_stages(layout_cost *c, ml_err *err) {
    const int32_t *stage;
    ml_status st = deal_nodes(c, &stage, err);

    for (int32_t i = 0; i < c->n_stage * c->n_chunk && st == ML_OK; i++) {
        int32_t first = 0, end = 0;
        if (!ml_stage_chunk(stage, c->req->spec->n_node, i % c->n_stage, i / c->n_stage,
                            &first, &end))
            ML_BUG_IF(true); /* each stage has layers */
        st = ml_job_stage_find(c->p, first, end, c->out->mesh.size[ML_MESH_CP],
                               c->out->layout.recompute, &c->stage[i], err);
    }
    return st;
}

/* Adds the bytes and seconds of all micro-batches of each stage; the figures of the step
 * are those of the rank with most bytes. */
static void time_stages(layout_cost *c) {
    ml_job_cost *out = c->out;
    double most = -1;

    for (int32_t r = 0; r < c->n_stage; r++) {
        double moved[ML_TRAFFICS][ML_LINKS] = { 0 }, comm = 0, sum = 0;
        for (int32_t k = 0; k < c->n_chunk; k++) {
            int32_t i = k * c->n_stage + r;
            const ml_job_stage *s = c->stage[i];
            double f, b;
            c->forward[i] = c->backward[i] = 0;
            f = pass_seconds(c, s, false, moved, &comm, &c->forward[i]);
            b = pass_seconds(c, s, true, moved, &comm, &c->backward[i]);
            c->forward[i] += f;
            c->backward[i] += b;
            c->exposed[i] = f + b;
            moved[ML_TRAFFIC_STAGES]
                 [c->g.stage.in_node > 1 ? ML_LINK_NODE : ML_LINK_NETWORK] +=
                s->border + (i ? c->stage[i - 1]->border : 0);
        }
        for (int t = 0; t < ML_TRAFFICS; t++)
            for (int l = 0; l < ML_LINKS; l++)
                sum += moved[t][l];
        if (sum <= most)
            continue;
        most = sum;
        out->comm_s = comm * (double)out->n_micro;
        for (int t = 0; t < ML_TRAFFICS; t++)
            for (int l = 0; l < ML_LINKS; l++)
                out->bytes[t][l] = moved[t][l] * (double)out->n_micro;
    }
}

/* --- micro-batches --------------------------------------------------------------- */

static double border_seconds(const layout_cost *c) {
    ml_link_kind link = c->g.stage.in_node > 1 ? ML_LINK_NODE : ML_LINK_NETWORK;
    double most = 0;

    for (int32_t i = 0; i < c->n_stage * c->n_chunk; i++)
        most = fmax(most, c->stage[i]->border);
    return ml_link_seconds(c->req->speeds, link, most, 1);
}

/* The busiest rank: its seconds for one micro-batch, and those of them that it waits for
 * communication. */
static double busiest(const layout_cost *c, double *exposed) {
    double most = 0;

    for (int32_t r = 0; r < c->n_stage; r++) {
        double t = 0, e = 0;
        for (int32_t i = r; i < c->n_stage * c->n_chunk; i += c->n_stage) {
            t += c->forward[i] + c->backward[i];
            e += c->exposed[i];
        }
        if (t > most) {
            most = t;
            *exposed = e;
        }
    }
    return most;
}

/* Enough micro-batches for the pipeline to be full. */
static int32_t few_micro(const layout_cost *c) {
    int64_t few = 4 * (int64_t)c->n_stage;
    return (int32_t)(c->out->n_micro < few ? c->out->n_micro : few);
}

/* Many micro-batches differ from few by steps of the busiest rank. */
static void time_micro_batches(layout_cost *c) {
    ml_job_cost *out = c->out;
    int32_t n = few_micro(c);
    ml_job_pipeline pipeline = { .n_stage = c->n_stage,
                                 .n_chunk = c->n_chunk,
                                 .n_micro = n,
                                 .forward = c->forward,
                                 .backward = c->backward,
                                 .send_s = border_seconds(c) };
    double exposed = 0, one = busiest(c, &exposed), all;

    all = c->n_stage == 1
              ? one * (double)out->n_micro
              : ml_job_pipeline_seconds(&pipeline) + one * (double)(out->n_micro - n);
    out->exposed_s = exposed * (double)out->n_micro;
    out->compute_s = (one - exposed) * (double)out->n_micro;
    out->bubble_s = all - one * (double)out->n_micro;
}

/* --- memory --------------------------------------------------------------------- */

/* Sets of activations of each of a rank's stages that are kept at once, [n_chunk]. */
static const double *sets_of(layout_cost *c, int32_t rank) {
    ml_pipeline_opts o = { c->n_stage, c->n_chunk, few_micro(c), .backward = true };
    double *most = ML_NEW(&c->a, double, c->n_chunk), *now;
    ml_pass *pass;
    int32_t n;

    most[0] = 1;
    if (c->n_stage == 1)
        return most;
    now = ML_NEW(&c->a, double, c->n_chunk);
    n = ml_pipeline_passes(&pass, &c->a, &o, rank);
    for (int32_t i = 0; i < n; i++) {
        int32_t k = pass[i].chunk;
        now[k] += pass[i].backward ? -1 : 1;
        most[k] = fmax(most[k], now[k]);
    }
    return most;
}

/* Keys and values of all context parallel ranks, and their gradients, of a layer. */
static double keys_bytes(const layout_cost *c, const ml_job_stage *s) {
    double most = 0, cp = c->g.context.size;

    for (int32_t i = 0; i < s->n_unit; i++)
        most = fmax(most, s->unit[i].keys);
    return (cp - 1) * 3 * most;
}

/* Two units are gathered at a time, and one has the gradients of all its weights. */
static double gathered_bytes(const layout_cost *c, const ml_job_stage *s) {
    double most = 0;

    for (int32_t i = 0; i < s->n_unit; i++) {
        const ml_job_unit *u = &s->unit[i];
        double one = gathered_dense(c, u) + gathered_expert(c, u), two = one;
        if (i + 1 < s->n_unit)
            two += gathered_dense(c, u + 1) + gathered_expert(c, u + 1);
        most = fmax(most, weight_size(c) * two + 4 * one);
    }
    return most;
}

static double all_elements(const ml_job_request *req) {
    return (double)ml_spec_param_count(req->spec);
}

/* Elements of a stage that a rank has, and those whose optimizer state it owns. */
static double resident(const layout_cost *c, const ml_job_stage *s) {
    const ml_mesh_sizes *m = &c->out->mesh;
    return s->dense / m->gather + s->expert / expert_parts(m);
}

static double owned(const layout_cost *c, const ml_job_stage *s) {
    return (s->dense + s->expert) / c->g.n_place;
}

static ml_job_memory memory_of(layout_cost *c, int32_t rank) {
    const ml_job_request *req = c->req;
    double all = all_elements(req), mine = 0, own = 0;
    const double *sets = sets_of(c, rank);
    double more = 0;
    bool several = ml_mesh_world(&c->out->mesh) > 1;
    ml_mesh mesh = { .sizes = c->out->mesh };
    ml_optimizer_opts exchange = { .mesh = &mesh };
    ml_job_memory m = { .row = { [ML_JOB_BASE] = req->speeds->base_bytes,
                                 [ML_JOB_COMM] = several ? req->speeds->comm_bytes : 0 } };

    for (int32_t k = 0; k < c->n_chunk; k++) {
        const ml_job_stage *s = c->stage[k * c->n_stage + rank];
        more = fmax(more, keys_bytes(c, s));
        mine += resident(c, s);
        own += owned(c, s);
        m.row[ML_JOB_GATHERED] = fmax(m.row[ML_JOB_GATHERED], gathered_bytes(c, s));
        m.row[ML_JOB_ACTIVATIONS] += fmin(s->act * sets[k], s->shared + s->set * sets[k]);
        m.row[ML_JOB_SCRATCH] = fmax(m.row[ML_JOB_SCRATCH], s->scratch);
        m.row[ML_JOB_SCORE_ACTIVATIONS] += s->score_act;
        m.row[ML_JOB_SCORE_SCRATCH] = fmax(m.row[ML_JOB_SCORE_SCRATCH], s->score_scratch);
    }
    /* In turns with training, as in memory_plan.c. */
    m.row[ML_JOB_SCORE_ACTIVATIONS] =
        fmax(0, m.row[ML_JOB_SCORE_ACTIVATIONS] - m.row[ML_JOB_ACTIVATIONS]);
    m.row[ML_JOB_SCORE_SCRATCH] =
        fmax(0, m.row[ML_JOB_SCORE_SCRATCH] - m.row[ML_JOB_SCRATCH]);
    m.row[ML_JOB_ACTIVATIONS] += more;
    m.row[ML_JOB_WEIGHTS] = (double)req->weight_bytes * req->n_set * mine / all;
    m.row[ML_JOB_GRADIENTS] = c->p->grad_bytes * mine / all;
    m.row[ML_JOB_STATE] = c->p->state_bytes * own / all;
    m.row[ML_JOB_EXCHANGE] =
        several ? (double)ml_optimizer_exchange_bytes(req->spec, &exchange) : 0;
    for (int i = 0; i < ML_JOB_MEMORY_ROWS; i++)
        m.total += m.row[i];
    return m;
}

/* The fewest ranks of an engine whose weights take half of the memory at most. */
static int32_t engine_ranks_of(const ml_job_request *req) {
    int32_t n = req->engine_ranks > 0 ? req->engine_ranks : 1;

    while (!req->engine_ranks &&
           (double)req->weight_bytes / n > req->speeds->memory_bytes / 2)
        n *= 2;
    return n;
}

/* The KV cache gets what is left; in turns with training, all but weights.  Keys of latent
 * attention are not divided; for the others there are enough heads. */
static void leave_kv(layout_cost *c) {
    const ml_job_request *req = c->req;
    ml_job_cost *out = c->out;
    const ml_mesh_sizes *m = &out->mesh;
    const double *row = out->memory.row;
    bool whole = m->gather == 1 && m->ep * m->etp == 1 && m->size[ML_MESH_PP] == 1;
    double used = req->in_turns ? row[ML_JOB_BASE] + row[ML_JOB_COMM] + row[ML_JOB_WEIGHTS]
                                : out->memory.total;
    double page = (double)ml_kv_bytes(req->spec, req->be, 1), left;

    out->engine_ranks = engine_ranks_of(req);
    out->engine_bytes =
        whole && out->engine_ranks == 1 ? 0 : (double)req->weight_bytes / out->engine_ranks;
    left = req->speeds->memory_bytes - used - out->engine_bytes - (double)req->engine_bytes;
    out->kv_bytes = fmax(0, left * (req->mem_fraction > 0 ? req->mem_fraction : 1));
    out->kv_tokens = page > 0 ? floor(out->kv_bytes / page) * ML_PAGE : 0;
}

static void weigh(layout_cost *c) {
    ml_job_cost *out = c->out;

    for (int32_t r = 0; r < c->n_stage; r++) {
        ml_job_memory m = memory_of(c, r);
        if (m.total > out->memory.total) {
            out->memory = m;
            out->worst_stage = r;
        }
    }
    out->fits = out->memory.total <= c->req->speeds->memory_bytes;
    leave_kv(c);
}

/* --- the step ------------------------------------------------------------------- */

enum { ADAM_BYTES = 34, ZERO_BYTES = 4 }; /* per element: norm, update; zeroed gradients */

/* Sums of gradients and new weights, over the ranks that have the same part. */
static double reduce_seconds(const layout_cost *c, double elements, ml_job_group g) {
    double *moved = c->out->bytes[ML_TRAFFIC_STEP];

    return ml_job_gather_seconds(c->req->speeds, g, 4 * elements, moved) +
           ml_job_gather_seconds(c->req->speeds, g, weight_size(c) * elements, moved);
}

static void time_step(layout_cost *c) {
    const ml_job_request *req = c->req;
    ml_job_cost *out = c->out;
    const ml_mesh_sizes *m = &out->mesh;
    double most = 0;

    for (int32_t r = 0; r < c->n_stage; r++) {
        double dense = 0, expert = 0, own = 0, mine = 0;
        for (int32_t i = r; i < c->n_stage * c->n_chunk; i += c->n_stage) {
            dense += c->stage[i]->dense / m->gather;
            expert += c->stage[i]->expert / expert_parts(m);
            own += owned(c, c->stage[i]);
            mine += resident(c, c->stage[i]);
        }
        if (mine <= most)
            continue;
        most = mine;
        memset(out->bytes[ML_TRAFFIC_STEP], 0, sizeof out->bytes[ML_TRAFFIC_STEP]);
        out->reduce_s = m->ep * m->etp > 1
                            ? reduce_seconds(c, dense, c->g.replica) +
                                  reduce_seconds(c, expert, c->g.expert_data)
                            : reduce_seconds(c, dense + expert, c->g.replica);
        out->optimizer_s =
            (ADAM_BYTES * own + ZERO_BYTES * mine) / req->speeds->optimizer_bytes;
    }
    out->comm_s += out->reduce_s;
    out->host_s = req->speeds->step_s + req->speeds->micro_s * (double)out->n_micro;
    out->step_s = out->compute_s + out->exposed_s + out->bubble_s + out->reduce_s +
                  out->optimizer_s + out->host_s;
    out->tokens_per_s = out->step_tokens / out->step_s;
}

static void count_micro_batches(layout_cost *c) {
    const ml_job_request *req = c->req;
    ml_job_cost *out = c->out;
    int32_t cp = out->mesh.size[ML_MESH_CP], data = ml_mesh_data_size(&out->mesh);
    int64_t batch =
        req->opts.batch.global_batch_size > 0 ? req->opts.batch.global_batch_size : 1;
    int64_t each = (batch + data - 1) / data, per = ml_job_micro_samples(req, cp);

    out->n_micro = (each + per - 1) / per;
    out->micro_tokens = per * req->sample_tokens / cp;
    out->step_tokens = (double)batch * (double)req->sample_tokens;
}

/* Model FLOPs: forward, and twice as many backward, without recomputation. */
static void count_flops(layout_cost *c) {
    ml_job_cost *out = c->out;
    double flops = 0;

    for (int32_t i = 0; i < c->n_stage * c->n_chunk; i++)
        flops += 3 * c->stage[i]->flops;
    out->flops_per_s_gpu = flops / (double)out->micro_tokens * out->step_tokens /
                           out->step_s / (double)ml_mesh_world(&out->mesh);
}

/* --- entry points ----------------------------------------------------------------- */

ml_status ml_job_planner_open(ml_job_planner **out, const ml_job_request *req,
                              ml_err *err) {
    ml_job_planner *p = calloc(1, sizeof *p);

    if (!p)
        return ml_fail(err, ML_ENOMEM, "out of memory for a planner");
    p->req = req;
    ml_arena_init(&p->arena, "planner");
    for (int32_t i = 0; i < req->spec->n_param; i++) {
        const ml_param *param = &req->spec->param[i];
        if (param->shard != ML_SHARD_EXPERT)
            continue;
        p->expert += (double)ml_param_count(param);
        p->n_expert = param->n_stack > p->n_expert ? param->n_stack : p->n_expert;
    }
    for (int32_t k = 1; k <= p->n_expert || k == 1; k++)
        if ((k == 1 || p->n_expert % k == 0) && p->n_ep < ML_JOB_SIZES)
            p->ep[p->n_ep++] = k;
    p->grad_bytes = (double)ml_grads_bytes(req->spec, NULL, true, 0);
    p->state_bytes = (double)ml_optimizer_bytes(req->spec, &req->opts.optimizer, req->bf16);
    p->node_stage = ML_NEW(&p->arena, int32_t, req->spec->n_node);
    ml_job_find_kinds(p);
    *out = p;
    return ML_OK;
}

int32_t ml_job_ep_index(const ml_job_planner *p, int32_t ep) {
    int32_t i = 0;

    while (i < p->n_ep && p->ep[i] != ep)
        i++;
    ML_BUG_IF(i == p->n_ep);
    return i;
}

void ml_job_planner_close(ml_job_planner *p) {
    if (!p)
        return;
    free(p->stage);
    ml_arena_release(&p->arena);
    free(p);
}

static ml_status check_layout(const ml_job_planner *p, const ml_job_layout *l,
                              ml_err *err) {
    int32_t ep = l->mesh.ep;

    if (ep > 1 && !p->n_expert)
        return ml_fail(err, ML_EUSAGE,
                       "--expert-model-parallel-size %d needs a model with experts, and %s "
                       "has none: use 1",
                       (int)ep, p->req->spec->family);
    if (ep > 1 && p->n_expert % ep)
        return ml_fail(err, ML_EUSAGE,
                       "--expert-model-parallel-size %d does not divide the %d experts of "
                       "a layer: use a divisor of %d",
                       (int)ep, (int)p->n_expert, (int)p->n_expert);
    if (l->n_chunk > 1 && l->mesh.pp <= 1)
        return ml_fail(err, ML_EUSAGE,
                       "--num-virtual-stages-per-pipeline-rank needs "
                       "--pipeline-model-parallel-size 2 or more");
    return ML_OK;
}

static void open_cost(layout_cost *c, ml_job_planner *p, ml_job_cost *out) {
    int32_t n;

    c->p = p;
    c->req = p->req;
    c->out = out;
    c->n_stage = out->mesh.size[ML_MESH_PP];
    c->n_chunk = out->layout.n_chunk > 1 ? out->layout.n_chunk : 1;
    c->g = groups_of(&out->mesh, p->req->gpus_per_node);
    c->ep_index = ml_job_ep_index(p, out->mesh.ep);
    n = c->n_stage * c->n_chunk;
    c->stage = ML_NEW(&c->a, ml_job_stage *, n);
    c->forward = ML_NEW(&c->a, double, n);
    c->backward = ML_NEW(&c->a, double, n);
    c->exposed = ML_NEW(&c->a, double, n);
}

ml_status ml_job_cost_of(ml_job_cost *out, ml_job_planner *p, const ml_job_layout *layout,
                         ml_err *err) {
    const ml_job_request *req = p->req;
    layout_cost c = { 0 };
    ml_status st = check_layout(p, layout, err);

    *out = (ml_job_cost){ .layout = *layout };
    if (st == ML_OK)
        st = ml_mesh_size(&out->mesh, req->n_node * req->gpus_per_node, layout->mesh, err);
    if (st != ML_OK)
        return st;
    ml_arena_init(&c.a, "the cost of a layout");
    open_cost(&c, p, out);
    st = plan_stages(&c, err);
    if (st == ML_OK) {
        count_micro_batches(&c);
        time_stages(&c);
        time_micro_batches(&c);
        weigh(&c);
        time_step(&c);
        count_flops(&c);
    }
    ml_arena_release(&c.a);
    return st;
}
