/* miles sft from the outside: conversations, masks, metrics, and runs that are stopped. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/dir.h"
#include "io/jsonl.h"
#include "rl/data/sft_sample.h"
#include "tests/support/kill.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"

static void must(ml_status st, const ml_err *err) {
    if (st != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err->msg);
        exit(1);
    }
}

static void make_data(int n) {
    ml_text t = { 0 };
    for (int i = 0; i < n; i++)
        ml_text_printf(
            &t,
            "{\"messages\": [{\"role\": \"user\", \"content\": \"what is %d+%d?\"}, "
            "{\"role\": \"assistant\", \"content\": \"it is %d.\"}]}\n",
            i % 10, i % 7, i % 10 + i % 7);
    ml_toy_file("data.jsonl", t.ptr);
    ml_text_release(&t);
}

/* --- masks ------------------------------------------------------------------ */

/* The sample of one row, as text: what is learned stands in brackets. */
static void learned(ml_text *out, const char *template, const char *row, ml_err *err) {
    ml_tokenizer *tok;
    ml_chat_template *chat;
    ml_dataset ds;
    ml_prompt prompt;
    ml_train_sample s = { 0 };
    ml_arena a;
    int32_t prompt_len;

    ml_arena_init(&a, "test");
    ml_toy_model(template);
    ml_toy_file("one.jsonl", row);
    must(ml_tokenizer_open(&tok, ml_test_path("model"), err), err);
    must(ml_chat_template_open(&chat, ml_test_path("model"), NULL, err), err);
    must(ml_dataset_open(&ds, &(ml_dataset_opts){ .path = ml_test_path("one.jsonl") }, err),
         err);
    must(ml_dataset_prompt(&prompt, &ds, 0, &a, err), err);
    ml_sft_text text = { .chat_template = chat,
                         .encoder = ml_encoder_new(tok),
                         .n_vocab = 83 };
    if (ml_sft_sample(&s, &a, &text, &prompt, err) == ML_OK) {
        prompt_len = s.n_token - s.n_response;
        ml_decode(tok, out, s.token, prompt_len, false);
        ml_text_printf(out, "#");
        for (int32_t i = 0; i < s.n_response; i++) {
            if (s.mask[i] && (i == 0 || !s.mask[i - 1]))
                ml_text_printf(out, "[");
            ml_decode(tok, out, &s.token[prompt_len + i], 1, false);
            if (s.mask[i] && (i + 1 == s.n_response || !s.mask[i + 1]))
                ml_text_printf(out, "]");
        }
    }
    ml_encoder_free(text.encoder);
    ml_dataset_close(&ds);
    ml_chat_template_close(chat);
    ml_tokenizer_close(tok);
    ml_arena_release(&a);
}

static const char two_answers[] =
    "{\"input\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
    "\"content\": \"b\"%s}, {\"role\": \"user\", \"content\": \"c\"}, {\"role\": "
    "\"assistant\", \"content\": \"d\"}]}\n";

static void only_the_assistant_is_learned(void) {
    static const char marked[] =
        "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}"
        "{% endif %}{% endfor %}";
    static const char head[] = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n";
    char row[600];
    ml_text t = { 0 };
    ml_err err = { 0 };

    snprintf(row, sizeof row, two_answers, "");
    learned(&t, ml_toy_chatml, row, &err);
    CHECK(t.len > sizeof head && memcmp(t.ptr, head, sizeof head - 1) == 0);
    CHECK_HAS(t.ptr,
              "#[b<|im_end|>\n]<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
              "[d<|im_end|>\n]");
    t.len = 0;
    snprintf(row, sizeof row, two_answers, ", \"step_loss_mask\": 0");
    learned(&t, ml_toy_chatml, row, &err);
    CHECK_HAS(t.ptr, "assistant\nb<|im_end|>");
    CHECK_HAS(t.ptr, "#[d<|im_end|>\n]");
    t.len = 0;
    snprintf(row, sizeof row, two_answers, "");
    learned(&t, marked, row, &err);
    CHECK_HAS(t.ptr, "user: aassistant: #[b]user: cassistant: [d]");
    ml_text_release(&t);
}

static void what_cannot_be_learned_is_refused(void) {
    /* Forgets what was said before the last message. */
    static const char rewriting[] =
        "{% for m in messages %}{% if loop.last %}{{ m.content }}{% else %}x{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}:{% endif %}";
    char row[600];
    ml_text t = { 0 };
    ml_err err = { 0 };

    snprintf(row, sizeof row, two_answers, "");
    learned(&t, rewriting, row, &err);
    CHECK_HAS(err.msg, "generation");
    learned(&t, ml_toy_chatml, "{\"input\": [{\"role\": \"user\", \"content\": \"a\"}]}\n",
            &err);
    CHECK_HAS(err.msg, "no message of the assistant");
    learned(&t, ml_toy_chatml, "{\"input\": \"plain text\"}\n", &err);
    CHECK_HAS(err.msg, "list of messages");
    ml_text_release(&t);
}

/* --- runs ------------------------------------------------------------------- */

/* Rounds of two steps each; a run that is to be killed takes longer. */
enum { ROUNDS = 8 };

static void args_of(char *args, size_t cap, const char *save, int rounds,
                    const char *more) {
    snprintf(args, cap,
             "sft --hf-checkpoint %s --prompt-data %s --input-key messages "
             "--rollout-shuffle --rollout-batch-size 8 --global-batch-size 4 "
             "--num-rollout %d --lr 2e-3 --lr-decay-style cosine --lr-warmup-iters 2 "
             "--lr-decay-iters 16 "
             "--max-tokens-per-gpu 120 --threads 1 --save %s --load %s %s",
             ml_test_path("model"), ml_test_path("data.jsonl"), rounds, save, save, more);
}

static int run_rounds(const char *save, int rounds, const char *more, char *out,
                      size_t cap) {
    char args[2000];
    args_of(args, sizeof args, save, rounds, more);
    return ml_test_miles(out, cap, args);
}

static int run(const char *save, const char *more, char *out, size_t cap) {
    return run_rounds(save, ROUNDS, more, out, cap);
}

/* Optimizer steps in metrics.jsonl, with the first and last loss. */
static int64_t metric_rows(const char *save, double *first, double *last) {
    char path[600];
    ml_jsonl f;
    ml_arena a;
    ml_err err = { 0 };
    const ml_json *row;
    int64_t n = 0;

    snprintf(path, sizeof path, "%s/metrics.jsonl", save);
    must(ml_jsonl_open(&f, path, &err), &err);
    ml_arena_init(&a, "test");
    for (int64_t i = 0; i < f.n; i++) {
        must(ml_jsonl_parse(&row, &f, i, &a, &err), &err);
        if (ml_json_f64(ml_json_get(row, "train/loss"), last) && n++ == 0)
            *first = *last;
    }
    ml_jsonl_close(&f);
    ml_arena_release(&a);
    return n;
}

static void same_final(const char *a, const char *b, int rounds) {
    char command[1500];
    snprintf(command, sizeof command,
             "diff -r %s/iter_%07d %s/iter_%07d >&2 && cmp %s/metrics.jsonl "
             "%s/metrics.jsonl >&2",
             a, rounds - 1, b, rounds - 1, a, b);
    if (system(command) != 0)
        ml_test_fail(__FILE__, __LINE__,
                     "the final snapshots or metrics of %s and %s differ", a, b);
}

static void learns_and_resumes(void) {
    char out[8000];
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");
    double first = 0, last = 0;

    ml_toy_model(ml_toy_chatml);
    make_data(20);
    CHECK(run(whole, "", out, sizeof out) == 0);
    CHECK_HAS(out, "rollout 7, step 15: loss ");
    CHECK(metric_rows(whole, &first, &last) == 16);
    CHECK(last < 0.7 * first);
    CHECK(run_rounds(parts, 3, "--save-interval 2", out, sizeof out) == 0);
    CHECK(run(parts, "--save-interval 3 --async-save --recompute-granularity full", out,
              sizeof out) == 0);
    CHECK_HAS(out, "at rollout 3");
    CHECK(metric_rows(parts, &first, &last) == 16);
    same_final(whole, parts, ROUNDS);
}

static void flags_are_checked(void) {
    char out[4000];
    const char *save = ml_test_path("save");

    ml_toy_model(ml_toy_chatml);
    make_data(5);
    CHECK(run(save, "--recompute-granularity selective --recompute-modules norms", out,
              sizeof out) == 2);
    CHECK_HAS(out, "core_attn");
    CHECK(run(save, "--freeze nothing", out, sizeof out) == 2);
    CHECK(run(save, "--dry-run", out, sizeof out) == 0);
    CHECK_HAS(out, "optimizer state");
    CHECK(access(save, F_OK) != 0);
    CHECK(run(save, "--ckpt-step 3", out, sizeof out) == 1);
    CHECK_HAS(out, "iter_0000003");
}

/* MILES_LONG asks for more kills. */
static void survives_kills(void) {
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");
    char out[8000], here[2000], aside[2000];
    ml_kills kills;
    int rounds;

    ml_kills_init(&kills, getenv("MILES_LONG") ? 50 : 5);
    rounds = ml_kills_rounds(&kills);
    ml_toy_model(ml_toy_chatml);
    make_data(20);
    CHECK(run_rounds(whole, rounds, "", out, sizeof out) == 0);
    args_of(here, sizeof here, parts, rounds, "--save-interval 1");
    args_of(aside, sizeof aside, parts, rounds,
            "--save-interval 1 --async-save --keep-last 2");
    while (ml_kills_go_on(&kills))
        ml_kills_once(&kills, kills.n_kill % 2 ? aside : here, parts);
    CHECK(run_rounds(parts, rounds, "--save-interval 1", out, sizeof out) == 0);
    same_final(whole, parts, rounds);
    ml_kills_tell(&kills);
}

static const ml_test tests[] = {
    { "miles sft trains the assistant's tokens alone", only_the_assistant_is_learned },
    { "miles sft refuses conversations without trainable tokens",
      what_cannot_be_learned_is_refused },
    { "miles sft learns and resumes to the same bytes", learns_and_resumes },
    { "miles sft refuses contradictory flags", flags_are_checked },
    { "miles sft kills change no byte of the run", survives_kills, 300 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
