/* Iteration over values. */
#include "text/jinja/jinja_priv.h"

ml_jiter *ml_jiter_new(ml_jrun *r, bool (*next)(ml_jrun *, ml_jiter *, ml_jval *),
                       const char *type) {
    ml_jiter *it = ML_JNEW(r, ml_jiter, 1);
    it->next = next;
    it->type = type;
    return it;
}

ml_jval ml_jiter_value(ml_jiter *it) {
    return (ml_jval){ .kind = ML_J_ITER, .iter = it };
}

bool ml_jiter_next(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    ml_jrun_enter(r);
    if (!it->done)
        it->done = !it->next(r, it, out);
    ml_jrun_leave(r);
    return !it->done;
}

static bool next_none(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    (void)r, (void)it, (void)out;
    return false;
}

static bool next_item(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    const ml_jseq *s = it->over.seq;

    (void)r;
    if (it->pos >= s->n)
        return false;
    *out = s->item[it->pos++];
    return true;
}

static bool next_char(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    const ml_jstr *s = it->over.s;
    size_t n;

    if ((size_t)it->pos >= s->len)
        return false;
    ml_jchar_at(s->ptr + it->pos, &n);
    *out = ml_jstr_view(r, (ml_str){ s->ptr + it->pos, n });
    it->pos += (int64_t)n;
    return true;
}

static bool next_pair(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    const ml_jview *v = it->over.view;
    const ml_jpair *p;

    if (it->pos >= v->dict->n)
        return false;
    p = &v->dict->pair[it->pos++];
    if (v->part == ML_J_ITEMS)
        *out = ml_jseq_new(r, ML_J_TUPLE, (ml_jval[]){ p->key, p->value }, 2);
    else
        *out = v->part == ML_J_KEYS ? p->key : p->value;
    return true;
}

static bool next_number(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    const ml_jrange *g = it->over.range;

    (void)r;
    if (it->pos >= g->n)
        return false;
    *out = ml_jint(g->start + it->pos++ * g->step);
    return true;
}

static bool next_turn(ml_jrun *r, ml_jiter *it, ml_jval *out) {
    ml_jval item;

    if (!ml_jloop_next(r, it->over.loop, &item))
        return false;
    *out = ml_jseq_new(r, ML_J_TUPLE, (ml_jval[]){ item, it->over }, 2);
    return true;
}

bool ml_jval_iterable(ml_jval v) {
    return v.kind == ML_J_UNDEFINED || v.kind == ML_J_LOOP ||
           (v.kind >= ML_J_STR && v.kind <= ML_J_ITER);
}

ml_jiter *ml_jiter_over(ml_jrun *r, ml_jval v) {
    ml_jiter *it;

    if (v.kind == ML_J_ITER)
        return v.iter;
    it = ml_jiter_new(r, next_none, "generator");
    it->over = v;
    switch (v.kind) {
    case ML_J_UNDEFINED: break;
    case ML_J_STR: it->next = next_char; break;
    case ML_J_LIST:
    case ML_J_TUPLE: it->next = next_item; break;
    case ML_J_DICT:
        it->over = ml_jview_new(r, v.dict, ML_J_KEYS);
        it->next = next_pair;
        break;
    case ML_J_VIEW: it->next = next_pair; break;
    case ML_J_RANGE: it->next = next_number; break;
    case ML_J_LOOP: it->next = next_turn; break;
    default: ml_jraise(r, "TypeError", "'%s' object is not iterable", ml_jval_type(v));
    }
    return it;
}

ml_jitems ml_jval_items(ml_jrun *r, ml_jval v) {
    ml_jiter *it = ml_jiter_over(r, v);
    ml_jitems l = { 0 };
    ml_jval item;

    while (ml_jiter_next(r, it, &item))
        ml_jitems_add(r, &l, item);
    return l;
}

bool ml_jval_contains(ml_jrun *r, ml_jval box, ml_jval item) {
    ml_jiter *it;
    ml_jval v;
    uint64_t hash;

    if (box.kind == ML_J_STR) {
        if (item.kind != ML_J_STR)
            ml_jraise(r, "TypeError",
                      "'in <string>' requires string as left operand, not %s",
                      ml_jval_type(item));
        ml_jrun_step(r, (int64_t)(box.s->len + item.s->len) / 16);
        return ml_jstr_find(ml_jstr_get(box), ml_jstr_get(item), 0) != SIZE_MAX;
    }
    if (box.kind == ML_J_DICT || (box.kind == ML_J_VIEW && box.view->part == ML_J_KEYS)) {
        if (!ml_jval_hash(r, item, &hash))
            ml_jraise(r, "TypeError", "unhashable type: '%s'", ml_jval_type(item));
        return ml_jdict_get(r, box.kind == ML_J_DICT ? box.dict : box.view->dict, item) !=
               NULL;
    }
    if (!ml_jval_iterable(box))
        ml_jraise(r, "TypeError", "argument of type '%s' is not iterable",
                  ml_jval_type(box));
    it = ml_jiter_over(r, box);
    while (ml_jiter_next(r, it, &v))
        if (ml_jval_eq(r, v, item))
            return true;
    return false;
}
