/* chat_template.h - conversations to text, the way a checkpoint wants it.
 *
 * A checkpoint brings one template or several named ones: in chat_template.jinja and
 * additional_chat_templates, or in tokenizer_config.json; a file of the user's can take
 * their place.  Its special tokens (bos_token, ...) are variables of the template, as are
 * messages, tools, documents, add_generation_prompt and whatever else the caller passes.
 * Choice and variables are those of transformers' apply_chat_template.
 *
 * thread: immutable after open; any number of threads may render. */
#ifndef ML_TEXT_CHAT_CHAT_TEMPLATE_H
#define ML_TEXT_CHAT_CHAT_TEMPLATE_H

#include "text/jinja/jinja.h"

typedef struct ml_chat_template ml_chat_template;

/* choice: a file with a template, or the name of one of the checkpoint's; NULL: its own rule,
 * which is "tool_use" for conversations with tools where there is such a one, else "default".
 * A template that cannot be compiled is an error here, with its line and column. */
ml_status ml_chat_template_open(ml_chat_template **out, const char *dir, const char *choice,
                                ml_err *err);
void ml_chat_template_close(ml_chat_template *t); /* NULL is fine */

typedef struct ml_chat {
    const ml_json *messages;          /* an array; NULL: null */
    const ml_json *tools, *documents; /* NULL: null */
    bool add_generation_prompt;
    const ml_json *kwargs; /* an object, or NULL: further variables, above special tokens;
                              members with the names of the four above are passed over */
    const struct tm *now;  /* NULL: local time */
} ml_chat;

/* Text and spans live in `a`.  fault may be NULL. */
ml_status ml_chat_render(ml_jinja_text *out, ml_arena *a, const ml_chat_template *t,
                         const ml_chat *chat, ml_jinja_fault *fault, ml_err *err);

/* Does each turn only add to the text?  The conversation is rendered turn by turn (messages of
 * one role in a row are one turn), and before each answer of the assistant with the
 * generation prompt: every text must begin with the one before.
 * What a template refuses to render on the way is passed over; that it refuses the whole
 * conversation is an error. */
typedef struct ml_chat_check {
    bool stable;
    int64_t n_text;       /* texts that were compared */
    int64_t message;      /* unstable: the message, from 1, whose rendering rewrote ... */
    int64_t character;    /* ... the text from this code point on, from 0 */
    ml_str before, after; /* what stood there, what stands there now; a few words */
} ml_chat_check;

ml_status ml_chat_check_stable(ml_chat_check *out, ml_arena *a, const ml_chat_template *t,
                               const ml_chat *chat, ml_jinja_fault *fault, ml_err *err);

#endif
