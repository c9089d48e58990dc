/* prompter.h - a checkpoint's tokenizer and chat template as a data set uses them.
 *
 * thread: render and count are called by many threads at once; each worker has an encoder
 * of its own. */
#ifndef ML_RL_PROMPT_ENCODER_H
#define ML_RL_PROMPT_ENCODER_H

#include "rl/dataset.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

typedef struct ml_prompt_encoder {
    const ml_tokenizer *tokenizer;         /* may be NULL where nothing is counted */
    const ml_chat_template *chat_template; /* may be NULL where nothing is rendered */
    ml_encoder **encoder;                  /* [n_worker] */
    ml_tokens *tokens;                     /* [n_worker] */
    int n_worker;
    ml_arena arena;
} ml_prompt_encoder;

/* Both must outlive the prompter. */
void ml_prompt_encoder_init(ml_prompt_encoder *p, const ml_tokenizer *t,
                            const ml_chat_template *c, int n_worker);
void ml_prompt_encoder_release(ml_prompt_encoder *p);

/* For ml_dataset_opts; refers to p. */
ml_prompt_text ml_prompt_encoder_text(ml_prompt_encoder *p);

#endif
