/* Runs whose answers are conversations of several turns. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "rl/sample.h"
#include "tests/support/example.h"
#include "tests/support/kill.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/toy_model.h"
#include "tests/support/toy_run.h"
#include "tests/support/toy_text.h"

enum { ROUNDS = 3 };

/* Says "more" after the first two turns. */
static const char asker_script[] =
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
    ml_toy_file("asker.sh", asker_script);
    ml_text_release(&t);
}

/* Answers end at one of ten tokens, so that most have several turns. */
static void args_of(char *args, size_t cap, const char *command, const char *save,
                    int rounds, const char *environment, const char *more) {
    snprintf(args, cap,
             "%s --hf-checkpoint %s --prompt-data %s --label-key label "
             "--apply-chat-template --rollout-batch-size 4 --n-samples-per-prompt 4 "
             "--num-rollout %d --rollout-max-response-len 80 "
             "%s %s --lr 1e-3 --lr-decay-style constant --custom-generate-function-path %s "
             "--save %s --load %s %s",
             command, ml_test_path("model"), ml_test_path("data.jsonl"), rounds,
             strstr(more, "stop-token-ids")
                 ? ""
                 : "--rollout-stop-token-ids 1 2 3 4 5 6 7 8 9 10",
             strstr(more, "--custom-rm-path") ? "" : "--rm-type deterministic_random",
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

/* Replies after the first two turns, late by a time that differs from turn to turn. */
static const char slow_asker[] =
    "while read -r line; do sleep 0.0$((${#line} % 8))\n"
    "case \"$line\" in *'\"turn\": 1,'* | *'\"turn\": 2,'*)\n"
    "echo '{\"messages\": [{\"role\": \"user\", \"content\": \"more\"}]}' ;;\n"
    "*) echo '{\"done\": true}' ;;\nesac; done\n";

static void slow_replies_give_the_same_bytes(void) {
    static const char *const more[] = { "--reward-workers 9",
                                        "--reward-workers 3 --over-sampling-batch-size 6 "
                                        "--partial-rollout",
                                        "--over-sampling-batch-size 6 "
                                        "--dynamic-sampling-filter-path "
                                        "check_reward_nonzero_std" };
    char out[16000], fast[40], slow[40];

    make_inputs();
    for (int i = 0; i < 3; i++) {
        snprintf(fast, sizeof fast, "fast%d", i);
        snprintf(slow, sizeof slow, "slow%d", i);
        ml_toy_file("asker.sh", asker_script);
        CHECK(run(ml_test_path(fast), 2, asker_path(), more[i], out, sizeof out) == 0);
        ml_toy_file("asker.sh", slow_asker);
        CHECK(run(ml_test_path(slow), 2, asker_path(), more[i], out, sizeof out) == 0);
        ml_toy_run_same(ml_test_path(fast), ml_test_path(slow), 2);
    }
}

/* Replies to a turn when all 16 conversations are in that turn's call.  An engine that
 * waited for a reply would never bring the others there, and the tool would time out. */
static const char meeting[] =
    "while read -r line; do case \"$line\" in\n"
    "*'\"turn\": 1,'*) turn=1 ;; *'\"turn\": 2,'*) turn=2 ;; *) turn=3 ;; esac\n"
    "printf x >>$1$turn\n"
    "while [ $(wc -c <$1$turn) -lt 16 ]; do sleep 0.05; done\n"
    "if [ $turn = 3 ]; then echo '{\"done\": true}'; else echo '{\"text\": \" no \"}'; "
    "fi; done\n";

static void tools_do_not_stop_the_engine(void) {
    char out[16000], path[1500];
    const char *save = ml_test_path("save");

    make_inputs();
    ml_toy_file("meeting.sh", meeting);
    snprintf(path, sizeof path, "'cmd:sh %s %s'", ml_test_path("meeting.sh"),
             ml_test_path("turn"));
    CHECK(run(save, 1, path,
              "--reward-workers 16 --reward-timeout 60 --rollout-max-response-len 300", out,
              sizeof out) == 0);
    CHECK(!ml_test_has(out, "has no reward"));
    snprintf(path, sizeof path,
             "grep -q 'multi_turn_metric/round_number_min\": 3' %s/metrics.jsonl", save);
    CHECK(system(path) == 0);
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
static int check_sample(ml_toy_text *t, const ml_sample *s) {
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
        ml_toy_text_encode(
            t, &want,
            ml_str_of(ended ? "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
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
    ml_toy_text t;

    make_inputs();
    ml_toy_text_open(&t);
    snprintf(more, sizeof more, "--save-debug-rollout-data %s/{rollout_id}.zst",
             ml_test_dir());
    CHECK(run(ml_test_path("save"), 1, asker_path(), more, out, sizeof out) == 0);
    MUST(ml_samples_load(&s, &n, &t.arena, ml_test_path("0.zst"), &err));
    CHECK(n == 16);
    for (int64_t i = 0; i < n; i++)
        n_said += check_sample(&t, &s[i]);
    CHECK(n_said >= 16);
    snprintf(more, sizeof more,
             "grep -q 'multi_turn_metric/round_number_max\": 3' "
             "%s/metrics.jsonl",
             ml_test_path("save"));
    CHECK(system(more) == 0);
    ml_toy_text_close(&t);
}

/* --- what rewards see ---------------------------------------------------------- */

/* The "response" that the reward was asked about, by the sample's index. */
static ml_str asked_about(ml_arena *a, ml_str log, int64_t index) {
    while (log.len) {
        const char *end = memchr(log.ptr, '\n', log.len);
        size_t n = end ? (size_t)(end - log.ptr) : log.len;
        const ml_json *doc = NULL;
        int64_t is = -1;
        MUST(ml_json_parse(&doc, a, (ml_str){ log.ptr, n }, "the log", &err));
        if (ml_json_i64(ml_json_get(doc, "index"), &is) && is == index)
            return ml_json_get(doc, "response")->text;
        n += end != NULL;
        log = (ml_str){ log.ptr + n, log.len - n };
    }
    ml_test_fail(__FILE__, __LINE__, "a sample has no question");
    return (ml_str){ 0 };
}

/* Counts the samples that a stop token ended: their reward did not see it, and saw the rest. */
static int check_questions(const ml_toy_text *t, const ml_sample *s, int64_t n,
                           ml_arena *a) {
    ml_file log;
    int n_stopped = 0;

    MUST(ml_file_map(&log, ml_test_path("log"), &err));
    for (int64_t i = 0; i < n; i++) {
        ml_str saw = asked_about(a, log.bytes, s[i].index);
        int32_t last = s[i].token[s[i].n_token - 1];
        bool stopped = (last >= 1 && last <= 10) || last == 57; /* <|im_end|> */
        ml_text want = { 0 };
        ml_decode(t->tokenizer, &want, s[i].token + s[i].n_token - s[i].n_response,
                  s[i].n_response - stopped, false);
        CHECK(ml_str_eq(saw, (ml_str){ want.ptr ? want.ptr : "", want.len }));
        CHECK(stopped == (saw.len < s[i].response.len));
        n_stopped += stopped;
        ml_text_release(&want);
    }
    ml_file_unmap(&log);
    return n_stopped;
}

/* The sample keeps the token; the reward does not see it.  In conversations the stop tokens
 * between turns stay. */
static void rewards_do_not_see_the_stop_token(void) {
    char out[16000], more[1500];
    ml_sample *s;
    int64_t n;
    ml_toy_text t;

    make_inputs();
    ml_toy_file("model/generation_config.json", "{\"eos_token_id\": [57]}");
    ml_toy_text_open(&t);
    ml_toy_file("grade.sh", "while read -r line; do printf '%s\\n' \"$line\" >> $1\n"
                            "echo $((n = 1 - n)); done\n");
    snprintf(
        more, sizeof more,
        "--save-debug-rollout-data %s/{rollout_id}.zst --reward-workers 1 "
        "--custom-rm-path 'cmd:sh %s %s' --rollout-stop-token-ids 1 2 3 4 5 6 7 8 9 10 "
        "--skip-eval-before-train",
        ml_test_dir(), ml_test_path("grade.sh"), ml_test_path("log"));
    for (int i = 0; i < 2; i++) {
        CHECK(i ? run(ml_test_path("turns"), 1, asker_path(), more, out, sizeof out) == 0
                : ml_toy_run("train", ml_test_path("single"), 1, more, out, sizeof out) ==
                      0);
        MUST(ml_samples_load(&s, &n, &t.arena, ml_test_path("0.zst"), &err));
        CHECK(n == 16);
        CHECK(check_questions(&t, s, n, &t.arena) >= 4);
        CHECK(unlink(ml_test_path("log")) == 0);
    }
    ml_toy_text_close(&t);
}

/* Turns of the samples of a round, of which each has at least one. */
static int64_t count_turns(const char *path, ml_arena *a) {
    ml_sample *s = NULL;
    int64_t n = 0, n_turn = 0;

    MUST(ml_samples_load(&s, &n, a, path, &err));
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
    const char *async_rollout = ml_test_path("flow"), *again = ml_test_path("again");
    char out[16000], args[3000], path[700];
    ml_arena a;

    make_inputs();
    for (int rounds = 2; rounds <= ROUNDS; rounds++) {
        args_of(args, sizeof args, "train-async", async_rollout, rounds, asker_path(),
                "--fully-async --save-interval 1");
        CHECK(ml_test_miles(out, sizeof out, args) == 0);
    }
    CHECK_HAS(out, "resuming at rollout 2");
    ml_arena_init(&a, "rounds");
    for (int i = 0; i < ROUNDS; i++) {
        snprintf(path, sizeof path, "%s/rollout_data/%d.jsonl.zst", async_rollout, i);
        CHECK(count_turns(path, &a) >= 24);
    }
    ml_arena_release(&a);
    snprintf(path, sizeof path,
             "--load-debug-rollout-data %s/rollout_data/{rollout_id}.jsonl.zst",
             async_rollout);
    CHECK(run(again, ROUNDS, asker_path(), path, out, sizeof out) == 0);
    snprintf(args, sizeof args,
             "cmp %s/iter_%07d/model.safetensors %s/iter_%07d/model.safetensors >&2",
             async_rollout, ROUNDS - 1, again, ROUNDS - 1);
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
    CHECK_HAS(out, "exited with status 1");
    CHECK_HAS(out, "no group of the rollout has a reward");
    CHECK(run(ml_test_path("a"), 1, "'cmd:while read -r l; do echo garbage; done'", "", out,
              sizeof out) == 3);
    CHECK_HAS(out, "the environment's reply");
    CHECK(run(ml_test_path("a"), 1,
              "'cmd:while read -r l; do echo \"{\\\"done\\\": true, \\\"reward\\\": "
              "1e999}\"; "
              "done'",
              "", out, sizeof out) == 3);
    CHECK_HAS(out, "not a finite number");
    CHECK(run(ml_test_path("a"), 1, "nothing", "", out, sizeof out) == 2);
    CHECK_HAS(out, "calculator");
    CHECK(run(ml_test_path("a"), 1, "./missing.py", "", out, sizeof out) == 1);
    CHECK_HAS(out, "cannot read ./missing.py");
    CHECK(run(ml_test_path("a"), 1, "miles.rollout.generate_hub.agentic_tool_call.generate",
              "", out, sizeof out) != 0);
    CHECK_HAS(out, "--use-session-server");
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

/* docs/PLUGINS.md: no other reward is named, and conversations that end without one count 0. */
static void the_documented_environment_runs(void) {
    char out[16000], args[3000], *reward;

    make_inputs();
    snprintf(args, sizeof args,
             "sed -n '/^def turn/,/^```/p' docs/PLUGINS.md | grep -v '^```' >%s",
             ml_test_path("env.py"));
    CHECK(system(args) == 0);
    args_of(args, sizeof args, "train", ml_test_path("save"), 1, ml_test_path("env.py"),
            "--generate-max-turns 2");
    reward = strstr(args, "--rm-type deterministic_random");
    memset(reward, ' ', strlen("--rm-type deterministic_random"));
    CHECK(ml_test_miles(out, sizeof out, args) == 0);
    CHECK_HAS(out, "rollout 0");
    CHECK(!ml_test_has(out, "has no reward"));
}

static const ml_test tests[] = {
    { "multi-turn runs give the same bytes for any division of the work",
      the_same_bytes_however_it_runs },
    { "slow tools give the same bytes as fast ones", slow_replies_give_the_same_bytes },
    { "a tool call does not stop other conversations", tools_do_not_stop_the_engine, 150 },
    { "multi-turn kills change no byte of the run", survives_kills, 300 },
    { "partial rollouts continue conversations in the middle of a turn",
      unfinished_conversations_go_on },
    { "rewards do not see the last stop token", rewards_do_not_see_the_stop_token },
    { "tokens of the environment are masked", what_was_not_drawn_is_masked },
    { "fully async runs hold conversations", conversations_all_the_time },
    { "token and turn budgets end conversations", budgets_end_conversations },
    { "an environment that fails is named", environments_that_fail_are_named },
    { "a Python environment's reward is used", a_python_environment_rewards },
    { "the environment of docs/PLUGINS.md runs", the_documented_environment_runs },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
