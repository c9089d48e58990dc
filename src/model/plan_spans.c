/* plan_spans.c - op times of a plan's runs, by the device's clock.
 *
 * It sets a mark before the first op and one after each op, and reads them all after
 * waiting for the last one.  Timing therefore costs one wait per run, and nothing between
 * ops. */
#include "base/clock.h"
#include "model/plan_priv.h"

enum { MOST = ML_MARKS - 1 }; /* most ops between two waits */

#define ML_BACKWARD_NAME(id, name) name " backward",
static const char *const backward_name[ML_OP_COUNT] = { ML_OP_LIST(ML_BACKWARD_NAME) };
#undef ML_BACKWARD_NAME
#define ML_AGAIN_NAME(id, name) name " again",
static const char *const again_name[ML_OP_COUNT] = { ML_OP_LIST(ML_AGAIN_NAME) };
#undef ML_AGAIN_NAME

void ml_plan_spans_to(ml_plan *p, ml_timeline *to, ml_track track) {
    p->spans.to = to;
    p->spans.track = track;
    if (to && !p->spans.span) {
        p->spans.span = ML_NEW(&p->arena, ml_time_span, MOST);
        p->spans.at_s = ML_NEW(&p->arena, double, MOST + 1);
    }
}

static void mark(ml_plan *p, int32_t i) {
    if (p->be->marks)
        p->be->marks->mark(p->be->stream, i);
    else
        p->spans.at_s[i] = ml_clock_s();
}

void ml_plan_spans_begin(ml_plan *p) {
    p->spans.n = 0;
    if (p->spans.to)
        mark(p, 0);
}

void ml_plan_spans_end(ml_plan *p) {
    int32_t n = p->spans.n;

    if (!p->spans.to || !n)
        return;
    if (p->be->marks)
        p->be->marks->read(p->be->stream, p->spans.at_s, n + 1);
    for (int32_t i = 0; i < n; i++) {
        p->spans.span[i].begin_s = p->spans.at_s[i];
        p->spans.span[i].end_s = p->spans.at_s[i + 1];
    }
    ml_timeline_add(p->spans.to, p->spans.span, n);
    p->spans.n = 0;
}

static void add(ml_plan *p, const char *name, int32_t layer) {
    if (!p->spans.to)
        return;
    p->spans.span[p->spans.n++] =
        (ml_time_span){ .name = name, .track = p->spans.track, .layer = layer };
    mark(p, p->spans.n);
    if (p->spans.n == MOST) {
        ml_plan_spans_end(p);
        ml_plan_spans_begin(p);
    }
}

void ml_plan_spans_node(ml_plan *p, int32_t node, ml_plan_pass pass) {
    const ml_node *n = &p->spec->node[node];

    add(p,
        pass == ML_PASS_FORWARD ? ml_op_infos[n->op].name
        : pass == ML_PASS_AGAIN ? again_name[n->op]
                                : backward_name[n->op],
        n->layer);
}

void ml_plan_spans_replay(ml_plan *p) {
    add(p, "recorded step", ML_NONE);
}
