/* sft_sample.h - a conversation as a training sample, in which only the assistant's tokens
 * are trained.
 *
 * The template's {% generation %} marks determine the assistant's tokens; for a template
 * without marks, the text that each assistant message adds does.  A message with
 * "step_loss_mask" other than 1 is not trained.
 *
 * thread: any, each with its own encoder. */
#ifndef ML_RL_DATA_SFT_SAMPLE_H
#define ML_RL_DATA_SFT_SAMPLE_H

#include "rl/data/dataset.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"
#include "train/micro.h"

typedef struct ml_sft_text {
    const ml_chat_template *chat_template;
    ml_encoder *encoder;
    const ml_json *kwargs; /* of the template; may be NULL */
    int64_t n_vocab;       /* vocabulary size of the model: larger token ids are refused */
} ml_sft_text;

/* Tokens and mask are allocated in `a`.  The response begins with the assistant's first
 * token. */
ml_status ml_sft_sample(ml_train_sample *out, ml_arena *a, const ml_sft_text *text,
                        const ml_prompt *prompt, ml_err *err);

#endif
