/* prompt_encoder.h - renders prompts with a checkpoint's chat template and counts their
 * tokens, for a data set.
 *
 * thread: render and count are called by many threads at once; each worker has its own
 * encoder. */
#ifndef ML_RL_DATA_PROMPT_ENCODER_H
#define ML_RL_DATA_PROMPT_ENCODER_H

#include "rl/data/dataset.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

typedef struct ml_prompt_encoder {
    const ml_tokenizer *tokenizer;         /* may be NULL if nothing is counted */
    const ml_chat_template *chat_template; /* may be NULL if nothing is rendered */
    ml_encoder **encoder;                  /* [n_worker] */
    ml_tokens *tokens;                     /* [n_worker] */
    int n_worker;
    ml_arena arena;
} ml_prompt_encoder;

/* Both must outlive the prompt encoder. */
void ml_prompt_encoder_init(ml_prompt_encoder *p, const ml_tokenizer *t,
                            const ml_chat_template *c, int n_worker);
void ml_prompt_encoder_release(ml_prompt_encoder *p);

/* For ml_dataset_opts; refers to p. */
ml_prompt_text ml_prompt_encoder_text(ml_prompt_encoder *p);

#endif
