#include "rl/env/turn_tokens.h"

#include <string.h>

#include "text/chat/conversation.h"

/* Placeholder for the model's answer: no template writes it by itself. */
#define ANSWER "0words0of0the0model0"

static ml_status render(const ml_turn_tokens *t, ml_str *out, ml_arena *a,
                        const ml_json *messages, ml_err *err) {
    ml_chat chat = { .messages = messages,
                     .add_generation_prompt = true,
                     .kwargs = t->kwargs };
    ml_jinja_text text;
    ml_status st = ml_chat_render(&text, a, t->chat_template, &chat, NULL, err);

    if (st == ML_OK)
        *out = text.text;
    return st;
}

/* The text after the model's answer if `messages` follow it. */
static ml_status text_after(const ml_turn_tokens *t, ml_str *out, ml_arena *a,
                            const ml_json *messages, ml_err *err) {
    ml_messages all = ml_messages_begin(a);
    const char *at;
    ml_str text = { 0 };
    ml_status st;

    ml_messages_append(&all, ml_str_of("user"), ml_str_of("?"));
    ml_messages_append(&all, ml_str_of("assistant"), ml_str_of(ANSWER));
    ml_messages_join(&all, messages);
    st = render(t, &text, a, all.list, err);
    if (st != ML_OK)
        return st;
    at = memmem(text.ptr, text.len, ANSWER, strlen(ANSWER));
    if (!at)
        return ml_fail(
            err, ML_EUNSUP,
            "the chat template does not render the text of earlier responses, so a "
            "conversation cannot continue: choose another one with --chat-template-path");
    at += strlen(ANSWER);
    *out = (ml_str){ at, (size_t)(text.ptr + text.len - at) };
    return ML_OK;
}

/* True if the template's text begins with the special token that ended the answer. */
static bool is_written(const ml_turn_tokens *t, ml_str text, int32_t last) {
    ml_str token = ml_tokenizer_token(t->tokenizer, last);

    return token.len && ml_tokenizer_is_special(t->tokenizer, last) &&
           text.len >= token.len && memcmp(text.ptr, token.ptr, token.len) == 0;
}

ml_status ml_turn_tokens_encode(const ml_turn_tokens *t, ml_encoder *e, ml_tokens *out,
                                ml_arena *a, const ml_json *messages, int32_t last,
                                ml_err *err) {
    ml_str text = { 0 };
    ml_status st = text_after(t, &text, a, messages, err);

    if (st == ML_OK)
        st = ml_encode(e, out, text, (ml_encode_opts){ 0 }, err);
    if (st != ML_OK)
        return st;
    /* The token is encoded with the text, because preceding characters may change
     * tokenization. */
    if (is_written(t, text, last) && out->n > 0 && out->id[0] == last)
        memmove(out->id, out->id + 1, (size_t)--out->n * sizeof *out->id);
    return ML_OK;
}

/* --- the check ---------------------------------------------------------------------- */

/* Renders a question and two answers, each followed by a message, in both ways. */
static ml_status both_ways(const ml_turn_tokens *t, ml_arena *a, const char *role,
                           ml_text *pieces, ml_str *whole, ml_err *err) {
    ml_messages all = ml_messages_begin(a), next = ml_messages_begin(a);
    ml_str text = { 0 };
    ml_status st;

    ml_messages_append(&next, ml_str_of(role), ml_str_of("go on"));
    ml_messages_append(&all, ml_str_of("user"), ml_str_of("question"));
    st = render(t, &text, a, all.list, err);
    if (st == ML_OK)
        ml_text_add(pieces, text.ptr, text.len);
    for (int i = 0; i < 2 && st == ML_OK; i++) {
        ml_messages_append(&all, ml_str_of("assistant"), ml_str_of("answer"));
        ml_messages_join(&all, next.list);
        st = text_after(t, &text, a, next.list, err);
        if (st == ML_OK) {
            ml_text_printf(pieces, "answer");
            ml_text_add(pieces, text.ptr, text.len);
        }
    }
    return st == ML_OK ? render(t, whole, a, all.list, err) : st;
}

/* A few words at `at`. */
static const char *excerpt(ml_arena *a, const char *s, size_t n, size_t at) {
    ml_text t = { 0 };
    const char *out;

    ml_json_quote(&t, (ml_str){ s + at, n - at < 30 ? n - at : 30 });
    out = ml_arena_str(a, t.ptr, t.len);
    ml_text_release(&t);
    return out;
}

ml_status ml_turn_tokens_check(const ml_turn_tokens *t, const char *role, ml_err *err) {
    ml_text pieces = { 0 };
    ml_str whole = { 0 };
    size_t at = 0;
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "a conversation");
    st = both_ways(t, &a, role, &pieces, &whole, err);
    while (st == ML_OK && at < pieces.len && at < whole.len &&
           pieces.ptr[at] == whole.ptr[at])
        at++;
    if (st != ML_OK)
        ml_err_prefix(err, "a conversation with messages of role '%s'", role);
    else if (at < pieces.len || at < whole.len)
        st = ml_fail(err, ML_EUNSUP,
                     "the chat template changes earlier turns when a message of role '%s' "
                     "follows: turn by turn it renders %s where the whole conversation has "
                     "%s; choose one that only appends with --chat-template-path",
                     role, excerpt(&a, pieces.ptr, pieces.len, at),
                     excerpt(&a, whole.ptr, whole.len, at));
    ml_text_release(&pieces);
    ml_arena_release(&a);
    return st;
}
