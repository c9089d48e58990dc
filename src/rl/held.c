#include "rl/held.h"

#include <stdlib.h>

void ml_held_init(ml_held *h, int32_t n_per_group) {
    *h = (ml_held){ .n_per_group = n_per_group };
    ml_arena_init(&h->arena, "held samples");
}

void ml_held_release(ml_held *h) {
    ml_arena_release(&h->arena);
}

const ml_sample *ml_held_take(ml_held *h) {
    return h->next < h->n_group ? &h->sample[h->next++ * h->n_per_group] : NULL;
}

static int by_index(const void *x, const void *y) {
    const ml_sample *a = x, *b = y;
    return a->index < b->index ? -1 : a->index > b->index;
}

void ml_held_put(ml_held *h, const ml_sample *const *sample, int64_t n) {
    ml_held now;
    int64_t n_left = h->n_group - h->next, at = 0;

    ml_held_init(&now, h->n_per_group);
    now.n_group = n + n_left;
    now.sample = ML_NEW(&now.arena, ml_sample, now.n_group * h->n_per_group + 1);
    for (int64_t i = 0; i < n * h->n_per_group; i++)
        ml_sample_copy(&now.sample[at++], &now.arena, sample[i]);
    for (int64_t i = h->next * h->n_per_group; i < h->n_group * h->n_per_group; i++)
        ml_sample_copy(&now.sample[at++], &now.arena, &h->sample[i]);
    qsort(now.sample, (size_t)at, sizeof *now.sample, by_index);
    ml_held_release(h);
    *h = now;
}

static void write_next(ml_text *out, const ml_sample *s, bool *any) {
    ml_text_printf(out, "%s", *any ? ", " : "");
    ml_sample_write(out, s);
    *any = true;
}

void ml_held_save(const ml_held *h, const ml_sample *const *more, int64_t n_more,
                  ml_text *out) {
    bool any = false;

    ml_text_printf(out, "[");
    for (int64_t i = 0; i < n_more; i++)
        write_next(out, more[i], &any);
    for (int64_t i = h->next * h->n_per_group; i < h->n_group * h->n_per_group; i++)
        write_next(out, &h->sample[i], &any);
    ml_text_printf(out, "]");
}

ml_status ml_held_load(ml_held *h, ml_str state, const char *name, ml_err *err) {
    const ml_json *doc, *list;
    ml_str text = { ml_arena_str(&h->arena, state.ptr, state.len), state.len };
    ml_status st = ml_json_parse(&doc, &h->arena, text, name, err);
    int64_t i = 0;

    list = st == ML_OK ? ml_json_get(doc, "held") : NULL;
    if (!list)
        return st;
    if (list->type != ML_JSON_ARRAY || list->n % h->n_per_group)
        return ml_fail(err, ML_EFORMAT,
                       "%s: \"held\" is no list of groups of %d samples: was it saved with "
                       "another --n-samples-per-prompt?",
                       name, h->n_per_group);
    h->n_group = list->n / h->n_per_group;
    h->sample = ML_NEW(&h->arena, ml_sample, list->n + 1);
    for (const ml_json *e = list->child; e && st == ML_OK; e = e->next)
        st = ml_sample_read(&h->sample[i++], &h->arena, e, text, name, err);
    return st;
}
