/* assistant_mask.h - which tokens of a rendered conversation the assistant said.
 *
 * Templates mark its turns with {% generation %}; the mask is transformers'
 * return_assistant_tokens_mask. */
#ifndef ML_TEXT_CHAT_ASSISTANT_MASK_H
#define ML_TEXT_CHAT_ASSISTANT_MASK_H

#include "text/jinja/jinja.h"
#include "text/tokenizer/tokenizer.h"

/* mask [tokens->n] becomes 1 inside the text's spans, 0 elsewhere.  The tokens must have been
 * encoded from text->text with spans. */
void ml_assistant_mask(uint8_t *mask, const ml_jinja_text *text, const ml_tokens *tokens);

#endif
