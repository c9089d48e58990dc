#include "rl/reward/judge.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/json_out.h"
#include "rl/reward/request_json.h"
#include "rl/reward/answer.h"
#include "rl/reward/grade.h"
#include "rl/reward/label.h"
#include "rl/reward/llm_judge.h"
#include "rl/reward_parts.h"
#include "rl/reward/reward_model.h"
#include "rl/reward/rm_http.h"

struct ml_judge {
    ml_arena arena; /* this struct is allocated in it */
    const ml_reward_opts *opts;
    ml_line_process *worker; /* NULL: not used */
    ml_rm_http *remote;
    ml_llm_judge *llm; /* NULL: not used */
    ml_judge **part;   /* [opts->n_part] */
};

/* --- verdicts ----------------------------------------------------------------- */

static void clear(ml_verdict *v) {
    v->outcome = ML_REWARD_OK;
    v->reward = (double)NAN;
    v->json.len = v->why.len = 0;
    ml_text_add(&v->json, "", 0);
    ml_text_add(&v->why, "", 0);
}

void ml_verdict_release(ml_verdict *v) {
    ml_text_release(&v->json);
    ml_text_release(&v->why);
}

static void fail(ml_verdict *v, ml_reward_outcome outcome, const char *why) {
    v->outcome = outcome;
    v->reward = (double)NAN;
    v->json.len = v->why.len = 0;
    ml_text_printf(&v->json, "null");
    ml_text_add(&v->why, why, strlen(why));
}

/* "NaN" and similar, as Python, JavaScript and JSON writers spell them; NULL: none of
 * them. */
static const char *unreal(ml_str s) {
    static const char *const words[][2] = {
        { "nan", "NaN" },        { "NaN", "NaN" },           { "inf", "infinity" },
        { "-inf", "-infinity" }, { "Infinity", "infinity" }, { "-Infinity", "-infinity" },
    };

    s = ml_str_trim(s);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (ml_str_is(s, words[i][0]))
            return words[i][1];
    return NULL;
}

/* Describes a reward value that is not a finite number. */
static const char *what_of(ml_arena *a, const ml_json *v) {
    const char *word = v && v->type == ML_JSON_STRING ? unreal(v->text) : NULL;

    if (word)
        return word;
    if (!v)
        return "missing";
    if (v->type == ML_JSON_NULL)
        return "null (None)";
    if (v->type == ML_JSON_STRING)
        return ml_arena_printf(a, "the string '%.*s'",
                               (int)(v->text.len < 40 ? v->text.len : 40), v->text.ptr);
    return ml_json_what(v);
}

static const char *no_number(ml_arena *a, const ml_json *doc, const char *key) {
    const char *what = what_of(a, ml_reward_pick(doc, key));

    if (doc->type != ML_JSON_OBJECT)
        return ml_arena_printf(a, "the reward is %s; expected a finite number", what);
    if (!key)
        key = ml_json_get(doc, "reward") || !ml_json_get(doc, "score") ? "reward" : "score";
    return ml_arena_printf(a, "the reward has no finite number '%s': it is %s", key, what);
}

/* Describes a line that is not JSON. */
static const char *no_json(ml_arena *a, ml_str line, const ml_err *err) {
    bool unreal_inside =
        memmem(line.ptr, line.len, "NaN", 3) || memmem(line.ptr, line.len, "Infinity", 8);

    if (unreal(line))
        return ml_arena_printf(a, "the reward is %s; expected a finite number",
                               unreal(line));
    return unreal_inside
               ? ml_arena_printf(
                     a, "the reward contains NaN or Infinity, which are not valid JSON: %s",
                     err->msg)
               : err->msg;
}

bool ml_verdict_read(ml_verdict *v, ml_str json, const char *key) {
    const ml_json *doc = NULL, *error;
    ml_arena arena;
    ml_err err;
    bool is_json;

    clear(v);
    ml_arena_init(&arena, "reward");
    is_json = ml_json_parse(&doc, &arena, json, "the reward", &err) == ML_OK;
    if (!is_json)
        fail(v, ML_REWARD_INVALID, no_json(&arena, json, &err));
    else if ((error = ml_json_get(doc, "error")) && error->type == ML_JSON_STRING)
        fail(v, ML_REWARD_INVALID, ml_arena_str(&arena, error->text.ptr, error->text.len));
    else if (ml_reward_number(ml_reward_pick(doc, key), &v->reward))
        ml_text_add(&v->json, json.ptr, json.len);
    else
        fail(v, ML_REWARD_INVALID, no_number(&arena, doc, key));
    ml_arena_release(&arena);
    return is_json;
}

/* --- graders ------------------------------------------------------------------ */

static void take_number(const ml_judge *j, ml_verdict *v, const miles_reward_out *out) {
    if (!isfinite(out->reward)) {
        fail(v, ML_REWARD_INVALID,
             isnan(out->reward) ? "the reward is NaN; expected a finite number"
                                : "the reward is infinite; expected a finite number");
    } else if (out->detail[0] && j->opts->reward_key) {
        ml_verdict_read(v, ml_str_of(out->detail), j->opts->reward_key);
    } else {
        v->reward = out->reward;
        if (out->detail[0])
            ml_text_printf(&v->json, "%s", out->detail);
        else
            ml_json_number(&v->json, out->reward);
    }
}

static void run_row(const ml_judge *j, ml_verdict *v, const ml_grader *g,
                    const miles_reward_in *in) {
    miles_reward_out out;
    miles_error why;

    if (ml_grader_run(g, in, &out, &why) != 0)
        fail(v, ML_REWARD_INVALID, why.text);
    else
        take_number(j, v, &out);
}

static void ask_model(const ml_judge *j, ml_verdict *v, const miles_reward_in *in) {
    miles_reward_out out = { .size = sizeof out };
    miles_error why = { "" };

    if (ml_reward_model_grade(j->opts->model, in, &out, &why) != 0)
        fail(v, ML_REWARD_INVALID, why.text);
    else
        take_number(j, v, &out);
}

static void ask_llm(const ml_judge *j, ml_verdict *v, const miles_reward_in *in) {
    miles_reward_out out = { .size = sizeof out };
    ml_text why = { 0 };
    ml_reward_outcome end = ml_llm_judge_grade(j->llm, &out.reward, &why, in,
                                               j->opts->deadline_s, j->opts->n_retry);

    if (end == ML_REWARD_OK)
        take_number(j, v, &out);
    else
        fail(v, end, why.ptr);
    ml_text_release(&why);
}

/* --- requests ----------------------------------------------------------------- */

/* Writes a sample as one line. */
static void write_question(ml_text *t, const miles_reward_in *in, bool raw) {
    ml_str response = raw ? ml_raw_response(in) : ml_response(in);

    ml_text_printf(t, "{\"index\": %lld", (long long)in->index);
    ml_request_text(t, "prompt", in->prompt, in->prompt_len);
    ml_request_text(t, "response", in->response ? response.ptr : NULL, response.len);
    ml_request_json(t, "label", in->label, in->label_len);
    ml_request_json(t, "metadata", in->metadata, in->metadata_len);
    ml_text_printf(t, "}");
}

static void ask_worker(ml_judge *j, ml_verdict *v, const miles_reward_in *in) {
    ml_text question = { 0 }, answer = { 0 };

    write_question(&question, in, false);
    switch (ml_line_process_ask(j->worker, &answer, (ml_str){ question.ptr, question.len },
                                j->opts->deadline_s)) {
    /* After invalid output, restart the worker: its next line cannot be trusted. */
    case ML_LINE_PROCESS_ANSWERED:
        if (!ml_verdict_read(v, (ml_str){ answer.ptr, answer.len }, j->opts->reward_key))
            ml_line_process_restart(j->worker);
        break;
    case ML_LINE_PROCESS_LATE: fail(v, ML_REWARD_TIMEOUT, answer.ptr); break;
    case ML_LINE_PROCESS_DIED: fail(v, ML_REWARD_CRASH, answer.ptr); break;
    }
    ml_text_release(&question);
    ml_text_release(&answer);
}

static void ask_remote(ml_judge *j, ml_verdict *v, const miles_reward_in *in) {
    ml_text question = { 0 }, answer = { 0 };

    write_question(&question, in, true); /* such servers are written for Miles */
    switch (ml_rm_http_ask(j->remote, &answer, (ml_str){ question.ptr, question.len },
                           j->opts->deadline_s, j->opts->n_retry)) {
    case ML_RM_ANSWERED:
        ml_verdict_read(v, (ml_str){ answer.ptr, answer.len }, j->opts->reward_key);
        break;
    case ML_RM_LATE: fail(v, ML_REWARD_TIMEOUT, answer.ptr); break;
    case ML_RM_DOWN: fail(v, ML_REWARD_CRASH, answer.ptr); break;
    case ML_RM_REFUSED: fail(v, ML_REWARD_INVALID, answer.ptr); break;
    }
    ml_text_release(&question);
    ml_text_release(&answer);
}

/* --- groups ------------------------------------------------------------------- */

static void fail_group(ml_verdict *v, int64_t n, ml_reward_outcome outcome,
                       const char *why) {
    for (int64_t i = 0; i < n; i++) {
        clear(&v[i]);
        fail(&v[i], outcome, why);
    }
}

/* Reads a list with a reward for each sample.  False if it is not JSON. */
static bool read_group(ml_verdict *v, int64_t n, ml_str line, const char *key) {
    const ml_json *doc = NULL, *error, *e;
    ml_arena arena;
    ml_err err = { 0 };
    bool is_json;

    ml_arena_init(&arena, "rewards");
    is_json = ml_json_parse(&doc, &arena, line, "the rewards", &err) == ML_OK;
    error = is_json ? ml_json_get(doc, "error") : NULL;
    if (!is_json)
        fail_group(v, n, ML_REWARD_INVALID, err.msg);
    else if (error && error->type == ML_JSON_STRING)
        fail_group(v, n, ML_REWARD_INVALID,
                   ml_arena_str(&arena, error->text.ptr, error->text.len));
    else if (doc->type != ML_JSON_ARRAY || doc->n != n)
        fail_group(
            v, n, ML_REWARD_INVALID,
            ml_arena_printf(&arena, "expected a list of %lld rewards", (long long)n));
    else
        for (e = doc->child; e; e = e->next, v++)
            ml_verdict_read(v, (ml_str){ line.ptr + e->begin, e->end - e->begin }, key);
    ml_arena_release(&arena);
    return is_json;
}

static void ask_worker_group(ml_judge *j, ml_verdict *v, const miles_reward_in *const *in,
                             int64_t n) {
    ml_text question = { 0 }, answer = { 0 };

    ml_text_printf(&question, "{\"samples\": [");
    for (int64_t i = 0; i < n; i++) {
        ml_text_printf(&question, "%s", i ? ", " : "");
        write_question(&question, in[i], false);
    }
    ml_text_printf(&question, "]}");
    switch (ml_line_process_ask(j->worker, &answer, (ml_str){ question.ptr, question.len },
                                j->opts->deadline_s * (double)n)) {
    case ML_LINE_PROCESS_ANSWERED:
        if (!read_group(v, n, (ml_str){ answer.ptr, answer.len }, j->opts->reward_key))
            ml_line_process_restart(j->worker);
        break;
    case ML_LINE_PROCESS_LATE: fail_group(v, n, ML_REWARD_TIMEOUT, answer.ptr); break;
    case ML_LINE_PROCESS_DIED: fail_group(v, n, ML_REWARD_CRASH, answer.ptr); break;
    }
    ml_text_release(&question);
    ml_text_release(&answer);
}

/* --- Python functions ------------------------------------------------------------ */

static void write_ids(ml_text *t, const miles_reward_in *in) {
    ml_text_printf(t, ", \"tokens\": [");
    for (int64_t i = 0; i < in->n_token; i++)
        ml_text_printf(t, i ? ",%lld" : "%lld", (long long)in->token[i]);
    ml_text_printf(t, "]");
}

static void write_arrays(ml_text *t, const miles_reward_in *in) {
    ml_json_out o = { t, true };

    ml_json_put_int(&o, "response_length", in->n_response);
    if (in->log_prob) {
        ml_json_key(&o, "rollout_log_probs");
        ml_json_floats(&o, in->log_prob, (int32_t)in->n_response);
    }
    if (!in->mask)
        return;
    ml_json_key(&o, "loss_mask");
    ml_json_begin(&o, '[');
    for (int64_t i = 0; i < in->n_response; i++)
        ml_json_int(&o, in->mask[i]);
    ml_json_end(&o, ']');
}

/* With the names of Miles' Sample; `text` is the response without its end token. */
static void write_sample(ml_text *t, const miles_reward_in *in) {
    static const char *const status[] = { "pending", "completed", "truncated", "aborted",
                                          "failed" };
    ml_str raw = ml_raw_response(in), cut = ml_response(in);

    ml_text_printf(t, "{\"index\": %lld, \"group_index\": %lld, \"status\": \"%s\"",
                   (long long)in->index, (long long)in->group, status[in->status]);
    ml_request_text(t, "prompt", in->prompt ? in->prompt : "", in->prompt_len);
    ml_request_text(t, "response", in->response ? raw.ptr : "", raw.len);
    if (!ml_str_eq(raw, cut) || !in->response)
        ml_request_text(t, "text", in->response ? cut.ptr : NULL, cut.len);
    ml_request_json(t, "label", in->label, in->label_len);
    if (in->metadata)
        ml_request_json(t, "metadata", in->metadata, in->metadata_len);
    else
        ml_text_printf(t, ", \"metadata\": {}");
    write_ids(t, in);
    write_arrays(t, in);
    ml_text_printf(t, "}");
}

void ml_judge_write_call(ml_text *t, const char *flag, const miles_reward_in *const *in,
                         int64_t n, bool group) {
    ml_text_printf(
        t, group ? "{\"f\": \"%s\", \"samples\": [" : "{\"f\": \"%s\", \"sample\": ", flag);
    for (int64_t i = 0; i < n; i++) {
        ml_text_printf(t, "%s", i ? ", " : "");
        write_sample(t, in[i]);
    }
    ml_text_printf(t, group ? "]}" : "}");
}

void ml_judge_read_answer(ml_verdict *v, int64_t n, bool group, ml_worker_end end,
                          ml_str text, const char *key) {
    ml_text why = { 0 };

    if (end == ML_WORKER_ANSWERED && group)
        read_group(v, n, text, key);
    else if (end == ML_WORKER_ANSWERED)
        ml_verdict_read(v, text, key);
    else {
        ml_text_add(&why, text.ptr, text.len);
        fail_group(v, n, end == ML_WORKER_LATE ? ML_REWARD_TIMEOUT : ML_REWARD_CRASH,
                   why.ptr);
    }
    ml_text_release(&why);
}

static void ask_python(const ml_judge *j, ml_worker_pool *pool, const char *flag,
                       ml_verdict *v, const miles_reward_in *const *in, int64_t n,
                       bool group) {
    ml_text call = { 0 }, answer = { 0 };
    ml_worker_end end;

    ml_judge_write_call(&call, flag, in, n, group);
    end = ml_worker_pool_ask(pool, &answer, (ml_str){ call.ptr, call.len },
                             j->opts->deadline_s * (double)n);
    ml_judge_read_answer(v, n, group, end, (ml_str){ answer.ptr, answer.len },
                         j->opts->reward_key);
    ml_text_release(&call);
    ml_text_release(&answer);
}

static void run_group_row(const ml_judge *j, ml_verdict *v,
                          const miles_reward_in *const *in, int64_t n) {
    miles_reward_out *out, **list;
    miles_error why = { "" };
    ml_arena arena;

    ml_arena_init(&arena, "rewards");
    out = ML_NEW(&arena, miles_reward_out, n);
    list = ML_NEW(&arena, miles_reward_out *, n);
    for (int64_t i = 0; i < n; i++) {
        out[i] = (miles_reward_out){ .size = sizeof *out, .reward = (double)NAN };
        list[i] = &out[i];
    }
    if (j->opts->group_ext->run(in, n, list, &why) != 0)
        fail_group(v, n, ML_REWARD_INVALID, why.text);
    else
        for (int64_t i = 0; i < n; i++) {
            clear(&v[i]);
            take_number(j, &v[i], &out[i]);
        }
    ml_arena_release(&arena);
}

/* --- sums --------------------------------------------------------------------- */

static void begin_sum(ml_verdict *v) {
    clear(v);
    v->reward = 0.0;
    ml_text_printf(&v->json, "{");
}

/* Adds a reward and its parts to a sum; the first failure is the sum's failure. */
static void add_to_sum(ml_verdict *v, const ml_reward_part *part, const ml_verdict *own) {
    ml_reward_value more[ML_REWARD_PARTS];
    int n;

    if (v->outcome != ML_REWARD_OK)
        return;
    if (own->outcome != ML_REWARD_OK) {
        ml_text why = { 0 };
        ml_text_printf(&why, "%s: %s", part->name, own->why.ptr);
        fail(v, own->outcome, why.ptr);
        ml_text_release(&why);
        return;
    }
    v->reward += part->weight * own->reward;
    ml_text_printf(&v->json, "\"%s\": ", part->name);
    ml_json_number(&v->json, own->reward);
    n = ml_reward_parts(more, (ml_str){ own->json.ptr, own->json.len },
                        part->opts.reward_key);
    for (int i = 0; i < n; i++) {
        ml_text_printf(&v->json, ", \"%s/%s\": ", part->name, more[i].name);
        ml_json_number(&v->json, more[i].value);
    }
    ml_text_printf(&v->json, ", ");
}

static void end_sum(ml_verdict *v) {
    if (v->outcome != ML_REWARD_OK)
        return;
    ml_text_printf(&v->json, "\"reward\": ");
    ml_json_number(&v->json, v->reward);
    ml_text_printf(&v->json, "}");
    if (!isfinite(v->reward))
        fail(v, ML_REWARD_INVALID,
             "the weighted sum of the rewards is not a finite number");
}

static void ask_sum(ml_judge *j, ml_verdict *v, const miles_reward_in *in) {
    ml_verdict own = { 0 };

    begin_sum(v);
    for (int i = 0; i < j->opts->n_part && v->outcome == ML_REWARD_OK; i++) {
        ml_judge_grade(j->part[i], &own, in);
        add_to_sum(v, &j->opts->part[i], &own);
    }
    end_sum(v);
    ml_verdict_release(&own);
}

static void ask_sum_group(ml_judge *j, ml_verdict *v, const miles_reward_in *const *in,
                          int64_t n) {
    ml_verdict *own;
    ml_arena arena;

    ml_arena_init(&arena, "rewards");
    own = ML_NEW(&arena, ml_verdict, n);
    for (int64_t i = 0; i < n; i++)
        begin_sum(&v[i]);
    for (int p = 0; p < j->opts->n_part; p++) {
        ml_judge_grade_group(j->part[p], own, in, n);
        for (int64_t i = 0; i < n; i++)
            add_to_sum(&v[i], &j->opts->part[p], &own[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        end_sum(&v[i]);
        ml_verdict_release(&own[i]);
    }
    ml_arena_release(&arena);
}

void ml_judge_grade_group(ml_judge *j, ml_verdict *v, const miles_reward_in *const *in,
                          int64_t n) {
    if (j->opts->n_part && j->opts->custom)
        ask_sum_group(j, v, in, n);
    else if (j->worker)
        ask_worker_group(j, v, in, n);
    else if (j->opts->python_pool)
        ask_python(j, j->opts->python_pool, "custom-rm-path", v, in, n, true);
    else if (j->opts->group_ext)
        run_group_row(j, v, in, n);
    else
        for (int64_t i = 0; i < n; i++)
            ml_judge_grade(j, &v[i], in[i]);
}

/* --- the sample's own type ---------------------------------------------------- */

/* metadata["rm_type"], or the run's. */
static const char *type_of(const ml_judge *j, ml_arena *a, const ml_json *metadata) {
    const ml_json *own = j->opts->custom ? NULL : ml_json_get(metadata, "rm_type");
    ml_str name =
        own && own->type == ML_JSON_STRING ? ml_str_trim(own->text) : (ml_str){ 0 };

    if (name.len)
        return ml_arena_str(a, name.ptr, name.len);
    return j->opts->rm_type ? j->opts->rm_type : "";
}

static void ask_by_type(ml_judge *j, ml_verdict *v, const miles_reward_in *in,
                        const char *type) {
    ml_grader g;
    ml_err err;

    if (j->opts->n_part && type == j->opts->rm_type)
        ask_sum(j, v, in);
    else if (strcmp(type, "remote_rm") == 0 && j->remote)
        ask_remote(j, v, in);
    else if (strcmp(type, "reward_model") == 0 && j->opts->model)
        ask_model(j, v, in);
    else if (strcmp(type, "judge") == 0 && j->llm)
        ask_llm(j, v, in);
    else if (strcmp(type, "ifbench") == 0 && j->opts->ifbench_pool)
        ask_python(j, j->opts->ifbench_pool, "ifbench", v, &in, 1, false);
    else if (ml_grader_find(&g, type, &err) == ML_OK)
        run_row(j, v, &g, in);
    else
        fail(v, ML_REWARD_INVALID, err.msg);
}

void ml_judge_grade(ml_judge *j, ml_verdict *v, const miles_reward_in *in) {
    ml_grader own = { .ext = j->opts->ext };
    miles_error why;
    ml_label l;

    clear(v);
    if (j->worker)
        ask_worker(j, v, in);
    else if (j->opts->python_pool)
        ask_python(j, j->opts->python_pool, "custom-rm-path", v, &in, 1, false);
    else if (own.ext)
        run_row(j, v, &own, in);
    else if (j->opts->n_part && j->opts->custom)
        ask_sum(j, v, in);
    else {
        if (ml_label_init(&l, in, &why))
            ask_by_type(j, v, in, type_of(j, &l.arena, l.metadata));
        else
            fail(v, ML_REWARD_INVALID, why.text);
        ml_label_release(&l);
    }
}

/* --- open and close ----------------------------------------------------------- */

/* Refuses a run's reward type that cannot work before the first sample. */
static ml_status check_type(const ml_reward_opts *o, ml_err *err) {
    ml_grader g;

    if (!o->rm_type || o->n_part || o->command.line || o->python.line || o->ext ||
        o->group_ext)
        return ML_OK;
    if (strcmp(o->rm_type, "remote_rm") == 0)
        return o->rm_url ? ML_OK
                         : ml_fail(err, ML_EUSAGE, "--rm-type remote_rm needs --rm-url");
    if (strcmp(o->rm_type, "reward_model") == 0)
        return o->model_path ? ML_OK
                             : ml_fail(err, ML_EUSAGE,
                                       "--rm-type reward_model needs --reward-model-path");
    if (strcmp(o->rm_type, "judge") == 0)
        return (o->judge.url || o->judge.model_path) && o->judge.prompt_path
                   ? ML_OK
                   : ml_fail(
                         err, ML_EUSAGE,
                         "--rm-type judge needs --judge-prompt-path, and the judge: "
                         "--judge-model-path, a checkpoint, or --judge-url, the address "
                         "of an OpenAI-compatible server up to /v1");
    if (strcmp(o->rm_type, "ifbench") == 0)
        return o->ifbench.line
                   ? ML_OK
                   : ml_fail(err, ML_EUNSUP,
                             "--rm-type ifbench needs Python and the IFBench package, "
                             "whose evaluation_lib must be importable: clone "
                             "https://github.com/allenai/IFBench and add it to PYTHONPATH");
    return ml_grader_find(&g, o->rm_type, err);
}

ml_status ml_judge_open(ml_judge **out, const ml_reward_opts *opts, ml_err *err) {
    ml_status st = check_type(opts, err);
    ml_arena arena;
    ml_judge *j;

    ml_arena_init(&arena, "judge");
    j = ML_NEW(&arena, ml_judge, 1);
    j->arena = arena;
    j->opts = opts;
    if (st == ML_OK && opts->command.line)
        j->worker = ml_line_process_new(&opts->command, opts->memory_bytes);
    j->part = ML_NEW(&j->arena, ml_judge *, opts->n_part + 1);
    for (int i = 0; i < opts->n_part && st == ML_OK; i++)
        st = ml_judge_open(&j->part[i], &opts->part[i].opts, err);
    if (st == ML_OK && opts->rm_url)
        st = ml_rm_http_open(&j->remote, opts->rm_url, err);
    if (st == ML_OK && (opts->judge.url || opts->judge.engine) && opts->judge.prompt_path)
        st = ml_llm_judge_open(&j->llm, &opts->judge, err);
    if (st != ML_OK) {
        ml_judge_close(j);
        j = NULL;
    }
    *out = j;
    return st;
}

void ml_judge_close(ml_judge *j) {
    ml_arena arena;

    if (!j)
        return;
    arena = j->arena;
    for (int i = 0; i < j->opts->n_part; i++)
        ml_judge_close(j->part[i]);
    ml_line_process_free(j->worker);
    ml_rm_http_close(j->remote);
    ml_llm_judge_close(j->llm);
    ml_arena_release(&arena);
}
