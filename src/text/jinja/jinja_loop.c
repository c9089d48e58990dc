/* The `loop` variable of a for statement, and cyclers. */
#include "text/jinja/jinja_priv.h"

/* Reads one item ahead, for `last` and `nextitem`. */
static bool peek(ml_jrun *r, ml_jloop *l) {
    ml_jval v;

    if (l->after.kind != ML_J_MISSING)
        return true;
    if (!ml_jiter_next(r, l->iter, &v))
        return false;
    l->after = v;
    return true;
}

bool ml_jloop_next(ml_jrun *r, ml_jloop *l, ml_jval *out) {
    if (l->after.kind != ML_J_MISSING) {
        *out = l->after;
        l->after = ml_jmissing();
    } else if (!ml_jiter_next(r, l->iter, out)) {
        return false;
    }
    l->index0++;
    l->before = l->current;
    l->current = *out;
    return true;
}

static bool next_kept(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    (void)r;
    if (it->pos >= it->over.seq->n)
        return false;
    *out = it->over.seq->item[it->pos++];
    return true;
}

/* An iterable without a length is read to its end and kept. */
int64_t ml_jloop_length(ml_jrun *r, ml_jloop *l) {
    ml_jitems rest;
    ml_jiter *kept;

    if (l->length >= 0)
        return l->length;
    l->length = ml_jval_len(l->iterable);
    if (l->length >= 0)
        return l->length;
    rest = ml_jval_items(r, ml_jiter_value(l->iter));
    kept = ml_jiter_new(r, next_kept, "list_iterator");
    kept->over = ml_jseq_new(r, ML_J_LIST, rest.item, rest.n);
    l->iter = kept;
    l->length = rest.n + l->index0 + 1 + (l->after.kind != ML_J_MISSING);
    return l->length;
}

ml_jval ml_jloop_attr(ml_jrun *r, ml_jloop *l, ml_str name) {
    if (ml_str_is(name, "index"))
        return ml_jint(l->index0 + 1);
    if (ml_str_is(name, "index0"))
        return ml_jint(l->index0);
    if (ml_str_is(name, "first"))
        return ml_jbool(l->index0 == 0);
    if (ml_str_is(name, "last"))
        return ml_jbool(!peek(r, l));
    if (ml_str_is(name, "length"))
        return ml_jint(ml_jloop_length(r, l));
    if (ml_str_is(name, "revindex"))
        return ml_jint(ml_jloop_length(r, l) - l->index0);
    if (ml_str_is(name, "revindex0"))
        return ml_jint(ml_jloop_length(r, l) - l->index0 - 1);
    if (ml_str_is(name, "depth"))
        return ml_jint(l->depth0 + 1);
    if (ml_str_is(name, "depth0"))
        return ml_jint(l->depth0);
    if (ml_str_is(name, "previtem"))
        return l->index0 == 0 ? ml_jundef_hint(r, ml_str_of("there is no previous item"))
                              : l->before;
    if (ml_str_is(name, "nextitem"))
        return peek(r, l) ? l->after
                          : ml_jundef_hint(r, ml_str_of("there is no next item"));
    return ml_jmissing();
}

static ml_jval loop_cycle(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    if (!a->n)
        ml_jraise(r, "TypeError", "no items for cycling given");
    return a->pos[self.loop->index0 % a->n];
}

static ml_jval loop_changed(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jval now = ml_jseq_new(r, ML_J_TUPLE, a->pos, a->n);
    bool same =
        self.loop->changed.kind == ML_J_TUPLE && ml_jval_eq(r, self.loop->changed, now);

    self.loop->changed = now;
    return ml_jbool(!same);
}

const ml_jnative ml_jmethods_loop[] = {
    { "cycle", loop_cycle, NULL, 0, false },
    { "changed", loop_changed, NULL, 0, false },
    { 0 },
};

static ml_jval cycler_next(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    ml_jcycler *c = self.cycler;
    ml_jval v = c->item[c->pos];

    (void)r, (void)a;
    c->pos = (c->pos + 1) % c->n;
    return v;
}

static ml_jval cycler_reset(ml_jrun *r, ml_jval self, const ml_jargs *a) {
    (void)r, (void)a;
    self.cycler->pos = 0;
    return ml_jnone();
}

const ml_jnative ml_jmethods_cycler[] = {
    { "next", cycler_next, "", 0, false },
    { "reset", cycler_reset, "", 0, false },
    { 0 },
};
