/* assistant_mask.h - the tokens of a rendered conversation that the assistant wrote.
 *
 * Templates mark the assistant's turns with {% generation %}; the mask equals transformers'
 * return_assistant_tokens_mask. */
#ifndef ML_TEXT_CHAT_ASSISTANT_MASK_H
#define ML_TEXT_CHAT_ASSISTANT_MASK_H

#include "text/jinja/jinja.h"
#include "text/tokenizer/tokenizer.h"

/* Sets mask [tokens->n] to 1 inside the spans of the text and to 0 elsewhere.  The tokens
 * must have been encoded from text->text with spans. */
void ml_assistant_mask(uint8_t *mask, const ml_jinja_text *text, const ml_tokens *tokens);

#endif
