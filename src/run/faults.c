/* Fault injection, to test that a run survives engine crashes:
 *
 *     [{"at_rollout": 2, "action": "crash_engine_at_end", "cell_index": 0}] */
#include "base/json.h"
#include "run/generator.h"

#define FLAG "--ci-ft-test-actions"

static ml_status read_number(int64_t *out, const ml_json *action, const char *key,
                             ml_err *err) {
    const ml_json *v = ml_json_get(action, key);

    if (v && !ml_json_i64(v, out))
        return ml_fail(err, ML_EUSAGE, FLAG ": \"%s\": expected a whole number", key);
    return ML_OK;
}

static ml_status check_action(const ml_json *action, ml_err *err) {
    const ml_json *v = ml_json_get(action, "action");
    ml_str word = v && v->type == ML_JSON_STRING ? v->text : ml_str_of("");

    if (ml_str_is(word, "crash_engine_at_end"))
        return ML_OK;
    if (ml_str_is(word, "stop_cell_at_end") || ml_str_is(word, "start_cell_at_end") ||
        ml_str_is(word, "crash_before_allreduce"))
        return ml_fail(err, ML_EUSAGE,
                       FLAG ": \"%.*s\" needs training ranks that are replaced one by one, "
                            "but here a failed rank ends the job, which resumes from its "
                            "snapshot; the supported action is \"crash_engine_at_end\"",
                       (int)word.len, word.ptr);
    return ml_fail(err, ML_EUSAGE,
                   FLAG ": \"action\": expected \"crash_engine_at_end\", for an engine of "
                        "--rollout-num-engines");
}

static ml_status check_keys(const ml_json *action, ml_err *err) {
    for (const ml_json *v = action->child; v; v = v->next)
        if (!ml_str_is(v->key, "at_rollout") && !ml_str_is(v->key, "action") &&
            !ml_str_is(v->key, "cell_index"))
            return ml_fail(err, ML_EUSAGE,
                           FLAG ": unknown key \"%.*s\"; expected \"at_rollout\", "
                                "\"action\" and \"cell_index\", the engine",
                           (int)v->key.len, v->key.ptr);
    return ML_OK;
}

/* As in Miles, -1 is the last engine. */
static ml_status read_fault(ml_fault *out, const ml_json *action, int32_t n_engine,
                            ml_err *err) {
    int64_t rollout = -1, engine = -1;
    ml_status st = check_action(action, err);

    if (st == ML_OK)
        st = check_keys(action, err);
    if (st == ML_OK)
        st = read_number(&rollout, action, "at_rollout", err);
    if (st == ML_OK)
        st = read_number(&engine, action, "cell_index", err);
    if (st != ML_OK)
        return st;
    if (rollout < 0)
        return ml_fail(err, ML_EUSAGE,
                       FLAG ": \"at_rollout\": expected the number of a rollout, >= 0");
    if (engine < -1 || engine >= n_engine)
        return ml_fail(err, ML_EUSAGE,
                       FLAG ": \"cell_index\" is %lld, but --rollout-num-engines has %d "
                            "engines, numbered from 0",
                       (long long)engine, (int)n_engine);
    *out = (ml_fault){ rollout, (int32_t)(engine < 0 ? n_engine - 1 : engine) };
    return ML_OK;
}

ml_status ml_faults_read(ml_faults *out, ml_arena *a, const char *json, int32_t n_engine,
                         ml_err *err) {
    const ml_json *root;
    ml_fault *fault;
    ml_status st;

    *out = (ml_faults){ 0 };
    if (!json)
        return ML_OK;
    st = ml_json_parse(&root, a, ml_str_of(json), FLAG, err);
    if (st != ML_OK)
        return ML_EUSAGE;
    if (root->type != ML_JSON_ARRAY)
        return ml_fail(err, ML_EUSAGE, FLAG ": expected an array of actions, not %s",
                       ml_json_what(root));
    fault = ML_NEW(a, ml_fault, root->n + 1);
    for (const ml_json *v = root->child; st == ML_OK && v; v = v->next)
        st = read_fault(&fault[out->n++], v, n_engine, err);
    out->fault = fault;
    return st;
}

void ml_faults_happen(ml_faults *f, ml_supervisor *supervisor, int64_t rollout) {
    for (int32_t i = 0; i < f->n; i++)
        if (f->fault[i].rollout > f->after && f->fault[i].rollout <= rollout)
            ml_supervisor_crash(supervisor, f->fault[i].engine);
    f->after = rollout;
}
