/* Conversations of several turns: their tokens, their masks, and runs that have them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rl/conversation.h"
#include "rl/edges.h"
#include "rl/sample.h"
#include "rl/turn_text.h"
#include "tests/support/example.h"
#include "tests/support/kill.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"
#include "tests/support/toy_run.h"

#define FIXTURES "../shared/fixtures/tokenizers"

static void must(ml_status st, const ml_err *err) {
    if (st != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err->msg);
        exit(1);
    }
}

/* --- text --------------------------------------------------------------------- */

typedef struct toy {
    ml_arena arena;
    ml_tokenizer *tokenizer;
    ml_chat_template *chat_template;
    ml_encoder *encoder;
    ml_turn_text text;
} toy;

/* The tokenizer and template of the test's folder "model". */
static void open_model(toy *t) {
    ml_err err = { 0 };

    ml_arena_init(&t->arena, "toy");
    must(ml_tokenizer_open(&t->tokenizer, ml_test_path("model"), &err), &err);
    must(ml_chat_template_open(&t->chat_template, ml_test_path("model"), NULL, &err), &err);
    t->encoder = ml_encoder_new(t->tokenizer);
    t->text = (ml_turn_text){ t->tokenizer, t->chat_template, NULL };
}

static void open_toy(toy *t, const char *template) {
    ml_toy_model(template);
    open_model(t);
}

static void close_toy(toy *t) {
    ml_encoder_free(t->encoder);
    ml_chat_template_close(t->chat_template);
    ml_tokenizer_close(t->tokenizer);
    ml_arena_release(&t->arena);
}

static void encode(toy *t, ml_tokens *out, ml_str text) {
    ml_err err = { 0 };
    must(ml_encode(t->encoder, out, text, (ml_encode_opts){ 0 }, &err), &err);
}

static ml_str render(toy *t, const ml_json *messages) {
    ml_chat chat = { .messages = messages, .add_generation_prompt = true };
    ml_jinja_text text;
    ml_err err = { 0 };
    must(ml_chat_render(&text, &t->arena, t->chat_template, &chat, NULL, &err), &err);
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

/* What the model said is appended as tokens, what it hears as ml_turn_text says: together it
 * is what the template gives for the whole conversation.  `end` closes an answer. */
static void check_conversation(toy *t, const char *end) {
    static const char *const said[] = { "1+2?", "no", "5=2+3", "hm, 7", "8" };
    ml_messages all = ml_messages_begin(&t->arena);
    ml_tokens pieces = { 0 }, piece = { 0 }, whole = { 0 };
    ml_err err = { 0 };

    ml_messages_say(&all, ml_str_of("user"), ml_str_of(said[0]));
    encode(t, &pieces, render(t, all.list));
    for (int i = 1; i < 5; i += 2) {
        ml_messages next = ml_messages_begin(&t->arena);
        char answer[40];
        snprintf(answer, sizeof answer, "%s%s", said[i], end);
        encode(t, &piece, ml_str_of(answer));
        join(&pieces, &piece);
        ml_messages_say(&next, ml_str_of("user"), ml_str_of(said[i + 1]));
        must(ml_turn_text_encode(&t->text, t->encoder, &piece, &t->arena, next.list,
                                 pieces.id[pieces.n - 1], &err),
             &err);
        join(&pieces, &piece);
        ml_messages_say(&all, ml_str_of("assistant"), ml_str_of(said[i]));
        ml_messages_join(&all, next.list);
    }
    encode(t, &whole, render(t, all.list));
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
    toy t;
    ml_err err = { 0 };

    open_toy(&t, ml_toy_chatml);
    check_conversation(&t, "<|im_end|>");
    check_conversation(&t, ""); /* ended by a stop string: the end is written for it */
    must(ml_turn_text_check(&t.text, "user", &err), &err);
    must(ml_turn_text_check(&t.text, "tool", &err), &err);
    close_toy(&t);
}

/* Those of published models, where they lie beside the repository. */
static void real_templates_go_on(void) {
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
    toy t;

    if (access(FIXTURES, R_OK) != 0) {
        printf("skipped: " FIXTURES " is not here\n");
        return;
    }
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char command[1500];
        ml_err err = { 0 };
        snprintf(command, sizeof command,
                 "mkdir -p %s && cp " FIXTURES
                 "/%s/tokenizer_config.json %s && gzip -dc " FIXTURES
                 "/%s/tokenizer.json.gz > %s/tokenizer.json",
                 ml_test_path("model"), models[i].name, ml_test_path("model"),
                 models[i].name, ml_test_path("model"));
        CHECK(system(command) == 0);
        open_model(&t);
        check_conversation(&t, models[i].end);
        if (ml_turn_text_check(&t.text, "user", &err) != ML_OK)
            ml_test_fail(__FILE__, __LINE__, "%s: %s", models[i].name, err.msg);
        if ((ml_turn_text_check(&t.text, "tool", &err) == ML_OK) != models[i].tools)
            ml_test_fail(__FILE__, __LINE__, "%s: %s", models[i].name, err.msg);
        close_toy(&t);
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
    toy t;
    ml_err err = { 0 };

    open_toy(&t, numbered);
    CHECK(ml_turn_text_check(&t.text, "user", &err) == ML_EUNSUP);
    CHECK_HAS(err.msg, "rewrites earlier turns");
    close_toy(&t);
    open_toy(&t, forgetful);
    CHECK(ml_turn_text_check(&t.text, "user", &err) == ML_EUNSUP);
    CHECK_HAS(err.msg, "does not write the words of an earlier answer");
    close_toy(&t);
    open_toy(&t, strict);
    CHECK(ml_turn_text_check(&t.text, "user", &err) == ML_OK);
    CHECK(ml_turn_text_check(&t.text, "tool", &err) != ML_OK);
    CHECK_HAS(err.msg, "no tools");
    close_toy(&t);
}

/* --- the calculator ----------------------------------------------------------- */

typedef struct heard {
    char text[400];
    int n;
} heard;

static void say(miles_turn_out *out, const char *role, const char *text, size_t len) {
    heard *h = out->to;
    CHECK(strcmp(role, "tool") == 0);
    snprintf(h->text + strlen(h->text), sizeof h->text - strlen(h->text), "%s%.*s",
             h->n ? "; " : "", (int)len, text);
    h->n++;
}

static void calculate(heard *h, const char *const *expression, int n) {
    miles_call call[10];
    char arguments[10][300];
    miles_turn_in in = { .size = sizeof in, .call = call, .n_call = n };
    miles_turn_out out = { .size = sizeof out, .to = h, .say = say };
    miles_error err;

    *h = (heard){ 0 };
    for (int i = 0; i < n; i++) {
        snprintf(arguments[i], sizeof arguments[i], "{\"expression\": \"%s\"}",
                 expression[i]);
        call[i] = (miles_call){ "calculator", arguments[i], 10, strlen(arguments[i]) };
    }
    CHECK(ml_generate_calculator.run(&in, &out, &err) == 0);
}

static void the_calculator_calculates(void) {
    static const struct {
        const char *expression, *value;
    } cases[] = {
        { "12*(3+4)", "84" },
        { "-2**2 + 1", "-3" },
        { "2**3**2", "512" },
        { "1/4", "0.25" },
        { "0.1+0.2", "0.3" },
        { "7 - -3", "10" },
        { "9**9**9", "error: exponents are whole numbers from 0 to 64" },
        { "999999**64", "error: the result is too large" },
        { "1/0", "error: division by zero" },
        { "(1+2", "error: a bracket is not closed" },
        { "2+", "error: a number was expected" },
        { "1.2.3", "error: a number was expected" },
        { "__import__('os')", "error: a number was expected" },
        { "3 apples", "error: this is no expression of numbers, + - * / ** and brackets" },
    };
    char deep[201];
    const char *one = deep;
    heard h;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        calculate(&h, &cases[i].expression, 1);
        if (strcmp(h.text, cases[i].value) != 0)
            ml_test_fail(__FILE__, __LINE__, "%s: %s", cases[i].expression, h.text);
    }
    memset(deep, '(', sizeof deep - 1);
    deep[sizeof deep - 1] = 0;
    calculate(&h, &one, 1);
    CHECK_HAS(h.text, "too deep");
    calculate(&h, (const char *const[]){ "1+1", "2+2" }, 2);
    CHECK(strcmp(h.text, "2; 4") == 0);
    calculate(&h, NULL, 0);
    CHECK(h.n == 0);
}

/* --- runs --------------------------------------------------------------------- */

enum { ROUNDS = 3 };

/* Says "more" after the first two turns. */
static const char asker[] =
    "while read -r line; do case \"$line\" in\n"
    "*'\"turn\": 1,'* | *'\"turn\": 2,'*)\n"
    "echo '{\"messages\": [{\"role\": \"user\", \"content\": \"more\"}]}' ;;\n"
    "*) echo '{\"done\": true}' ;;\nesac; done\n";

static void make_inputs(void) {
    ml_text t = { 0 };

    ml_toy_model(ml_toy_chatml);
    for (int i = 0; i < 6; i++)
        ml_text_printf(&t, "{\"input\": \"what is %d+%d?\", \"label\": \"%d\"}\n", i, i + 2,
                       i + i + 2);
    ml_toy_file("data.jsonl", t.ptr);
    ml_toy_file("asker.sh", asker);
    ml_text_release(&t);
}

/* Answers end at one of ten tokens, so that most have several turns. */
static void args_of(char *args, size_t cap, const char *command, const char *save,
                    int rounds, const char *environment, const char *more) {
    snprintf(args, cap,
             "%s --hf-checkpoint %s --prompt-data %s --label-key label "
             "--apply-chat-template --rollout-batch-size 4 --n-samples-per-prompt 4 "
             "--num-rollout %d --rollout-max-response-len 80 "
             "--rollout-stop-token-ids 1 2 3 4 5 6 7 8 9 10 --rm-type deterministic_random "
             "--lr 1e-3 --lr-decay-style constant --custom-generate-function-path %s "
             "--save %s --load %s %s",
             command, ml_test_path("model"), ml_test_path("data.jsonl"), rounds,
             environment, save, save, more);
}

static int run(const char *save, int rounds, const char *environment, const char *more,
               char *out, size_t cap) {
    char args[3000];
    args_of(args, sizeof args, "train", save, rounds, environment, more);
    return ml_test_miles(out, cap, args);
}

static const char *asker_path(void) {
    static char path[700];
    snprintf(path, sizeof path, "'cmd:sh %s'", ml_test_path("asker.sh"));
    return path;
}

static void the_same_bytes_however_it_runs(void) {
    char out[16000];

    make_inputs();
    CHECK(run(ml_test_path("whole"), ROUNDS, asker_path(), "--threads 1", out,
              sizeof out) == 0);
    CHECK_HAS(out, "forward_logp_max_diff 0,");
    CHECK(run(ml_test_path("other"), ROUNDS, asker_path(),
              "--threads 2 --sglang-max-running-requests 3 --reward-workers 1 "
              "--sglang-chunked-prefill-size 7 --sglang-disable-radix-cache",
              out, sizeof out) == 0);
    ml_toy_run_same(ml_test_path("whole"), ml_test_path("other"), ROUNDS);
    CHECK(run(ml_test_path("parts"), 1, asker_path(), "--threads 2", out, sizeof out) == 0);
    CHECK(run(ml_test_path("parts"), ROUNDS, asker_path(), "--save-interval 1", out,
              sizeof out) == 0);
    CHECK_HAS(out, "Loaded checkpoint from ");
    ml_toy_run_same(ml_test_path("whole"), ml_test_path("parts"), ROUNDS);
}

/* Killed wherever it is, and gone on from what it saved last. */
static void survives_kills(void) {
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");
    char out[16000], args[3000], game[700];
    ml_kills kills;
    int rounds;

    ml_kills_init(&kills, getenv("MILES_LONG") ? 20 : 5);
    rounds = ml_kills_rounds(&kills);
    make_inputs();
    snprintf(game, sizeof game, "%s:guess", ml_test_example());
    CHECK(run(whole, rounds, game, "", out, sizeof out) == 0);
    args_of(args, sizeof args, "train", parts, rounds, game, "--save-interval 1");
    while (ml_kills_go_on(&kills))
        ml_kills_once(&kills, args, parts);
    CHECK(run(parts, rounds, game, "--save-interval 1", out, sizeof out) == 0);
    ml_toy_run_same(whole, parts, rounds);
    ml_kills_tell(&kills);
}

/* Unfinished conversations are held, saved, and go on in the middle of a turn. */
static void unfinished_conversations_go_on(void) {
    static const char partial[] = "--partial-rollout --over-sampling-batch-size 6 "
                                  "--sglang-max-running-requests 6 --threads";
    char out[16000], more[300];

    make_inputs();
    snprintf(more, sizeof more, "%s 1", partial);
    CHECK(run(ml_test_path("whole"), ROUNDS, asker_path(), more, out, sizeof out) == 0);
    CHECK_HAS(out, "stale tokens");
    snprintf(more, sizeof more, "%s 2", partial);
    CHECK(run(ml_test_path("parts"), 2, asker_path(), more, out, sizeof out) == 0);
    CHECK(run(ml_test_path("parts"), ROUNDS, asker_path(), more, out, sizeof out) == 0);
    ml_toy_run_same(ml_test_path("whole"), ml_test_path("parts"), ROUNDS);
}

/* The run of masked tokens that begins at t. */
static int32_t masked_at(const ml_sample *s, int32_t t) {
    int32_t n = 0;
    while (t + n < s->n_response && !s->mask[t + n])
        n++;
    return n;
}

/* Masked are exactly the tokens of "more", as the template writes them. */
static int check_sample(toy *t, const ml_sample *s) {
    const int32_t *id = s->token + s->n_token - s->n_response;
    ml_tokens want = { 0 };
    int n_said = 0;

    for (int32_t i = 0; i < s->n_response; i++) {
        int32_t n = masked_at(s, i);
        bool ended = n > 0 && i > 0 && id[i - 1] == 71; /* <|im_end|> */
        if (n == 0) {
            CHECK(s->logprob[i] < 0.0F);
            continue;
        }
        encode(t, &want,
               ml_str_of(ended
                             ? "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
                             : "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n"
                               "<|im_start|>assistant\n"));
        CHECK(n == want.n && memcmp(id + i, want.id, (size_t)n * sizeof *id) == 0);
        for (int32_t k = i; k < i + n; k++)
            CHECK(s->logprob[k] == 0.0F && s->version[k] == s->version[0]);
        n_said++;
        i += n - 1;
    }
    CHECK(s->n_turn == n_said + 1);
    ml_tokens_release(&want);
    return n_said;
}

static void what_was_not_drawn_is_masked(void) {
    char out[16000], more[800];
    ml_sample *s;
    int64_t n;
    int n_said = 0;
    toy t;
    ml_err err = { 0 };

    make_inputs();
    open_toy(&t, ml_toy_chatml);
    snprintf(more, sizeof more, "--save-debug-rollout-data %s/{rollout_id}.zst",
             ml_test_dir());
    CHECK(run(ml_test_path("save"), 1, asker_path(), more, out, sizeof out) == 0);
    must(ml_samples_load(&s, &n, &t.arena, ml_test_path("0.zst"), &err), &err);
    CHECK(n == 16);
    for (int64_t i = 0; i < n; i++)
        n_said += check_sample(&t, &s[i]);
    CHECK(n_said >= 16);
    snprintf(more, sizeof more,
             "grep -q 'multi_turn_metric/round_number_max\": 3' "
             "%s/metrics.jsonl",
             ml_test_path("save"));
    CHECK(system(more) == 0);
    close_toy(&t);
}

/* Turns of the samples of a round, of which each has at least one. */
static int64_t count_turns(const char *path, ml_arena *a) {
    ml_sample *s = NULL;
    ml_err err = { 0 };
    int64_t n = 0, n_turn = 0;

    must(ml_samples_load(&s, &n, a, path, &err), &err);
    CHECK(n == 16);
    for (int64_t i = 0; i < n; i++) {
        CHECK(s[i].n_turn >= 1 && s[i].has_reward);
        n_turn += s[i].n_turn;
    }
    return n_turn;
}

/* Weights change in the middle of conversations, which are saved and go on; what was used is
 * recorded, and trains to the same weights. */
static void conversations_all_the_time(void) {
    const char *flow = ml_test_path("flow"), *again = ml_test_path("again");
    char out[16000], args[3000], path[700];
    ml_arena a;

    make_inputs();
    for (int rounds = 2; rounds <= ROUNDS; rounds++) {
        args_of(args, sizeof args, "train-async", flow, rounds, asker_path(),
                "--fully-async --save-interval 1");
        CHECK(ml_test_miles(out, sizeof out, args) == 0);
    }
    CHECK_HAS(out, "going on at rollout 2");
    ml_arena_init(&a, "rounds");
    for (int i = 0; i < ROUNDS; i++) {
        snprintf(path, sizeof path, "%s/rollout_data/%d.jsonl.zst", flow, i);
        CHECK(count_turns(path, &a) >= 24);
    }
    ml_arena_release(&a);
    snprintf(path, sizeof path,
             "--load-debug-rollout-data %s/rollout_data/{rollout_id}.jsonl.zst", flow);
    CHECK(run(again, ROUNDS, asker_path(), path, out, sizeof out) == 0);
    snprintf(args, sizeof args,
             "cmp %s/iter_%07d/model.safetensors %s/iter_%07d/model.safetensors >&2", flow,
             ROUNDS - 1, again, ROUNDS - 1);
    CHECK(system(args) == 0);
}

static void budgets_end_conversations(void) {
    char out[16000], command[800];

    make_inputs();
    CHECK(run(ml_test_path("save"), 1, asker_path(), "--generate-max-turns 2", out,
              sizeof out) == 0);
    snprintf(command, sizeof command,
             "grep -q 'multi_turn_metric/round_number_max\": 2' %s/metrics.jsonl",
             ml_test_path("save"));
    CHECK(system(command) == 0);
    CHECK(run(ml_test_path("short"), 1, asker_path(), "--rollout-max-context-len 60", out,
              sizeof out) == 0);
    CHECK_HAS(out, "truncated ");
}

/* An environment that fails costs its groups, or the run, and says why. */
static void environments_that_fail_are_named(void) {
    char out[16000];

    make_inputs();
    CHECK(run(ml_test_path("a"), 1, "cmd:false", "", out, sizeof out) == 3);
    CHECK_HAS(out, "ended with status 1");
    CHECK_HAS(out, "no group of the round has a reward");
    CHECK(run(ml_test_path("a"), 1, "'cmd:while read -r l; do echo garbage; done'", "", out,
              sizeof out) == 3);
    CHECK_HAS(out, "the environment's answer");
    CHECK(run(ml_test_path("a"), 1,
              "'cmd:while read -r l; do echo \"{\\\"done\\\": true, \\\"reward\\\": "
              "1e999}\"; "
              "done'",
              "", out, sizeof out) == 3);
    CHECK_HAS(out, "not a finite number");
    CHECK(run(ml_test_path("a"), 1, "nothing", "", out, sizeof out) == 2);
    CHECK_HAS(out, "calculator");
    CHECK(run(ml_test_path("a"), 1, "./missing.py", "", out, sizeof out) == 1);
    CHECK_HAS(out, "./missing.py cannot be read");
    CHECK(run(ml_test_path("a"), 1, "miles.rollout.generate_hub.agentic_tool_call.generate",
              "", out, sizeof out) != 0);
    CHECK_HAS(out, "session server");
}

/* A reward of the environment's own goes before all others. */
static void a_python_environment_rewards(void) {
    static const char env[] = "def turn(c):\n"
                              "    if c['turn'] == 1:\n"
                              "        return 'more'\n"
                              "    return {'done': True, 'reward': c['index'] % 2}\n";
    char out[16000], command[800], path[700];

    make_inputs();
    ml_toy_file("env.py", env);
    snprintf(path, sizeof path, "%s", ml_test_path("env.py"));
    CHECK(run(ml_test_path("save"), 1, path, "", out, sizeof out) == 0);
    snprintf(command, sizeof command,
             "grep -q 'rollout/raw_reward\": 0.5' %s/metrics.jsonl", ml_test_path("save"));
    CHECK(system(command) == 0);
}

static const ml_test tests[] = {
    { "turns are what the template writes", turns_are_what_the_template_writes },
    { "real templates go on", real_templates_go_on },
    { "templates that rewrite are refused", templates_that_rewrite_are_refused },
    { "the calculator calculates", the_calculator_calculates },
    { "the same bytes however it runs", the_same_bytes_however_it_runs },
    { "survives kills", survives_kills, 300 },
    { "unfinished conversations go on", unfinished_conversations_go_on },
    { "what was not drawn is masked", what_was_not_drawn_is_masked },
    { "conversations all the time", conversations_all_the_time },
    { "budgets end conversations", budgets_end_conversations },
    { "environments that fail are named", environments_that_fail_are_named },
    { "a python environment rewards", a_python_environment_rewards },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
