#include "rl/loop/invariants.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/map.h"
#include "io/jsonl.h"
#include "rl/eval/evals.h"
#include "rl/loop/iteration.h"
#include "train/master_weights.h"

/* --- an earlier run ----------------------------------------------------------- */

typedef struct ml_reference {
    const char *path, *member;
    ml_jsonl file;
    ml_map row; /* "rollout step" to a row number */
} ml_reference;

static char *key_of(ml_arena *a, int64_t rollout, int64_t step) {
    return ml_arena_printf(a, "%lld %lld", (long long)rollout, (long long)step);
}

static ml_status index_rows(ml_reference *ref, ml_arena *a, ml_err *err) {
    ml_status st = ML_OK;

    ml_map_init(&ref->row, a, ref->file.n);
    for (int64_t i = 0; i < ref->file.n && st == ML_OK; i++) {
        const ml_json *row;
        int64_t rollout = 0, step = 0;
        st = ml_jsonl_parse(&row, &ref->file, i, a, err);
        if (st == ML_OK && (!ml_json_i64(ml_json_get(row, "rollout"), &rollout) ||
                            !ml_json_i64(ml_json_get(row, "step"), &step) ||
                            !ml_json_get(row, ref->member)))
            st = ml_fail(err, ML_EFORMAT,
                         "%s: row %lld lacks \"rollout\", \"step\" or \"%s\"", ref->path,
                         (long long)i + 1, ref->member);
        if (st == ML_OK)
            ml_map_add(&ref->row, ml_str_of(key_of(a, rollout, step)), i);
    }
    return st;
}

static ml_status open_reference(ml_reference **out, ml_arena *a, const char *path,
                                const char *member, ml_err *err) {
    ml_reference *ref = ML_NEW(a, ml_reference, 1);
    ml_status st;

    if (!path)
        return ML_OK;
    *out = ref;
    *ref = (ml_reference){ .path = path, .member = member };
    st = ml_jsonl_open(&ref->file, path, err);
    return st == ML_OK ? index_rows(ref, a, err) : st;
}

/* Compares a value, as text without quotes, with the earlier run's.  Steps that the
 * earlier run does not have pass. */
static ml_status compare(const ml_reference *ref, int64_t rollout, int64_t step,
                         const char *is, ml_err *err) {
    const ml_json *row, *was;
    ml_status st = ML_OK;
    ml_arena a;
    int64_t at;

    if (!ref)
        return ML_OK;
    ml_arena_init(&a, "a row of an earlier run");
    at = ml_map_get(&ref->row, ml_str_of(key_of(&a, rollout, step)), -1);
    if (at >= 0 && ml_jsonl_parse(&row, &ref->file, at, &a, NULL) == ML_OK) {
        was = ml_json_get(row, ref->member);
        if (was && !ml_str_is(was->text, is))
            st = ml_fail(err, ML_EFORMAT,
                         "rollout %lld, step %lld: \"%s\" is %s, but %.*s in %s: the runs "
                         "diverge here",
                         (long long)rollout, (long long)step, ref->member, is,
                         (int)was->text.len, was->text.ptr, ref->path);
    }
    ml_arena_release(&a);
    return st;
}

/* --- opening ------------------------------------------------------------------ */

static ml_status create(FILE **out, const char *path, ml_err *err) {
    if (!path)
        return ML_OK;
    *out = fopen(path, "w");
    return *out ? ML_OK
                : ml_fail(err, ML_EIO, "%s: cannot create the file: %s", path,
                          strerror(errno));
}

ml_status ml_invariants_open(ml_invariants *c, const ml_invariants_opts *opts,
                             ml_err *err) {
    ml_status st;

    *c = (ml_invariants){ .opts = *opts, .best = -(double)INFINITY };
    ml_arena_init(&c->arena, "invariants of a run");
    st = open_reference(&c->grad_norm, &c->arena, opts->load_grad_norm, "grad_norm", err);
    if (st == ML_OK)
        st = open_reference(&c->hash, &c->arena, opts->check_hash, "weights", err);
    if (st == ML_OK)
        st = create(&c->grad_norm_out, opts->save_grad_norm, err);
    return st == ML_OK ? create(&c->hash_out, opts->save_hash, err) : st;
}

void ml_invariants_close(ml_invariants *c) {
    if (c->grad_norm)
        ml_jsonl_close(&c->grad_norm->file);
    if (c->hash)
        ml_jsonl_close(&c->hash->file);
    if (c->grad_norm_out)
        fclose(c->grad_norm_out);
    if (c->hash_out)
        fclose(c->hash_out);
    ml_arena_release(&c->arena);
    *c = (ml_invariants){ 0 };
}

/* --- steps -------------------------------------------------------------------- */

static bool wants_hashes(const ml_invariants *c) {
    return c->opts.determinism || c->hash || c->hash_out;
}

static ml_status write_line(FILE *f, const ml_text *line, const char *path, ml_err *err) {
    if (fwrite(line->ptr, 1, line->len, f) != line->len || fflush(f) != 0)
        return ml_fail(err, ML_EIO, "%s: cannot write: is the disk full?", path);
    return ML_OK;
}

static ml_status check_grad_norm(ml_invariants *c, int64_t rollout, int64_t step,
                                 double norm, ml_err *err) {
    ml_text line = { 0 };
    ml_status st = ML_OK;
    char is[40];

    snprintf(is, sizeof is, "%.17g", norm);
    if (c->grad_norm_out) {
        ml_text_printf(&line, "{\"rollout\": %lld, \"step\": %lld, \"grad_norm\": %s}\n",
                       (long long)rollout, (long long)step, is);
        st = write_line(c->grad_norm_out, &line, c->opts.save_grad_norm, err);
    }
    ml_text_release(&line);
    return st == ML_OK ? compare(c->grad_norm, rollout, step, is, err) : st;
}

static ml_status check_hashes(ml_invariants *c, const ml_loop_event *e, ml_err *err) {
    int64_t step = e->first_step + e->step;
    uint64_t gradients, weights = 0;
    ml_text line = { 0 };
    char is[20];
    ml_status st =
        ml_hash_weights(&gradients, ml_trainer_grads(c->opts.trainer), NULL, err);

    if (st == ML_OK)
        st = ml_hash_weights(&weights, c->opts.weights, NULL, err);
    if (st != ML_OK)
        return st;
    snprintf(is, sizeof is, "%016llx", (unsigned long long)weights);
    ml_text_printf(&line, "{\"rollout\": %lld, \"step\": %lld", (long long)e->rollout,
                   (long long)step);
    if (c->opts.determinism)
        ml_run_log_hashes(c->opts.log, line.ptr, ml_hash_samples(e->sample, e->n_sample),
                          gradients, weights);
    ml_text_printf(&line, ", \"weights\": \"%s\"}\n", is);
    if (c->hash_out)
        st = write_line(c->hash_out, &line, c->opts.save_hash, err);
    ml_text_release(&line);
    return st == ML_OK ? compare(c->hash, e->rollout, step, is, err) : st;
}

/* --- fresh samples ------------------------------------------------------------ */

static ml_status check_zero(const ml_iteration *r, const ml_metrics *f, const char *name,
                            ml_err *err) {
    double x = ml_metrics_get(f, name, 0);
    if (x == 0)
        return ML_OK;
    return ml_fail(err, ML_EFORMAT,
                   "--ci-test: %s is %g in rollout %lld, but must be 0, because the first "
                   "train step starts from the weights that generated the samples",
                   name, x, (long long)r->rollout);
}

static ml_status check_fresh(const ml_invariants *c, const ml_iteration *r, ml_err *err) {
    const ml_learn_result *l = &r->result;
    ml_status st = ML_OK;

    if (!c->opts.fresh_steps || l->n_step == 0)
        return ML_OK;
    if (!c->opts.skip_logprob && l->n_stale)
        return ml_fail(err, ML_EFORMAT,
                       "--ci-test: older weights generated %lld tokens of rollout %lld; "
                       "--ci-disable-logprobs-checker allows that",
                       (long long)l->n_stale, (long long)r->rollout);
    if (c->opts.skip_kl || l->n_stale)
        return ML_OK;
    st = check_zero(r, &l->step[0].metrics, "train/ppo_kl", err);
    return st == ML_OK ? check_zero(r, &l->step[0].metrics, "train/pg_clipfrac", err) : st;
}

/* --- rollouts ----------------------------------------------------------------- */

static void take_metrics(ml_invariants *c, const ml_metrics *metrics) {
    double x;

    if (!c->opts.metric)
        return;
    x = ml_metrics_get(metrics, c->opts.metric, (double)NAN);
    if (x > c->best)
        c->best = x;
}

static ml_status check_rollout(ml_invariants *c, const ml_iteration *r, ml_err *err) {
    const ml_learn_result *l = &r->result;
    ml_status st = ML_OK;

    if (l->n_step && c->n_learned++ < c->opts.n_masters)
        st = ml_master_weights_check(ml_trainer_optimizer(c->opts.trainer), err);
    take_metrics(c, &r->batch.metrics);
    take_metrics(c, &l->rollout);
    for (int32_t k = 0; k < l->n_step && st == ML_OK; k++) {
        take_metrics(c, &l->step[k].metrics);
        st = check_grad_norm(c, r->rollout, l->first_step + k, l->step[k].step.grad_norm,
                             err);
    }
    return st == ML_OK ? check_fresh(c, r, err) : st;
}

/* generating: NULL if the weights are in another process. */
static ml_status check_sync(const ml_invariants *c, const ml_weights *generating,
                            ml_err *err) {
    unsigned long long version = c->opts.weights->version;
    uint64_t trained, published;
    ml_text t = { 0 };
    ml_status st = ml_hash_weights(&trained, c->opts.weights, &c->opts.sync_skip, err);

    published = trained;
    if (st == ML_OK && c->opts.check_sync && generating && generating != c->opts.weights)
        st = ml_hash_weights(&published, generating, &c->opts.sync_skip, err);
    if (st == ML_OK && published != trained)
        st = ml_fail(err, ML_EFORMAT,
                     "weight_sync: version %llu of the weights has the hash %016llx in the "
                     "trainer and %016llx in the engine",
                     version, (unsigned long long)trained, (unsigned long long)published);
    if (st != ML_OK || !c->opts.say_sync)
        return st;
    ml_text_printf(&t, "weight_sync: version %llu, hash %016llx", version,
                   (unsigned long long)trained);
    c->opts.say_sync(t.ptr);
    ml_text_release(&t);
    return ML_OK;
}

static ml_status check_metric(const ml_invariants *c, ml_err *err) {
    if (!c->opts.metric || c->best >= c->opts.threshold)
        return ML_OK;
    return ml_fail(err, ML_EFORMAT,
                   "--ci-metric-checker-key: the highest %s is %g, less than the threshold "
                   "%g",
                   c->opts.metric, c->best, c->opts.threshold);
}

ml_status ml_invariants_on(void *invariants, const ml_loop_event *e, ml_err *err) {
    ml_invariants *c = invariants;

    if (e->kind == ML_ON_STEP_END && wants_hashes(c))
        return check_hashes(c, e, err);
    if (e->kind == ML_ON_LEARNED)
        return check_rollout(c, e->iteration, err);
    if (e->kind == ML_ON_PUBLISHED && (c->opts.check_sync || c->opts.say_sync))
        return check_sync(c, e->weights, err);
    if (e->kind == ML_ON_EVALUATED)
        take_metrics(c, &e->scores->metrics);
    return e->kind == ML_ON_RUN_END ? check_metric(c, err) : ML_OK;
}
