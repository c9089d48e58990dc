#include "dash/turn_split.h"

#include <string.h>

/* A turn is open ROLE role_end CONTENT close; the close may be missing at the end. */
typedef struct style {
    const char *open, *role_end, *close;
    const char *role; /* NULL: it is in the text */
} style;

static const style styles[] = {
    { "<|im_start|>", "\n", "<|im_end|>", NULL },                       /* ChatML, Qwen */
    { "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", NULL }, /* Llama 3 */
    { "<start_of_turn>", "\n", "<end_of_turn>", NULL },                 /* Gemma 2 and 3 */
    { "<|turn>", "\n", "<turn|>", NULL },                               /* Gemma 4 */
    { "<|start|>", "<|message|>", "<|end|>", NULL },                    /* gpt-oss */
    { "<|header_start|>", "<|header_end|>", "<|eot|>", NULL },          /* Llama 4 */
    { "<|system|>", "", "", "system" },                                 /* GLM, Phi */
    { "<|user|>", "", "", "user" },
    { "<|assistant|>", "", "", "assistant" },
    { "<|observation|>", "", "", "tool" },
    { "[INST]", "", "[/INST]", "user" }, /* Mistral */
    { "[/INST]", "", "</s>", "assistant" },
    { "<\xEF\xBD\x9CUser\xEF\xBD\x9C>", "", "", "user" }, /* DeepSeek */
    { "<\xEF\xBD\x9C"
      "Assistant\xEF\xBD\x9C>",
      "",
      "<\xEF\xBD\x9C"
      "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
      "assistant" },
};
enum { N_STYLE = sizeof styles / sizeof *styles };

static const char *find(ml_str in, const char *word) {
    return *word ? memmem(in.ptr, in.len, word, strlen(word)) : NULL;
}

/* The first marker that opens a turn. */
static const char *find_open(ml_str in, const style **which) {
    const char *first = NULL;

    for (int i = 0; i < N_STYLE; i++) {
        const char *at = find(in, styles[i].open);
        if (at && (!first || at < first)) {
            first = at;
            *which = &styles[i];
        }
    }
    return first;
}

static ml_str from(ml_str s, const char *at) {
    return (ml_str){ at, s.len - (size_t)(at - s.ptr) };
}

static ml_str trim(ml_str s) {
    while (s.len && strchr(" \n\r\t", s.ptr[0]))
        s = (ml_str){ s.ptr + 1, s.len - 1 };
    while (s.len && strchr(" \n\r\t", s.ptr[s.len - 1]))
        s.len--;
    return s;
}

/* The turn after its opening marker; returns the text after it. */
static ml_str take_turn(ml_str s, const style *how, ml_turn_text *t) {
    const char *role_end = how->role ? s.ptr : find(s, how->role_end), *end, *next;
    const style *other;

    if (!role_end) { /* the text ends inside the marker */
        *t = (ml_turn_text){ { "", 0 }, s };
        return (ml_str){ s.ptr + s.len, 0 };
    }
    t->role = how->role ? ml_str_of(how->role)
                        : trim((ml_str){ s.ptr, (size_t)(role_end - s.ptr) });
    s = from(s, role_end + strlen(how->role_end));
    end = find(s, how->close);
    next = find_open(s, &other);
    if (next && (!end || next < end))
        end = next;
    t->content = trim((ml_str){ s.ptr, end ? (size_t)(end - s.ptr) : s.len });
    if (!end)
        return (ml_str){ s.ptr + s.len, 0 };
    return from(s, end == next ? end : end + strlen(how->close));
}

bool ml_conversation_split(ml_str text, ml_turn_each *each, void *ud) {
    const style *how = NULL;
    const char *at = find_open(text, &how);
    bool found = at != NULL;

    while (at) {
        ml_str before = trim((ml_str){ text.ptr, (size_t)(at - text.ptr) });
        ml_turn_text t;
        if (before.len)
            each(ud, &(ml_turn_text){ { "", 0 }, before });
        text = take_turn(from(text, at + strlen(how->open)), how, &t);
        each(ud, &t);
        at = find_open(text, &how);
    }
    text = trim(text);
    if (found && text.len)
        each(ud, &(ml_turn_text){ { "", 0 }, text });
    return found;
}
