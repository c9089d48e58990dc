#include "rl/learn/teacher_prompt.h"

#include <string.h>

#include "base/json.h"
#include "base/json_out.h"

static const char sibling[] = "{sibling}";

/* The first other answer of the group with enough reward. */
static const ml_sample *sibling_of(const ml_teacher_prompt *p, const ml_sample *s,
                                   ml_sample *const *batch, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (batch[i]->group == s->group && batch[i]->index != s->index &&
            batch[i]->has_reward && batch[i]->reward >= p->sibling_reward &&
            batch[i]->response.len)
            return batch[i];
    return NULL;
}

static const char *find(ml_str text) {
    for (size_t i = 0; i + sizeof sibling - 1 <= text.len; i++)
        if (memcmp(text.ptr + i, sibling, sizeof sibling - 1) == 0)
            return text.ptr + i;
    return NULL;
}

/* JSON in which a text stands for each {sibling}. */
static ml_str with_sibling(ml_str json, ml_str text, ml_arena *a) {
    ml_text escaped = { 0 }, out = { 0 };
    ml_json_out o = { .to = &escaped };
    const char *at;
    ml_str whole;

    ml_json_str(&o, text);
    while ((at = find(json))) {
        size_t before = (size_t)(at - json.ptr), used = before + sizeof sibling - 1;
        ml_text_add(&out, json.ptr, before);
        ml_text_add(&out, escaped.ptr + 1, escaped.len - 2); /* without quotes */
        json = (ml_str){ json.ptr + used, json.len - used };
    }
    ml_text_add(&out, json.ptr, json.len);
    whole = (ml_str){ ml_arena_str(a, out.ptr, out.len), out.len };
    ml_text_release(&escaped);
    ml_text_release(&out);
    return whole;
}

static ml_status render(const ml_teacher_prompt *p, const ml_json *messages, ml_str *out,
                        ml_arena *a, ml_err *err) {
    ml_chat chat = { .messages = messages,
                     .add_generation_prompt = true,
                     .kwargs = p->kwargs };
    ml_jinja_text text;
    ml_status st;

    if (!p->chat_template)
        return ml_fail(err, ML_EFORMAT,
                       "metadata \"%s\" is a list of messages, but the checkpoint has no "
                       "chat template: set one with --chat-template-path",
                       p->key);
    st = ml_chat_render(&text, a, p->chat_template, &chat, NULL, err);
    if (st == ML_OK)
        *out = text.text;
    return st;
}

/* One message of the user. */
static ml_str as_messages(ml_str json, ml_arena *a) {
    return ml_str_of(ml_arena_printf(a, "[{\"role\": \"user\", \"content\": %.*s}]",
                                     (int)json.len, json.ptr));
}

static ml_status text_of(const ml_teacher_prompt *p, ml_str json, ml_str *out, ml_arena *a,
                         ml_err *err) {
    const ml_json *v;
    ml_status st = ml_json_parse(&v, a, json, p->key, err);

    if (st == ML_OK && v->type == ML_JSON_STRING && p->chat)
        st = ml_json_parse(&v, a, as_messages(json, a), p->key, err);
    if (st != ML_OK)
        return st;
    if (v->type == ML_JSON_ARRAY)
        return render(p, v, out, a, err);
    if (v->type != ML_JSON_STRING)
        return ml_fail(err, ML_EFORMAT, "metadata \"%s\" is %s; expected text or messages",
                       p->key, ml_json_what(v));
    *out = v->text;
    return ML_OK;
}

static ml_status source_of(const ml_teacher_prompt *p, const ml_sample *s, ml_str *out,
                           ml_arena *a, ml_err *err) {
    const ml_json *doc = NULL, *v;
    ml_status st =
        s->metadata.len ? ml_json_parse(&doc, a, s->metadata, "metadata", err) : ML_OK;

    if (st != ML_OK)
        return st;
    v = ml_json_get(doc, p->key);
    if (!v || v->type == ML_JSON_NULL)
        return ml_fail(err, ML_EFORMAT,
                       "metadata has no \"%s\", the teacher's prompt (--opd-context-key)",
                       p->key);
    *out = (ml_str){ s->metadata.ptr + v->begin, v->end - v->begin };
    return ML_OK;
}

ml_status ml_teacher_prompt_tokens(const ml_teacher_prompt *p, const ml_sample *s,
                                   ml_sample *const *batch, int64_t n, const int32_t **id,
                                   int32_t *n_id, ml_arena *a, ml_err *err) {
    ml_str json = { 0 }, text = { 0 };
    ml_tokens prompt = { 0 };
    ml_status st = source_of(p, s, &json, a, err);
    int32_t *all;

    *id = NULL;
    if (st == ML_OK && find(json)) {
        const ml_sample *other = sibling_of(p, s, batch, n);
        if (!other)
            return ML_OK;
        json = with_sibling(json, other->response, a);
    }
    if (st == ML_OK)
        st = text_of(p, json, &text, a, err);
    if (st == ML_OK)
        st = ml_encode(p->encoder, &prompt, text, (ml_encode_opts){ 0 }, err);
    if (st == ML_OK) {
        *n_id = (int32_t)prompt.n + s->n_response;
        *id = all = ML_NEW(a, int32_t, *n_id + 1);
        memcpy(all, prompt.id, (size_t)prompt.n * sizeof *all);
        memcpy(all + prompt.n, s->token + s->n_token - s->n_response,
               (size_t)s->n_response * sizeof *all);
    }
    ml_tokens_release(&prompt);
    return st;
}
