/* prompter.h - a checkpoint's tokenizer and chat template as a data set uses them.
 *
 * thread: render and count are called by many threads at once; each worker has an encoder
 * of its own. */
#ifndef ML_RL_PROMPTER_H
#define ML_RL_PROMPTER_H

#include "rl/dataset.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

typedef struct ml_prompter {
    const ml_tokenizer *tokenizer;         /* may be NULL where nothing is counted */
    const ml_chat_template *chat_template; /* may be NULL where nothing is rendered */
    ml_encoder **encoder;                  /* [n_worker] */
    ml_tokens *tokens;                     /* [n_worker] */
    int n_worker;
    ml_arena arena;
} ml_prompter;

/* Both must outlive the prompter. */
void ml_prompter_init(ml_prompter *p, const ml_tokenizer *t, const ml_chat_template *c,
                      int n_worker);
void ml_prompter_release(ml_prompter *p);

/* For ml_dataset_opts; refers to p. */
ml_prompt_text ml_prompter_text(ml_prompter *p);

#endif
