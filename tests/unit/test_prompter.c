/* A data set through a real tokenizer and template, and the mask of what the assistant said. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "rl/data/prompt_encoder.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "text/chat/assistant_mask.h"

#define KIMI "tests/golden/text/kimi"

static const char chat_source[] =
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{{ mood }}{% endif %}";

typedef struct fixture {
    ml_tokenizer *tokenizer;
    ml_chat_template *chat;
} fixture;

static void must(ml_status st, const ml_err *err) {
    if (st != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err->msg);
        exit(1);
    }
}

static void open_fixture(fixture *w) {
    ml_err err = { 0 };
    must(ml_file_replace(ml_test_path("chat.jinja"), ml_str_of(chat_source), &err), &err);
    must(ml_tokenizer_open(&w->tokenizer, KIMI, &err), &err);
    must(ml_chat_template_open(&w->chat, KIMI, ml_test_path("chat.jinja"), &err), &err);
}

static void close_fixture(fixture *w) {
    ml_tokenizer_close(w->tokenizer);
    ml_chat_template_close(w->chat);
}

static void prompts_are_rendered_and_measured(void) {
    static const char rows[] =
        "{\"input\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n"
        "{\"input\": [{\"role\": \"user\", \"content\": \"a very long question, so long "
        "that "
        "nobody would want to read it to its end, nor answer it\"}]}\n"
        "{\"input\": [{\"role\": \"user\", \"content\": \"bye\"}]}\n";
    fixture w;
    ml_prompt_encoder p;
    ml_pool *pool;
    ml_dataset ds;
    ml_prompt prompt;
    ml_arena a;
    ml_err err = { 0 };

    open_fixture(&w);
    must(ml_pool_new(&pool, 2, &err), &err);
    ml_prompt_encoder_init(&p, w.tokenizer, w.chat, 2);
    ml_arena_init(&a, "test");
    must(ml_file_replace(ml_test_path("rows.jsonl"), ml_str_of(rows), &err), &err);
    must(ml_dataset_open(&ds,
                         &(ml_dataset_opts){ .path = ml_test_path("rows.jsonl"),
                                             .apply_chat_template = true,
                                             .template_kwargs = "{\"mood\": \"calm\"}",
                                             .max_prompt_len = 40,
                                             .text = ml_prompt_encoder_text(&p),
                                             .pool = pool },
                         &err),
         &err);
    CHECK(ds.rows.n == 2 && ds.n_long == 1);
    must(ml_dataset_prompt(&prompt, &ds, 1, &a, &err), &err);
    CHECK(ml_str_is(prompt.text, "<user>bye<assistant>calm"));
    ml_dataset_close(&ds);
    ml_arena_release(&a);
    ml_prompt_encoder_release(&p);
    ml_pool_free(pool);
    close_fixture(&w);
}

static void mask_is_what_the_assistant_said(void) {
    static const char source[] =
        "[{\"role\": \"user\", \"content\": \"one two\"}, "
        "{\"role\": \"assistant\", \"content\": \"three four\"}, "
        "{\"role\": \"user\", \"content\": \"five\"}, "
        "{\"role\": \"assistant\", \"content\": \"s\u00ef\u00efx\"}]";
    fixture w;
    ml_arena a;
    ml_err err = { 0 };
    const ml_json *messages;
    ml_jinja_text text;
    ml_tokens tokens = { 0 };
    ml_encoder *e;
    ml_text said = { 0 };
    uint8_t mask[256];

    open_fixture(&w);
    ml_arena_init(&a, "test");
    must(ml_json_parse(&messages, &a, ml_str_of(source), "messages", &err), &err);
    must(ml_chat_render(&text, &a, w.chat, &(ml_chat){ .messages = messages }, NULL, &err),
         &err);
    CHECK(text.n_span == 2);
    e = ml_encoder_new(w.tokenizer);
    must(ml_encode(e, &tokens, text.text, (ml_encode_opts){ .spans = true }, &err), &err);
    CHECK(tokens.n > 10 && tokens.n < 256);
    ml_assistant_mask(mask, &text, &tokens);
    for (int64_t i = 0, seen = 0; i < tokens.n; i++)
        if (mask[i] &&
            tokens.span[i].end > seen) { /* tokens of one character share a span */
            ml_text_add(&said, text.text.ptr + tokens.span[i].begin,
                        tokens.span[i].end - tokens.span[i].begin);
            seen = tokens.span[i].end;
        }
    /* Tokens may reach over a span's border, never fall short of it. */
    CHECK_HAS(said.ptr, "three four");
    CHECK_HAS(said.ptr, "s\u00ef\u00efx");
    CHECK(!ml_test_has(said.ptr, "one") && !ml_test_has(said.ptr, "five"));
    ml_text_release(&said);
    ml_tokens_release(&tokens);
    ml_encoder_free(e);
    ml_arena_release(&a);
    close_fixture(&w);
}

static const ml_test tests[] = {
    { "prompts are rendered by the template and counted in tokens",
      prompts_are_rendered_and_measured },
    { "the loss mask covers what the assistant said", mask_is_what_the_assistant_said },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
