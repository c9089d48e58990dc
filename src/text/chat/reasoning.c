#include "text/chat/reasoning.h"

#include <string.h>

const ml_reasoning_format *ml_reasoning_find(const char *name) {
    static const ml_reasoning_format formats[] = {
        { "deepseek-r1", "<think>", "</think>", true, false },
        { "deepseek-v3", "<think>", "</think>", false, false },
        { "glm45", "<think>", "</think>", false, false },
        { "gpt-oss", "<|channel|>analysis<|message|>", "<|end|>", false, true },
        { "kimi", "◁think▷", "◁/think▷", false, false },
        { "kimi_k2", "<think>", "</think>", false, false },
        { "minimax", "<think>", "</think>", true, false },
        { "mistral", "[THINK]", "[/THINK]", false, true },
        { "nano_v3", "<think>", "</think>", true, false },
        { "nemotron_3", "<think>", "</think>", true, false },
        { "qwen3", "<think>", "</think>", false, false },
        { "qwen3-thinking", "<think>", "</think>", true, false },
    };

    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

void ml_reasoning_release(ml_reasoning_reader *r) {
    ml_text_release(&r->held);
}

static void drop(ml_reasoning_reader *r, size_t n) {
    if (!n)
        return;
    memmove(r->held.ptr, r->held.ptr + n, r->held.len - n);
    r->held.len -= n;
}

static void skip_blanks(ml_reasoning_reader *r) {
    size_t n = 0;

    while (r->skip && n < r->held.len && ml_is_blank(r->held.ptr[n]))
        n++;
    drop(r, n);
    r->skip = r->skip && !r->held.len;
}

/* The bytes at the end of the held text that are, or may become, blanks and the mark. */
static size_t tail_of(const ml_text *t, const char *mark) {
    size_t n = strlen(mark) - 1;

    n = n < t->len ? n : t->len;
    while (n && memcmp(t->ptr + t->len - n, mark, n) != 0)
        n--;
    while (n < t->len && ml_is_blank(t->ptr[t->len - n - 1]))
        n++;
    return n;
}

/* The beginning of the answer: the opening mark, or not.  False: not known yet. */
static bool begin(ml_reasoning_reader *r, bool last) {
    const char *open = r->format->open;
    size_t n = 0, len = strlen(open), common;

    while (n < r->held.len && ml_is_blank(r->held.ptr[n]))
        n++;
    common = r->held.len - n < len ? r->held.len - n : len;
    if (memcmp(r->held.ptr + n, open, common) != 0) {
        r->state = r->format->begun ? ML_REASONING_INSIDE : ML_REASONING_AFTER;
        r->skip = r->format->begun;
        return true;
    }
    if (common < len && !last)
        return false;
    if (common == len)
        drop(r, n + len);
    r->state = common == len || r->format->begun ? ML_REASONING_INSIDE : ML_REASONING_AFTER;
    r->skip = r->state == ML_REASONING_INSIDE;
    return true;
}

static void inside(ml_reasoning_reader *r, ml_text *reasoning) {
    const char *close = r->format->close, *at;
    size_t n, end;

    skip_blanks(r);
    at = r->held.len ? memmem(r->held.ptr, r->held.len, close, strlen(close)) : NULL;
    n = at ? (size_t)(at - r->held.ptr) : r->held.len - tail_of(&r->held, close);
    end = n;
    while (at && n && ml_is_blank(r->held.ptr[n - 1]))
        n--;
    ml_text_add(reasoning, r->held.ptr, n);
    drop(r, at ? end + strlen(close) : n);
    if (!at)
        return;
    r->state = ML_REASONING_AFTER;
    r->skip = true;
}

static void advance(ml_reasoning_reader *r, ml_text *reasoning, ml_text *content,
                    bool last) {
    if (r->state == ML_REASONING_BEGIN && (!r->held.len || !begin(r, last)))
        return;
    if (r->state == ML_REASONING_INSIDE)
        inside(r, reasoning);
    if (r->state != ML_REASONING_AFTER)
        return;
    skip_blanks(r);
    ml_text_add(content, r->held.ptr, r->held.len);
    r->held.len = 0;
}

void ml_reasoning_push(ml_reasoning_reader *r, ml_str piece, ml_text *reasoning,
                       ml_text *content) {
    if (!r->format) {
        ml_text_add(content, piece.ptr, piece.len);
        return;
    }
    ml_text_add(&r->held, piece.ptr, piece.len);
    advance(r, reasoning, content, false);
}

void ml_reasoning_finish(ml_reasoning_reader *r, ml_text *reasoning, ml_text *content) {
    if (!r->format)
        return;
    advance(r, reasoning, content, true);
    while (r->held.len && ml_is_blank(r->held.ptr[r->held.len - 1]))
        r->held.len--;
    if (r->held.len)
        ml_text_add(r->state == ML_REASONING_INSIDE ? reasoning : content, r->held.ptr,
                    r->held.len);
    r->held.len = 0;
}
