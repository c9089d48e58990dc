/* teacher_prompt.h - privileged context: the prompt that a teacher sees in place of the
 * student's.
 *
 * A row's metadata has it: text, or messages that the chat template renders.  It may contain
 * what the student does not know: a demonstration, a reference solution, or another answer of
 * the group that was rewarded ({sibling}).  The teacher scores the student's answer after it;
 * with the student's own weights this is self-distillation (SDFT, OPSD, SDPO).
 *
 * thread: one at a time, because of the encoder. */
#ifndef ML_RL_LEARN_TEACHER_PROMPT_H
#define ML_RL_LEARN_TEACHER_PROMPT_H

#include "rl/sample.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

typedef struct ml_teacher_prompt {
    const char *key;       /* the member of the metadata; NULL: the student's prompt */
    double sibling_reward; /* the least reward of the answer that {sibling} stands for */
    bool chat;             /* text is one message of the user */
    ml_encoder *encoder;
    const ml_chat_template *chat_template; /* NULL: the checkpoint has none */
    const ml_json *kwargs;                 /* of the template, or NULL */
} ml_teacher_prompt;

/* The teacher's tokens for a sample of a batch: its prompt, then the sample's answer.  *id
 * NULL: no sibling was rewarded enough, so the teacher knows no more than the student. */
ml_status ml_teacher_prompt_tokens(const ml_teacher_prompt *p, const ml_sample *s,
                                   ml_sample *const *batch, int64_t n, const int32_t **id,
                                   int32_t *n_id, ml_arena *a, ml_err *err);

#endif
