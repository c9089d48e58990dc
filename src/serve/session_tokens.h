/* session_tokens.h - the tokens of a session's prompts, and how they compare with those of
 * the rendered conversation.
 *
 * The prompt of a request is the recorded tokens up to its parent, and the tokens of the
 * messages after it.  These are rendered after a short placeholder conversation that ends
 * with an answer; what the template adds to the placeholder is tokenized.  Where a template
 * accepts no placeholder, the recorded messages take its place.
 *
 * The recorded tokens end with the token that ended the answer.  What the template writes
 * after that token, or instead of it (an answer that ended with a stop string), is inserted
 * between the two; where the template ends an answer with the beginning of the next message
 * (GLM), the recorded token is dropped.
 *
 * thread: any. */
#ifndef ML_SERVE_SESSION_TOKENS_H
#define ML_SERVE_SESSION_TOKENS_H

#include "serve/session.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

typedef struct ml_session_text {
    const ml_chat_template *chat;
    const ml_tokenizer *tokenizer;
    ml_encoder *encoder; /* of the calling thread */
    const ml_json *kwargs;
} ml_session_text;

/* Sets t->keep and the prompt, which is allocated in `a`, of a request with a parent;
 * temporaries are allocated in `scratch`. */
ml_status ml_session_continue(ml_session_turn *t, const ml_session_text *x,
                              const ml_json *tools, const int32_t **prompt, int32_t *n,
                              ml_arena *a, ml_arena *scratch, ml_err *err);

typedef enum ml_mismatch_type {
    ML_MISMATCH_SPECIAL_COUNT, /* other special tokens: nothing else is compared */
    ML_MISMATCH_SPECIAL_TYPE,
    ML_MISMATCH_NON_ASSISTANT, /* text that the model did not write */
    ML_MISMATCH_ASSISTANT,     /* its own: harmless, it is trained as it was drawn */
    ML_MISMATCH_TYPES
} ml_mismatch_type;
const char *ml_mismatch_name(ml_mismatch_type t);

/* Compares the recorded tokens of the path with the rendered messages: writes a list of
 * {"type", "segment_index", "expected_text", "actual_text"}; count [ML_MISMATCH_TYPES]
 * gets the number of each. */
ml_status ml_session_compare(const ml_session_node *leaf, const ml_session_text *x,
                             ml_json_out *o, int64_t *count, ml_arena *scratch,
                             ml_err *err);

#endif
