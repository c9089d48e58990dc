#include "rl/rollout/partial_buffer.h"

#include <stdlib.h>

#include "base/log.h"
#include "rl/answers.h"

void ml_partial_buffer_init(ml_partial_buffer *h, int32_t n_per_group) {
    *h = (ml_partial_buffer){ .n_per_group = n_per_group };
    ml_arena_init(&h->arena, "unfinished samples");
}

void ml_partial_buffer_release(ml_partial_buffer *h) {
    ml_arena_release(&h->arena);
}

const ml_sample *ml_partial_buffer_take(ml_partial_buffer *h) {
    return h->next < h->n_group ? &h->sample[h->next++ * h->n_per_group] : NULL;
}

/* Moves the group at `from` to an earlier position `to`. */
static void move_group(ml_partial_buffer *h, int64_t from, int64_t to) {
    int32_t size = h->n_per_group;

    for (int32_t k = 0; k < size; k++) {
        ml_sample moved = h->sample[from * size + k];
        for (int64_t i = from * size + k; i > to * size + k; i -= size)
            h->sample[i] = h->sample[i - size];
        h->sample[to * size + k] = moved;
    }
}

/* Moves the picked groups to the front; their numbers count from `next`. */
static ml_status bring_forward(ml_partial_buffer *h, const miles_extension *ext,
                               int64_t *selected, int64_t n, ml_err *err) {
    for (int64_t i = 0; i < n; i++) {
        if (selected[i] < i || selected[i] >= h->n_group - h->next)
            return ml_fail(err, ML_EFORMAT,
                           "%s selected group %lld twice, or a group that does not exist",
                           ext->name, (long long)selected[i]);
        move_group(h, h->next + selected[i], h->next + i);
        for (int64_t k = i + 1; k < n; k++) /* groups before it moved back by one */
            selected[k] = selected[k] == selected[i]  ? -1
                          : selected[k] < selected[i] ? selected[k] + 1
                                                      : selected[k];
    }
    return ML_OK;
}

ml_status ml_partial_buffer_select(ml_partial_buffer *h, const miles_buffer_filter *filter,
                                   int64_t *n, ml_err *err) {
    int64_t n_group = h->n_group - h->next, n_selected = 0,
            n_sample = n_group * h->n_per_group;
    const ml_sample **s;
    int64_t *selected;
    miles_error why = { "" };
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "unfinished groups");
    s = ML_NEW(&a, const ml_sample *, n_sample + 1);
    selected = ML_NEW(&a, int64_t, n_group + 1);
    for (int64_t i = 0; i < n_sample; i++)
        s[i] = &h->sample[h->next * h->n_per_group + i];
    if (filter->run(ml_answers_of(&a, s, n_sample, -1), n_group, *n, selected, &n_selected,
                    &why))
        st = ml_extension_failed(&filter->base, &why, err);
    else if (n_selected < 0 || n_selected > *n || n_selected > n_group)
        st = ml_fail(
            err, ML_EFORMAT, "%s selected %lld groups of %lld; expected at most %lld",
            filter->base.name, (long long)n_selected, (long long)n_group, (long long)*n);
    else
        st = bring_forward(h, &filter->base, selected, n_selected, err);
    *n = n_selected;
    ml_arena_release(&a);
    return st;
}

static int by_index(const void *x, const void *y) {
    const ml_sample *a = x, *b = y;
    return a->index < b->index ? -1 : a->index > b->index;
}

void ml_partial_buffer_put(ml_partial_buffer *h, const ml_sample *const *sample,
                           int64_t n) {
    ml_partial_buffer now;
    int64_t n_left = h->n_group - h->next, at = 0;

    ml_partial_buffer_init(&now, h->n_per_group);
    now.n_group = n + n_left;
    now.sample = ML_NEW(&now.arena, ml_sample, now.n_group * h->n_per_group + 1);
    for (int64_t i = 0; i < n * h->n_per_group; i++)
        ml_sample_copy(&now.sample[at++], &now.arena, sample[i]);
    for (int64_t i = h->next * h->n_per_group; i < h->n_group * h->n_per_group; i++)
        ml_sample_copy(&now.sample[at++], &now.arena, &h->sample[i]);
    qsort(now.sample, (size_t)at, sizeof *now.sample, by_index);
    ml_partial_buffer_release(h);
    *h = now;
}

static void write_next(ml_text *out, const ml_sample *s, bool *any) {
    ml_text_printf(out, "%s", *any ? ", " : "");
    ml_sample_write(out, s);
    *any = true;
}

void ml_partial_buffer_save(const ml_partial_buffer *h, const ml_sample *const *more,
                            int64_t n_more, ml_text *out) {
    bool any = false;

    ml_text_printf(out, "[");
    for (int64_t i = 0; i < n_more; i++)
        write_next(out, more[i], &any);
    for (int64_t i = h->next * h->n_per_group; i < h->n_group * h->n_per_group; i++)
        write_next(out, &h->sample[i], &any);
    ml_text_printf(out, "]");
}

ml_partial_buffer_bounds ml_partial_buffer_bounds_of(const ml_train_run *run,
                                                     int32_t max_new) {
    return (ml_partial_buffer_bounds){ .n_vocab = run->spec.n_vocab,
                                       .n_row = run->dataset.opts.make
                                                    ? INT64_MAX
                                                    : run->dataset.rows.n,
                                       .max_new = max_new };
}

/* Generation continues from the sample's tokens, so each must have its log-prob and weight
 * version. */
static ml_status check_sample(ml_sample *s, const ml_partial_buffer_bounds *b,
                              const char *name, ml_err *err) {
    if (s->n_response && (!s->logprob || !s->version))
        return ml_fail(err, ML_EFORMAT,
                       "%s: sample %lld of \"held\" lacks \"rollout_log_probs\" or "
                       "\"weight_versions\"",
                       name, (long long)s->index);
    if (s->row < 0 || s->row >= b->n_row)
        s->row = -1;
    return ml_sample_check(s, b->n_vocab, name, err);
}

/* See ml_gen_group_resume. */
static void say_cut(const ml_partial_buffer *h, const ml_partial_buffer_bounds *b,
                    const char *name) {
    int64_t n = 0;

    for (int64_t i = 0; i < h->n_group * h->n_per_group; i++)
        n += h->sample[i].n_response > b->max_new;
    if (n)
        ml_log(ML_LOG_WARN,
               "%s: %lld unfinished responses are longer than --rollout-max-response-len "
               "%d: they end there as truncated",
               name, (long long)n, b->max_new);
}

ml_status ml_partial_buffer_load(ml_partial_buffer *h, ml_str state,
                                 const ml_partial_buffer_bounds *b, const char *name,
                                 ml_err *err) {
    const ml_json *doc, *list;
    ml_str text = { ml_arena_str(&h->arena, state.ptr, state.len), state.len };
    ml_status st = ml_json_parse(&doc, &h->arena, text, name, err);
    int64_t i = 0;

    list = st == ML_OK ? ml_json_get(doc, "held") : NULL;
    if (!list)
        return st;
    if (list->type != ML_JSON_ARRAY || list->n % h->n_per_group)
        return ml_fail(err, ML_EFORMAT,
                       "%s: \"held\" is not a list of groups of %d samples: was it saved "
                       "with another --n-samples-per-prompt?",
                       name, h->n_per_group);
    h->n_group = list->n / h->n_per_group;
    h->sample = ML_NEW(&h->arena, ml_sample, list->n + 1);
    for (const ml_json *e = list->child; e && st == ML_OK; e = e->next, i++) {
        st = ml_sample_read(&h->sample[i], &h->arena, e, text, name, err);
        if (st == ML_OK)
            st = check_sample(&h->sample[i], b, name, err);
    }
    if (st == ML_OK)
        say_cut(h, b, name);
    return st;
}
