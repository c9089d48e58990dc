#include "rl/rollout/prefetch.h"

#include "base/clock.h"

void ml_prefetch_init(ml_prefetch *h, ml_rollout inner, int64_t num_rollout,
                      int64_t n_vocab) {
    *h = (ml_prefetch){
        .inner = inner, .num_rollout = num_rollout, .n_vocab = n_vocab, .rollout = -1
    };
    ml_arena_init(&h->arena, "the next rollout");
}

/* --- a finished rollout that was not yet taken -------------------------------- */

static void let_go(ml_prefetch *h) {
    ml_arena_release(&h->arena);
    ml_arena_init(&h->arena, "the next rollout");
    h->batch = (ml_rollout_batch){ 0 };
    ml_metrics_init(&h->batch.metrics, &h->arena);
    h->rollout = -1;
    h->there = false;
}

/* --- generating --------------------------------------------------------------- */

static ml_status make(void *ud, ml_err *err) {
    ml_prefetch *h = ud;
    double began = ml_clock_s();
    ml_status st = h->inner.collect(h->inner.ud, h->rollout, &h->batch, &h->arena, err);

    h->batch.made_s = ml_clock_s() - began;
    return st;
}

static ml_status start(ml_prefetch *h, int64_t rollout, ml_err *err) {
    let_go(h);
    h->rollout = rollout;
    return ml_background_start(&h->maker, make, h, err);
}

static ml_status rest(void *ud, ml_err *err) {
    ml_prefetch *h = ud;
    ml_status st;

    if (h->rollout < 0 || h->there)
        return ML_OK;
    st = ml_background_wait(&h->maker, err);
    h->there = st == ML_OK;
    return st;
}

/* Takes the requested rollout batch, and starts generating the next one. */
static ml_status collect(void *ud, int64_t rollout, ml_rollout_batch *out, ml_arena *a,
                         ml_err *err) {
    ml_prefetch *h = ud;
    ml_status st = h->rollout == rollout ? ML_OK : start(h, rollout, err);

    if (st == ML_OK)
        st = rest(h, err);
    if (st != ML_OK)
        return st;
    ml_rollout_batch_copy(out, a, &h->batch);
    let_go(h);
    return rollout + 1 < h->num_rollout ? start(h, rollout + 1, err) : ML_OK;
}

static void cancel(void *ud) {
    ml_prefetch *h = ud;
    ml_err ignored;

    if (h->maker.running && h->inner.cancel)
        h->inner.cancel(h->inner.ud);
    (void)ml_background_wait(&h->maker, &ignored);
}

void ml_prefetch_release(ml_prefetch *h) {
    cancel(h);
    ml_arena_release(&h->arena);
}

/* --- snapshots ------------------------------------------------------------------ */

/* Called after rest, so the rollout batch is complete. */
static void save(void *ud, ml_text *out) {
    const ml_prefetch *h = ud;
    size_t before = out->len;

    if (h->inner.save)
        h->inner.save(h->inner.ud, out);
    if (!h->there)
        return;
    ml_text_printf(out, "%s\"ahead\": {\"rollout\": %lld, \"drawn\": %lld, \"figures\": {",
                   out->len > before ? ", " : "", (long long)h->rollout,
                   (long long)h->batch.n_drawn);
    ml_metrics_write(out, &h->batch.metrics);
    ml_text_printf(out, "}, \"samples\": [");
    for (int64_t i = 0; i < h->batch.n; i++) {
        ml_text_printf(out, "%s", i ? ", " : "");
        ml_sample_write(out, h->batch.sample[i]);
    }
    ml_text_printf(out, "]}");
}

static void read_metrics(ml_prefetch *h, const ml_json *list) {
    for (const ml_json *m = list ? list->child : NULL; m; m = m->next) {
        double value;
        if (ml_json_f64(m, &value))
            ml_metrics_add(&h->batch.metrics,
                           ml_arena_str(&h->arena, m->key.ptr, m->key.len), "", value);
    }
}

static ml_status read_samples(ml_prefetch *h, const ml_json *list, ml_str text,
                              const char *name, ml_err *err) {
    ml_sample *sample = ML_NEW(&h->arena, ml_sample, list->n + 1);
    ml_status st = ML_OK;

    h->batch.sample = ML_NEW(&h->arena, const ml_sample *, list->n + 1);
    for (const ml_json *e = list->child; e && st == ML_OK; e = e->next) {
        st = ml_sample_read(&sample[h->batch.n], &h->arena, e, text, name, err);
        if (st == ML_OK)
            st = ml_sample_check(&sample[h->batch.n], h->n_vocab, name, err);
        h->batch.sample[h->batch.n] = &sample[h->batch.n];
        h->batch.n++;
    }
    return st;
}

static ml_status load(void *ud, ml_str state, const char *name, ml_err *err) {
    ml_prefetch *h = ud;
    const ml_json *doc, *saved, *samples;
    ml_str text;
    ml_status st = h->inner.load ? h->inner.load(h->inner.ud, state, name, err) : ML_OK;

    let_go(h);
    text = (ml_str){ ml_arena_str(&h->arena, state.ptr, state.len), state.len };
    if (st == ML_OK)
        st = ml_json_parse(&doc, &h->arena, text, name, err);
    saved = st == ML_OK ? ml_json_get(doc, "ahead") : NULL;
    if (!saved)
        return st;
    samples = ml_json_get(saved, "samples");
    if (!samples || samples->type != ML_JSON_ARRAY ||
        !ml_json_i64(ml_json_get(saved, "rollout"), &h->rollout) ||
        !ml_json_i64(ml_json_get(saved, "drawn"), &h->batch.n_drawn))
        return ml_fail(err, ML_EFORMAT, "%s: \"ahead\" is not a rollout of samples", name);
    read_metrics(h, ml_json_get(saved, "figures"));
    h->there = true;
    return read_samples(h, samples, text, name, err);
}

ml_rollout ml_rollout_prefetch(ml_prefetch *h) {
    return (ml_rollout){ .collect = collect,
                         .rest = rest,
                         .cancel = cancel,
                         .save = save,
                         .load = load,
                         .ud = h };
}
