#include "serve/openai.h"

#define AT(field) offsetof(ml_openai_body, field)

const ml_field ml_openai_rows[] = {
    { "model", ML_FIELD_STR, AT(model) },
    { "temperature", ML_FIELD_F32, AT(sampling.temperature), 0, 1e6 },
    { "top_p", ML_FIELD_F32, AT(sampling.top_p), 0, 1 },
    { "top_k", ML_FIELD_I32, AT(sampling.top_k), -1, INT32_MAX },
    { "min_p", ML_FIELD_F32, AT(sampling.min_p), 0, 1 },
    { "min_tokens", ML_FIELD_I32, AT(sampling.min_new), 0, INT32_MAX },
    { "max_tokens", ML_FIELD_I32, AT(max_tokens), 0, INT32_MAX },
    { "n", ML_FIELD_I32, AT(sampling.n), 1, ML_MAX_CHOICES },
    { "stop", ML_FIELD_JSON, AT(sampling.stop_json) },
    { "stop_token_ids", ML_FIELD_JSON, AT(sampling.stop_id_json) },
    { "ignore_eos", ML_FIELD_BOOL, AT(sampling.ignore_eos) },
    { "skip_special_tokens", ML_FIELD_BOOL, AT(sampling.skip_special) },
    { "no_stop_trim", ML_FIELD_BOOL, AT(sampling.no_stop_trim) },
    { "frequency_penalty", ML_FIELD_F32, AT(sampling.frequency), -2, 2 },
    { "presence_penalty", ML_FIELD_F32, AT(sampling.presence), -2, 2 },
    { "repetition_penalty", ML_FIELD_F32, AT(sampling.repetition), 0, 2 },
    { "logit_bias", ML_FIELD_JSON, AT(sampling.bias_json) },
    { "seed", ML_FIELD_JSON, AT(sampling.seed_json) },
    { "sample", ML_FIELD_JSON, AT(sampling.sample_json) },
    { "logprob_distribution", ML_FIELD_JSON, AT(sampling.dist_json) },
    { "stream", ML_FIELD_BOOL, AT(stream) },
    { "stream_options", ML_FIELD_JSON, AT(stream_options) },
    { "return_token_ids", ML_FIELD_BOOL, AT(token_ids) },
    { "return_prompt_token_ids", ML_FIELD_BOOL, AT(prompt_ids) },
    { "return_meta_info", ML_FIELD_BOOL, AT(meta_info) },
    { "rid", ML_FIELD_STR, AT(rid) },
    { "lora_path", ML_FIELD_STR, AT(adapter) },
    /* These do not affect the answer. */
    { "user", ML_FIELD_IGNORE },
    { "metadata", ML_FIELD_IGNORE },
    { "store", ML_FIELD_IGNORE },
    { "service_tier", ML_FIELD_IGNORE },
    { "safety_identifier", ML_FIELD_IGNORE },
    { "prompt_cache_key", ML_FIELD_IGNORE },
    { "session_id", ML_FIELD_IGNORE },
    { "priority", ML_FIELD_IGNORE },
    { "extra_key", ML_FIELD_IGNORE },
    { "cache_salt", ML_FIELD_IGNORE },
    { "custom_labels", ML_FIELD_IGNORE },
    { "routed_dp_rank", ML_FIELD_IGNORE },
    { "data_parallel_rank", ML_FIELD_IGNORE },
    { "routed_experts_start_len", ML_FIELD_IGNORE },
    { "response_format", ML_FIELD_JSON, AT(format) },
    { "regex", ML_FIELD_STR, AT(sampling.source[ML_GRAMMAR_REGEX]) },
    { "ebnf", ML_FIELD_STR, AT(sampling.source[ML_GRAMMAR_EBNF]) },
    { "json_schema", ML_FIELD_STR, AT(sampling.source[ML_GRAMMAR_JSON_SCHEMA]) },
    { "structural_tag", ML_FIELD_STR, AT(sampling.source[ML_GRAMMAR_STRUCTURAL_TAG]) },
    { "stop_regex", ML_FIELD_REFUSE, .why = "use stop or stop_token_ids" },
    { "session_params", ML_FIELD_REFUSE, .why = "sessions are not supported" },
    { "custom_params", ML_FIELD_REFUSE,
      .why = "custom logit processors are not supported" },
    { "custom_logit_processor", ML_FIELD_REFUSE,
      .why = "custom logit processors are not supported" },
    { "return_indexer_topk", ML_FIELD_REFUSE,
      .why = "use /generate, which returns the routing" },
    { "return_sampling_mask", ML_FIELD_REFUSE,
      .why = "use logprob_distribution \"drawn\"" },
    { "return_cached_tokens_details", ML_FIELD_REFUSE,
      .why = "see usage.prompt_tokens_details" },
    { "return_hidden_states", ML_FIELD_REFUSE, .why = "hidden states are not returned" },
    { "return_routed_experts", ML_FIELD_REFUSE,
      .why = "use /generate, which returns the routing" },
    { 0 },
};

static const ml_field stream_rows[] = {
    { "include_usage", ML_FIELD_BOOL, AT(usage) },
    { "continuous_usage_stats", ML_FIELD_BOOL, AT(usage_each) },
    { 0 },
};

bool ml_openai_is_base(const ml_server *s, ml_str model) {
    return !model.len || ml_str_is(model, s->opts.model_name) ||
           ml_str_is(model, s->opts.model_path) || ml_str_is(model, "default");
}

/* The rest of BASE:ADAPTER after the colon; names may have colons of their own. */
static ml_str after_base(const ml_server *s, ml_str model) {
    for (size_t i = 1; i + 1 < model.len; i++)
        if (model.ptr[i] == ':' && ml_openai_is_base(s, (ml_str){ model.ptr, i }))
            return (ml_str){ model.ptr + i + 1, model.len - i - 1 };
    return (ml_str){ 0 };
}

/* A model is the base, BASE:ADAPTER, or an adapter's name; as in SGLang, an adapter in it
 * counts before lora_path.  Adapters are looked up later, on the event loop. */
static ml_status check_model(ml_job *j, ml_openai_body *b, ml_err *err) {
    const ml_server *s = j->server;
    ml_str name = after_base(s, b->model);

    if (j->session || ml_openai_is_base(s, b->model))
        return ML_OK;
    j->other_model = true;
    if (s->opts.lora.set) {
        b->adapter = name.len ? name : b->model;
        return ML_OK;
    }
    if (name.len)
        return ml_fail(err, ML_EUSAGE,
                       "model \"%.*s\" names an adapter: start the server with "
                       "--enable-lora",
                       (int)(b->model.len < 200 ? b->model.len : 200), b->model.ptr);
    return ml_fail(err, ML_EUSAGE,
                   "unknown model \"%.*s\": this server has \"%s\" (--served-model-name)",
                   (int)(b->model.len < 200 ? b->model.len : 200), b->model.ptr,
                   s->opts.model_name);
}

ml_status ml_openai_read(ml_job *j, const ml_field *rows, ml_err *err) {
    ml_openai_body *b = j->ud ? j->ud : ML_NEW(&j->arena, ml_openai_body, 1);
    ml_status st;

    ml_sampling_params_init(&b->sampling);
    if (j->server->opts.defaults)
        b->sampling = *j->server->opts.defaults;
    b->max_tokens = b->max_completion_tokens = b->n_logprob = -1;
    b->parallel_calls = b->separate_reasoning = b->stream_reasoning = true;
    j->ud = b;
    st = ml_fields_read(b, rows, j->body, "request body", err);
    if (!st && b->stream_options)
        st = ml_fields_read(b, stream_rows, b->stream_options, "stream_options", err);
    if (!st && b->stream_options && !b->stream)
        st = ml_fail(err, ML_EUSAGE, "\"stream_options\" needs \"stream\": true");
    if (!st)
        st = check_model(j, b, err);
    if (st)
        return st;
    j->stream = b->stream;
    b->model = ml_str_keep(&j->arena, b->model);
    b->adapter = ml_str_keep(&j->arena, b->adapter);
    b->sampling.max_new = b->max_tokens;
    return ml_job_set_rid(j, b->rid, err);
}

ml_status ml_openai_choices(ml_job *j, int32_t n_prompt, ml_err *err) {
    ml_openai_body *b = j->ud;
    int32_t n = b->sampling.n;
    ml_status st =
        ml_sampling_params_check(&b->sampling, j->server->opts.n_vocab, &j->arena, err);

    if (!st && (int64_t)n_prompt * n > ML_MAX_CHOICES)
        st = ml_fail(err, ML_EUSAGE,
                     "%d prompts with %d samples each; expected at most %d in total",
                     (int)n_prompt, (int)n, ML_MAX_CHOICES);
    if (st)
        return st;
    ml_job_choices(j, n_prompt * n);
    for (int32_t i = 0; i < n_prompt * n; i++) {
        j->choice[i].params = &b->sampling;
        j->choice[i].sample = (uint64_t)(i % n);
        j->choice[i].adapter = b->adapter;
    }
    return ML_OK;
}

void ml_openai_copy_choices(ml_job *j) {
    int32_t n = ((ml_openai_body *)j->ud)->sampling.n;

    for (int32_t i = 0; i < j->n_choice; i++) {
        ml_choice *c = &j->choice[i];
        const ml_choice *first = &j->choice[i - i % n];
        c->prompt = first->prompt;
        c->n_prompt = first->n_prompt;
        c->n_top = first->n_top;
        c->logprob_start = first->logprob_start;
    }
}

/* --- writing ---------------------------------------------------------------- */

void ml_openai_begin(const ml_job *j, const char *object, ml_json_out *o) {
    const ml_openai_body *b = j->ud;

    ml_json_begin(o, '{');
    ml_json_key(o, "id");
    ml_json_word(o, j->id);
    ml_json_key(o, "object");
    ml_json_word(o, object);
    ml_json_key(o, "created");
    ml_json_int(o, j->created);
    ml_json_key(o, "model");
    if (b->model.len)
        ml_json_str(o, b->model);
    else
        ml_json_word(o, j->server->opts.model_name);
    ml_json_key(o, "choices");
    ml_json_begin(o, '[');
}

/* A prompt is counted once, even if it has several answers. */
static void write_usage(const ml_job *j, ml_json_out *o) {
    int32_t n = ((const ml_openai_body *)j->ud)->sampling.n;
    int64_t prompt = 0, cached = 0, answer = 0;

    for (int32_t i = 0; i < j->n_choice; i++) {
        prompt += i % n ? 0 : j->choice[i].n_prompt;
        cached += i % n ? 0 : j->choice[i].n_cached;
        answer += j->choice[i].answer.n;
    }
    ml_json_begin(o, '{');
    ml_json_key(o, "prompt_tokens");
    ml_json_int(o, prompt);
    ml_json_key(o, "completion_tokens");
    ml_json_int(o, answer);
    ml_json_key(o, "total_tokens");
    ml_json_int(o, prompt + answer);
    ml_json_key(o, "prompt_tokens_details");
    ml_json_begin(o, '{');
    ml_json_key(o, "cached_tokens");
    ml_json_int(o, cached);
    ml_json_end(o, '}');
    ml_json_end(o, '}');
}

void ml_openai_end(const ml_job *j, bool usage, ml_json_out *o) {
    ml_json_end(o, ']');
    ml_json_key(o, "usage");
    if (usage)
        write_usage(j, o);
    else
        ml_json_null(o);
    ml_json_end(o, '}');
}

void ml_openai_last(ml_job *j, const char *object) {
    ml_json_out o = { .to = &j->out };

    if (!((const ml_openai_body *)j->ud)->usage)
        return;
    j->out.len = 0;
    ml_openai_begin(j, object, &o);
    ml_openai_end(j, true, &o);
    ml_job_send(j, &j->out);
}

void ml_openai_finish(const ml_choice *c, const char *word, ml_json_out *o) {
    ml_json_key(o, "finish_reason");
    ml_json_word(o, word ? word : ml_choice_finish_word(c));
    ml_json_key(o, "matched_stop");
    ml_choice_matched(c, o);
}
