/* plan_experts.c - experts on several ranks: the rows that travel between them.
 *
 * The nodes from SEND_ROWS to RETURN_ROWS run once for each round (expert_rounds.h).  One
 * round is the rule; its values are then saved for backward like any others.  With more,
 * backward computes each round again before it computes its gradients, because there is
 * memory for the values of one. */
#include <string.h>

#include "base/bug.h"
#include "model/plan_priv.h"
#include "model/spec_experts.h"

static ml_comm *comm_of(const ml_plan *p) {
    return p->opts.group[ML_GROUP_EXPERT];
}

/* Of the set of activations that is running. */
static int32_t *table_of(const ml_plan *p, const ml_plan_experts *x) {
    return x->row + (int64_t)p->set * p->experts.n_rank * (1 + x->n_expert);
}

static ml_expert_rows rows_of(const ml_plan *p, const ml_plan_experts *x) {
    return (ml_expert_rows){ p->experts.n_rank, x->n_expert, table_of(p, x) };
}

static int32_t rounds_of(const ml_plan *p, const ml_plan_experts *x) {
    return x->n_round[p->set];
}

/* --- planning ----------------------------------------------------------------- */

/* The rank's place in its expert group; a plan for sizes only has no communicators. */
void ml_plan_experts_place(ml_plan *p) {
    const ml_comm *c = comm_of(p);
    const ml_shard_map *m = p->opts.map;
    ml_spec *mine;

    p->experts.n_rank = c ? c->size : m ? m->mesh.ep : 1;
    p->experts.rank = c ? c->rank : m ? ml_mesh_at_ep(&m->mesh, p->opts.rank) : 0;
    if (p->experts.n_rank == 1)
        return;
    mine = ML_NEW(&p->arena, ml_spec, 1);
    p->experts.number =
        ml_spec_experts(mine, &p->arena, p->spec, p->experts.n_rank, p->experts.rank);
    p->spec = mine;
}

/* The first node of those that make the rows to send: MOE_GATHER. */
static int32_t home_of(const ml_spec *s, int32_t send) {
    while (s->node[send].op != ML_OP_MOE_GATHER)
        send--;
    return send;
}

static int64_t slots_of(const ml_plan *p, const ml_plan_experts *x) {
    return (int64_t)p->opts.caps.n_token * p->spec->node[x->send].attr.moe.top_k;
}

/* Whether adapters of a layer's experts may drop inputs: in training, on the host. */
static bool drops_rows(const ml_plan *p, const ml_plan_experts *x) {
    for (int32_t i = x->send; i <= x->back && p->be->dev->host && p->opts.backward; i++)
        if (p->spec->node[i].op == ML_OP_LORA && p->spec->node[i].attr.lora.dropout > 0)
            return true;
    return false;
}

static void add_layer(ml_plan *p, int32_t send, int32_t back) {
    const ml_spec *s = p->spec;
    ml_plan_experts *x = &p->experts.layer[p->experts.n++];

    *x = (ml_plan_experts){ .home = home_of(s, send),
                            .send = send,
                            .back = back,
                            .group = s->node[send].in[1],
                            .n_expert = s->node[send].attr.moe.n_expert };
    x->row = ML_NEW(&p->arena, int32_t,
                    (int64_t)p->opts.n_set * p->experts.n_rank * (1 + x->n_expert));
    x->n_round = ML_NEW(&p->arena, int32_t, p->opts.n_set);
    if (drops_rows(p, x)) {
        x->slot_key = ML_NEW(&p->arena, uint64_t, p->opts.n_set * slots_of(p, x));
        p->experts.key = ML_NEW(&p->arena, uint64_t, p->experts.room);
    }
    for (int32_t i = send; i <= back; i++)
        p->call[i].experts = p->experts.n - 1;
}

static int64_t room(const ml_plan *p) {
    int64_t n = 2LL * p->opts.caps.n_token * p->spec->route[ML_ROUTING_EXPERTS].top_k;

    n = p->opts.expert_rows ? p->opts.expert_rows : n;
    return n < 1 ? 1 : n > INT32_MAX / 4 ? INT32_MAX / 4 : n;
}

void ml_plan_experts_find(ml_plan *p) {
    const ml_spec *s = p->spec;
    int32_t send = ML_NONE, n = 0, most = 0;

    for (int32_t i = 0; i < s->n_node; i++)
        p->call[i].experts = ML_NONE;
    if (p->experts.n_rank == 1)
        return;
    for (int32_t i = 0; i < s->n_node; i++) {
        n += s->node[i].op == ML_OP_SEND_ROWS;
        if (s->node[i].attr.moe.n_expert > most)
            most = s->node[i].attr.moe.n_expert;
    }
    p->experts.layer = ML_NEW(&p->arena, ml_plan_experts, n);
    p->experts.start = ML_NEW(&p->arena, int32_t, most + 1);
    p->experts.count = ML_NEW(&p->arena, int64_t, 3 * p->experts.n_rank);
    p->experts.room = p->experts.n_row = (int32_t)room(p);
    if (!p->be->dev->host)
        p->experts.table =
            ML_NEW(&p->arena, int32_t, 2 * (most + 1 + 2 * (int64_t)p->experts.room));
    for (int32_t i = 0; i < s->n_node; i++) {
        send = s->node[i].op == ML_OP_SEND_ROWS ? i : send;
        if (s->node[i].op == ML_OP_RETURN_ROWS)
            add_layer(p, send, i);
    }
}

/* A rank's members of a stack; a set of weights that has no others is taken as it is. */
void ml_plan_experts_view(const ml_plan *p, int32_t node, ml_tensor *t) {
    const ml_plan_experts *x;
    int32_t first, n;
    ml_tensor member = *t;

    if (p->call[node].experts == ML_NONE)
        return;
    x = &p->experts.layer[p->call[node].experts];
    first = ml_expert_first(x->n_expert, p->experts.n_rank, p->experts.rank);
    n = ml_expert_first(x->n_expert, p->experts.n_rank, p->experts.rank + 1) - first;
    if (t->shape[0] != x->n_expert)
        return;
    member.shape[0] = 1;
    if (t->data)
        t->data = (unsigned char *)t->data + (size_t)first * ml_tensor_bytes(&member);
    t->shape[0] = n;
}

/* Rows are packed if there are several rounds. */
size_t ml_plan_experts_scratch(const ml_plan *p, int32_t node) {
    const ml_node *n = &p->spec->node[node];
    ml_rows full = ml_plan_full_rows(p);
    ml_tensor home =
        ml_plan_value(p, n->op == ML_OP_SEND_ROWS ? n->in[0] : n->out[0], &full, 0);

    return ml_tensor_bytes(&home);
}

/* --- rounds ------------------------------------------------------------------- */

/* The dropout keys of the rows to send; `group` says which token each is of. */
static void find_keys(ml_plan *p, const ml_plan_experts *x, const ml_rows *rows) {
    const int32_t *table = ml_plan_at(p, p->value_store[ML_FIRST_COPY][x->group]);
    const int32_t k = p->spec->node[x->send].attr.moe.top_k;
    uint64_t *key = x->slot_key ? x->slot_key + p->set * slots_of(p, x) : NULL;

    for (int32_t i = 0; key && rows->dropout_key && i < rows->n_token * k; i++)
        key[i] = rows->dropout_key[table[x->n_expert + 1 + i] / k];
}

/* The ranks tell each other how many rows they have, which gives the number of rounds. */
static void count_rows(ml_plan *p, int32_t layer, const ml_run *r) {
    ml_plan_experts *x = &p->experts.layer[layer];
    ml_comm *c = comm_of(p);
    int32_t n = 1 + x->n_expert, *mine = table_of(p, x) + (int64_t)c->rank * n;
    const int32_t *start = p->experts.start;
    ml_tensor part = { mine, ML_I32, ML_ROWS, 1, { n } };
    ml_tensor all = { table_of(p, x), ML_I32, ML_ROWS, 1, { (int64_t)n * c->size } };
    ml_expert_rows rows = rows_of(p, x);

    memset(p->experts.start, 0, (size_t)n * sizeof *start);
    if (r->rows->n_token)
        p->be->dev->copy_out(p->be->stream, p->experts.start,
                             ml_plan_at(p, p->value_store[ML_FIRST_COPY][x->group]),
                             (size_t)n * sizeof *start);
    find_keys(p, x, r->rows);
    ML_BUG_IF(r->expert_rows > p->experts.room);
    mine[0] = r->expert_rows ? r->expert_rows : p->experts.room;
    for (int32_t e = 0; e < x->n_expert; e++)
        mine[1 + e] = start[e + 1] - start[e];
    ml_comm_doing(c, "counting rows for experts", p->spec->node[x->send].layer);
    if (p->failed.code == ML_OK)
        c->allgather(c, NULL, &all, &part, &p->failed);
    ml_comm_doing(c, NULL, -1);
    x->n_round[p->set] = p->failed.code == ML_OK ? ml_expert_rounds(&rows) : 0;
}

static void begin_round(ml_plan *p, int32_t layer, int32_t round) {
    ml_expert_rows rows = rows_of(p, &p->experts.layer[layer]);

    p->experts.now = layer;
    p->experts.round = round;
    p->experts.n_row = (int32_t)ml_expert_received(&rows, comm_of(p)->rank, round);
}

static void write_tables(ml_plan *p, const ml_tensor *group, const ml_tensor *back) {
    ml_expert_rows rows = rows_of(p, &p->experts.layer[p->experts.now]);
    int32_t *to[2] = { group->data, back->data };
    int64_t *next = p->experts.count + 2 * (int64_t)rows.n_rank;

    if (p->experts.table) {
        to[0] = p->experts.table;
        to[1] = p->experts.table + ml_tensor_count(group);
    }
    ml_expert_tables(to[0], to[1], next, &rows, comm_of(p)->rank, p->experts.round);
    if (p->experts.table) {
        p->be->dev->copy_in(p->be->stream, group->data, to[0], ml_tensor_bytes(group));
        p->be->dev->copy_in(p->be->stream, back->data, to[1], ml_tensor_bytes(back));
    }
}

/* The slots that a round moves, from or to their places in `home`. */
static void copy_runs(ml_plan *p, const ml_tensor *home, char *packed, bool pack) {
    ml_expert_rows rows = rows_of(p, &p->experts.layer[p->experts.now]);
    size_t row = (size_t)home->shape[1] * ml_dtype_bytes(home->dtype);

    for (int32_t r = 0; r < rows.n_rank; r++) {
        ml_slot_run run = ml_expert_run(&rows, comm_of(p)->rank, r, p->experts.round);
        char *slots = (char *)home->data + (size_t)run.at * row;
        if (run.n)
            p->be->dev->copy(p->be->stream, pack ? packed : slots, pack ? slots : packed,
                             (size_t)run.n * row);
        packed += (size_t)run.n * row;
    }
}

/* Moves the rows of a round between this rank's slots (home) and the ranks of their
 * experts. */
static void move_rows(ml_plan *p, ml_tensor home, ml_tensor away, void *scratch,
                      bool to_experts) {
    const ml_plan_experts *x = &p->experts.layer[p->experts.now];
    ml_expert_rows rows = rows_of(p, x);
    ml_comm *c = comm_of(p);
    int64_t *n_home = p->experts.count, *n_away = n_home + c->size;
    ml_tensor packed = home;

    packed.shape[0] = 0;
    for (int32_t r = 0; r < c->size; r++) {
        n_home[r] = ml_expert_run(&rows, c->rank, r, p->experts.round).n;
        n_away[r] = ml_expert_run(&rows, r, c->rank, p->experts.round).n;
        packed.shape[0] += n_home[r];
    }
    if (rounds_of(p, x) > 1)
        packed.data = scratch;
    if (rounds_of(p, x) > 1 && to_experts)
        copy_runs(p, &home, scratch, true);
    if (p->failed.code == ML_OK && to_experts)
        c->alltoallv(c, p->be->stream, &away, n_away, &packed, n_home, &p->failed);
    else if (p->failed.code == ML_OK)
        c->alltoallv(c, p->be->stream, &packed, n_home, &away, n_away, &p->failed);
    if (rounds_of(p, x) > 1 && !to_experts)
        copy_runs(p, &home, scratch, false);
}

void ml_plan_experts_run(ml_plan *p, ml_op_id op, const ml_op_args *a) {
    ml_comm_doing(comm_of(p), ml_op_infos[op].name,
                  p->spec->node[p->experts.layer[p->experts.now].send].layer);
    if (op == ML_OP_SEND_ROWS) {
        write_tables(p, &a->out[1], &a->out[2]);
        move_rows(p, a->in[0], a->out[0], a->scratch, true);
    } else {
        move_rows(p, a->out[0], a->in[0], a->scratch, false);
    }
    ml_comm_doing(comm_of(p), NULL, -1);
}

/* Gradients travel the other way. */
void ml_plan_experts_back(ml_plan *p, ml_op_id op, const ml_op_args *a) {
    ML_BUG_IF(!a->din[0].data || a->din_add[0]);
    if (op == ML_OP_SEND_ROWS)
        move_rows(p, a->din[0], a->dout[0], a->scratch, false);
    else
        move_rows(p, a->dout[0], a->din[0], a->scratch, true);
}

/* --- runs --------------------------------------------------------------------- */

/* The run as ops at the experts see it: their tokens are the rows of a round.  False:
 * there are none. */
static bool at_experts(const ml_plan *p, int32_t node, ml_run *run, ml_rows *rows) {
    if (p->call[node].experts == ML_NONE || ml_op_infos[p->spec->node[node].op].comm)
        return true;
    *rows = *run->rows;
    rows->n_token = p->experts.n_row;
    rows->dropout_key = run->rows->dropout_key ? p->experts.key : NULL;
    run->rows = rows;
    return rows->n_token > 0;
}

/* Keys follow the rows of a round, before an op that drops inputs. */
static void send_keys(ml_plan *p, int32_t node, const ml_run *r) {
    const ml_plan_experts *x = &p->experts.layer[p->experts.now];
    ml_tensor home = { .dtype = ML_F32, .n_dim = 2, .shape = { 0, 2 } }, away = home;

    if (p->spec->node[node].op != ML_OP_LORA || !x->slot_key || !r->rows->dropout_key)
        return;
    home.data = x->slot_key + p->set * slots_of(p, x);
    home.shape[0] = (int64_t)r->rows->n_token * p->spec->node[x->send].attr.moe.top_k;
    away.data = p->experts.key;
    away.shape[0] = p->experts.n_row;
    move_rows(p, home, away, p->scratch.ptr, true);
}

static void run_sent(ml_plan *p, int32_t node, ml_plan_pass pass, const ml_run *r) {
    ml_run run = *r;
    ml_rows rows;

    if (p->call[node].experts != ML_NONE)
        send_keys(p, node, r);
    if (!at_experts(p, node, &run, &rows))
        return;
    ml_plan_run_node(p, node, pass == ML_PASS_FORWARD, &run);
    ml_plan_spans_node(p, node, pass);
}

static void run_rounds(ml_plan *p, int32_t layer, ml_plan_pass pass, const ml_run *r) {
    const ml_plan_experts *x = &p->experts.layer[layer];

    for (int32_t k = 0; k < rounds_of(p, x); k++) {
        begin_round(p, layer, k);
        for (int32_t i = x->send; i <= x->back; i++)
            run_sent(p, i, pass, r);
    }
}

void ml_plan_experts_forward(ml_plan *p, int32_t layer, const ml_run *r) {
    count_rows(p, layer, r);
    run_rounds(p, layer, ML_PASS_FORWARD, r);
}

void ml_plan_experts_again(ml_plan *p, int32_t node, const ml_run *r) {
    int32_t layer = p->call[node].experts;
    const ml_plan_experts *x = &p->experts.layer[layer];

    if (rounds_of(p, x) == 1) {
        begin_round(p, layer, 0);
        run_sent(p, node, ML_PASS_AGAIN, r);
    } else if (node == x->back) {
        run_rounds(p, layer, ML_PASS_AGAIN, r);
    }
}

static void back_round(ml_plan *p, int32_t layer, int32_t round, const ml_run *r) {
    const ml_plan_experts *x = &p->experts.layer[layer];

    begin_round(p, layer, round);
    for (int32_t i = x->send; p->experts.redo && i < x->back; i++)
        if (p->call[i].redo)
            run_sent(p, i, ML_PASS_AGAIN, r);
    for (int32_t i = x->back; i >= x->send; i--) {
        ml_run run = *r;
        ml_rows rows;
        send_keys(p, i, r);
        if (at_experts(p, i, &run, &rows))
            ml_plan_back_node(p, i, &run, false);
    }
}

void ml_plan_experts_backward(ml_plan *p, int32_t layer, const ml_run *r) {
    const ml_plan_experts *x = &p->experts.layer[layer];

    p->experts.redo = rounds_of(p, x) > 1;
    for (int32_t i = x->home; p->experts.redo && i < x->send; i++)
        if (p->call[i].redo)
            run_sent(p, i, ML_PASS_AGAIN, r);
    for (int32_t k = 0; k < rounds_of(p, x); k++)
        back_round(p, layer, k, r);
    p->experts.redo = false;
}
