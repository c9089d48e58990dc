/* turn_tokens.h - the tokens between two turns of the model.
 *
 * A conversation is a growing array of tokens; sampled tokens are never decoded and
 * encoded again.  An answer is followed by the text that the chat template writes between
 * the content of an assistant message and the header of the next one, with the new
 * messages in between.  If that text begins with the token that ended the answer, such as
 * <|im_end|>, the token is not repeated.
 *
 * thread: immutable; each caller has its own encoder and arena. */
#ifndef ML_RL_ENV_TURN_TOKENS_H
#define ML_RL_ENV_TURN_TOKENS_H

#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

typedef struct ml_turn_tokens {
    const ml_tokenizer *tokenizer;
    const ml_chat_template *chat_template;
    const ml_json *kwargs; /* of the template; may be NULL */
} ml_turn_tokens;

/* Encodes the tokens that follow an answer whose last token is `last`. */
ml_status ml_turn_tokens_encode(const ml_turn_tokens *t, ml_encoder *e, ml_tokens *out,
                                ml_arena *a, const ml_json *messages, int32_t last,
                                ml_err *err);

/* Checks that a conversation assembled this way, with messages of this role, equals the
 * template's rendering of the whole conversation.  ML_EUNSUP, with the position, if it
 * does not. */
ml_status ml_turn_tokens_check(const ml_turn_tokens *t, const char *role, ml_err *err);

#endif
