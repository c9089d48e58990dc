/* sample_text.h - the samples of a run as text for a terminal.
 *
 * thread: any. */
#ifndef ML_CLI_COMMANDS_SAMPLE_TEXT_H
#define ML_CLI_COMMANDS_SAMPLE_TEXT_H

#include "rl/sample.h"
#include "text/tokenizer/tokenizer.h"

/* "rollout 3, sample 17 of group 4: reward 1, completed, 12 tokens", without a line break.
 * set: the data set of an evaluation, or NULL. */
void ml_sample_text_head(ml_text *out, int64_t rollout, const char *set,
                         const ml_sample *s);

/* Prompt, answer and label, a line each, as JSON. */
void ml_sample_text_fields(ml_text *out, const ml_sample *s);

/* A table: position, mask, log-prob and version of each token; a missing value is a dash.
 * tokenizer NULL: tokens are shown as ids. */
void ml_sample_text_tokens(ml_text *out, ml_tokenizer *tokenizer, const ml_sample *s);

#endif
