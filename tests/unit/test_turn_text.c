/* What the template writes between two answers, against the whole conversation at once. */
#include "rl/env/turn_tokens.h"

#include <stdio.h>
#include <stdlib.h>

#include "text/chat/conversation.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/toy_model.h"
#include "tests/support/toy_text.h"

static void open_toy(ml_toy_text *t, const char *template) {
    ml_toy_model(template);
    ml_toy_text_open(t);
}

static ml_str render(ml_toy_text *t, const ml_json *messages) {
    ml_chat chat = { .messages = messages, .add_generation_prompt = true };
    ml_jinja_text text;

    MUST(ml_chat_render(&text, &t->arena, t->chat_template, &chat, NULL, &err));
    return text.text;
}

static void join(ml_tokens *all, const ml_tokens *more) {
    int64_t n = all->n + more->n;
    int32_t *id = realloc(all->id, (size_t)(n + 1) * sizeof *id);
    CHECK(id != NULL);
    for (int64_t i = 0; id && i < more->n; i++)
        id[all->n + i] = more->id[i];
    all->id = id;
    all->n = all->cap = n;
}

/* What the model said is appended as tokens, what it hears as ml_turn_tokens says: together it
 * is what the template gives for the whole conversation.  `end` closes an answer. */
static void check_conversation(ml_toy_text *t, const char *end) {
    static const char *const said[] = { "1+2?", "no", "5=2+3", "hm, 7", "8" };
    ml_messages all = ml_messages_begin(&t->arena);
    ml_tokens pieces = { 0 }, piece = { 0 }, whole = { 0 };

    ml_messages_append(&all, ml_str_of("user"), ml_str_of(said[0]));
    ml_toy_text_encode(t, &pieces, render(t, all.list));
    for (int i = 1; i < 5; i += 2) {
        ml_messages next = ml_messages_begin(&t->arena);
        char answer[40];
        snprintf(answer, sizeof answer, "%s%s", said[i], end);
        ml_toy_text_encode(t, &piece, ml_str_of(answer));
        join(&pieces, &piece);
        ml_messages_append(&next, ml_str_of("user"), ml_str_of(said[i + 1]));
        MUST(ml_turn_tokens_encode(&t->turns, t->encoder, &piece, &t->arena, next.list,
                                   pieces.id[pieces.n - 1], &err));
        join(&pieces, &piece);
        ml_messages_append(&all, ml_str_of("assistant"), ml_str_of(said[i]));
        ml_messages_join(&all, next.list);
    }
    ml_toy_text_encode(t, &whole, render(t, all.list));
    CHECK(whole.n == pieces.n);
    for (int64_t i = 0; i < whole.n && i < pieces.n; i++)
        if (whole.id[i] != pieces.id[i]) {
            ml_test_fail(__FILE__, __LINE__, "token %lld is %d, not %d", (long long)i,
                         pieces.id[i], whole.id[i]);
            break;
        }
    ml_tokens_release(&whole);
    ml_tokens_release(&piece);
    ml_tokens_release(&pieces);
}

static void turns_are_what_the_template_writes(void) {
    ml_toy_text t;

    open_toy(&t, ml_toy_chatml);
    check_conversation(&t, "<|im_end|>");
    check_conversation(&t, ""); /* ended by a stop string: the end is written for it */
    MUST(ml_turn_tokens_check(&t.turns, "user", &err));
    MUST(ml_turn_tokens_check(&t.turns, "tool", &err));
    ml_toy_text_close(&t);
}

/* Templates of published models. */
static void published_templates_go_on(void) {
    static const struct {
        const char *name, *end;
        bool tools;
    } models[] = {
        { "qwen3", "<|im_end|>", true },
        { "llama3", "<|eot_id|>", true },
        { "gemma3", "<end_of_turn>", false },
        { "deepseek_v3",
          "<\xef\xbd\x9c"
          "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
          false },
    };
    ml_toy_text t;

    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char command[8192];
        ml_err err = { 0 };
        snprintf(command, sizeof command,
                 "from=%s/tokenizers/%s to=%s; mkdir -p $to && "
                 "cp $from/tokenizer_config.json $to/ && "
                 "gzip -dc $from/tokenizer.json.gz >$to/tokenizer.json",
                 ml_test_fixtures(), models[i].name, ml_test_path("model"));
        CHECK(system(command) == 0);
        ml_toy_text_open(&t);
        check_conversation(&t, models[i].end);
        if (ml_turn_tokens_check(&t.turns, "user", &err) != ML_OK)
            ml_test_fail(__FILE__, __LINE__, "%s: %s", models[i].name, err.msg);
        if ((ml_turn_tokens_check(&t.turns, "tool", &err) == ML_OK) != models[i].tools)
            ml_test_fail(__FILE__, __LINE__, "%s: %s", models[i].name, err.msg);
        ml_toy_text_close(&t);
    }
}

static void templates_that_rewrite_are_refused(void) {
    static const char numbered[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ messages | length }}"
        "{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    static const char forgetful[] =
        "{% for m in messages %}{% if m.role != 'assistant' %}<|im_start|>{{ m.content }}"
        "{% endif %}{% endfor %}<|im_start|>assistant\n";
    static const char strict[] =
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}"
        "{% endif %}{{ m.content }}<|im_end|>{% endfor %}";
    ml_toy_text t;
    ml_err err = { 0 };

    open_toy(&t, numbered);
    CHECK(ml_turn_tokens_check(&t.turns, "user", &err) == ML_EUNSUP);
    CHECK_HAS(err.msg, "changes earlier turns");
    ml_toy_text_close(&t);
    open_toy(&t, forgetful);
    CHECK(ml_turn_tokens_check(&t.turns, "user", &err) == ML_EUNSUP);
    CHECK_HAS(err.msg, "does not render the text of earlier responses");
    ml_toy_text_close(&t);
    open_toy(&t, strict);
    CHECK(ml_turn_tokens_check(&t.turns, "user", &err) == ML_OK);
    CHECK(ml_turn_tokens_check(&t.turns, "tool", &err) != ML_OK);
    CHECK_HAS(err.msg, "no tools");
    ml_toy_text_close(&t);
}

static const ml_test tests[] = {
    { "tokens of turns are those of the whole conversation",
      turns_are_what_the_template_writes },
    { "tokens of turns are those of the whole conversation with published templates",
      published_templates_go_on, .fixtures = "tokenizers" },
    { "a template that rewrites earlier turns is refused",
      templates_that_rewrite_are_refused },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
