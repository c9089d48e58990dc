#include "model/stage.h"

#include "base/bug.h"

/* --- borders ---------------------------------------------------------------- */

/* What is known of the values at the border before node `at`. */
typedef struct border {
    bool *made, *read, *needs, *reached;
} border;

static bool is_remade(const ml_node *n) {
    for (int k = 0; k < ML_OP_IN; k++)
        if (n->in[k] != ML_NONE)
            return false;
    return n->w[0] == ML_NONE;
}

/* Values that are computed before the border, and those whose gradient is wanted. */
static void look_back(border *b, const ml_spec *s, int32_t at) {
    for (int32_t i = 0; i < at; i++) {
        const ml_node *n = &s->node[i];
        bool any = ml_node_is_trained(s, n);
        for (int k = 0; k < ML_OP_IN; k++)
            if (n->in[k] != ML_NONE && (ml_op_infos[n->op].grad_in >> k & 1))
                any = any || b->needs[n->in[k]];
        b->needs[n->out[0]] = any;
        for (int k = 0; k < ML_OP_OUT; k++)
            if (n->out[k] != ML_NONE)
                b->made[n->out[k]] = !is_remade(n);
    }
}

/* Values that are read after the border, and those that get a gradient there. */
static void look_ahead(border *b, const ml_spec *s, int32_t at) {
    b->reached[s->node[s->n_node - 1].out[0]] = true;
    for (int32_t i = s->n_node - 1; i >= at; i--) {
        const ml_node *n = &s->node[i];
        for (int k = 0; k < ML_OP_IN; k++) {
            if (n->in[k] == ML_NONE)
                continue;
            b->read[n->in[k]] = true;
            if (b->reached[n->out[0]] && (ml_op_infos[n->op].grad_in >> k & 1))
                b->reached[n->in[k]] = true;
        }
    }
}

static int32_t find_ports(ml_port **out, ml_arena *a, const ml_spec *s, int32_t at) {
    border b = { ML_NEW(a, bool, s->n_value), ML_NEW(a, bool, s->n_value),
                 ML_NEW(a, bool, s->n_value), ML_NEW(a, bool, s->n_value) };
    int32_t n = 0;

    look_back(&b, s, at);
    look_ahead(&b, s, at);
    *out = ML_NEW(a, ml_port, s->n_value);
    for (int32_t v = 0; v < s->n_value; v++)
        if (b.made[v] && b.read[v])
            (*out)[n++] = (ml_port){ v, b.needs[v] && b.reached[v] };
    return n;
}

/* Whether a node of the range reads what the node makes. */
static bool is_read(const ml_spec *s, const ml_node *made, int32_t first, int32_t end) {
    for (int32_t i = first; i < end; i++)
        for (int k = 0; k < ML_OP_IN; k++)
            if (s->node[i].in[k] != ML_NONE && s->node[i].in[k] == made->out[0])
                return true;
    return false;
}

static void add_node(ml_model_stage *g, const ml_spec *s, int32_t node) {
    g->number[g->spec.n_node] = node;
    g->spec.node[g->spec.n_node++] = s->node[node];
}

void ml_stage_init(ml_model_stage *out, ml_arena *a, const ml_spec *s, int32_t first,
                   int32_t end) {
    ML_BUG_IF(first < 0 || end > s->n_node || first >= end);
    *out = (ml_model_stage){ .spec = *s, .first_layer = ML_NONE, .last = end == s->n_node };
    out->spec.node = ML_NEW(a, ml_node, s->n_node);
    out->number = ML_NEW(a, int32_t, s->n_node);
    out->spec.n_node = 0;
    for (int32_t i = 0; i < first; i++)
        if (is_remade(&s->node[i]) && is_read(s, &s->node[i], first, end))
            add_node(out, s, i);
    for (int32_t i = first; i < end; i++) {
        add_node(out, s, i);
        if (out->first_layer == ML_NONE)
            out->first_layer = s->node[i].layer;
    }
    out->n_in = find_ports(&out->in, a, s, first);
    out->n_out = find_ports(&out->out, a, s, end);
}

/* --- layers of stages ------------------------------------------------------- */

static int32_t chunks_of(const ml_stage_opts *o) {
    return o->n_chunk ? o->n_chunk : 1;
}

/* Deals n layers out to stages first .. end-1 of n_all: equally, then one more to inner
 * stages, to the first, to the last. */
static void deal(int32_t *count, int32_t n, int32_t first, int32_t end, int32_t n_all) {
    int32_t over = n % (end - first);

    for (int32_t i = first; i < end; i++)
        count[i] = n / (end - first);
    for (int32_t i = first; i < end && over; i++)
        if (i > 0 && i < n_all - 1) {
            count[i]++;
            over--;
        }
    for (int32_t i = first; i < end && over; i++)
        if (i == 0 || i == n_all - 1) {
            count[i]++;
            over--;
        }
}

static ml_status too_few(int32_t n_layer, const ml_stage_opts *o, ml_err *err) {
    if (chunks_of(o) > 1)
        return ml_fail(err, ML_EUSAGE,
                       "the %d layers of this model do not fill %d pipeline stages of %d "
                       "virtual stages each: choose a smaller "
                       "--pipeline-model-parallel-size or fewer virtual stages",
                       (int)n_layer, (int)o->n_stage, (int)chunks_of(o));
    return ml_fail(err, ML_EUSAGE,
                   "the %d layers of this model do not fill %d pipeline stages%s: choose a "
                   "smaller --pipeline-model-parallel-size",
                   (int)n_layer, (int)o->n_stage,
                   o->n_first || o->n_last ? ", as the layers of the first or the last "
                                             "one (--decoder-first-pipeline-num-layers, "
                                             "--decoder-last-pipeline-num-layers) are given"
                                           : "");
}

/* Layers of each stage; given ends are divided among the stages of the end's rank. */
static ml_status count_layers(int32_t *count, int32_t n_layer, const ml_stage_opts *o,
                              ml_err *err) {
    int32_t n = o->n_stage * chunks_of(o), first = 0, end = n;
    int32_t left = n_layer + o->count_embedding + o->count_loss;

    if (o->n_first) {
        count[first++] = o->n_first;
        left -= o->n_first;
    }
    if (o->n_last && end > first) {
        count[--end] = o->n_last;
        left -= o->n_last;
    }
    if (left < end - first || (first == end && left))
        return too_few(n_layer, o, err);
    if (end > first)
        deal(count, left, first, end, n);
    count[0] -= o->count_embedding;
    count[n - 1] -= o->count_loss;
    return ML_OK;
}

ml_status ml_stage_layers(int32_t *layer, int32_t n_layer, const ml_stage_opts *o,
                          ml_err *err) {
    int32_t n = o->n_stage * chunks_of(o), *count = layer + 1;
    ml_status st = count_layers(count, n_layer, o, err);

    if (st != ML_OK)
        return st;
    for (int32_t i = 0; i < n; i++) {
        bool may_be_empty = (i == 0 && o->count_embedding) || (i == n - 1 && o->count_loss);
        if (count[i] < !may_be_empty)
            return too_few(n_layer, o, err);
    }
    layer[0] = 0;
    for (int32_t i = 0; i < n; i++)
        layer[i + 1] += layer[i];
    ML_BUG_IF(layer[n] != n_layer);
    return ML_OK;
}

/* The first node of this layer, or the first after all layers. */
static int32_t first_node(const ml_spec *s, int32_t layer) {
    int32_t after = 0;

    for (int32_t i = 0; i < s->n_node; i++) {
        if (s->node[i].layer != ML_NONE && s->node[i].layer >= layer)
            return i;
        if (s->node[i].layer != ML_NONE)
            after = i + 1;
    }
    return after;
}

static bool shares(const ml_node *a, const ml_node *b) {
    for (int k = 0; k < ML_OP_W; k++)
        for (int l = 0; l < ML_OP_W; l++)
            if (a->w[k] != ML_NONE && a->w[k] == b->w[l])
                return true;
    return false;
}

static ml_status check_cut(const ml_spec *s, int32_t node, ml_err *err) {
    for (int32_t i = 0; i < node; i++)
        for (int32_t k = node; k < s->n_node; k++)
            if (shares(&s->node[i], &s->node[k]) &&
                (s->node[i].op != ML_OP_EMBED || k != s->n_node - 1))
                return ml_fail(err, ML_EUNSUP,
                               "layers %d and %d share %s, and cannot be in different "
                               "pipeline stages: choose another "
                               "--pipeline-model-parallel-size",
                               (int)s->node[i].layer, (int)s->node[k].layer,
                               s->param[s->node[k].w[0]].name);
    return ML_OK;
}

ml_status ml_stage_of_nodes(int32_t *stage, const ml_spec *s, const ml_stage_opts *o,
                            ml_err *err) {
    int32_t n = o->n_stage * chunks_of(o), *layer, node = 0;
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "layers of stages");
    layer = ML_NEW(&a, int32_t, n + 1);
    st = ml_stage_layers(layer, s->n_layer, o, err);
    for (int32_t i = 0; i < n && st == ML_OK; i++) {
        int32_t end = i + 1 < n ? first_node(s, layer[i + 1]) : s->n_node;
        while (node < end)
            stage[node++] = i % o->n_stage;
        if (i + 1 < n)
            st = check_cut(s, end, err);
    }
    ml_arena_release(&a);
    return st;
}

bool ml_stage_chunk(const int32_t *stage, int32_t n_node, int32_t rank, int32_t chunk,
                    int32_t *first, int32_t *end) {
    int32_t i = 0;

    for (; chunk >= 0; chunk--) {
        while (i < n_node && stage[i] != rank)
            i++;
        *first = i;
        while (i < n_node && stage[i] == rank)
            i++;
        *end = i;
    }
    return *end > *first;
}
