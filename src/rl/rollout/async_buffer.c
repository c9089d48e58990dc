/* Selection of queued groups by a buffer extension. */
#include "rl/answers.h"
#include "rl/rollout/async_priv.h"

/* The queued groups in the form that the extension sees. */
static miles_waiting view_of(ml_async *s, ml_arena *a, int64_t want) {
    int32_t size = s->opts.run->opts.source.n_samples_per_prompt;
    int64_t n = s->queue.n, i = 0, k = 0, *stale = ML_NEW(a, int64_t, n + 1);
    const ml_sample **sample = ML_NEW(a, const ml_sample *, n *size + 1);

    for (const ml_async_group *g = s->queue.first; g; g = g->next) {
        stale[i++] = ml_async_staleness(s, g);
        for (int32_t t = 0; t < g->id.n_sample; t++)
            sample[k++] = &g->task[t]->sample;
    }
    return (miles_waiting){ .size = sizeof(miles_waiting),
                            .answers = ml_answers_of(a, sample, k, -1),
                            .n_group = n,
                            .staleness = stale,
                            .n_want = want };
}

static ml_status check_decisions(const miles_extension *ext, const int32_t *decision,
                                 int64_t n, int64_t want, ml_err *err) {
    int64_t n_train = 0;

    for (int64_t i = 0; i < n; i++) {
        if (decision[i] < MILES_KEEP_WAITING || decision[i] > MILES_DROP)
            return ml_fail(err, ML_EFORMAT, "%s: a group has the fate %d", ext->name,
                           decision[i]);
        n_train += decision[i] == MILES_TRAIN;
    }
    return n_train <= want
               ? ML_OK
               : ml_fail(err, ML_EFORMAT,
                         "%s: %lld groups shall be trained on, and the round needs %lld",
                         ext->name, (long long)n_train, (long long)want);
}

static void part(ml_async *s, const int32_t *decision, ml_async_group **out, int64_t *n) {
    ml_async_list stay = { 0 };
    ml_async_group *g;

    for (int64_t i = 0; (g = ml_async_pop(&s->queue)); i++)
        if (decision[i] == MILES_TRAIN) {
            out[(*n)++] = g;
        } else if (decision[i] == MILES_KEEP_WAITING) {
            ml_async_push(&stay, g);
        } else {
            s->counts.n_stale++;
            ml_async_drop_group(s, g);
        }
    s->queue = stay;
}

ml_status ml_async_select(ml_async *s, ml_async_group **out, int64_t want, int64_t *n,
                          ml_err *err) {
    const miles_buffer *ext = s->opts.buffer;
    miles_error why = { "" };
    miles_waiting waiting;
    int32_t *decision;
    ml_arena a;
    ml_status st;

    *n = 0;
    ml_arena_init(&a, "groups that wait");
    waiting = view_of(s, &a, want);
    decision = ML_NEW(&a, int32_t, waiting.n_group + 1);
    st = ext->run(&waiting, decision, &why) == 0
             ? ML_OK
             : ml_extension_failed(&ext->base, &why, err);
    if (st == ML_OK)
        st = check_decisions(&ext->base, decision, waiting.n_group, want, err);
    if (st == ML_OK)
        part(s, decision, out, n);
    ml_arena_release(&a);
    return st;
}
