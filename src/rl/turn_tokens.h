/* turn_text.h - what is said between two turns of the model, as tokens.
 *
 * A conversation is a growing array of tokens: what the model drew is never made to text
 * and tokens again.  What follows an answer is what the chat template writes between the
 * words of an assistant's message and the opening of the next one, with the new messages
 * in between.  Where that begins with the very token that ended the answer, as it does
 * with <|im_end|>, the token is not repeated.
 *
 * thread: immutable; each caller has an encoder and an arena of its own. */
#ifndef ML_RL_TURN_TOKENS_H
#define ML_RL_TURN_TOKENS_H

#include "text/chat_template.h"
#include "text/tokenizer.h"

typedef struct ml_turn_tokens {
    const ml_tokenizer *tokenizer;
    const ml_chat_template *chat_template;
    const ml_json *kwargs; /* of the template; may be NULL */
} ml_turn_tokens;

/* The tokens that follow an answer whose last one is `last`. */
ml_status ml_turn_tokens_encode(const ml_turn_tokens *t, ml_encoder *e, ml_tokens *out,
                                ml_arena *a, const ml_json *messages, int32_t last,
                                ml_err *err);

/* Is a conversation that is put together so, with messages of this role, what the template
 * writes for all of it?  ML_EUNSUP, with the place, when it is not. */
ml_status ml_turn_tokens_check(const ml_turn_tokens *t, const char *role, ml_err *err);

#endif
