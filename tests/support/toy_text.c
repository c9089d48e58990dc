#include "tests/support/toy_text.h"

#include "tests/support/must.h"
#include "tests/support/scratch.h"

void ml_toy_text_open(ml_toy_text *t) {
    ml_arena_init(&t->arena, "toy");
    MUST(ml_tokenizer_open(&t->tokenizer, ml_test_path("model"), &err));
    MUST(ml_chat_template_open(&t->chat_template, ml_test_path("model"), NULL, &err));
    t->encoder = ml_encoder_new(t->tokenizer);
    t->turns = (ml_turn_tokens){ t->tokenizer, t->chat_template, NULL };
}

void ml_toy_text_close(ml_toy_text *t) {
    ml_encoder_free(t->encoder);
    ml_chat_template_close(t->chat_template);
    ml_tokenizer_close(t->tokenizer);
    ml_arena_release(&t->arena);
}

void ml_toy_text_encode(ml_toy_text *t, ml_tokens *out, ml_str text) {
    MUST(ml_encode(t->encoder, out, text, (ml_encode_opts){ 0 }, &err));
}
