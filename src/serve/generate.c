/* POST /generate: SGLang's native request. */
#include <string.h>

#include "serve/serve_priv.h"

/* A JSON member is one value for all prompts, or a list with one value per prompt. */
typedef struct generate_body {
    const ml_json *text, *input_ids, *sampling_params, *rid;
    const ml_json *lora_path;
    const ml_json *return_logprob, *logprob_start_len, *top_logprobs_num,
        *token_ids_logprob, *token_ids_logprob_positions;
    bool text_in_logprobs, entropy, prompt_ids, stream;
    bool routed[ML_N_ROUTING];
    int32_t routed_from;
    /* derived from the above */
    bool batch;
    int32_t n_prompt;
    ml_sampling_params *params; /* [n_params] */
    int32_t n_params;           /* 1: the same for all prompts; else n_prompt */
    bool *logprob;              /* [n_prompt] */
} generate_body;

#define AT(field) offsetof(generate_body, field)
static const char text_only[] = "models are text-only";
static const char no_groups[] = "prefill/decode disaggregation is not supported";

static const ml_field rows[] = {
    { "text", ML_FIELD_JSON, AT(text) },
    { "input_ids", ML_FIELD_JSON, AT(input_ids) },
    { "sampling_params", ML_FIELD_JSON, AT(sampling_params) },
    { "rid", ML_FIELD_JSON, AT(rid) },
    { "return_logprob", ML_FIELD_JSON, AT(return_logprob) },
    { "logprob_start_len", ML_FIELD_JSON, AT(logprob_start_len) },
    { "top_logprobs_num", ML_FIELD_JSON, AT(top_logprobs_num) },
    { "token_ids_logprob", ML_FIELD_JSON, AT(token_ids_logprob) },
    { "token_ids_logprob_positions", ML_FIELD_JSON, AT(token_ids_logprob_positions) },
    { "return_text_in_logprobs", ML_FIELD_BOOL, AT(text_in_logprobs) },
    { "return_entropy", ML_FIELD_BOOL, AT(entropy) },
    { "return_prompt_token_ids", ML_FIELD_BOOL, AT(prompt_ids) },
    { "stream", ML_FIELD_BOOL, AT(stream) },
    { "lora_path", ML_FIELD_JSON, AT(lora_path) },
    { "return_routed_experts", ML_FIELD_BOOL, AT(routed[ML_ROUTING_EXPERTS]) },
    { "return_indexer_topk", ML_FIELD_BOOL, AT(routed[ML_ROUTING_KEYS]) },
    { "routed_experts_start_len", ML_FIELD_I32, AT(routed_from), 0, INT32_MAX },
    /* These do not affect the answer. */
    { "log_metrics", ML_FIELD_IGNORE },
    { "no_logs", ML_FIELD_IGNORE },
    { "session_id", ML_FIELD_IGNORE },
    { "conversation_id", ML_FIELD_IGNORE },
    { "routing_key", ML_FIELD_IGNORE },
    { "priority", ML_FIELD_IGNORE },
    { "extra_key", ML_FIELD_IGNORE },
    { "cache_salt", ML_FIELD_IGNORE },
    { "custom_labels", ML_FIELD_IGNORE },
    { "data_parallel_rank", ML_FIELD_IGNORE },
    { "routed_dp_rank", ML_FIELD_IGNORE },
    { "background", ML_FIELD_REFUSE, .why = "a request ends with its connection" },
    { "input_embeds", ML_FIELD_REFUSE, .why = "prompts are text or token ids" },
    { "image_data", ML_FIELD_REFUSE, .why = text_only },
    { "video_data", ML_FIELD_REFUSE, .why = text_only },
    { "audio_data", ML_FIELD_REFUSE, .why = text_only },
    { "modalities", ML_FIELD_REFUSE, .why = text_only },
    { "lora_id", ML_FIELD_REFUSE, .why = "name the adapter in lora_path" },
    { "return_hidden_states", ML_FIELD_REFUSE, .why = "hidden states are not returned" },
    { "return_sampling_mask", ML_FIELD_REFUSE,
      .why = "use sampling_params.logprob_distribution \"drawn\"" },
    { "return_flat_raw_top_logprobs", ML_FIELD_REFUSE,
      .why = "log-probs are returned as lists" },
    { "return_flat_raw_top_logprobs_b64", ML_FIELD_REFUSE,
      .why = "log-probs are returned as lists" },
    { "session_params", ML_FIELD_REFUSE, .why = "sessions are not supported" },
    { "custom_logit_processor", ML_FIELD_REFUSE,
      .why = "custom logit processors are not supported" },
    { "bootstrap_host", ML_FIELD_REFUSE, .why = no_groups },
    { "bootstrap_port", ML_FIELD_REFUSE, .why = no_groups },
    { "bootstrap_room", ML_FIELD_REFUSE, .why = no_groups },
    { "max_thinking_tokens", ML_FIELD_REFUSE, .why = "use max_new_tokens" },
    { 0 },
};

/* --- reading ---------------------------------------------------------------- */

static bool is_list(const ml_json *v) {
    return v && v->type == ML_JSON_ARRAY;
}

static ml_status count_prompts(generate_body *b, ml_err *err) {
    const ml_json *v = b->text ? b->text : b->input_ids;

    if (!v || (b->text && b->input_ids))
        return ml_fail(err, ML_EUSAGE, "expected either \"text\" or \"input_ids\"");
    if (b->text)
        b->batch = is_list(v);
    else
        b->batch = is_list(v) && v->n && is_list(v->child);
    b->n_prompt = b->batch ? v->n : 1;
    if (b->n_prompt < 1 || b->n_prompt > ML_MAX_CHOICES)
        return ml_fail(err, ML_EUSAGE, "the request has %d prompts; expected 1 to %d",
                       (int)b->n_prompt, ML_MAX_CHOICES);
    return ML_OK;
}

/* The value for prompt i of a member that may be a list; sets *bad if the list has another
 * length.  NULL: absent. */
static const ml_json *item(const generate_body *b, const ml_json *v, int32_t i, bool listed,
                           bool *bad) {
    if (!v || !listed)
        return v;
    if (v->n != b->n_prompt) {
        *bad = true;
        return NULL;
    }
    v = v->child;
    while (i--)
        v = v->next;
    return v->type == ML_JSON_NULL ? NULL : v;
}

static ml_status bad_list(const char *name, ml_err *err) {
    return ml_fail(
        err, ML_EUSAGE,
        "\"%s\": expected one value for all prompts, or a list with one per prompt", name);
}

static ml_status read_params(generate_body *b, const ml_server *s, ml_arena *a,
                             ml_err *err) {
    bool bad = false;
    ml_status st = ML_OK;

    b->n_params = is_list(b->sampling_params) ? b->n_prompt : 1;
    b->params = ML_NEW(a, ml_sampling_params, b->n_params);
    for (int32_t i = 0; i < b->n_params && !st; i++) {
        const ml_json *v =
            item(b, b->sampling_params, i, is_list(b->sampling_params), &bad);
        if (bad)
            return bad_list("sampling_params", err);
        ml_sampling_params_init(&b->params[i]);
        st = ml_sampling_params_read(&b->params[i], v, s->opts.n_vocab, a, err);
        if (!st && b->params[i].n != b->params[0].n)
            st = ml_fail(err, ML_EUSAGE,
                         "\"n\" must be the same for all prompts of a request");
    }
    if (!st && (int64_t)b->n_prompt * b->params[0].n > ML_MAX_CHOICES)
        st = ml_fail(err, ML_EUSAGE,
                     "%d prompts with %d samples each; expected at most %d in total",
                     (int)b->n_prompt, (int)b->params[0].n, ML_MAX_CHOICES);
    return st;
}

static ml_status read_prompt(ml_job *j, const generate_body *b, int32_t i,
                             const int32_t **id, int32_t *n, ml_err *err) {
    bool bad = false;
    const ml_json *v = item(b, b->text ? b->text : b->input_ids, i, b->batch, &bad);

    if (b->input_ids)
        return ml_ids_read(id, n, v, j->server->opts.n_vocab, INT32_MAX - 1,
                           "\"input_ids\"", &j->arena, err);
    if (!v || v->type != ML_JSON_STRING)
        return ml_fail(err, ML_EUSAGE, "\"text\": expected a string or a list of strings");
    return ml_job_encode(j, v->text, true, id, n, err);
}

static ml_status read_whole(int32_t *out, const ml_json *v, const char *name, int32_t min,
                            int32_t max, ml_err *err) {
    int64_t i;

    if (!v)
        return ML_OK;
    if (!ml_json_i64(v, &i) || i < min || i > max)
        return ml_fail(err, ML_EUSAGE, "\"%s\": expected a whole number from %d to %d",
                       name, (int)min, (int)max);
    *out = (int32_t)i;
    return ML_OK;
}

/* token_ids_logprob_positions of a prompt: a list of ids for each of its tokens, those that
 * are not scored included.  The choice gets the lists of scored tokens, filled with -1. */
static ml_status read_positions(ml_job *j, const ml_json *v, ml_choice *c, ml_err *err) {
    static const char where[] = "\"token_ids_logprob_positions\"";
    int32_t from = c->logprob_start + 1, t = 0, n;
    int32_t *also;

    if (c->n_prompt > j->server->opts.context) /* the generator refuses the prompt */
        return ML_OK;
    if (c->n_also)
        return ml_fail(err, ML_EUSAGE, "%s excludes \"token_ids_logprob\"", where);
    if (c->params->max_new != 0)
        return ml_fail(err, ML_EUSAGE, "%s needs \"max_new_tokens\" 0", where);
    if (!is_list(v) || v->n != c->n_prompt)
        return ml_fail(err, ML_EUSAGE,
                       "%s: expected a list of token ids for each of the %d input tokens",
                       where, c->n_prompt);
    for (const ml_json *e = v->child; e; e = e->next)
        c->n_also = e->n > c->n_also ? e->n : c->n_also;
    if (c->n_also > ML_MAX_TOP)
        return ml_fail(err, ML_EUSAGE, "%s: %d ids at a position; expected at most %d",
                       where, c->n_also, ML_MAX_TOP);
    c->also_each = true;
    c->also = also = ML_NEW(
        &j->arena, int32_t,
        (size_t)(from < c->n_prompt ? c->n_prompt - from : 0) * (size_t)c->n_also + 1);
    for (const ml_json *e = v->child; e; e = e->next, t++) {
        const int32_t *id;
        ml_status st = ml_ids_read(&id, &n, e, j->server->opts.n_vocab, ML_MAX_TOP, where,
                                   &j->arena, err);
        if (st)
            return st;
        for (int32_t k = 0; k < c->n_also && t >= from; k++)
            also[(int64_t)(t - from) * c->n_also + k] = k < n ? id[k] : -1;
    }
    return ML_OK;
}

/* Reads the log-probability options of prompt i into its first choice. */
static ml_status read_scores(ml_job *j, generate_body *b, int32_t i, ml_choice *c,
                             ml_err *err) {
    bool bad = false;
    const ml_json *also = b->token_ids_logprob, *each = b->token_ids_logprob_positions;
    const ml_json *want = item(b, b->return_logprob, i, is_list(b->return_logprob), &bad);
    const ml_json *start =
        item(b, b->logprob_start_len, i, is_list(b->logprob_start_len), &bad);
    const ml_json *top =
        item(b, b->top_logprobs_num, i, is_list(b->top_logprobs_num), &bad);
    ml_status st;

    also = item(b, also, i, is_list(also) && also->n && is_list(also->child), &bad);
    each = item(b, each, i, b->batch, &bad);
    if (bad)
        return bad_list("return_logprob, logprob_start_len, top_logprobs_num, "
                        "token_ids_logprob or token_ids_logprob_positions",
                        err);
    if (want && !ml_json_is_bool(want))
        return ml_fail(err, ML_EUSAGE, "\"return_logprob\": expected true or false");
    b->logprob[i] = want && want->type == ML_JSON_TRUE;
    if (!b->logprob[i])
        return ML_OK;
    st = read_whole(&c->logprob_start, start, "logprob_start_len", -1, INT32_MAX, err);
    if (!st)
        st = read_whole(&c->n_top, top, "top_logprobs_num", 0, ML_MAX_TOP, err);
    if (!st)
        st = ml_ids_read(&c->also, &c->n_also, also, j->server->opts.n_vocab, ML_MAX_TOP,
                         "\"token_ids_logprob\"", &j->arena, err);
    if (!st && each)
        st = read_positions(j, each, c, err);
    if (!st && c->n_top + c->n_also > ML_MAX_TOP)
        st =
            ml_fail(err, ML_EUSAGE, "%d log-probs per token requested; expected at most %d",
                    (int)(c->n_top + c->n_also), ML_MAX_TOP);
    return st;
}

/* The adapter of prompt i. */
static ml_status read_adapter(ml_job *j, const generate_body *b, int32_t i, ml_choice *c,
                              ml_err *err) {
    bool bad = false;
    const ml_json *v = item(b, b->lora_path, i, is_list(b->lora_path), &bad);

    if (bad)
        return bad_list("lora_path", err);
    if (v && v->type != ML_JSON_STRING)
        return ml_fail(err, ML_EUSAGE,
                       "\"lora_path\": expected an adapter's name, or a list with one per "
                       "prompt");
    c->adapter = v ? ml_str_keep(&j->arena, v->text) : (ml_str){ 0 };
    return ML_OK;
}

static ml_status read_rid(ml_job *j, const generate_body *b, ml_err *err) {
    const ml_json *v = b->rid;
    int32_t n = b->params[0].n, i = 0;

    if (!is_list(v))
        return ML_OK;
    if (v->n != b->n_prompt)
        return bad_list("rid", err);
    for (v = v->child; v; v = v->next, i++) {
        if (v->type != ML_JSON_STRING || !v->text.len || v->text.len > ML_MAX_RID)
            return ml_fail(err, ML_EUSAGE, "\"rid\": expected strings of 1 to %d bytes",
                           ML_MAX_RID);
        for (int32_t k = 0; k < n; k++)
            j->choice[i * n + k].rid = ml_str_keep(&j->arena, v->text);
    }
    return ML_OK;
}

static ml_status read_choices(ml_job *j, generate_body *b, ml_err *err) {
    int32_t n = b->params[0].n;
    ml_status st = ML_OK;

    ml_job_choices(j, b->n_prompt * n);
    b->logprob = ML_NEW(&j->arena, bool, b->n_prompt);
    for (int32_t i = 0; i < b->n_prompt && !st; i++) {
        ml_choice *first = &j->choice[i * n];
        first->params = &b->params[b->n_params == 1 ? 0 : i];
        memcpy(first->routed, b->routed, sizeof first->routed);
        first->routed_from = b->routed_from;
        st = read_prompt(j, b, i, &first->prompt, &first->n_prompt, err);
        if (!st)
            st = read_scores(j, b, i, first, err);
        if (!st)
            st = read_adapter(j, b, i, first, err);
        for (int32_t k = 1; k < n; k++) {
            ml_choice *c = &first[k];
            c->params = first->params;
            c->prompt = first->prompt;
            c->n_prompt = first->n_prompt;
            c->logprob_start = first->logprob_start;
            c->n_top = first->n_top;
            c->also = first->also;
            c->n_also = first->n_also;
            c->also_each = first->also_each;
            memcpy(c->routed, first->routed, sizeof c->routed);
            c->routed_from = first->routed_from;
            c->sample = (uint64_t)k;
            c->adapter = first->adapter;
        }
    }
    return st ? st : read_rid(j, b, err);
}

static ml_status read_request(ml_job *j, ml_err *err) {
    generate_body *b = ML_NEW(&j->arena, generate_body, 1);
    ml_status st = ml_fields_read(b, rows, j->body, "request body", err);

    j->ud = b;
    if (!st)
        st = count_prompts(b, err);
    if (!st)
        st = read_params(b, j->server, &j->arena, err);
    if (st)
        return st;
    j->stream = b->stream;
    if (b->rid && b->rid->type == ML_JSON_STRING)
        st = ml_job_set_rid(j, b->rid->text, err);
    else if (b->rid && !is_list(b->rid))
        return ml_fail(err, ML_EUSAGE, "\"rid\" is %s; expected a string or a list",
                       ml_json_what(b->rid));
    return st ? st : read_choices(j, b, err);
}

/* --- writing ---------------------------------------------------------------- */

/* Adds the new tokens to the JSON of an answer, so that an event that repeats the whole
 * answer, as in SGLang, costs a copy. */
static void grow_json(ml_choice *c) {
    ml_text *ids = &c->sent_json[ML_SENT_IDS], *versions = &c->sent_json[ML_SENT_VERSIONS];
    ml_text *text = &c->sent_json[ML_SENT_TEXT];
    size_t at = text->len;
    ml_json_out o = { .to = ids, .comma = ids->len > 0 };
    ml_json_out p = { .to = versions, .comma = versions->len > 0 };
    ml_scored v = ml_logprob_buffer_view(&c->answer);

    for (int32_t i = c->sent_tokens; i < v.n; i++) {
        ml_json_int(&o, v.id[i]);
        if (v.version)
            ml_json_int(&p, (int64_t)v.version[i]);
    }
    if (c->text.len == c->sent_text)
        return;
    ml_json_quote(text, (ml_str){ c->text.ptr + c->sent_text, c->text.len - c->sent_text });
    text->len -= 2; /* the quotes */
    memmove(text->ptr + at, text->ptr + at + 1, text->len - at);
}

/* Which part of an answer to write. */
typedef enum answer_part { WHOLE, GROWN, NEW } answer_part;

static void write_text(const ml_choice *c, answer_part part, ml_json_out *o) {
    size_t from = part == NEW ? c->sent_text : 0;

    ml_json_key(o, "text");
    if (part != GROWN) {
        ml_json_str(
            o, (ml_str){ c->text.ptr ? c->text.ptr + from : NULL, c->text.len - from });
        return;
    }
    ml_json_raw(o, ml_str_of("\""));
    ml_choice_write_sent(c, ML_SENT_TEXT, o);
    ml_text_add(o->to, "\"", 1);
}

static void write_ids(const ml_choice *c, answer_part part, ml_json_out *o) {
    ml_scored v = ml_logprob_buffer_view(&c->answer);
    int32_t from = part == NEW ? c->sent_tokens : 0;

    ml_json_key(o, "output_ids");
    if (part != GROWN) {
        ml_json_ids(o, v.id ? v.id + from : NULL, v.n - from);
        return;
    }
    ml_json_begin(o, '[');
    ml_choice_write_sent(c, ML_SENT_IDS, o);
    ml_json_end(o, ']');
}

static void write_choice(const ml_choice *c, bool indexed, answer_part part,
                         ml_json_out *o) {
    const generate_body *b = c->job->ud;
    ml_meta_opts meta = { .logprobs = b->logprob[c->index / b->params[0].n],
                          .text = b->text_in_logprobs,
                          .entropy = b->entropy,
                          .from = part == NEW ? c->sent_tokens : 0,
                          .grown = part == GROWN };

    ml_json_begin(o, '{');
    if (c->job->server->opts.tokenizer)
        write_text(c, part, o);
    write_ids(c, part, o);
    if (b->prompt_ids) {
        ml_json_key(o, "prompt_token_ids");
        ml_json_ids(o, c->prompt, c->n_prompt);
    }
    ml_json_key(o, "meta_info");
    ml_meta_info_write(c, meta, o);
    if (indexed) {
        ml_json_key(o, "index");
        ml_json_int(o, c->index);
    }
    ml_json_end(o, '}');
}

/* The reply to one prompt with one answer is an object, otherwise a list. */
static bool is_single(const ml_job *j) {
    return !((const generate_body *)j->ud)->batch && j->n_choice == 1;
}

static void write_whole(ml_job *j, ml_json_out *o) {
    if (is_single(j)) {
        write_choice(j->choice, false, WHOLE, o);
        return;
    }
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < j->n_choice; i++)
        write_choice(&j->choice[i], false, WHOLE, o);
    ml_json_end(o, ']');
}

static void write_piece(ml_job *j, ml_choice *c) {
    bool repeat = !j->server->opts.incremental;
    ml_json_out o = { .to = &j->out };

    j->out.len = 0;
    if (repeat)
        grow_json(c);
    write_choice(c, !is_single(j), repeat ? GROWN : NEW, &o);
    c->sent_tokens = c->answer.n;
    c->sent_text = c->text.len;
    ml_job_send(j, &j->out);
}

static const ml_api api = {
    .path = "/generate", .read = read_request, .whole = write_whole, .piece = write_piece
};

void ml_serve_generate(ml_server *s, ml_http_call *call) {
    ml_job_serve(s, call, &api);
}
