/* toy_text.h - tokenizer, chat template and turns of the test's "model" directory. */
#ifndef ML_TESTS_SUPPORT_TOY_TEXT_H
#define ML_TESTS_SUPPORT_TOY_TEXT_H

#include "base/arena.h"
#include "rl/env/turn_tokens.h"

typedef struct ml_toy_text {
    ml_arena arena;
    ml_tokenizer *tokenizer;
    ml_chat_template *chat_template;
    ml_encoder *encoder;
    ml_turn_tokens turns;
} ml_toy_text;

/* Failures end the test. */
void ml_toy_text_open(ml_toy_text *t);
void ml_toy_text_close(ml_toy_text *t);
void ml_toy_text_encode(ml_toy_text *t, ml_tokens *out, ml_str text);

#endif
