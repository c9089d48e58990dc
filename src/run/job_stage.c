#include <stdlib.h>
#include <string.h>

#include "base/oom.h"
#include "run/job_priv.h"
#include "run/memory_plan.h"

/* --- calls ------------------------------------------------------------------ */

typedef struct visit {
    ml_job_planner *p;
    ml_job_stage *s;
    const ml_plan *plan;
    int32_t *unit_of; /* [n_value] of the node that computes it */
    int32_t first_layer, last_unit;
    bool in_layers;
    bool *counted; /* [n_param] */
} visit;

static int32_t unit_of(visit *v, const ml_node *n, ml_plan_pass pass) {
    if (pass == ML_PASS_FORWARD) {
        v->in_layers = v->in_layers || n->layer != ML_NONE;
        v->unit_of[n->out[0]] = n->layer != ML_NONE ? n->layer - v->first_layer + 1
                                : v->in_layers && n->op != ML_OP_ROPE_TABLE ? v->last_unit
                                                                            : 0;
    }
    return v->unit_of[n->out[0]];
}

/* Parameters of a node; a stack of experts is divided with expert parallelism. */
static void count_params(visit *v, ml_job_unit *u, const ml_node *n) {
    const ml_spec *s = v->p->req->spec;

    for (int k = 0; k < ML_OP_W; k++) {
        const ml_param *p = n->w[k] == ML_NONE ? NULL : &s->param[n->w[k]];
        if (!p || v->counted[n->w[k]])
            continue;
        v->counted[n->w[k]] = true;
        *(p->shard == ML_SHARD_EXPERT ? &u->expert : &u->dense) +=
            (double)ml_param_count(p);
    }
}

static double bytes_of(const ml_tensor *t) {
    return t->n_dim ? (double)ml_tensor_bytes(t) : 0;
}

/* Bytes of rows that leave a rank: keys are gathered and their gradients summed in f32,
 * heads of recurrent layers and rows of experts are swapped, there and back. */
static void count_traffic(ml_job_unit *u, const ml_node *n, ml_plan_pass pass,
                          const ml_op_args *a) {
    double act = (double)ml_dtype_bytes(a->in[0].dtype), keys = 0, heads = 0, rows = 0;

    if (n->op == ML_OP_ATTN || n->op == ML_OP_ATTN_CHOSEN || n->op == ML_OP_INDEX)
        keys = bytes_of(&a->in[1]) + (n->op == ML_OP_ATTN ? bytes_of(&a->in[2]) : 0);
    if (n->op == ML_OP_LINEAR_RNN)
        heads = bytes_of(&a->in[0]) + bytes_of(&a->out[0]);
    if (n->op == ML_OP_MOE_GATHER)
        rows = bytes_of(&a->out[0]);
    if (n->op == ML_OP_MOE_COMBINE)
        rows = bytes_of(&a->in[0]);
    if (pass == ML_PASS_FORWARD) {
        u->keys += keys;
        u->heads += heads;
        u->rows += rows;
        return;
    }
    u->keys_back += pass == ML_PASS_BACKWARD ? keys * (1 + 4 / act) : keys;
    u->heads_back += heads;
    u->rows_back += rows;
}

/* The experts of a rank have the rows of all ranks of their group: as many, on the
 * average, for fewer experts. */
static void time_experts(visit *v, ml_job_unit *u, ml_plan_pass pass, const ml_op_args *a) {
    ml_job_planner *p = v->p;
    ml_op_args b = *a;

    if (!u->expert_s)
        u->expert_s = ML_NEW(&p->arena, double, 2 * p->n_ep);
    for (int32_t i = 0; i < p->n_ep; i++) {
        ml_op_work w;
        b.w[0].shape[0] = a->w[0].shape[0] / p->ep[i];
        w = ml_op_work_of(ML_OP_MOE_LINEAR, pass, &b, 0);
        u->expert_s[(pass != ML_PASS_FORWARD) * p->n_ep + i] +=
            ml_op_seconds(p->req->speeds, ML_OP_MOE_LINEAR, pass, &w);
    }
}

static void visit_call(void *ud, const ml_node *n, ml_plan_pass pass, const ml_op_args *a) {
    visit *v = ud;
    const ml_job_request *req = v->p->req;
    ml_job_unit *u = &v->s->unit[unit_of(v, n, pass)];
    ml_op_work w = ml_op_work_of(n->op, pass, a, (double)req->sample_tokens);

    if (pass == ML_PASS_FORWARD) {
        count_params(v, u, n);
        v->s->flops += ml_op_work_flops(&w);
    }
    count_traffic(u, n, pass, a);
    if (n->op == ML_OP_MOE_LINEAR)
        time_experts(v, u, pass, a);
    else if (!ml_op_infos[n->op].comm)
        *(pass == ML_PASS_FORWARD ? &u->forward_s : &u->backward_s) +=
            ml_op_seconds(req->speeds, n->op, pass, &w);
}

static void visit_stage(ml_job_planner *p, ml_job_stage *s, const ml_plan *plan) {
    const ml_spec *spec = p->req->spec;
    visit v = { .p = p, .s = s, .plan = plan, .first_layer = ML_NONE };
    int32_t last = ML_NONE;

    for (int32_t i = s->first; i < s->end; i++)
        if (spec->node[i].layer != ML_NONE) {
            v.first_layer = v.first_layer == ML_NONE ? spec->node[i].layer : v.first_layer;
            last = spec->node[i].layer;
        }
    v.last_unit = last - v.first_layer + 2;
    s->n_unit = v.last_unit + 1;
    s->unit = ML_NEW(&p->arena, ml_job_unit, s->n_unit);
    v.unit_of = ML_NEW(&p->arena, int32_t, spec->n_value);
    v.counted = ML_NEW(&p->arena, bool, spec->n_param + 1);
    ml_plan_each_call(plan, visit_call, &v);
    for (int32_t i = 0; i < s->n_unit; i++) {
        s->dense += s->unit[i].dense;
        s->expert += s->unit[i].expert;
    }
}

/* --- plans ------------------------------------------------------------------ */

/* Rows of a full micro-batch: of a rank, in memory. */
static int64_t planned_tokens(const ml_job_request *req, int32_t cp, bool score) {
    const ml_schedule_opts *b = &req->opts.batch;
    int64_t piece = (req->sample_tokens + cp - 1) / cp;
    int64_t n = b->dynamic ? b->max_tokens : b->micro_batch_size * piece;

    if (score && req->opts.score_max_tokens)
        n = req->opts.score_max_tokens;
    return n < piece ? piece : n;
}

int64_t ml_job_micro_samples(const ml_job_request *req, int32_t cp) {
    const ml_schedule_opts *b = &req->opts.batch;
    int64_t n = b->dynamic ? b->max_tokens * cp / req->sample_tokens : b->micro_batch_size;

    return n < 1 ? 1 : n;
}

/* Of a plan that shows what sets share: with few, sharing may not pay. */
enum { MANY_SETS = 64 };

static ml_status new_plan(ml_plan **out, const ml_job_request *req, const ml_job_stage *s,
                          int64_t tokens, bool train, int32_t n_set, ml_err *err) {
    bool last = s->end == req->spec->n_node;
    ml_plan_opts o = { .caps = ml_memory_caps(tokens, 1),
                       .backward = train,
                       .logits = train && req->opts.keep_logits && last,
                       .loss_rows = req->opts.loss_rows,
                       .grad_format = req->opts.grad_format,
                       .recompute = req->opts.recompute,
                       .first = s->first,
                       .end = s->end,
                       .n_set = n_set };

    if (s->recompute)
        o.recompute = (ml_recompute){ .granularity = ML_RECOMPUTE_FULL };
    memcpy(o.given, req->opts.replay, sizeof o.given);
    return ml_plan_new(out, req->spec, req->be, o, err);
}

/* Bytes of the values that the next stage receives. */
static double border_of(const ml_plan *plan, int64_t tokens) {
    ml_tensor t[ML_PORTS];
    ml_rows rows = { .n_token = (int32_t)tokens };
    double bytes = 0;
    int32_t n = ml_plan_port(plan, ML_PORT_OUT, &rows, 0, t);

    for (int32_t i = 0; i < n; i++)
        bytes += bytes_of(&t[i]);
    return bytes;
}

static ml_status plan_stage(ml_job_planner *p, ml_job_stage *s, int64_t score_rows,
                            ml_err *err) {
    const ml_job_request *req = p->req;
    ml_plan *plan = NULL, *score = NULL, *time = NULL, *sets = NULL;
    ml_status st = new_plan(&plan, req, s, s->rows, true, 1, err);

    if (st == ML_OK && req->scores)
        st = new_plan(&score, req, s, score_rows, false, 1, err);
    if (st == ML_OK && s->full != s->rows)
        st = new_plan(&time, req, s, s->full, true, 1, err);
    if (st == ML_OK && (s->first > 0 || s->end < req->spec->n_node)) /* of a pipeline */
        st = new_plan(&sets, req, s, s->rows, true, MANY_SETS, err);
    if (st == ML_OK) {
        s->act = (double)ml_plan_act_bytes(plan);
        s->scratch = (double)ml_plan_scratch_bytes(plan);
        s->score_act = score ? (double)ml_plan_act_bytes(score) : 0;
        s->score_scratch = score ? (double)ml_plan_scratch_bytes(score) : 0;
        s->set = sets ? (double)ml_plan_set_bytes(sets) : s->act;
        s->shared = sets ? (double)ml_plan_act_bytes(sets) - MANY_SETS * s->set : 0;
        s->border = border_of(plan, s->full);
        visit_stage(p, s, time ? time : plan);
    }
    ml_plan_free(plan);
    ml_plan_free(score);
    ml_plan_free(time);
    ml_plan_free(sets);
    return st;
}

/* --- kinds of layers --------------------------------------------------------- */

static uint64_t mix(uint64_t h, uint64_t x) {
    return (h ^ x) * 0x100000001b3u;
}

static uint64_t mix_node(uint64_t h, const ml_spec *s, const ml_node *n) {
    h = mix(h, (uint64_t)n->op);
    for (int k = 0; k < ML_OP_W; k++)
        if (n->w[k] != ML_NONE)
            h = mix(h, (uint64_t)ml_param_count(&s->param[n->w[k]]));
    for (int k = 0; k < ML_OP_OUT; k++)
        if (n->out[k] != ML_NONE)
            h = mix(h, (uint64_t)s->value[n->out[k]].width * 64 +
                           (uint64_t)s->value[n->out[k]].mul);
    if (n->op == ML_OP_ATTN)
        h = mix(h, (uint64_t)n->attr.attn.window * 2 + (uint64_t)n->attr.attn.chunk);
    return h;
}

void ml_job_find_kinds(ml_job_planner *p) {
    const ml_spec *s = p->req->spec;

    p->layer_kind = ML_NEW(&p->arena, uint64_t, s->n_layer + 1);
    for (int32_t i = 0; i < s->n_node; i++)
        if (s->node[i].layer != ML_NONE)
            p->layer_kind[s->node[i].layer] =
                mix_node(p->layer_kind[s->node[i].layer], s, &s->node[i]);
}

static uint64_t kind_of(const ml_job_planner *p, int32_t first, int32_t end) {
    const ml_spec *s = p->req->spec;
    uint64_t h = 1;
    int32_t layer = ML_NONE;

    for (int32_t i = first; i < end; i++) {
        if (s->node[i].layer == ML_NONE)
            h = mix_node(h, s, &s->node[i]);
        else if (s->node[i].layer != layer)
            h = mix(h, p->layer_kind[s->node[i].layer]);
        layer = s->node[i].layer;
    }
    return mix(h, end == s->n_node);
}

ml_status ml_job_stage_find(ml_job_planner *p, int32_t first, int32_t end, int32_t cp,
                            bool recompute, ml_job_stage **out, ml_err *err) {
    const ml_job_request *req = p->req;
    ml_job_stage key = { .kind = kind_of(p, first, end),
                         .rows = planned_tokens(req, cp, false),
                         .full = ml_job_micro_samples(req, cp) * req->sample_tokens / cp,
                         .recompute = recompute,
                         .first = first,
                         .end = end };

    for (int32_t i = 0; i < p->n_stage; i++) {
        ml_job_stage *s = p->stage[i];
        if (s->kind == key.kind && s->rows == key.rows && s->full == key.full &&
            s->recompute == key.recompute) {
            *out = s;
            return ML_OK;
        }
    }
    if (p->n_stage == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 64;
        p->stage = ml_memory_grow(p->stage, (size_t)p->cap * sizeof *p->stage, "stages");
    }
    *out = ML_NEW(&p->arena, ml_job_stage, 1);
    **out = key;
    p->stage[p->n_stage++] = *out;
    return plan_stage(p, *out, planned_tokens(req, cp, true), err);
}
