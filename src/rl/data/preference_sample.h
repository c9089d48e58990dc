/* preference_sample.h - a row of preference data as tokens, in the formats of TRL.
 *
 *     {"prompt": P, "chosen": C, "rejected": R}      text, or lists of messages
 *     {"chosen": C, "rejected": R}                   P is their common beginning
 *     {"prompt": P, "completion": C, "label": true}  single answers (KTO)
 *
 * Rows of reward models are pairs, which may have a "margin", or single answers whose label is a
 * number; P may be missing.
 *
 * Messages are rendered by the chat template, the prompt with the generation prompt; text gets
 * the end token, and the special tokens that the tokenizer adds.  Prompt and answer are encoded
 * together; the answer begins where the tokens differ from those of the prompt alone.
 *
 * thread: any, each with its own encoder. */
#ifndef ML_RL_DATA_PREFERENCE_SAMPLE_H
#define ML_RL_DATA_PREFERENCE_SAMPLE_H

#include "rl/data/sft_sample.h"

/* Tokens of a prompt with an answer. */
typedef struct ml_preference_answer {
    const int32_t *token; /* [n_token] */
    int32_t n_token, n_prompt;
} ml_preference_answer;

typedef struct ml_preference {
    ml_preference_answer answer[2]; /* chosen and rejected; single: one */
    int32_t n;
    bool desirable; /* single: its label */
} ml_preference;

/* end_token: appended to text; ML_NONE: none.  Tokens are allocated in `a`. */
ml_status ml_preference_read(ml_preference *out, ml_arena *a, const ml_sft_text *text,
                             const ml_prompt *prompt, bool single, int32_t end_token,
                             ml_err *err);

/* The whole conversations of a row, without padding at the end. */
typedef struct ml_scored_row {
    ml_preference_answer answer[2]; /* chosen and rejected; single: one */
    int32_t n;
    double number; /* the margin, 0 if there is none; single: the label */
} ml_scored_row;

typedef struct ml_scored_row_opts {
    bool single;
    int32_t end_token, pad_token; /* ML_NONE: none */
} ml_scored_row_opts;

ml_status ml_scored_row_read(ml_scored_row *out, ml_arena *a, const ml_sft_text *text,
                             const ml_prompt *prompt, ml_scored_row_opts o, ml_err *err);

#endif
