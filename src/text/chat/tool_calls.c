#include "text/chat/tool_calls.h"

#include <string.h>

#include "text/chat/tool_bodies.h"

/* A format whose calls stand between marks has `open`; otherwise the beginning of the
 * answer decides whether all of it is calls. */
typedef struct format {
    const char *name;
    const char *open, *close; /* close NULL: the next `open`, or the end of the answer */
    const char *drop[6];      /* other marks, which are removed */
    const char *lead;         /* without open: the first character of an answer of calls */
    const char *mark;         /* ... or this before it */
    ml_tool_body_fn *read;
    bool to_end;  /* the end of the answer closes a call */
    bool special; /* marks are special tokens */
} format;

static const format formats[] = {
    [ML_TOOLS_QWEN] = { .name = "qwen25",
                        .open = "<tool_call>",
                        .close = "</tool_call>",
                        .read = ml_tool_body_json },
    [ML_TOOLS_LLAMA3] = { .name = "llama3",
                          .lead = "{",
                          .mark = "<|python_tag|>",
                          .read = ml_tool_body_objects,
                          .special = true },
    [ML_TOOLS_MISTRAL] = { .name = "mistral",
                           .open = "[TOOL_CALLS]",
                           .read = ml_tool_body_mistral,
                           .to_end = true,
                           .special = true },
    [ML_TOOLS_DEEPSEEK_V3] = { .name = "deepseekv3",
                               .open = "<｜tool▁call▁begin｜>",
                               .close = "<｜tool▁call▁end｜>",
                               .drop = { "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>" },
                               .read = ml_tool_body_deepseek_v3,
                               .special = true },
    [ML_TOOLS_DEEPSEEK_V31] = { .name = "deepseekv31",
                                .open = "<｜tool▁call▁begin｜>",
                                .close = "<｜tool▁call▁end｜>",
                                .drop = { "<｜tool▁calls▁begin｜>",
                                          "<｜tool▁calls▁end｜>" },
                                .read = ml_tool_body_deepseek,
                                .special = true },
    [ML_TOOLS_DEEPSEEK_V32] = { .name = "deepseekv32",
                                .open = "<｜DSML｜invoke name=\"",
                                .close = "</｜DSML｜invoke>",
                                .drop = { "<｜DSML｜function_calls>",
                                          "</｜DSML｜function_calls>" },
                                .read = ml_tool_body_dsml,
                                .special = true },
    [ML_TOOLS_GLM] = { .name = "glm45",
                       .open = "<tool_call>",
                       .close = "</tool_call>",
                       .read = ml_tool_body_glm },
    [ML_TOOLS_KIMI_K2] = { .name = "kimi_k2",
                           .open = "<|tool_call_begin|>",
                           .close = "<|tool_call_end|>",
                           .drop = { "<|tool_calls_section_begin|>",
                                     "<|tool_calls_section_end|>" },
                           .read = ml_tool_body_kimi,
                           .special = true },
    [ML_TOOLS_QWEN3_CODER] = { .name = "qwen3_coder",
                               .open = "<function=",
                               .close = "</function>",
                               .drop = { "<tool_call>", "</tool_call>" },
                               .read = ml_tool_body_function },
    [ML_TOOLS_MINIMAX_M2] = { .name = "minimax-m2",
                              .open = "<invoke name=\"",
                              .close = "</invoke>",
                              .drop = { "<minimax:tool_call>", "</minimax:tool_call>" },
                              .read = ml_tool_body_invoke,
                              .special = true },
    [ML_TOOLS_PYTHONIC] = { .name = "pythonic",
                            .lead = "[",
                            .mark = "<|python_start|>",
                            .read = ml_tool_body_pythonic,
                            .special = true },
    [ML_TOOLS_GPT_OSS] = { .name = "gpt-oss",
                           .open = "<|channel|>commentary to=functions.",
                           .close = "<|call|>",
                           .drop = { "<|start|>assistant", "<|channel|>final<|message|>",
                                     "<|channel|>commentary<|message|>",
                                     "<|channel|>analysis<|message|>", "<|end|>",
                                     "<|return|>" },
                           .read = ml_tool_body_harmony,
                           .to_end = true,
                           .special = true },
    [ML_TOOLS_LIST] = { .name = "list", .lead = "[", .read = ml_tool_body_list },
};

const char *ml_tool_format_name(ml_tool_format f) {
    return formats[f].name;
}

ml_tool_format ml_tool_format_find(const char *name) {
    static const struct {
        const char *name;
        ml_tool_format format;
    } others[] = { { "qwen", ML_TOOLS_QWEN },
                   { "hermes", ML_TOOLS_QWEN },
                   { "glm", ML_TOOLS_GLM },
                   { "glm47", ML_TOOLS_GLM },
                   { "mimo", ML_TOOLS_QWEN },
                   { "interns1", ML_TOOLS_QWEN },
                   { "nemotron_3", ML_TOOLS_QWEN3_CODER },
                   { "llama4", ML_TOOLS_PYTHONIC } };

    for (int f = ML_TOOLS_NONE + 1; f < ML_N_TOOLS; f++)
        if (strcmp(formats[f].name, name) == 0)
            return (ml_tool_format)f;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(others[i].name, name) == 0)
            return others[i].format;
    return ML_TOOLS_NONE;
}

bool ml_tool_format_has_special(ml_tool_format f) {
    return formats[f].special;
}

/* --- for grammars ----------------------------------------------------------- */

const char *ml_tool_format_trigger(ml_tool_format f) {
    return f == ML_TOOLS_QWEN ? "<tool_call>" : f == ML_TOOLS_LLAMA3 ? "{\"name\": " : NULL;
}

const char *ml_tool_format_separator(ml_tool_format f) {
    return f == ML_TOOLS_LLAMA3 ? "; " : "\n";
}

void ml_tool_format_wrap(ml_tool_format f, ml_str name, ml_text *begin, ml_text *end) {
    bool qwen = f == ML_TOOLS_QWEN;

    ml_text_printf(begin, "%s{\"name\": ", qwen ? "<tool_call>\n" : "");
    ml_json_quote(begin, name);
    ml_text_printf(begin, ", \"%s\": ", qwen ? "arguments" : "parameters");
    ml_text_printf(end, "}%s", qwen ? "\n</tool_call>" : "");
}

/* --- held text -------------------------------------------------------------- */

void ml_tool_reader_init(ml_tool_reader *r, ml_tool_format f, const ml_json *tools,
                         ml_arena *a) {
    *r = (ml_tool_reader){ .format = f, .tools = tools, .arena = a };
}

void ml_tool_reader_release(ml_tool_reader *r) {
    ml_text_release(&r->held);
}

static void drop_held(ml_tool_reader *r, size_t n) {
    if (!n)
        return;
    memmove(r->held.ptr, r->held.ptr + n, r->held.len - n);
    r->held.len -= n;
}

static void release_held(ml_tool_reader *r, size_t n, ml_text *text) {
    if (n)
        ml_text_add(text, r->held.ptr, n);
    drop_held(r, n);
}

static const char *find_tag(const ml_text *t, size_t from, const char *tag) {
    return t->len > from ? memmem(t->ptr + from, t->len - from, tag, strlen(tag)) : NULL;
}

/* The number of bytes at the end of the held text that may begin the tag. */
static size_t tail_of(const ml_text *t, const char *tag) {
    size_t n = strlen(tag) - 1;

    n = n < t->len ? n : t->len;
    while (n && memcmp(t->ptr + t->len - n, tag, n) != 0)
        n--;
    return n;
}

static size_t blanks(const ml_text *t) {
    size_t n = 0;

    while (n < t->len && ml_is_blank(t->ptr[n]))
        n++;
    return n;
}

/* --- calls between marks ---------------------------------------------------- */

/* The first mark in the held text; keep: bytes at its end that may begin one. */
static const char *first_mark(const ml_tool_reader *r, const char **tag, size_t *keep) {
    const format *f = &formats[r->format];
    const char *found = NULL;

    *keep = 0;
    for (int i = -1; i < (int)(sizeof f->drop / sizeof *f->drop); i++) {
        const char *t = i < 0 ? f->open : f->drop[i], *at;
        size_t tail;
        if (!t)
            continue;
        at = find_tag(&r->held, 0, t);
        tail = tail_of(&r->held, t);
        *keep = tail > *keep ? tail : *keep;
        if (at && (!found || at < found)) {
            found = at;
            *tag = t;
        }
    }
    return found;
}

/* Outside of a call: releases text that cannot begin one.  True: there may be more. */
static bool seek_call(ml_tool_reader *r, ml_text *text) {
    const char *tag = NULL, *at;
    size_t keep;

    if (r->after) {
        drop_held(r, blanks(&r->held));
        r->after = r->held.len == 0;
    }
    at = first_mark(r, &tag, &keep);
    release_held(r, at ? (size_t)(at - r->held.ptr) : r->held.len - keep, text);
    r->inside = at && tag == formats[r->format].open;
    if (at && !r->inside) {
        drop_held(r, strlen(tag));
        r->after = true;
    }
    return at != NULL;
}

/* Reads the call that the first n bytes of the held text are, `skip` more close it. */
static void close_call(ml_tool_reader *r, size_t n, size_t skip, ml_text *text) {
    size_t open = strlen(formats[r->format].open);

    r->after = formats[r->format].read(r, (ml_str){ r->held.ptr + open, n - open });
    if (r->after)
        drop_held(r, n + skip);
    else
        release_held(r, n + skip, text);
    r->inside = false;
}

/* Inside of a call.  True: it has ended, as a call or as text. */
static bool end_call(ml_tool_reader *r, ml_text *text) {
    const format *f = &formats[r->format];
    const char *at = find_tag(&r->held, strlen(f->open), f->close ? f->close : f->open);

    if (!at)
        return false;
    close_call(r, (size_t)(at - r->held.ptr), f->close ? strlen(f->close) : 0, text);
    return true;
}

/* --- whole answers of calls ------------------------------------------------- */

/* The whole answer is either calls or text; its beginning decides. */
static void begin_whole(ml_tool_reader *r, ml_text *text) {
    const format *f = &formats[r->format];
    size_t mark = f->mark ? strlen(f->mark) : 0, n = r->held.len;
    size_t common = n < mark ? n : mark; /* bytes that can be compared with the mark */
    bool marked = mark && memcmp(r->held.ptr, f->mark, common) == 0;

    r->inside = (marked && n >= mark) || (n && r->held.ptr[0] == f->lead[0]);
    r->plain = !r->inside && !marked && blanks(&r->held) < n;
    if (r->plain)
        release_held(r, n, text);
}

static void finish_whole(ml_tool_reader *r, ml_text *text) {
    const format *f = &formats[r->format];
    size_t mark = f->mark ? strlen(f->mark) : 0, at = 0;

    if (mark && r->held.len >= mark && memcmp(r->held.ptr, f->mark, mark) == 0)
        at = mark;
    if (!r->inside || !f->read(r, (ml_str){ r->held.ptr + at, r->held.len - at }))
        release_held(r, r->held.len, text);
    r->held.len = 0;
}

/* --- pieces ----------------------------------------------------------------- */

void ml_tool_reader_push(ml_tool_reader *r, ml_str piece, ml_text *text) {
    if (r->format == ML_TOOLS_NONE || r->plain) {
        ml_text_add(text, piece.ptr, piece.len);
        return;
    }
    ml_text_add(&r->held, piece.ptr, piece.len);
    if (!formats[r->format].open) {
        if (!r->inside)
            begin_whole(r, text);
        return;
    }
    while (r->inside ? end_call(r, text) : seek_call(r, text))
        continue;
}

void ml_tool_reader_finish(ml_tool_reader *r, ml_text *text) {
    const format *f = &formats[r->format];

    if (f->lead)
        finish_whole(r, text);
    else if (r->inside && f->to_end)
        close_call(r, r->held.len, 0, text);
    release_held(r, r->held.len, text);
}
