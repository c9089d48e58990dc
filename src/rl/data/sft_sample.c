#include "rl/data/sft_sample.h"

#include <string.h>

#include "text/chat/conversation.h"
#include "text/chat/assistant_mask.h"

typedef struct spans {
    ml_jinja_span *span;
    int64_t n;
} spans;

static bool is_assistant(const ml_json *message) {
    const ml_json *role = ml_json_get(message, "role");
    return role && role->type == ML_JSON_STRING && ml_str_is(role->text, "assistant");
}

static bool is_learned(const ml_json *message) {
    const ml_json *v = ml_json_get(message, "step_loss_mask");
    int64_t n = 0;
    return !v || (ml_json_i64(v, &n) && n == 1);
}

/* The first n messages as a separate list. */
static const ml_json *first_messages(ml_arena *a, const ml_json *messages, int32_t n) {
    ml_json *list = ML_NEW(a, ml_json, 1), *copy = ML_NEW(a, ml_json, n + 1);
    const ml_json *m = messages->child;

    *list = *messages;
    list->n = n;
    list->child = n ? copy : NULL;
    for (int32_t i = 0; i < n; i++, m = m->next) {
        copy[i] = *m;
        copy[i].next = i + 1 < n ? &copy[i + 1] : NULL;
    }
    return list;
}

static ml_status render_first(ml_str *out, ml_arena *a, const ml_sft_text *t, ml_chat chat,
                              int32_t n, bool prompt, ml_err *err) {
    ml_jinja_text text = { 0 };
    ml_status st;

    chat.messages = first_messages(a, chat.messages, n);
    chat.add_generation_prompt = prompt;
    st = ml_chat_render(&text, a, t->chat_template, &chat, NULL, err);
    *out = text.text;
    return st;
}

static bool begins_with(ml_str text, ml_str head) {
    return text.len >= head.len && memcmp(text.ptr, head.ptr, head.len) == 0;
}

/* The span that message i adds to the text when it follows the generation prompt. */
static ml_status span_of(ml_jinja_span *out, ml_arena *a, const ml_sft_text *t,
                         const ml_chat *chat, ml_str whole, int32_t i, ml_err *err) {
    ml_str before, after;
    ml_status st = render_first(&before, a, t, *chat, i, true, err);

    if (st == ML_OK)
        st = render_first(&after, a, t, *chat, i + 1, false, err);
    if (st != ML_OK)
        return st;
    if (!begins_with(after, before) || !begins_with(whole, after))
        return ml_fail(err, ML_EFORMAT,
                       "the chat template renders message %d differently when other "
                       "messages follow, so its tokens cannot be found: mark them in the "
                       "template with {%% generation %%} (--chat-template-path)",
                       i + 1);
    *out = (ml_jinja_span){ .begin_byte = (int64_t)before.len,
                            .end_byte = (int64_t)after.len };
    return ML_OK;
}

/* Used if the template does not mark the assistant's text. */
static ml_status find_spans(spans *out, ml_arena *a, const ml_sft_text *t,
                            const ml_chat *chat, ml_str whole, ml_err *err) {
    ml_status st = ML_OK;
    int32_t i = 0;

    out->span = ML_NEW(a, ml_jinja_span, chat->messages->n);
    for (const ml_json *m = chat->messages->child; m && st == ML_OK; m = m->next, i++)
        if (is_assistant(m))
            st = span_of(&out->span[out->n++], a, t, chat, whole, i, err);
    return st;
}

/* Removes the spans of messages that are not trained; there is one per answer. */
static void drop_unlearned(spans *s, const ml_json *messages) {
    int64_t at = 0, kept = 0;

    for (const ml_json *m = messages->child; m; m = m->next)
        if (is_assistant(m) && at < s->n) {
            if (is_learned(m))
                s->span[kept++] = s->span[at];
            at++;
        }
    s->n = kept;
}

static int64_t count_answers(const ml_json *messages) {
    int64_t n = 0;
    for (const ml_json *m = messages->child; m; m = m->next)
        n += is_assistant(m);
    return n;
}

static ml_status spans_of(spans *out, ml_arena *a, const ml_sft_text *t,
                          const ml_chat *chat, const ml_jinja_text *text, ml_err *err) {
    ml_status st = ML_OK;

    *out = (spans){ 0 };
    if (text->n_span == 0) {
        st = find_spans(out, a, t, chat, text->text, err);
    } else {
        out->n = text->n_span;
        out->span = ML_NEW(a, ml_jinja_span, out->n);
        memcpy(out->span, text->span, (size_t)out->n * sizeof *out->span);
    }
    if (st == ML_OK && out->n == count_answers(chat->messages))
        drop_unlearned(out, chat->messages);
    return st;
}

static ml_status check_ids(const ml_tokens *tokens, int64_t n_vocab, ml_err *err) {
    for (int64_t i = 0; i < tokens->n; i++)
        if (tokens->id[i] >= n_vocab)
            return ml_fail(err, ML_EFORMAT,
                           "the tokenizer returned token %d, but the model has %lld "
                           "tokens: they do not match",
                           tokens->id[i], (long long)n_vocab);
    return ML_OK;
}

static ml_status cut_sample(ml_train_sample *out, ml_arena *a, const ml_tokens *tokens,
                            const uint8_t *mask, ml_err *err) {
    int64_t first = 0, n = tokens->n;
    int32_t *id = ML_NEW(a, int32_t, n + 1);
    uint8_t *own = ML_NEW(a, uint8_t, n + 1);

    while (first < n && !mask[first])
        first++;
    first = first == 0 ? 1 : first; /* nothing predicts the first token */
    if (first >= n)
        return ml_fail(err, ML_EFORMAT, "the conversation has no message of the assistant");
    memcpy(id, tokens->id, (size_t)n * sizeof *id);
    memcpy(own, mask + first, (size_t)(n - first));
    *out = (ml_train_sample){
        .token = id, .n_token = (int32_t)n, .n_response = (int32_t)(n - first), .mask = own
    };
    return ML_OK;
}

static ml_status tokenize(ml_train_sample *out, ml_arena *a, const ml_sft_text *t,
                          const ml_jinja_text *text, ml_err *err) {
    ml_tokens tokens = { 0 };
    ml_status st =
        ml_encode(t->encoder, &tokens, text->text, (ml_encode_opts){ .spans = true }, err);

    if (st == ML_OK)
        st = check_ids(&tokens, t->n_vocab, err);
    if (st == ML_OK) {
        uint8_t *mask = ML_NEW(a, uint8_t, tokens.n + 1);
        ml_assistant_mask(mask, text, &tokens);
        st = cut_sample(out, a, &tokens, mask, err);
    }
    ml_tokens_release(&tokens);
    return st;
}

ml_status ml_sft_sample(ml_train_sample *out, ml_arena *a, const ml_sft_text *t,
                        const ml_prompt *prompt, ml_err *err) {
    ml_chat chat = { .kwargs = t->kwargs };
    ml_jinja_text text;
    spans s;
    ml_status st;

    if (!prompt->messages)
        return ml_fail(err, ML_EFORMAT,
                       "the row has a string; expected a list of messages: set --input-key "
                       "to the field with the conversation");
    st = ml_conversation_check(prompt->messages, err);
    if (st == ML_OK)
        st = ml_conversation_normal(&chat.messages, a, prompt->messages, err);
    if (st == ML_OK)
        st = ml_tools_normal(&chat.tools, a, prompt->tools, err);
    if (st == ML_OK)
        st = ml_chat_render(&text, a, t->chat_template, &chat, NULL, err);
    if (st == ML_OK)
        st = spans_of(&s, a, t, &chat, &text, err);
    if (st != ML_OK)
        return st;
    text.span = s.span;
    text.n_span = s.n;
    return tokenize(out, a, t, &text, err);
}
