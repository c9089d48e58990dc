/* chat_template.h - renders conversations as the text that a checkpoint expects.
 *
 * A checkpoint has one template or several named ones: in chat_template.jinja and
 * additional_chat_templates, or in tokenizer_config.json; a file from the user can replace
 * them.  The special tokens (bos_token, ...) are variables of the template, as are
 * messages, tools, documents, add_generation_prompt and further variables of the caller.
 * Template selection and variables follow transformers' apply_chat_template.
 *
 * thread: immutable after open; any number of threads may render. */
#ifndef ML_TEXT_CHAT_CHAT_TEMPLATE_H
#define ML_TEXT_CHAT_CHAT_TEMPLATE_H

#include "text/jinja/jinja.h"

typedef struct ml_chat_template ml_chat_template;

/* choice: a file with a template, or the name of one of the checkpoint's templates.  NULL:
 * "tool_use" for conversations with tools, if it exists, otherwise "default".  A template
 * that cannot be compiled is an error, with its line and column. */
ml_status ml_chat_template_open(ml_chat_template **out, const char *dir, const char *choice,
                                ml_err *err);
void ml_chat_template_close(ml_chat_template *t); /* NULL is allowed */

typedef struct ml_chat {
    const ml_json *messages;          /* an array; NULL: null */
    const ml_json *tools, *documents; /* NULL: null */
    bool add_generation_prompt;
    const ml_json *kwargs; /* an object or NULL: overrides special tokens, not the above */
    const struct tm *now;  /* NULL: local time */
} ml_chat;

/* Text and spans are allocated in `a`.  `fault` may be NULL. */
ml_status ml_chat_render(ml_jinja_text *out, ml_arena *a, const ml_chat_template *t,
                         const ml_chat *chat, ml_jinja_fault *fault, ml_err *err);

/* Checks that each turn only appends to the text.  The conversation is rendered turn by
 * turn (consecutive messages of one role are one turn), and before each answer of the
 * assistant with the generation prompt: every text must begin with the previous one.
 * Prefixes that the template refuses to render are skipped; if it refuses the whole
 * conversation, that is an error. */
typedef struct ml_chat_check {
    bool stable;
    int64_t n_text;       /* number of texts compared */
    int64_t message;      /* unstable: the message, from 1, whose rendering changed */
    int64_t character;    /* the text from this code point on, from 0 */
    ml_str before, after; /* excerpts: the text before, and the text now */
} ml_chat_check;

ml_status ml_chat_check_stable(ml_chat_check *out, ml_arena *a, const ml_chat_template *t,
                               const ml_chat *chat, ml_jinja_fault *fault, ml_err *err);

#endif
