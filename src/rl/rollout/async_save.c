/* The async rollout's part of a snapshot: all groups that are generating or queued, with
 * the tokens they have so far, and the published weight versions. */
#include <stdlib.h>

#include "rl/rollout/async_priv.h"

enum { VERSIONS = 64 }; /* saved weight versions; limit of counted staleness */

static int64_t list_groups(const ml_sample **out, const ml_async_list *l) {
    int64_t n = 0;

    for (const ml_async_group *g = l->first; g; g = g->next)
        for (int32_t i = 0; i < g->id.n_sample; i++)
            out[n++] = &g->task[i]->sample;
    return n;
}

static void save_partial(ml_async *s, ml_text *out) {
    int32_t size = s->partial_buffer.n_per_group;
    ml_arena a;
    const ml_sample **sample;
    int64_t n;

    ml_arena_init(&a, "groups to save");
    sample = ML_NEW(&a, const ml_sample *, (s->queue.n + s->generating.n) * size + 1);
    n = list_groups(sample, &s->queue);
    n += list_groups(sample + n, &s->generating);
    ml_partial_buffer_save(&s->partial_buffer, sample, n, out);
    ml_arena_release(&a);
}

/* While this runs, no group is started, no token generated and no sample graded.  Threads
 * that end a sample need the lock, so this locks it only after they are idle. */
void ml_async_save(void *async_rollout, ml_text *out) {
    ml_async *s = async_rollout;
    ml_gen *gen = s->opts.gen_ctx.gen;
    int64_t from;

    ml_async_hold(s, true);
    gen->pause(gen);
    if (s->opts.gen_ctx.rewards)
        ml_rewards_wait(s->opts.gen_ctx.rewards);
    pthread_mutex_lock(&s->lock);
    from = s->n_published > VERSIONS ? s->n_published - VERSIONS : 0;
    ml_text_printf(out, "\"published\": [");
    for (int64_t i = from; i < s->n_published; i++)
        ml_text_printf(out, "%s%llu", i > from ? ", " : "",
                       (unsigned long long)s->published[i]);
    ml_text_printf(out, "], \"held\": ");
    save_partial(s, out);
    pthread_mutex_unlock(&s->lock);
    gen->resume(gen);
    /* Stays held until the next collect: the snapshot also has the data source's position,
     * which must not advance before that is saved. */
}

ml_status ml_async_load(void *async_rollout, ml_str state, const char *name, ml_err *err) {
    ml_async *s = async_rollout;
    ml_partial_buffer_bounds bounds =
        ml_partial_buffer_bounds_of(s->opts.run, s->opts.how.max_new);
    const ml_json *doc, *list;
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "versions");
    st = ml_json_parse(&doc, &a, state, name, err);
    list = st == ML_OK ? ml_json_get(doc, "published") : NULL;
    for (const ml_json *e = list ? list->child : NULL; e && st == ML_OK; e = e->next) {
        int64_t version;
        if (!ml_json_i64(e, &version) || version < 0)
            st = ml_fail(err, ML_EFORMAT, "%s: \"published\" is no list of versions", name);
        else
            st = ml_async_published(s, (uint64_t)version, err);
    }
    ml_arena_release(&a);
    return st == ML_OK
               ? ml_partial_buffer_load(&s->partial_buffer, state, &bounds, name, err)
               : st;
}
