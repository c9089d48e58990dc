/* POST /tokenize and /detokenize, in the formats of SGLang and vLLM. */
#include "serve/serve_priv.h"

typedef struct tokenize_body {
    const ml_json *prompt, *tokens;
    bool add_special, strings, skip_special;
} tokenize_body;

#define AT(field) offsetof(tokenize_body, field)

static const ml_field tokenize_rows[] = {
    { "prompt", ML_FIELD_JSON, AT(prompt) },
    { "text", ML_FIELD_JSON, AT(prompt) },
    { "add_special_tokens", ML_FIELD_BOOL, AT(add_special) },
    { "return_token_strs", ML_FIELD_BOOL, AT(strings) },
    { "model", ML_FIELD_IGNORE },
    { "messages", ML_FIELD_REFUSE,
      .why = "use return_prompt_token_ids of /v1/chat/completions, or send \"prompt\"" },
    { 0 },
};

static const ml_field detokenize_rows[] = {
    { "tokens", ML_FIELD_JSON, AT(tokens) },
    { "skip_special_tokens", ML_FIELD_BOOL, AT(skip_special) },
    { "model", ML_FIELD_IGNORE },
    { 0 },
};

static ml_status read_fields(ml_job *j, tokenize_body *b, const ml_field *rows,
                             ml_err *err) {
    ml_status st = ml_fields_read(b, rows, j->body, "request body", err);

    if (!st && !j->server->opts.tokenizer)
        st =
            ml_fail(err, ML_EUSAGE, "this server has no tokenizer (--skip-tokenizer-init)");
    return st;
}

/* --- text to tokens --------------------------------------------------------- */

typedef struct ids {
    const int32_t *id;
    int32_t n;
} ids;

/* Writes each of `all` with fn; as a list if the prompts were a list. */
static void write_each(const ml_job *j, const char *key, const ids *all, int32_t n,
                       bool list, void (*fn)(const ml_job *j, const ids *x, ml_json_out *o),
                       ml_json_out *o) {
    ml_json_key(o, key);
    if (list)
        ml_json_begin(o, '[');
    for (int32_t i = 0; i < n; i++)
        fn(j, &all[i], o);
    if (list)
        ml_json_end(o, ']');
}

static void write_ids(const ml_job *j, const ids *x, ml_json_out *o) {
    (void)j;
    ml_json_ids(o, x->id, x->n);
}

static void write_count(const ml_job *j, const ids *x, ml_json_out *o) {
    (void)j;
    ml_json_int(o, x->n);
}

static void write_strings(const ml_job *j, const ids *x, ml_json_out *o) {
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < x->n; i++)
        ml_token_text(j->server, x->id[i], o);
    ml_json_end(o, ']');
}

static void write_tokens(ml_job *j, const tokenize_body *b, const ids *all, int32_t n,
                         bool list) {
    ml_json_out o = { .to = &j->out };

    j->out.len = 0;
    ml_json_begin(&o, '{');
    write_each(j, "tokens", all, n, list, write_ids, &o);
    write_each(j, "count", all, n, list, write_count, &o);
    ml_json_put_int(&o, "max_model_len", j->server->opts.context);
    if (b->strings)
        write_each(j, "token_strs", all, n, list, write_strings, &o);
    ml_json_end(&o, '}');
}

static ml_status tokenize(ml_job *j, ml_err *err) {
    tokenize_body b = { .add_special = true };
    ml_status st = read_fields(j, &b, tokenize_rows, err);
    bool list = b.prompt && b.prompt->type == ML_JSON_ARRAY;
    int32_t n = list ? b.prompt->n : 1, i = 0;
    ids *all;

    if (!st && !b.prompt)
        st = ml_fail(err, ML_EUSAGE, "expected \"prompt\", a string or a list of strings");
    if (!st)
        st = ml_count_check(b.prompt, list ? ML_MAX_CHOICES : 0, "\"prompt\"", err);
    if (st)
        return st;
    all = ML_NEW(&j->arena, ids, n + 1);
    for (const ml_json *v = list ? b.prompt->child : b.prompt; i < n && !st;
         v = v->next, i++) {
        if (v->type == ML_JSON_STRING)
            st = ml_job_encode(j, v->text, b.add_special, &all[i].id, &all[i].n, err);
        else
            st = ml_fail(err, ML_EUSAGE, "\"prompt\" contains %s; expected strings",
                         ml_json_what(v));
    }
    if (!st)
        write_tokens(j, &b, all, n, list);
    return st;
}

/* --- tokens to text --------------------------------------------------------- */

static ml_status decode_one(ml_job *j, const tokenize_body *b, const ml_json *v,
                            ml_json_out *o, ml_err *err) {
    ml_text *text = &j->event;
    const int32_t *id;
    int32_t n;
    ml_status st = ml_ids_read(&id, &n, v, j->server->opts.n_vocab, INT32_MAX - 1,
                               "\"tokens\"", &j->arena, err);

    if (st)
        return st;
    text->len = 0;
    ml_decode(j->server->opts.tokenizer, text, id, n, b->skip_special);
    ml_json_str(o, (ml_str){ text->ptr, text->len });
    return ML_OK;
}

static ml_status detokenize(ml_job *j, ml_err *err) {
    tokenize_body b = { .skip_special = true };
    ml_status st = read_fields(j, &b, detokenize_rows, err);
    ml_json_out o = { .to = &j->out };
    bool list = b.tokens && b.tokens->child && b.tokens->child->type == ML_JSON_ARRAY;

    if (!st && !b.tokens)
        st = ml_fail(err, ML_EUSAGE, "expected \"tokens\", a list of token ids");
    if (!st)
        st = ml_count_check(b.tokens, list ? ML_MAX_CHOICES : INT32_MAX, "\"tokens\"", err);
    if (st)
        return st;
    j->out.len = 0;
    ml_json_begin(&o, '{');
    ml_json_key(&o, "text");
    if (!list) {
        st = decode_one(j, &b, b.tokens, &o, err);
    } else {
        ml_json_begin(&o, '[');
        for (const ml_json *v = b.tokens->child; v && !st; v = v->next)
            st = decode_one(j, &b, v, &o, err);
        ml_json_end(&o, ']');
    }
    ml_json_end(&o, '}');
    return st;
}

static const ml_api tokenize_api = { .path = "/tokenize", .read = tokenize };
static const ml_api detokenize_api = { .path = "/detokenize", .read = detokenize };

void ml_serve_tokenize(ml_server *s, ml_http_call *c) {
    ml_job_serve(s, c, &tokenize_api);
}

void ml_serve_detokenize(ml_server *s, ml_http_call *c) {
    ml_job_serve(s, c, &detokenize_api);
}
