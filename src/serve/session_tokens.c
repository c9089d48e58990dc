#include "serve/session_tokens.h"

#include <string.h>

#include "base/json_out.h"
#include "serve/json_tree.h"

typedef struct ids {
    int32_t *id;
    int32_t n;
} ids;

static ml_status encode(ids *out, const ml_session_text *x, ml_str text, ml_arena *a,
                        ml_err *err) {
    ml_tokens t = { 0 };
    ml_status st = ml_encode(x->encoder, &t, text, (ml_encode_opts){ 0 }, err);

    if (st == ML_OK && t.n > INT32_MAX / 4)
        st = ml_fail(err, ML_EUSAGE, "the conversation has too many tokens");
    if (st == ML_OK) {
        out->n = (int32_t)t.n;
        out->id = ML_NEW(a, int32_t, t.n + 1);
        if (t.n)
            memcpy(out->id, t.id, (size_t)t.n * sizeof *out->id);
    }
    ml_tokens_release(&t);
    return st;
}

static ml_status render(ml_str *out, const ml_session_text *x, const ml_json *messages,
                        const ml_json *tools, bool generate, ml_arena *a, ml_err *err) {
    ml_chat chat = { .messages = messages,
                     .tools = tools,
                     .add_generation_prompt = generate,
                     .kwargs = x->kwargs };
    ml_jinja_text text = { 0 };
    ml_status st = ml_chat_render(&text, a, x->chat, &chat, NULL, err);

    *out = text.text;
    return st;
}

/* --- the messages after the parent ----------------------------------------------------- */

static const char after_system[] =
    "[{\"role\": \"system\", \"content\": \"-\"}, {\"role\": "
    "\"assistant\", \"content\": \"\", "
    "\"reasoning_content\": \" \"}]";
static const char after_user[] = "[{\"role\": \"user\", \"content\": \"-\"}, {\"role\": "
                                 "\"assistant\", \"content\": \"\", "
                                 "\"reasoning_content\": \" \"}]";

/* The rendered texts of a conversation that ends with an answer: alone, with the new
 * messages, and with the generation prompt instead of these. */
typedef struct texts {
    ml_str base, with, prompt;
} texts;

static bool starts_with(ml_str text, ml_str start) {
    return text.len >= start.len && memcmp(text.ptr, start.ptr, start.len) == 0;
}

static ml_status render_after(texts *out, const ml_session_turn *t,
                              const ml_session_text *x, const ml_json *base,
                              const ml_json *tools, ml_arena *a, ml_err *err) {
    ml_json_list with = ml_json_list_begin(a, ML_JSON_ARRAY);
    ml_status st = render(&out->base, x, base, tools, false, a, err);
    int32_t i = 0;

    ml_json_list_join(&with, base);
    for (const ml_json *v = t->normal->child; v; v = v->next)
        if (i++ >= t->n_matched)
            ml_json_list_add(&with, v);
    if (!st)
        st = render(&out->with, x, with.list, tools, true, a, err);
    if (!st)
        st = render(&out->prompt, x, base, tools, true, a, err);
    if (!st && !(starts_with(out->with, out->base) && starts_with(out->prompt, out->base)))
        st = ml_fail(err, ML_EUNSUP,
                     "the chat template changes earlier messages when it appends new ones");
    return st;
}

/* A placeholder with the tool calls of the recorded answer. */
static ml_status placeholder(const ml_json **out, const char *text,
                             const ml_session_node *parent, ml_arena *a, ml_err *err) {
    const ml_json *doc = NULL, *last = parent->normal->child, *calls;
    ml_status st = ml_json_parse(&doc, a, ml_str_of(text), "placeholder", err);
    ml_json_list list = ml_json_list_begin(a, ML_JSON_ARRAY);
    ml_json_list answer = ml_json_list_begin(a, ML_JSON_OBJECT);

    if (st)
        return st;
    while (last->next)
        last = last->next;
    calls = ml_json_get(last, "tool_calls");
    ml_json_list_join(&answer, doc->child->next);
    if (calls && calls->n)
        ml_json_list_add(&answer, calls);
    ml_json_list_add(&list, doc->child);
    ml_json_list_add(&list, answer.list);
    *out = list.list;
    return ML_OK;
}

static ml_status render_new(texts *out, const ml_session_turn *t, const ml_session_text *x,
                            const ml_json *tools, ml_arena *a, ml_err *err) {
    static const char *const forms[] = { after_system, after_user };
    ml_json_list history = ml_json_list_begin(a, ML_JSON_ARRAY);
    ml_err ignored;

    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const ml_json *base = NULL;
        if (placeholder(&base, forms[i], t->parent, a, &ignored) == ML_OK &&
            render_after(out, t, x, base, tools, a, &ignored) == ML_OK)
            return ML_OK;
    }
    ml_session_path_messages(t->parent, false, &history);
    return render_after(out, t, x, history.list, tools, a, err);
}

/* --- between the recorded tokens and the new ones ---------------------------------------- */

static bool is_in(const ids *list, int32_t id) {
    for (int32_t i = 0; i < list->n; i++)
        if (list->id[i] == id)
            return true;
    return false;
}

/* The index of the last special token, if it ends messages, i.e. does not begin the next
 * answer; -1: the template has no such token. */
static int32_t end_of_message(const ids *base, const ids *prompt, const ml_tokenizer *t) {
    int32_t i = base->n - 1;

    while (i >= 0 && !ml_tokenizer_is_special(t, base->id[i]))
        i--;
    return i >= 0 && !is_in(prompt, base->id[i]) ? i : -1;
}

/* The tokens to insert, `glue`; *drop: the last recorded token is left out. */
static ids glue_of(const ml_session_node *parent, const ids *base, const ids *prompt,
                   const ml_tokenizer *t, bool *drop) {
    int32_t at = end_of_message(base, prompt, t);
    int32_t last = parent->token[parent->n_token - parent->keep - 1];
    bool ended = parent->finish == ML_FINISH_TOKEN && parent->n_token > parent->n_prompt;

    *drop = at < 0 && ended;
    if (at < 0)
        return (ids){ 0 };
    if (ended && last == base->id[at])
        at++;
    return (ids){ base->id + at, base->n - at };
}

ml_status ml_session_continue(ml_session_turn *t, const ml_session_text *x,
                              const ml_json *tools, const int32_t **prompt, int32_t *n,
                              ml_arena *a, ml_arena *scratch, ml_err *err) {
    texts text = { { 0 } };
    ids base = { 0 }, begin = { 0 }, add = { 0 }, glue;
    ml_status st = render_new(&text, t, x, tools, scratch, err);
    size_t old = text.base.len;
    int32_t *out;
    bool drop;

    if (!st)
        st = encode(&base, x, text.base, scratch, err);
    if (!st)
        st = encode(&begin, x, (ml_str){ text.prompt.ptr + old, text.prompt.len - old },
                    scratch, err);
    if (!st)
        st = encode(&add, x, (ml_str){ text.with.ptr + old, text.with.len - old }, scratch,
                    err);
    if (st)
        return st;
    glue = glue_of(t->parent, &base, &begin, x->tokenizer, &drop);
    t->keep = t->parent->n_token - drop;
    *n = t->keep + glue.n + add.n;
    out = ML_NEW(a, int32_t, *n + 2);
    ml_session_path_tokens(t->parent, out);
    if (glue.n)
        memcpy(out + t->keep, glue.id, (size_t)glue.n * sizeof *out);
    if (add.n)
        memcpy(out + t->keep + glue.n, add.id, (size_t)add.n * sizeof *out);
    *prompt = out;
    return ML_OK;
}

/* --- comparison with the rendered conversation --------------------------------------------- */

const char *ml_mismatch_name(ml_mismatch_type t) {
    static const char *const names[] = { "special_token_count", "special_token_type",
                                         "non_assistant_text", "assistant_text" };
    return names[t];
}

/* A special token, or the tokens between two. */
typedef struct segment {
    int32_t begin, n;
    bool special;
} segment;

static int32_t cut(segment *out, const ids *t, const ml_tokenizer *tk) {
    int32_t n = 0;
    bool open = false;

    for (int32_t i = 0; i < t->n; i++) {
        bool special = ml_tokenizer_is_special(tk, t->id[i]);
        if (special || !open)
            out[n++] = (segment){ i, 1, special };
        else
            out[n - 1].n++;
        open = !special;
    }
    return n;
}

static bool is_space(const ml_tokenizer *tk, int32_t id) {
    ml_text text = { 0 };
    bool space = true;

    ml_decode(tk, &text, &id, 1, false);
    for (size_t i = 0; i < text.len; i++)
        space &= strchr(" \t\r\n", text.ptr[i]) != NULL;
    ml_text_release(&text);
    return space;
}

/* Templates write a line feed after the last answer, or leave out the token that ended it. */
static void trim(ids *expected, ids *actual, const ml_tokenizer *tk) {
    while (expected->n && !ml_tokenizer_is_special(tk, expected->id[expected->n - 1]) &&
           is_space(tk, expected->id[expected->n - 1]))
        expected->n--;
    while (actual->n && !ml_tokenizer_is_special(tk, actual->id[actual->n - 1]) &&
           is_space(tk, actual->id[actual->n - 1]))
        actual->n--;
    if (actual->n && expected->n &&
        ml_tokenizer_is_special(tk, actual->id[actual->n - 1]) &&
        !ml_tokenizer_is_special(tk, expected->id[expected->n - 1]))
        actual->n--;
}

typedef struct comparison {
    const ml_tokenizer *tokenizer;
    ids expected, actual;
    const uint8_t *drawn; /* [actual] tokens that the model drew */
    ml_json_out *o;
    int64_t *count, n;
} comparison;

#define MOST_WRITTEN 64 /* mismatches */
#define MOST_TOKENS 200 /* of a text */

static void put_tokens(comparison *c, const char *key, const int32_t *id, int32_t n) {
    ml_text text = { 0 };

    ml_text_add(&text, "", 0);
    ml_decode(c->tokenizer, &text, id, n < MOST_TOKENS ? n : MOST_TOKENS, false);
    ml_json_put_str(c->o, key, (ml_str){ text.ptr, text.len });
    ml_text_release(&text);
}

static void report(comparison *c, ml_mismatch_type type, int32_t index, segment e,
                   segment a) {
    c->count[type]++;
    if (c->n++ >= MOST_WRITTEN)
        return;
    ml_json_begin(c->o, '{');
    ml_json_put_word(c->o, "type", ml_mismatch_name(type));
    ml_json_put_int(c->o, "segment_index", index);
    put_tokens(c, "expected_text", c->expected.id + e.begin, e.n);
    put_tokens(c, "actual_text", c->actual.id + a.begin, a.n);
    ml_json_end(c->o, '}');
}

static bool same_text(const comparison *c, segment e, segment a) {
    ml_text x = { 0 }, y = { 0 };
    bool same = e.n == a.n && memcmp(c->expected.id + e.begin, c->actual.id + a.begin,
                                     (size_t)e.n * sizeof(int32_t)) == 0;

    if (!same) {
        ml_decode(c->tokenizer, &x, c->expected.id + e.begin, e.n, false);
        ml_decode(c->tokenizer, &y, c->actual.id + a.begin, a.n, false);
        same = ml_str_eq((ml_str){ x.ptr, x.len }, (ml_str){ y.ptr, y.len });
    }
    ml_text_release(&x);
    ml_text_release(&y);
    return same;
}

static void compare_segment(comparison *c, int32_t index, segment e, segment a) {
    bool drawn = false;

    if (e.special) {
        if (c->expected.id[e.begin] != c->actual.id[a.begin])
            report(c, ML_MISMATCH_SPECIAL_TYPE, index, e, a);
        return;
    }
    for (int32_t i = 0; i < a.n; i++)
        drawn |= c->drawn[a.begin + i];
    if (!same_text(c, e, a))
        report(c, drawn ? ML_MISMATCH_ASSISTANT : ML_MISMATCH_NON_ASSISTANT, index, e, a);
}

static void compare(comparison *c, ml_arena *a) {
    segment *e = ML_NEW(a, segment, c->expected.n + 1);
    segment *x = ML_NEW(a, segment, c->actual.n + 1);
    int32_t n, n_actual;
    bool same;

    trim(&c->expected, &c->actual, c->tokenizer);
    n = cut(e, &c->expected, c->tokenizer);
    n_actual = cut(x, &c->actual, c->tokenizer);
    same = n == n_actual;
    for (int32_t i = 0; same && i < n; i++)
        same = e[i].special == x[i].special;
    if (!same) {
        report(c, ML_MISMATCH_SPECIAL_COUNT, -1, (segment){ 0, c->expected.n, false },
               (segment){ 0, c->actual.n, false });
        return;
    }
    for (int32_t i = 0; i < n; i++)
        compare_segment(c, i, e[i], x[i]);
}

ml_status ml_session_compare(const ml_session_node *leaf, const ml_session_text *x,
                             ml_json_out *o, int64_t *count, ml_arena *scratch,
                             ml_err *err) {
    ml_json_list messages = ml_json_list_begin(scratch, ML_JSON_ARRAY);
    uint8_t *drawn = ML_NEW(scratch, uint8_t, leaf->n_token + 1);
    comparison c = { .tokenizer = x->tokenizer, .drawn = drawn, .o = o, .count = count };
    ml_str text;
    ml_status st;

    ml_session_path_messages(leaf, false, &messages);
    st = render(&text, x, messages.list, leaf->tools, false, scratch, err);
    if (!st)
        st = encode(&c.expected, x, text, scratch, err);
    if (st)
        return st;
    c.actual = (ids){ ML_NEW(scratch, int32_t, leaf->n_token + 1), leaf->n_token };
    ml_session_path_tokens(leaf, c.actual.id);
    for (const ml_session_node *n = leaf; n; n = n->parent)
        for (int32_t i = n->n_prompt; i < n->n_token && i < leaf->n_token; i++)
            drawn[i] = 1;
    ml_json_begin(o, '[');
    compare(&c, scratch);
    ml_json_end(o, ']');
    return ML_OK;
}
