#include "text/jinja/jinja_names.h"

#include <string.h>

ml_jnames *ml_jnames_new(ml_arena *a, ml_jnames *outer, ml_jfn *fn) {
    ml_jnames *s = ML_NEW(a, ml_jnames, 1);
    s->arena = a;
    s->outer = outer;
    s->fn = fn;
    return s;
}

static void *resized(ml_arena *a, const void *old, int32_t n, int32_t cap, size_t size) {
    void *p = ml_arena_take(a, (size_t)cap, size);
    if (n)
        memcpy(p, old, (size_t)n * size);
    return p;
}

static int32_t index_of(ml_jnames *s, ml_str name) {
    for (int32_t i = 0; i < s->n; i++)
        if (ml_str_eq(s->name[i], name))
            return i;
    if (s->n == s->cap) {
        ml_arena *a = s->arena;
        s->cap = s->cap ? s->cap * 2 : 8;
        s->name = resized(a, s->name, s->n, s->cap, sizeof *s->name);
        s->slot = resized(a, s->slot, s->n, s->cap, sizeof *s->slot);
        s->now = resized(a, s->now, s->n, s->cap, sizeof *s->now);
    }
    s->name[s->n] = name;
    s->slot[s->n] = s->fn->n_slot++;
    s->now[s->n] = (ml_jknown){ 0 };
    return s->n++;
}

bool ml_jnames_find(const ml_jnames *s, const ml_jfn *from, ml_str name, ml_jref *out) {
    for (; s; s = s->outer)
        for (int32_t i = 0; i < s->n; i++)
            if (s->now[i].here && ml_str_eq(s->name[i], name)) {
                *out = (ml_jref){ 0, s->slot[i] };
                for (; from != s->fn; from = from->outer)
                    out->hops++;
                return true;
            }
    return false;
}

static void define(ml_jnames *s, ml_str name, ml_jload load, ml_jref from) {
    int32_t i = index_of(s, name);
    s->now[i].here = true;
    s->now[i].load = load;
    s->now[i].from = from;
}

void ml_jnames_read(ml_jnames *s, ml_str name) {
    ml_jref ref;
    if (!ml_jnames_find(s, s->fn, name, &ref))
        define(s, name, ML_JL_CONTEXT, (ml_jref){ 0 });
}

void ml_jnames_write(ml_jnames *s, ml_str name) {
    int32_t i = index_of(s, name);
    ml_jref from = { 0 };

    s->now[i].written = true;
    if (s->now[i].here)
        return;
    if (ml_jnames_find(s->outer, s->fn, name, &from))
        define(s, name, ML_JL_ALIAS, from);
    else
        define(s, name, ML_JL_UNSET, from);
}

ml_jref ml_jnames_declare(ml_jnames *s, ml_str name) {
    int32_t i = index_of(s, name);
    s->now[i].written = true;
    define(s, name, ML_JL_PARAM, (ml_jref){ 0 });
    return (ml_jref){ 0, s->slot[i] };
}

const ml_jscope *ml_jnames_sealed(const ml_jnames *s) {
    ml_jscope *out = ML_NEW(s->arena, ml_jscope, 1);
    ml_jentry *entry = ML_NEW(s->arena, ml_jentry, s->n);

    for (int32_t i = 0; i < s->n; i++)
        if (s->now[i].here)
            entry[out->n++] =
                (ml_jentry){ s->name[i], s->slot[i], s->now[i].load, s->now[i].from };
    out->entry = entry;
    return out;
}
