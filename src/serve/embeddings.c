/* POST /v1/embeddings: a vector of length 1 for each input. */
#include "base/base64.h"
#include "serve/openai.h"

typedef struct embeddings_body {
    const ml_json *input;
    ml_str model, format;
    int32_t dimensions; /* 0: all */
} embeddings_body;

#define AT(field) offsetof(embeddings_body, field)

static const ml_field rows[] = {
    { "input", ML_FIELD_JSON, AT(input) },
    { "model", ML_FIELD_STR, AT(model) },
    { "encoding_format", ML_FIELD_STR, AT(format) },
    { "dimensions", ML_FIELD_I32, AT(dimensions), 1, INT32_MAX },
    { "user", ML_FIELD_IGNORE },
    { "rid", ML_FIELD_IGNORE },
    { "priority", ML_FIELD_IGNORE },
    { 0 },
};

/* --- reading ---------------------------------------------------------------- */

static ml_status check_body(ml_job *j, embeddings_body *b, ml_err *err) {
    const ml_server_opts *o = &j->server->opts;

    if (!o->embed)
        return ml_fail(err, ML_EUNSUP,
                       "this server computes no embeddings: start it with --is-embedding "
                       "and an embedding model, such as Qwen3-Embedding");
    if (!ml_openai_is_base(j->server, b->model)) {
        j->other_model = true;
        return ml_fail(err, ML_EUSAGE,
                       "unknown model \"%.*s\": this server has \"%s\" "
                       "(--served-model-name)",
                       (int)(b->model.len < 200 ? b->model.len : 200), b->model.ptr,
                       o->model_name);
    }
    if (b->format.len && !ml_str_is(b->format, "float") && !ml_str_is(b->format, "base64"))
        return ml_fail(err, ML_EUSAGE,
                       "\"encoding_format\": expected \"float\" or \"base64\"");
    if (b->dimensions > o->n_hidden)
        return ml_fail(err, ML_EUSAGE,
                       "\"dimensions\" is %d; the model's vectors have %d numbers",
                       (int)b->dimensions, (int)o->n_hidden);
    if (!b->dimensions)
        b->dimensions = o->n_hidden;
    return ML_OK;
}

static ml_status read_input(ml_job *j, const ml_json *v, ml_embed_input *out, ml_err *err) {
    int32_t most = j->server->opts.embed_tokens;
    ml_status st;

    if (v->type == ML_JSON_STRING && j->encoder)
        st = ml_job_encode(j, v->text, true, &out->id, &out->n, err);
    else if (v->type == ML_JSON_ARRAY)
        st = ml_ids_read(&out->id, &out->n, v, j->server->opts.n_vocab, INT32_MAX - 1,
                         "\"input\"", &j->arena, err);
    else
        return ml_fail(err, ML_EUSAGE, "\"input\" has %s; expected a string or token ids",
                       ml_json_what(v));
    if (!st && (out->n < 1 || out->n > most))
        st = ml_fail(err, ML_EUSAGE, "an input has %d tokens; expected 1 to %d",
                     (int)out->n, (int)most);
    return st;
}

/* "input" is a string, a list of strings, a list of ids, or a list of lists of ids. */
static ml_status read_inputs(ml_job *j, const ml_json *v, ml_embed_input **out, int32_t *n,
                             ml_err *err) {
    bool single =
        v && (v->type != ML_JSON_ARRAY || (v->child && v->child->type == ML_JSON_NUMBER));
    ml_status st = ML_OK;
    int32_t i = 0;

    *n = !v ? 0 : single ? 1 : v->n;
    if (*n < 1 || *n > ML_MAX_CHOICES)
        return ml_fail(err, ML_EUSAGE,
                       "expected \"input\": a string, token ids, or a list of 1 to %d of "
                       "either",
                       ML_MAX_CHOICES);
    *out = ML_NEW(&j->arena, ml_embed_input, *n);
    for (const ml_json *x = single ? v : v->child; i < *n && !st; x = x->next, i++)
        st = read_input(j, x, &(*out)[i], err);
    return st;
}

/* --- writing ---------------------------------------------------------------- */

static void write_vector(const float *x, int32_t n, bool packed, ml_json_out *o) {
    ml_text text = { 0 };

    if (packed) {
        ml_base64_write(&text, x, (size_t)n * sizeof *x);
        ml_json_str(o, (ml_str){ text.ptr, text.len });
        ml_text_release(&text);
    } else {
        ml_json_floats(o, x, n);
    }
}

static void write_reply(ml_job *j, const embeddings_body *b, const ml_embed_request *q) {
    ml_json_out o = { .to = &j->out };
    int64_t n_token = 0;

    j->out.len = 0;
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "object", "list");
    ml_json_key(&o, "data");
    ml_json_begin(&o, '[');
    for (int32_t i = 0; i < q->n; i++) {
        n_token += q->in[i].n;
        ml_json_begin(&o, '{');
        ml_json_put_word(&o, "object", "embedding");
        ml_json_put_int(&o, "index", i);
        ml_json_key(&o, "embedding");
        write_vector(q->out + (int64_t)i * q->width, q->width,
                     ml_str_is(b->format, "base64"), &o);
        ml_json_end(&o, '}');
    }
    ml_json_end(&o, ']');
    ml_json_put_word(&o, "model", j->server->opts.model_name);
    ml_json_key(&o, "usage");
    ml_json_begin(&o, '{');
    ml_json_put_int(&o, "prompt_tokens", n_token);
    ml_json_put_int(&o, "total_tokens", n_token);
    ml_json_end(&o, '}');
    ml_json_end(&o, '}');
}

static ml_status embed(ml_job *j, ml_err *err) {
    const ml_server_opts *o = &j->server->opts;
    embeddings_body b = { 0 };
    ml_embed_input *in = NULL;
    ml_embed_request q = { .pooling = o->pooling };
    ml_status st = ml_fields_read(&b, rows, j->body, "request body", err);

    if (!st)
        st = check_body(j, &b, err);
    if (!st)
        st = read_inputs(j, b.input, &in, &q.n, err);
    if (st)
        return st;
    q.in = in;
    q.width = b.dimensions;
    q.out = ML_NEW(&j->arena, float, (int64_t)q.n *q.width);
    st = o->embed(o->gen, &q, err);
    if (!st)
        write_reply(j, &b, &q);
    for (int32_t i = 0; i < q.n; i++)
        j->n_embedded += in[i].n;
    return st;
}

static const ml_api api = { .path = "/v1/embeddings", .read = embed, .background = true };

void ml_serve_embeddings(ml_server *s, ml_http_call *c) {
    ml_job_serve(s, c, &api);
}
