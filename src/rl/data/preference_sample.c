#include "rl/data/preference_sample.h"

#include <string.h>

#include "text/chat/conversation.h"

/* --- rows ----------------------------------------------------------------------- */

/* A row: the fields are text, or lists of messages. */
typedef struct fields {
    const ml_json *prompt, *answer[2];
    int32_t n;
} fields;

static ml_status missing(const char *key, const char *what, ml_err *err) {
    return ml_fail(err, ML_EFORMAT, "the row has no \"%s\": expected %s", key, what);
}

static ml_status find_fields(fields *out, const ml_json *row, bool single, ml_err *err) {
    *out = (fields){ .prompt = ml_json_get(row, "prompt"), .n = single ? 1 : 2 };
    out->answer[0] = ml_json_get(row, single ? "completion" : "chosen");
    out->answer[1] = single ? NULL : ml_json_get(row, "rejected");
    for (int i = 0; i < out->n; i++) {
        const ml_json *x = out->answer[i];
        if (!x)
            return missing(i        ? "rejected"
                           : single ? "completion"
                                    : "chosen",
                           "text or a list of messages", err);
        if ((x->type != ML_JSON_STRING && x->type != ML_JSON_ARRAY) ||
            (out->prompt && x->type != out->prompt->type) ||
            x->type != out->answer[0]->type)
            return ml_fail(err, ML_EFORMAT,
                           "prompt and answers of a row must all be text, or all be lists "
                           "of messages");
    }
    return ML_OK;
}

static bool same_source(ml_str source, const ml_json *x, const ml_json *y) {
    return x->end - x->begin == y->end - y->begin &&
           memcmp(source.ptr + x->begin, source.ptr + y->begin, x->end - x->begin) == 0;
}

/* `n` messages of a list from `from` on, after those of another list (may be NULL). */
static const ml_json *join(ml_arena *a, const ml_json *head, const ml_json *tail,
                           int32_t from, int32_t n) {
    int32_t n_head = head ? head->n : 0, at = 0;
    ml_json *list = ML_NEW(a, ml_json, 1), *copy = ML_NEW(a, ml_json, n_head + n + 1);

    for (const ml_json *m = head ? head->child : NULL; m; m = m->next)
        copy[at++] = *m;
    for (const ml_json *m = tail->child; m && at < n_head + n; m = m->next)
        if (from-- <= 0)
            copy[at++] = *m;
    *list = *tail;
    list->n = at;
    list->child = at ? copy : NULL;
    for (int32_t i = 0; i < at; i++)
        copy[i].next = i + 1 < at ? &copy[i + 1] : NULL;
    return list;
}

/* The messages or characters with which both answers begin; a space before the difference
 * belongs to the answers, as in TRL. */
static void extract_prompt(fields *f, ml_arena *a, ml_str source) {
    const ml_json *x = f->answer[0], *y = f->answer[1];

    if (x->type == ML_JSON_ARRAY) {
        const ml_json *c = x->child, *r = y->child;
        int32_t n = 0;
        for (; c && r && same_source(source, c, r); c = c->next, r = r->next)
            n++;
        f->prompt = join(a, NULL, x, 0, n);
        f->answer[0] = join(a, NULL, x, n, x->n - n);
        f->answer[1] = join(a, NULL, y, n, y->n - n);
        return;
    }
    size_t n = 0, least = x->text.len < y->text.len ? x->text.len : y->text.len;
    ml_json *copy = ML_NEW(a, ml_json, 3);
    while (n < least && x->text.ptr[n] == y->text.ptr[n])
        n++;
    while (n > 0 && n < least && ((unsigned char)x->text.ptr[n] & 0xc0) == 0x80)
        n--; /* whole characters */
    if (n > 0 && x->text.ptr[n - 1] == ' ')
        n--;
    for (int i = 0; i < 3; i++)
        copy[i] = i == 1 ? *y : *x;
    copy[0].text = (ml_str){ x->text.ptr + n, x->text.len - n };
    copy[1].text = (ml_str){ y->text.ptr + n, y->text.len - n };
    copy[2].text = (ml_str){ x->text.ptr, n };
    f->answer[0] = &copy[0], f->answer[1] = &copy[1], f->prompt = &copy[2];
}

/* --- tokens ------------------------------------------------------------------------ */

typedef struct tokens {
    int32_t *id;
    int64_t n;
} tokens;

static ml_status encode(tokens *out, ml_arena *a, const ml_sft_text *t, ml_str text,
                        bool special, ml_err *err) {
    ml_tokens got = { 0 };
    ml_status st =
        ml_encode(t->encoder, &got, text, (ml_encode_opts){ .add_special = special }, err);

    if (st == ML_OK) {
        out->n = got.n;
        out->id = ML_NEW(a, int32_t, got.n + 2);
        memcpy(out->id, got.id, (size_t)got.n * sizeof *out->id);
    }
    for (int64_t i = 0; i < got.n && st == ML_OK; i++)
        if (got.id[i] >= t->n_vocab)
            st = ml_fail(err, ML_EFORMAT,
                         "the tokenizer returned token %d, but the model has %lld tokens: "
                         "they do not match",
                         got.id[i], (long long)t->n_vocab);
    ml_tokens_release(&got);
    return st;
}

static ml_status encode_messages(tokens *out, ml_arena *a, const ml_sft_text *t,
                                 const ml_prompt *row, const ml_json *messages, bool prompt,
                                 ml_err *err) {
    ml_chat chat = { .kwargs = t->kwargs, .add_generation_prompt = prompt };
    ml_jinja_text text = { 0 };
    ml_status st = ml_conversation_check(messages, err);

    if (st == ML_OK && !t->chat_template)
        st = ml_fail(
            err, ML_EFORMAT,
            "the row has messages, but the model has no chat template: set one with "
            "--chat-template");
    if (st == ML_OK)
        st = ml_conversation_normal(&chat.messages, a, messages, err);
    if (st == ML_OK)
        st = ml_tools_normal(&chat.tools, a, row->tools, err);
    if (st == ML_OK)
        st = ml_chat_render(&text, a, t->chat_template, &chat, NULL, err);
    return st == ML_OK ? encode(out, a, t, text.text, false, err) : st;
}

/* Prompt and answer as text, with the end token. */
static ml_status encode_text(tokens *out, ml_arena *a, const ml_sft_text *t, ml_str prompt,
                             ml_str answer, int32_t end_token, ml_err *err) {
    const char *both = ml_arena_printf(a, "%.*s%.*s", (int)prompt.len, prompt.ptr,
                                       (int)answer.len, answer.ptr);
    ml_status st = encode(out, a, t, ml_str_of(both), true, err);

    if (st == ML_OK && end_token >= 0 && (!out->n || out->id[out->n - 1] != end_token))
        out->id[out->n++] = end_token;
    return st;
}

static int64_t common(const tokens *a, const tokens *b) {
    int64_t n = 0;
    while (n < a->n && n < b->n && a->id[n] == b->id[n])
        n++;
    return n;
}

static ml_status encode_row(tokens *prompt, tokens *whole, ml_arena *a,
                            const ml_sft_text *t, const ml_prompt *row, const fields *f,
                            int32_t end_token, ml_err *err) {
    bool chat = f->answer[0]->type == ML_JSON_ARRAY;
    ml_status st = chat ? encode_messages(prompt, a, t, row, f->prompt, true, err)
                        : encode(prompt, a, t, f->prompt->text, true, err);

    for (int i = 0; i < f->n && st == ML_OK; i++)
        st = chat ? encode_messages(&whole[i], a, t, row,
                                    join(a, f->prompt, f->answer[i], 0, f->answer[i]->n),
                                    false, err)
                  : encode_text(&whole[i], a, t, f->prompt->text, f->answer[i]->text,
                                end_token, err);
    return st;
}

ml_status ml_preference_read(ml_preference *out, ml_arena *a, const ml_sft_text *t,
                             const ml_prompt *row, bool single, int32_t end_token,
                             ml_err *err) {
    const ml_json *doc, *label;
    tokens prompt = { 0 }, whole[2] = { { 0 } };
    int64_t n;
    fields f = { 0 };
    ml_status st = ml_json_parse(&doc, a, row->source, "the row", err);

    if (st == ML_OK)
        st = find_fields(&f, doc, single, err);
    if (st == ML_OK && single && !f.prompt)
        st = missing("prompt", "\"prompt\", \"completion\" and \"label\"", err);
    if (st == ML_OK && !f.prompt)
        extract_prompt(&f, a, row->source);
    if (st == ML_OK)
        st = encode_row(&prompt, whole, a, t, row, &f, end_token, err);
    if (st != ML_OK)
        return st;
    label = ml_json_get(doc, "label");
    if (single && (!label || (label->type != ML_JSON_TRUE && label->type != ML_JSON_FALSE)))
        return missing("label", "true or false as \"label\"", err);
    n = common(&prompt, &whole[0]);
    if (f.n == 2 && common(&prompt, &whole[1]) < n)
        n = common(&prompt, &whole[1]);
    *out = (ml_preference){ .n = f.n, .desirable = single && label->type == ML_JSON_TRUE };
    for (int i = 0; i < f.n; i++) {
        if (n < 1 || whole[i].n <= n)
            return ml_fail(err, ML_EFORMAT, "%s of the row has no tokens",
                           n < 1 ? "the prompt" : "an answer");
        out->answer[i] =
            (ml_preference_answer){ whole[i].id, (int32_t)whole[i].n, (int32_t)n };
    }
    return ML_OK;
}

/* --- reward models -------------------------------------------------------------------- */

/* true and false are 1 and 0. */
static bool number_of(const ml_json *x, double *out) {
    if (x && (x->type == ML_JSON_TRUE || x->type == ML_JSON_FALSE)) {
        *out = x->type == ML_JSON_TRUE;
        return true;
    }
    return x && ml_json_f64(x, out);
}

static ml_status read_number(ml_scored_row *out, const ml_json *doc, bool single,
                             ml_err *err) {
    const char *key = single ? "label" : "margin";
    const ml_json *x = ml_json_get(doc, key);

    if (!single && (!x || x->type == ML_JSON_NULL))
        return ML_OK;
    return number_of(x, &out->number)
               ? ML_OK
               : ml_fail(err, ML_EFORMAT, "\"%s\" of the row must be a number", key);
}

static ml_status encode_whole(tokens *out, ml_arena *a, const ml_sft_text *t,
                              const ml_prompt *row, const fields *f, int which,
                              int32_t end_token, ml_err *err) {
    const ml_json *answer = f->answer[which];
    ml_str none = { "", 0 };

    if (answer->type == ML_JSON_ARRAY)
        return encode_messages(out, a, t, row, join(a, f->prompt, answer, 0, answer->n),
                               false, err);
    return encode_text(out, a, t, f->prompt ? f->prompt->text : none, answer->text,
                       end_token, err);
}

ml_status ml_scored_row_read(ml_scored_row *out, ml_arena *a, const ml_sft_text *t,
                             const ml_prompt *row, ml_scored_row_opts o, ml_err *err) {
    const ml_json *doc;
    fields f;
    ml_status st = ml_json_parse(&doc, a, row->source, "the row", err);

    if (st == ML_OK)
        st = find_fields(&f, doc, o.single, err);
    if (st != ML_OK)
        return st;
    *out = (ml_scored_row){ .n = f.n };
    for (int i = 0; i < f.n && st == ML_OK; i++) {
        tokens whole = { 0 };
        st = encode_whole(&whole, a, t, row, &f, i, o.end_token, err);
        while (st == ML_OK && whole.n > 1 && whole.id[whole.n - 1] == o.pad_token)
            whole.n--;
        if (st == ML_OK && !whole.n)
            st = ml_fail(err, ML_EFORMAT, "a conversation of the row has no tokens");
        out->answer[i] = (ml_preference_answer){ whole.id, (int32_t)whole.n, 0 };
    }
    return st == ML_OK ? read_number(out, doc, o.single, err) : st;
}
