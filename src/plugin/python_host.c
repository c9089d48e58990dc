#include "plugin/python_host.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/json_out.h"
#include "rl/reward/answer.h"
#include "rl/reward/grade.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ml_python_parts run;

void ml_python_host_set(const ml_python_parts *parts) {
    pthread_mutex_lock(&lock);
    run = *parts;
    pthread_mutex_unlock(&lock);
}

ml_python_parts ml_python_host_get(void) {
    ml_python_parts parts;

    pthread_mutex_lock(&lock);
    parts = run;
    pthread_mutex_unlock(&lock);
    return parts;
}

typedef struct request {
    ml_arena *arena;
    ml_str source;
    const ml_json *doc;
    ml_python_parts run;
    ml_text *out; /* the value */
} request;

static ml_str text_of(const request *q, const char *key) {
    const ml_json *v = ml_json_get(q->doc, key);
    return v && v->type == ML_JSON_STRING ? v->text : (ml_str){ 0 };
}

static bool truth_of(const request *q, const char *key) {
    const ml_json *v = ml_json_get(q->doc, key);
    return v && v->type == ML_JSON_TRUE;
}

static const ml_json *value_of(const request *q, const char *key) {
    const ml_json *v = ml_json_get(q->doc, key);
    return v && v->type != ML_JSON_NULL ? v : NULL;
}

/* --- grading --------------------------------------------------------------------------- */

static ml_str source_of(const request *q, const char *key) {
    const ml_json *v = value_of(q, key);
    return v ? (ml_str){ q->source.ptr + v->begin, v->end - v->begin } : (ml_str){ 0 };
}

static void take_tokens(request *q, miles_reward_in *in) {
    const ml_json *list = value_of(q, "tokens");
    int64_t *id = ML_NEW(q->arena, int64_t, list ? list->n + 1 : 1);

    for (const ml_json *v = list ? list->child : NULL; v; v = v->next)
        ml_json_i64(v, &id[in->n_token++]);
    in->token = id;
}

static ml_status grade(request *q, ml_err *err) {
    ml_str type = text_of(q, "type"), response = text_of(q, "response"),
           label = source_of(q, "label"), metadata = source_of(q, "metadata");
    miles_reward_in in = { .size = sizeof in,
                           .response = response.ptr ? response.ptr : "",
                           .response_len = response.len,
                           .label = label.ptr,
                           .label_len = label.len,
                           .metadata = metadata.ptr,
                           .metadata_len = metadata.len };
    miles_reward_out out = { .size = sizeof out, .reward = (double)NAN };
    miles_error why = { "" };
    ml_grader g;
    ml_status st = ml_grader_find(&g, ml_arena_str(q->arena, type.ptr, type.len), err);

    in.raw_response = in.response;
    in.raw_response_len = in.response_len;
    take_tokens(q, &in);
    if (st == ML_OK && ml_grader_run(&g, &in, &out, &why) != 0)
        st = ml_fail(err, ML_EFORMAT, "%s", why.text);
    if (st == ML_OK && out.detail[0])
        ml_text_printf(q->out, "%s", out.detail);
    else if (st == ML_OK)
        ml_json_number(q->out, out.reward);
    return st;
}

static ml_status boxed(request *q, ml_err *err) {
    ml_str box;

    (void)err;
    if (ml_answer_last_box(text_of(q, "response"), &box))
        ml_json_quote(q->out, box);
    else
        ml_text_printf(q->out, "null");
    return ML_OK;
}

/* --- text ------------------------------------------------------------------------------ */

static ml_status needs_tokenizer(const request *q, ml_err *err) {
    return q->run.tokenizer
               ? ML_OK
               : ml_fail(err, ML_EUNSUP, "there is no tokenizer: the command has no model");
}

static void put_role(ml_json_out *o, const ml_tokenizer *t, ml_token_role role,
                     const char *id_key, const char *text_key) {
    int32_t id = ml_tokenizer_role(t, role);
    ml_text text = { 0 };

    ml_json_key(o, id_key);
    if (id >= 0)
        ml_json_int(o, id);
    else
        ml_json_null(o);
    ml_json_key(o, text_key);
    if (id >= 0) {
        ml_decode(t, &text, &id, 1, false);
        ml_json_str(o, (ml_str){ text.ptr, text.len });
    } else {
        ml_json_null(o);
    }
    ml_text_release(&text);
}

static ml_status about(request *q, ml_err *err) {
    ml_json_out o = { .to = q->out };
    const ml_tokenizer *t = q->run.tokenizer;
    ml_status st = needs_tokenizer(q, err);

    if (st != ML_OK)
        return st;
    ml_json_begin(&o, '{');
    ml_json_put_int(&o, "vocab_size", ml_tokenizer_size(t));
    ml_json_put_word(&o, "name_or_path", q->run.model);
    put_role(&o, t, ML_TOKEN_EOS, "eos_token_id", "eos_token");
    put_role(&o, t, ML_TOKEN_BOS, "bos_token_id", "bos_token");
    put_role(&o, t, ML_TOKEN_PAD, "pad_token_id", "pad_token");
    ml_json_end(&o, '}');
    return ML_OK;
}

static ml_status encode(request *q, ml_err *err) {
    ml_json_out o = { .to = q->out };
    ml_status st = needs_tokenizer(q, err);
    ml_encoder *encoder;
    ml_tokens ids = { 0 };

    if (st != ML_OK)
        return st;
    encoder = ml_encoder_new(q->run.tokenizer);
    st = ml_encode(encoder, &ids, text_of(q, "text"),
                   (ml_encode_opts){ .add_special = truth_of(q, "special") }, err);
    if (st == ML_OK)
        ml_json_ids(&o, ids.id, (int32_t)ids.n);
    ml_tokens_release(&ids);
    ml_encoder_free(encoder);
    return st;
}

static ml_status decode(request *q, ml_err *err) {
    const ml_json *list = value_of(q, "ids");
    int32_t *id = ML_NEW(q->arena, int32_t, list ? list->n + 1 : 1), n = 0;
    ml_status st = needs_tokenizer(q, err);
    ml_text text = { 0 };

    if (st != ML_OK)
        return st;
    for (const ml_json *v = list ? list->child : NULL; v; v = v->next) {
        int64_t at = -1;
        ml_json_i64(v, &at);
        id[n++] = at < 0 || at > INT32_MAX ? -1 : (int32_t)at;
    }
    ml_text_add(&text, "", 0);
    ml_decode(q->run.tokenizer, &text, id, n, truth_of(q, "skip"));
    ml_json_quote(q->out, (ml_str){ text.ptr, text.len });
    ml_text_release(&text);
    return ML_OK;
}

static ml_status render(request *q, ml_err *err) {
    ml_chat chat = { .messages = value_of(q, "messages"),
                     .tools = value_of(q, "tools"),
                     .add_generation_prompt = truth_of(q, "generate"),
                     .kwargs = value_of(q, "kwargs") };
    ml_jinja_text text;
    ml_status st;

    if (!q->run.chat_template)
        return ml_fail(err, ML_EUNSUP,
                       "there is no chat template: set one with --chat-template-path");
    st = ml_chat_render(&text, q->arena, q->run.chat_template, &chat, NULL, err);
    if (st == ML_OK)
        ml_json_quote(q->out, text.text);
    return st;
}

/* --- the run --------------------------------------------------------------------------- */

static ml_status endpoint(request *q, ml_err *err) {
    ml_json_out o = { .to = q->out };

    if (!q->run.host)
        return ml_fail(err, ML_EUNSUP,
                       "this run's engine has no address: only generate, rollout and "
                       "evaluation functions in Python can send requests to it");
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "host", q->run.host);
    ml_json_put_int(&o, "port", q->run.port);
    if (q->run.key)
        ml_json_put_word(&o, "key", q->run.key);
    ml_json_end(&o, '}');
    return ML_OK;
}

static ml_status sessions(request *q, ml_err *err) {
    ml_json_out o = { .to = q->out };

    if (!q->run.session_host)
        return ml_fail(err, ML_EUNSUP,
                       "this run has no session server: start it with "
                       "--use-session-server");
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "host", q->run.session_host);
    ml_json_put_int(&o, "port", q->run.session_port);
    ml_json_put_word(&o, "key", q->run.session_key);
    ml_json_end(&o, '}');
    return ML_OK;
}

static ml_status get_samples(request *q, ml_err *err) {
    int64_t n = 0;

    ml_json_i64(ml_json_get(q->doc, "n"), &n);
    if (!q->run.get_samples)
        return ml_fail(err, ML_EUNSUP,
                       "only a rollout function gets samples from the data source");
    if (n < 1 || !q->run.get_samples(q->run.ud, n, q->out))
        return ml_fail(err, ML_EFORMAT, "%s",
                       n < 1 ? "get_samples needs a number of groups" : q->out->ptr);
    return ML_OK;
}

static ml_status needs_rows(const request *q, ml_err *err) {
    return q->run.rows
               ? ML_OK
               : ml_fail(err, ML_EUNSUP, "the run has no --prompt-data to read rows of");
}

static ml_status row_count(request *q, ml_err *err) {
    ml_status st = needs_rows(q, err);

    if (st == ML_OK)
        ml_text_printf(q->out, "%lld", (long long)q->run.rows->rows.n);
    return st;
}

static void put_source(ml_json_out *o, const char *key, const ml_prompt *p,
                       const ml_json *v) {
    ml_json_key(o, key);
    if (v)
        ml_json_raw(o, (ml_str){ p->source.ptr + v->begin, v->end - v->begin });
    else
        ml_json_null(o);
}

static void put_tree(ml_json_out *o, const char *key, const ml_json *v) {
    ml_text t = { 0 };

    ml_json_key(o, key);
    if (v) {
        ml_json_write(&t, v);
        ml_json_raw(o, (ml_str){ t.ptr, t.len });
    } else {
        ml_json_null(o);
    }
    ml_text_release(&t);
}

static ml_status put_row(request *q, ml_json_out *o, int64_t row, ml_err *err) {
    const ml_dataset *ds = q->run.rows;
    ml_prompt p;
    ml_status st;

    if (row < 0 || row >= ds->rows.n)
        return ml_fail(err, ML_EFORMAT,
                       "there is no row %lld of the prompt data: it has %lld",
                       (long long)row, (long long)ds->rows.n);
    st = ml_dataset_prompt(&p, ds, row, q->arena, err);
    if (st != ML_OK)
        return st;
    ml_json_begin(o, '{');
    if (p.messages)
        put_tree(o, "prompt", p.messages);
    else
        ml_json_put_str(o, "prompt", p.text);
    put_source(o, "label", &p, p.label);
    put_source(o, "metadata", &p, p.metadata);
    put_tree(o, "tools", p.tools);
    ml_json_end(o, '}');
    return ML_OK;
}

static ml_status rows(request *q, ml_err *err) {
    const ml_json *list = value_of(q, "rows");
    ml_json_out o = { .to = q->out };
    ml_status st = needs_rows(q, err);

    ml_json_begin(&o, '[');
    for (const ml_json *v = list ? list->child : NULL; v && st == ML_OK; v = v->next) {
        int64_t row = -1;
        ml_json_i64(v, &row);
        st = put_row(q, &o, row, err);
    }
    ml_json_end(&o, ']');
    return st;
}

static ml_status evaluate(request *q, ml_err *err) {
    if (!q->run.evaluate)
        return ml_fail(err, ML_EUNSUP, "only an evaluation function evaluates sets");
    return q->run.evaluate(q->run.ud, q->out) ? ML_OK
                                              : ml_fail(err, ML_EFORMAT, "%s", q->out->ptr);
}

static const struct {
    const char *name;
    ml_status (*answer)(request *q, ml_err *err);
} requests[] = {
    { "grade", grade },       { "boxed", boxed },
    { "tokenizer", about },   { "encode", encode },
    { "decode", decode },     { "render", render },
    { "endpoint", endpoint }, { "get_samples", get_samples },
    { "evaluate", evaluate }, { "sessions", sessions },
    { "rows", rows },         { "row_count", row_count },
};

static ml_status answer_to(request *q, ml_err *err) {
    ml_str what;
    ml_status st = ml_json_parse(&q->doc, q->arena, q->source, "the request", err);

    if (st != ML_OK)
        return st;
    what = text_of(q, "ask");
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
        if (ml_str_is(what, requests[i].name))
            return requests[i].answer(q, err);
    return ml_fail(err, ML_EFORMAT, "miles does not know the request '%.*s'", (int)what.len,
                   what.ptr);
}

void ml_python_serve(void *ud, ml_str text, ml_text *answer) {
    ml_arena arena;
    ml_text value = { 0 };
    request q = { .arena = &arena, .run = ml_python_host_get(), .out = &value };
    ml_err err = { 0 };

    (void)ud;
    ml_arena_init(&arena, "a request");
    q.source = (ml_str){ ml_arena_str(&arena, text.ptr, text.len), text.len };
    if (answer_to(&q, &err) == ML_OK) {
        ml_text_printf(answer, "{\"value\": ");
        ml_text_add(answer, value.ptr, value.len);
    } else {
        ml_text_printf(answer, "{\"error\": ");
        ml_json_quote(answer, ml_str_of(err.msg));
    }
    ml_text_printf(answer, "}");
    ml_text_release(&value);
    ml_arena_release(&arena);
}
