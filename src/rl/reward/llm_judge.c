#include "rl/reward/llm_judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/secret.h"
#include "base/utf8.h"
#include "rl/reward/judge_model.h"
#include "rl/reward/label.h"
#include "rl/reward/rm_http.h"
#include "text/regex.h"

struct ml_llm_judge {
    ml_arena arena; /* this struct is allocated in it */
    ml_llm_judge_opts opts;
    ml_secret key;
    ml_str template;
    ml_regex *pattern;
    ml_finder *finder;
    ml_rm_http *server; /* NULL: the model is in this process */
};

/* --- open and close ---------------------------------------------------------------- */

static ml_status read_template(ml_llm_judge *j, ml_err *err) {
    ml_file f = { 0 };
    ml_status st = ml_file_map(&f, j->opts.prompt_path, err);

    if (st != ML_OK)
        return st;
    j->template =
        (ml_str){ ml_arena_str(&j->arena, f.bytes.ptr, f.bytes.len), f.bytes.len };
    ml_file_unmap(&f);
    if (!strstr(j->template.ptr, "{response}"))
        return ml_fail(err, ML_EFORMAT,
                       "%s has no {response}: expected a prompt for the judge, in which "
                       "{prompt}, {response} and {label} stand for those of a sample",
                       j->opts.prompt_path);
    return ML_OK;
}

static ml_status open_server(ml_llm_judge *j, ml_err *err) {
    size_t n = strlen(j->opts.url);
    const char *url, *key;
    ml_status st = ml_secret_find(&j->key, NULL, j->opts.key_file, "--judge-api-key", err);

    while (n && j->opts.url[n - 1] == '/')
        n--;
    url = ml_arena_printf(&j->arena, "%.*s/chat/completions", (int)n, j->opts.url);
    key = ml_secret_text(&j->key);
    if (st == ML_OK)
        st = ml_rm_http_open(&j->server, url, err);
    if (st == ML_OK && key)
        ml_rm_http_authorize(j->server, key);
    return st;
}

ml_status ml_llm_judge_open(ml_llm_judge **out, const ml_llm_judge_opts *o, ml_err *err) {
    ml_llm_judge *j;
    ml_arena arena;
    ml_status st;

    ml_arena_init(&arena, "judge model");
    j = ML_NEW(&arena, ml_llm_judge, 1);
    j->arena = arena;
    j->opts = *o;
    j->finder = ml_finder_new();
    st = read_template(j, err);
    if (st == ML_OK) {
        st = ml_regex_new_bounded(&j->pattern, ml_str_of(o->pattern), err);
        if (st != ML_OK)
            ml_err_prefix(err, "--judge-score-regex");
    }
    if (st == ML_OK && !o->engine)
        st = open_server(j, err);
    if (st != ML_OK) {
        ml_llm_judge_close(j);
        j = NULL;
    }
    *out = j;
    return st;
}

void ml_llm_judge_close(ml_llm_judge *j) {
    ml_arena arena;

    if (!j)
        return;
    ml_rm_http_close(j->server);
    ml_regex_free(j->pattern);
    ml_finder_free(j->finder);
    arena = j->arena;
    ml_arena_release(&arena);
}

/* --- the question ------------------------------------------------------------------ */

/* The text of the message that ends a list, or of the prompt. */
static ml_str prompt_of(ml_arena *a, const miles_reward_in *in) {
    const ml_json *list = NULL, *last, *content;

    if (!in->messages)
        return (ml_str){ in->prompt ? in->prompt : "", in->prompt ? in->prompt_len : 0 };
    if (ml_json_parse(&list, a, (ml_str){ in->messages, in->messages_len }, "messages",
                      NULL) != ML_OK)
        return ml_str_of("");
    for (last = list->child; last && last->next;)
        last = last->next;
    content = last ? ml_json_get(last, "content") : NULL;
    return content && content->type == ML_JSON_STRING
               ? content->text
               : (ml_str){ in->messages, in->messages_len };
}

/* A label that is text without its quotes, others as JSON. */
static ml_str label_of(ml_arena *a, const miles_reward_in *in) {
    ml_str label = { in->label ? in->label : "", in->label ? in->label_len : 0 };
    const ml_json *v = NULL;

    return label.len && ml_json_parse(&v, a, label, "label", NULL) == ML_OK &&
                   v->type == ML_JSON_STRING
               ? v->text
               : label;
}

static void fill(ml_text *out, ml_str template, const ml_str value[3]) {
    static const char *const name[3] = { "{prompt}", "{response}", "{label}" };

    for (size_t at = 0; at < template.len;) {
        int k = 0;
        while (k < 3 && strncmp(template.ptr + at, name[k], strlen(name[k])) != 0)
            k++;
        if (k < 3)
            ml_text_add(out, value[k].ptr, value[k].len);
        else
            ml_text_add(out, template.ptr + at, 1);
        at += k < 3 ? strlen(name[k]) : 1;
    }
}

static void write_question(const ml_llm_judge *j, ml_text *out, const miles_reward_in *in,
                           ml_arena *a) {
    ml_str value[3] = { prompt_of(a, in), ml_response(in), label_of(a, in) };

    fill(out, j->template, value);
}

static void write_request(const ml_llm_judge *j, ml_text *out, ml_str question,
                          int64_t seed) {
    ml_text_printf(out, "{\"model\": ");
    ml_json_quote(out, ml_str_of(j->opts.model));
    ml_text_printf(out,
                   ", \"temperature\": %.17g, \"max_tokens\": %lld, \"seed\": %lld, "
                   "\"messages\": [{\"role\": \"user\", \"content\": ",
                   j->opts.temperature, (long long)j->opts.max_tokens, (long long)seed);
    ml_json_quote(out, question);
    ml_text_printf(out, "}]}");
}

/* --- the answer -------------------------------------------------------------------- */

/* The number of the last match. */
static bool find_score(const ml_llm_judge *j, ml_str text, double *out) {
    size_t begin, end;
    bool any = false;
    char number[64], *stop;

    if (ml_utf8_valid(text) < text.len)
        return false;
    for (size_t at = 0; at <= text.len && ml_regex_find(j->pattern, j->finder, text, at,
                                                        &begin, &end, NULL) == ML_OK;) {
        size_t n = end - begin;
        at = end > at ? end : at + 1;
        while (at < text.len && ((unsigned char)text.ptr[at] & 0xc0) == 0x80)
            at++; /* whole characters */
        if (n == 0 || n >= sizeof number)
            continue;
        memcpy(number, text.ptr + begin, n);
        number[n] = 0;
        *out = strtod(number, &stop);
        any = stop > number && !*stop && isfinite(*out);
    }
    return any;
}

static ml_reward_outcome read_reply(const ml_llm_judge *j, double *reward, ml_text *why,
                                    ml_str reply) {
    if (find_score(j, reply, reward))
        return ML_REWARD_OK;
    ml_text_printf(why, "the judge's reply has no score that matches %s: %.*s",
                   j->opts.pattern, (int)(reply.len < 200 ? reply.len : 200), reply.ptr);
    return ML_REWARD_INVALID;
}

static ml_reward_outcome read_answer(const ml_llm_judge *j, double *reward, ml_text *why,
                                     ml_str answer, ml_arena *a) {
    const ml_json *doc = NULL, *choice, *text;

    if (ml_json_parse(&doc, a, answer, "the judge's reply", NULL) != ML_OK)
        doc = NULL;
    choice = doc ? ml_json_get(doc, "choices") : NULL;
    choice = choice && choice->type == ML_JSON_ARRAY ? choice->child : NULL;
    text = choice ? ml_json_get(ml_json_get(choice, "message"), "content") : NULL;
    if (!text || text->type != ML_JSON_STRING) {
        ml_text_printf(why, "the judge's reply has no choices[0].message.content: %.*s",
                       (int)(answer.len < 200 ? answer.len : 200), answer.ptr);
        return ML_REWARD_INVALID;
    }
    return read_reply(j, reward, why, text->text);
}

static ml_reward_outcome ask_server(ml_llm_judge *j, double *reward, ml_text *why,
                                    ml_str question, int64_t seed, double deadline_s,
                                    int64_t n_retry) {
    static const ml_reward_outcome ends[] = { [ML_RM_ANSWERED] = ML_REWARD_OK,
                                              [ML_RM_LATE] = ML_REWARD_TIMEOUT,
                                              [ML_RM_DOWN] = ML_REWARD_CRASH,
                                              [ML_RM_REFUSED] = ML_REWARD_INVALID };
    ml_text request = { 0 }, answer = { 0 };
    ml_reward_outcome outcome;
    ml_arena a;

    ml_arena_init(&a, "a judge's answer");
    write_request(j, &request, question, seed);
    outcome = ends[ml_rm_http_ask(j->server, &answer, (ml_str){ request.ptr, request.len },
                                  deadline_s, n_retry)];
    if (outcome == ML_REWARD_OK)
        outcome = read_answer(j, reward, why, (ml_str){ answer.ptr, answer.len }, &a);
    else
        ml_text_add(why, answer.ptr, answer.len);
    ml_text_release(&request);
    ml_text_release(&answer);
    ml_arena_release(&a);
    return outcome;
}

static ml_reward_outcome ask_model(ml_llm_judge *j, double *reward, ml_text *why,
                                   ml_str question, int64_t seed) {
    ml_reward_outcome outcome = ML_REWARD_INVALID;
    ml_text reply = { 0 };
    ml_err err = { 0 };

    ml_text_printf(&reply, "%s", "");
    if (ml_judge_model_ask(j->opts.engine, &reply, question, &j->opts, (uint64_t)seed,
                           &err) == ML_OK)
        outcome = read_reply(j, reward, why, (ml_str){ reply.ptr, reply.len });
    else
        ml_text_printf(why, "%s", err.msg);
    ml_text_release(&reply);
    return outcome;
}

ml_reward_outcome ml_llm_judge_grade(ml_llm_judge *j, double *reward, ml_text *why,
                                     const miles_reward_in *in, double deadline_s,
                                     int64_t n_retry) {
    int64_t seed = in->seed + in->index;
    ml_text question = { 0 };
    ml_str text;
    ml_reward_outcome outcome;
    ml_arena a;

    ml_arena_init(&a, "a judge's question");
    write_question(j, &question, in, &a);
    text = (ml_str){ question.ptr, question.len };
    outcome = j->server ? ask_server(j, reward, why, text, seed, deadline_s, n_retry)
                        : ask_model(j, reward, why, text, seed);
    ml_arena_release(&a);
    ml_text_release(&question);
    return outcome;
}
