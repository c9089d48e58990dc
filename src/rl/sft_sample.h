/* sft_sample.h - a conversation as a training sample: all of it is read, the assistant's
 * words are learned.
 *
 * Which tokens the assistant said comes from the template's {% generation %} marks, or,
 * where it has none, from what each of its messages adds to the text.  A message with
 * "step_loss_mask" other than 1 is read only.
 *
 * thread: any, each with an encoder of its own. */
#ifndef ML_RL_SFT_SAMPLE_H
#define ML_RL_SFT_SAMPLE_H

#include "rl/dataset.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "train/micro.h"

typedef struct ml_sft_text {
    const ml_chat_template *chat_template;
    ml_encoder *encoder;
    const ml_json *kwargs; /* of the template; may be NULL */
    int64_t n_vocab;       /* of the model: larger token ids are refused */
} ml_sft_text;

/* Tokens and mask live in `a`.  The response begins with the assistant's first token. */
ml_status ml_sft_sample(ml_train_sample *out, ml_arena *a, const ml_sft_text *text,
                        const ml_prompt *prompt, ml_err *err);

#endif
