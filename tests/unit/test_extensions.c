/* Extensions: the example plugin in the training loop, and miles list. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "rl/sample.h"
#include "tests/support/example.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"

static void make_inputs(void) {
    ml_text t = { 0 };

    ml_toy_model(ml_toy_chatml);
    for (int i = 0; i < 12; i++)
        ml_text_printf(&t, "{\"input\": \"what is %d+%d?\", \"label\": \"%d\"}\n", i % 10,
                       i % 7, i % 10 + i % 7);
    ml_toy_file("data.jsonl", t.ptr);
    ml_text_release(&t);
}

static int run_as(const char *command, const char *save, const char *more, char *out,
                  size_t cap) {
    char args[4000];

    snprintf(args, sizeof args,
             "%s --hf-checkpoint %s --prompt-data %s --label-key label "
             "--apply-chat-template --rollout-batch-size 4 --n-samples-per-prompt 4 "
             "--num-steps-per-rollout 2 --num-rollout 2 "
             "--lr 1e-3 --lr-decay-style constant --save %s --load %s %s%s%s",
             command, ml_test_path("model"), ml_test_path("data.jsonl"), save, save,
             strstr(more, "-rm-") ? "" : "--rm-type deterministic_random ",
             strstr(more, "-response-len") ? "" : "--rollout-max-response-len 12 ", more);
    return ml_test_miles(out, cap, args);
}

static int run(const char *save, const char *more, char *out, size_t cap) {
    return run_as("train", save, more, out, cap);
}

/* Does the file of the test's directory have this text? */
static bool file_has(const char *name, const char *text) {
    char command[1000];
    snprintf(command, sizeof command, "grep -qF '%s' %s", text, ml_test_path(name));
    return system(command) == 0;
}

static void every_kind_is_listed(void) {
    const char *object = ml_test_example();
    char out[16000], args[700];

    CHECK(ml_test_miles(out, sizeof out, "list") == 0);
    CHECK_HAS(out, "advantage (--advantage-estimator)\n    grpo");
    CHECK_HAS(out, "    calculator: executes calls of a tool");
    CHECK_HAS(out, "    check_reward_nonzero_std: keeps groups");
    snprintf(args, sizeof args, "list --plugin %s", object);
    CHECK(ml_test_miles(out, sizeof out, args) == 0);
    snprintf(args, sizeof args, "%s:guess: a game: guess the number", object);
    CHECK_HAS(out, args);
    snprintf(args, sizeof args, "%s:journal: writes a line per event", object);
    CHECK_HAS(out, args);
    CHECK(ml_test_miles(out, sizeof out, "list --plugin ./nothing.so") == 1);
    CHECK_HAS(out, "cannot load ./nothing.so");
}

static void watchers_are_told(void) {
    const char *x = ml_test_example();
    char out[16000], more[3000];

    make_inputs();
    setenv("EXAMPLE_JOURNAL", ml_test_path("journal"), 1);
    snprintf(more, sizeof more,
             "--custom-megatron-init-path %s:journal --use-kl-loss --kl-loss-coef 0.01 "
             "--custom-megatron-before-log-prob-hook-path %s:journal "
             "--custom-megatron-before-train-step-hook-path %s:journal "
             "--custom-megatron-post-save-hook-path %s:journal "
             "--rollout-data-postprocess-path %s:journal "
             "--rollout-all-samples-process-path %s:journal --async-save "
             "--custom-rollout-log-function-path %s:longest "
             "--custom-eval-rollout-log-function-path %s:longest "
             "--eval-prompt-data toy %s --eval-interval 1 --over-sampling-batch-size 5",
             x, x, x, x, x, x, x, x, ml_test_path("data.jsonl"));
    CHECK(run(ml_test_path("save"), more, out, sizeof out) == 0);
    CHECK(file_has("journal", "after init: rollout 0, step -1"));
    CHECK(file_has("journal", "before log-probs: rollout 1, step -1, \"ref\""));
    CHECK(file_has("journal", "before train step: rollout 1, step 1"));
    CHECK(file_has("journal", "after save: rollout 1, step -1"));
    CHECK(file_has("journal", "save/iter_0000001\""));
    CHECK(file_has("journal", "rollout 0: 16 of "));
    CHECK(file_has("journal",
                   "data ready: rollout 1, step -1, \"\", 16 samples, with advantages"));
    CHECK(file_has("save/metrics.jsonl", "\"rollout/longest_response\": 12"));
    CHECK(file_has("save/metrics.jsonl", "\"eval/longest_response\": 12"));
    unsetenv("EXAMPLE_JOURNAL");
    CHECK(run(ml_test_path("none"), more, out, sizeof out) == 1);
    CHECK_HAS(out, "journal: set the environment variable EXAMPLE_JOURNAL to a file");
}

static void prompts_and_samples_are_chosen(void) {
    const char *x = ml_test_example();
    char out[16000], more[2000];

    make_inputs();
    snprintf(more, sizeof more,
             "--data-source-path %s:backwards --rollout-sample-filter-path %s:finished "
             "--dynamic-sampling-filter-path %s:some_finished --over-sampling-batch-size 8 "
             "--save-debug-rollout-data %s/{rollout_id}.zst",
             x, x, x, ml_test_dir());
    CHECK(run(ml_test_path("save"), more, out, sizeof out) == 0);
    CHECK_HAS(out, "what is 1+4?"); /* the last row */
    CHECK(file_has("save/metrics.jsonl", "rollout/dynamic_filter/drop_all_cut_off"));
    CHECK(!file_has("save/metrics.jsonl", "\"rollout/removed_samples\": 0,"));
    snprintf(more, sizeof more, "zstd -qdc %s | grep -qE '\"remove_sample\": *true'",
             ml_test_path("0.zst"));
    CHECK(system(more) == 0);
}

/* With the mean of the round as baseline, what is learned from sums to nothing. */
static void rewards_are_shaped(void) {
    const char *x = ml_test_example();
    char out[16000], more[2000];

    make_inputs();
    CHECK(run(ml_test_path("plain"), "", out, sizeof out) == 0);
    snprintf(more, sizeof more, "--custom-reward-post-process-path %s:round_mean", x);
    CHECK(run(ml_test_path("shaped"), more, out, sizeof out) == 0);
    snprintf(more, sizeof more,
             "cmp -s %s/iter_0000001/model.safetensors "
             "%s/iter_0000001/model.safetensors",
             ml_test_path("plain"), ml_test_path("shaped"));
    CHECK(system(more) != 0);
}

/* Held groups go on in another order, and the run can be resumed all the same. */
static void held_groups_are_chosen(void) {
    static const char partial[] = "--partial-rollout --over-sampling-batch-size 7 "
                                  "--sglang-max-running-requests 6";
    const char *x = ml_test_example();
    char out[16000], more[2000];

    make_inputs();
    CHECK(run(ml_test_path("oldest"), partial, out, sizeof out) == 0);
    snprintf(more, sizeof more, "%s --buffer-filter-path %s:newest", partial, x);
    CHECK(run(ml_test_path("newest"), more, out, sizeof out) == 0);
    snprintf(more, sizeof more, "cmp -s %s/metrics.jsonl %s/metrics.jsonl",
             ml_test_path("oldest"), ml_test_path("newest"));
    CHECK(system(more) != 0);
}

static void the_game_is_played(void) {
    const char *x = ml_test_example();
    char out[16000], more[2000];

    make_inputs();
    snprintf(more, sizeof more,
             "--custom-generate-function-path %s:guess --generate-max-turns 3 "
             "--rollout-max-response-len 80 --rollout-stop-token-ids 1 2 3 4 5 6 7 8 9",
             x);
    CHECK(run(ml_test_path("save"), more, out, sizeof out) == 0);
    CHECK(file_has("save/metrics.jsonl", "multi_turn_metric/round_number_max\": 3"));
    CHECK(run(ml_test_path("save"), "--rollout-sample-filter-path nothing", out,
              sizeof out) == 2);
    CHECK_HAS(out, "--rollout-sample-filter-path: unknown name 'nothing'");
}

static void rounds_are_made_by_an_extension(void) {
    const char *x = ml_test_example();
    char out[16000], more[2000];

    make_inputs();
    snprintf(more, sizeof more, "--rollout-function-path %s:hardest --threads 1", x);
    CHECK(run(ml_test_path("one"), more, out, sizeof out) == 0);
    CHECK_HAS(out, "forward_logp_max_diff 0,");
    CHECK(file_has("one/metrics.jsonl", "\"rollout/reward_of_all\": "));
    snprintf(more, sizeof more,
             "--rollout-function-path %s:hardest --threads 2 "
             "--sglang-max-running-requests 3",
             x);
    CHECK(run(ml_test_path("two"), more, out, sizeof out) == 0);
    snprintf(more, sizeof more, "cmp %s/metrics.jsonl %s/metrics.jsonl >&2",
             ml_test_path("one"), ml_test_path("two"));
    CHECK(system(more) == 0);
    CHECK(run(ml_test_path("miles"),
              "--rollout-function-path miles.rollout.sglang_rollout.generate_rollout", out,
              sizeof out) == 0);
}

/* Without a file of prompts, resumed or not. */
static void prompts_are_made_by_an_extension(void) {
    const char *x = ml_test_example();
    char out[16000], args[3000], more[400];

    make_inputs();
    snprintf(args, sizeof args,
             "train --hf-checkpoint %s --disable-rollout-global-dataset --data-source-path "
             "%s:sums --label-key label --apply-chat-template --rollout-batch-size 4 "
             "--n-samples-per-prompt 4 --num-steps-per-rollout 2 --rm-type math "
             "--rollout-max-response-len 12 --save %s --load %s ",
             ml_test_path("model"), x, ml_test_path("save"), ml_test_path("save"));
    snprintf(more, sizeof more,
             "--num-rollout 1 --save-debug-rollout-data %s/{rollout_id}.zst",
             ml_test_dir());
    strncat(args, more, sizeof args - strlen(args) - 1);
    CHECK(ml_test_miles(out, sizeof out, args) == 0);
    CHECK_HAS(out, "what is 2+0?");
    memcpy(strstr(args, "--num-rollout 1"), "--num-rollout 2", strlen("--num-rollout 2"));
    CHECK(ml_test_miles(out, sizeof out, args) == 0);
    snprintf(more, sizeof more, "zstd -qdc %s | grep -q 'what is 0+2?'",
             ml_test_path("1.zst"));
    CHECK(system(more) == 0);
}

static void evaluations_are_made_by_an_extension(void) {
    const char *x = ml_test_example();
    char out[16000], more[2000];

    make_inputs();
    snprintf(
        more, sizeof more,
        "--eval-function-path %s:first_set --eval-interval 1 --eval-prompt-data toy %s "
        "other %s",
        x, ml_test_path("data.jsonl"), ml_test_path("data.jsonl"));
    CHECK(run(ml_test_path("save"), more, out, sizeof out) == 0);
    CHECK(file_has("save/metrics.jsonl", "\"eval/toy/worth_something\": "));
    CHECK(!file_has("save/metrics.jsonl", "\"eval/other"));
}

/* --- groups graded together, and evaluations ------------------------------------ */

/* The same rewards from a row and from Python, which both rank a group by length. */
static void groups_are_graded_together(void) {
    static const char ranker[] =
        "def reward(samples):\n"
        "    n = [len(s['response']) for s in samples]\n"
        "    return [sum(m > k for m in n) / (len(n) - 1) for k in n]\n";
    const char *x = ml_test_example();
    char out[16000], more[2000];

    make_inputs();
    ml_toy_file("ranker.py", ranker);
    snprintf(more, sizeof more, "--group-rm --custom-rm-path %s:shortest", x);
    CHECK(run(ml_test_path("row"), more, out, sizeof out) == 0);
    snprintf(more, sizeof more, "--group-rm --custom-rm-path %s",
             ml_test_path("ranker.py"));
    CHECK(run(ml_test_path("python"), more, out, sizeof out) == 0);
    snprintf(more, sizeof more, "cmp %s/metrics.jsonl %s/metrics.jsonl >&2",
             ml_test_path("row"), ml_test_path("python"));
    CHECK(system(more) == 0);
    CHECK(!file_has("row/metrics.jsonl", "\"rollout/raw_reward\": 0,"));
    CHECK(run(ml_test_path("types"), "--group-rm", out, sizeof out) == 0);
    CHECK(run(ml_test_path("alone"), "", out, sizeof out) == 0);
    snprintf(more, sizeof more, "cmp %s/metrics.jsonl %s/metrics.jsonl >&2",
             ml_test_path("types"), ml_test_path("alone"));
    CHECK(system(more) == 0);
    CHECK(run(ml_test_path("bad"),
              "--group-rm --custom-rm-path 'cmd:while read -r l; do echo [1]; done'", out,
              sizeof out) == 3);
    CHECK_HAS(out, "expected a list of 4 rewards");
}

/* What `shortest` gives: the share of the others in the group that are longer. */
static double rank_of(const ml_sample *s, int64_t n, int64_t i) {
    int n_longer = 0, n_other = 0;

    for (int64_t k = 0; k < n; k++) {
        n_other += s[k].group == s[i].group && k != i;
        n_longer += s[k].group == s[i].group && s[k].response.len > s[i].response.len;
    }
    CHECK(n_other == 3);
    return n_longer / 3.0;
}

/* Groups that end at any time are graded when the last of their answers is there. */
static void groups_are_graded_all_the_time(void) {
    char out[16000], more[2000];
    ml_sample *s = NULL;
    ml_arena a;
    int64_t n = 0;

    make_inputs();
    snprintf(more, sizeof more,
             "--fully-async --group-rm --custom-rm-path %s:shortest "
             "--rollout-stop-token-ids 1 2 3 4 5 6 7 8 9 10",
             ml_test_example());
    CHECK(run_as("train-async", ml_test_path("flow"), more, out, sizeof out) == 0);
    ml_arena_init(&a, "rounds");
    for (int r = 0; r < 2; r++) {
        snprintf(more, sizeof more, "%s/rollout_data/%d.jsonl.zst", ml_test_path("flow"),
                 r);
        CHECK(ml_samples_load(&s, &n, &a, more, NULL) == ML_OK && n == 16);
        for (int64_t i = 0; i < n; i++)
            CHECK(s[i].has_reward && fabs(s[i].reward - rank_of(s, n, i)) < 1e-6);
    }
    ml_arena_release(&a);
}

static int evaluate(const char *config, const char *more, char *out, size_t cap) {
    char args[6000];
    snprintf(args, sizeof args,
             "eval --hf-checkpoint %s --label-key label --apply-chat-template "
             "--rollout-max-response-len 12 --rm-type deterministic_random "
             "--eval-config %s %s",
             ml_test_path("model"), config, more);
    return ml_test_miles(out, cap, args);
}

static void evaluations_are_configured(void) {
    const char *x = ml_test_example(), *file = ml_test_path("eval.yaml");
    char out[16000], config[3000];

    make_inputs();
    snprintf(config, sizeof config,
             "# sets\n"
             "eval:\n"
             "  defaults: {n_samples_per_eval_prompt: 2, temperature: 0.5}\n"
             "  datasets:\n"
             "    - name: plain\n"
             "      path: '%s@[0:4]'\n"
             "    - name: math\n"
             "      path: %s\n"
             "      rm_type: math\n"
             "      n_samples_per_eval_prompt: 1\n"
             "      max_response_len: 5\n"
             "      metadata_overrides: {source: here, level: 3}\n"
             "    - name: length\n"
             "      path: %s\n"
             "      custom_rm_path: %s:length\n"
             "      stop_token_ids: [1, 2, 3, 4, 5, 6, 7, 8]\n"
             "    - name: game\n"
             "      path: %s\n"
             "      custom_generate_function_path: %s:guess\n",
             ml_test_path("data.jsonl"), ml_test_path("data.jsonl"),
             ml_test_path("data.jsonl"), x, ml_test_path("data.jsonl"), x);
    ml_toy_file("eval.yaml", config);
    CHECK(evaluate(file, "--log-passrate", out, sizeof out) == 0);
    CHECK_HAS(out, "\"eval/plain\": ");
    CHECK_HAS(out, "\"eval/plain-pass@2\": ");
    CHECK_HAS(out, "\"eval/math\": 0,");
    CHECK_HAS(out, "\"eval/math/response_len/max\": 5");
    CHECK_HAS(out, "\"eval/game\": ");
    CHECK(strstr(out, "\"eval/length\": 0,") == NULL);
    CHECK(evaluate("'datasets: {one: {path: nothing.jsonl}}'", "", out, sizeof out) != 0);
    CHECK_HAS(out, "evaluation set 'one': ");
    CHECK(evaluate("'datasets: [{name: a, path: b, temprature: 1}]'", "", out,
                   sizeof out) != 0);
    CHECK_HAS(out, "unknown key \"temprature\" of a data set");
    CHECK(evaluate("'datasets: [{name: a, path: b, top_k: many}]'", "", out, sizeof out) !=
          0);
    CHECK_HAS(out, "top_k is a string; expected a whole number");
    CHECK(evaluate("'datasets: [{name: a, path: b, rm_type: nonsense}'", "", out,
                   sizeof out) != 0);
    CHECK_HAS(out, "--eval-config:2:1: ");
    CHECK(evaluate("no.yaml", "", out, sizeof out) != 0);
    CHECK_HAS(out, "no.yaml is neither a readable file nor YAML");
    snprintf(config, sizeof config, "'datasets: [{name: a, path: %s, rm_type: nonsense}]'",
             ml_test_path("data.jsonl"));
    CHECK(evaluate(config, "", out, sizeof out) == 2);
    CHECK_HAS(out, "nonsense");
}

/* A reward of several numbers: training by one, evaluations by another. */
static void rewards_have_keys(void) {
    static const char both[] = "def reward(s):\n    return {'a': 0.25, 'b': 0.75}\n";
    char out[16000], more[2000];

    make_inputs();
    ml_toy_file("both.py", both);
    snprintf(more, sizeof more,
             "--custom-rm-path %s --reward-key a --eval-reward-key b --eval-interval 1 "
             "--eval-prompt-data toy %s",
             ml_test_path("both.py"), ml_test_path("data.jsonl"));
    CHECK(run(ml_test_path("save"), more, out, sizeof out) == 0);
    CHECK(file_has("save/metrics.jsonl", "\"rollout/raw_reward\": 0.25"));
    CHECK(file_has("save/metrics.jsonl", "\"eval/toy\": 0.75"));
}

/* A weighted sum of a built-in reward and Python's, whose parts become metrics. */
static void rewards_are_summed(void) {
    static const char both[] =
        "def reward(s):\n    return {'score': 0.5, 'short': len(s['response']) < 0, "
        "'text': 'x', 'deep': {'a': 1}}\n"
        "def half(s):\n    return 0.5\n";
    char out[16000], more[2000];

    make_inputs();
    ml_toy_file("fmt.py", both);
    snprintf(more, sizeof more,
             "--custom-rm-path zero=3,%s=0.5,%s:half=-2 --eval-interval 1 "
             "--eval-prompt-data one %s --n-samples-per-eval-prompt 1 ",
             ml_test_path("fmt.py"), ml_test_path("fmt.py"), ml_test_path("data.jsonl"));
    if (run(ml_test_path("save"), more, out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    CHECK(file_has("save/metrics.jsonl", "\"rollout/raw_reward\": -0.75"));
    CHECK(file_has("save/metrics.jsonl", "\"rollout/reward/zero\": 0,"));
    CHECK(file_has("save/metrics.jsonl", "\"rollout/reward/fmt\": 0.5,"));
    CHECK(file_has("save/metrics.jsonl", "\"rollout/reward/fmt/short\": 0,"));
    CHECK(file_has("save/metrics.jsonl", "\"rollout/reward/half\": 0.5,"));
    CHECK(!file_has("save/metrics.jsonl", "reward/fmt/text"));
    CHECK(file_has("save/metrics.jsonl", "\"eval/one\": -0.75"));
    CHECK(file_has("save/metrics.jsonl", "\"eval/one/reward/half\": 0.5"));
}

/* An extension that cannot be called is refused; the message has the object's name and the
 * extension's number. */
static void incomplete_extensions_are_refused(void) {
    static const struct {
        const char *ext, *why;
    } bad[] = {
        { "{ .base = { sizeof(miles_reward), MILES_REWARD, .alias = 0 }, .run = f }",
          "has no name" },
        { "{ .base = { sizeof(miles_reward), MILES_REWARD, \"\" }, .run = f }",
          "has no name" },
        { "{ .base = { sizeof(miles_reward), MILES_REWARD, \"r\" } }",
          "'r', a reward, lacks a function" },
        { "{ .base = { sizeof(miles_extension), MILES_REWARD, \"r\" }, .run = f }",
          "has size" },
        { "{ .base = { 0, MILES_REWARD, \"r\" }, .run = f }", "has size 0" },
    };
    char source[2000], line[2000], out[4000];

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(
            source, sizeof source,
            "#include <miles/plugin.h>\n"
            "static int f(const miles_reward_in *in, miles_reward_out *out, "
            "miles_error *e)\n{ (void)in; (void)e; out->reward = 1; return 0; }\n"
            "static const miles_reward ok = { .base = { sizeof(miles_reward), "
            "MILES_REWARD, \"fine\" }, .run = f };\n"
            "static const miles_reward bad = %s;\n"
            "static const miles_extension *const list[] = { &ok.base, &bad.base, 0 };\n"
            "static const miles_plugin p = { sizeof p, MILES_ABI_VERSION, list };\n"
            "const miles_plugin *miles_plugin_entry(void);\n"
            "const miles_plugin *miles_plugin_entry(void) { return &p; }\n",
            bad[i].ext);
        ml_toy_file("rows.c", source);
        snprintf(line, sizeof line, "cc -shared -fPIC -Iinclude -o %s %s",
                 ml_test_path("rows.so"), ml_test_path("rows.c"));
        CHECK(system(line) == 0);
        snprintf(line, sizeof line, "reward --custom-rm-path %s:fine < /dev/null",
                 ml_test_path("rows.so"));
        CHECK(ml_test_miles(out, sizeof out, line) == 1);
        CHECK_HAS(out, "extension 2 of ");
        CHECK_HAS(out, "rows.so");
        CHECK_HAS(out, bad[i].why);
    }
}

static const ml_test tests[] = {
    { "miles list shows every kind of extension", every_kind_is_listed },
    { "hooks of a plugin are called in the order of the loop", watchers_are_told },
    { "a plugin's data source and filters choose prompts and samples",
      prompts_and_samples_are_chosen },
    { "a plugin's reward post-processing changes what is trained", rewards_are_shaped },
    { "a plugin's buffer filter chooses held groups and resumes", held_groups_are_chosen },
    { "a plugin's generate function plays turns", the_game_is_played },
    { "a plugin's rollout function makes rounds", rounds_are_made_by_an_extension },
    { "a plugin's data source makes prompts without a file",
      prompts_are_made_by_an_extension },
    { "a plugin's eval function makes evaluations", evaluations_are_made_by_an_extension },
    { "--group-rm grades groups of a fully async run", groups_are_graded_all_the_time },
    { "--group-rm gives the same rewards in C and in Python", groups_are_graded_together },
    { "--eval-config sets data, sampling and rewards of each set",
      evaluations_are_configured },
    { "--reward-key and --eval-reward-key choose parts of a reward", rewards_have_keys },
    { "a weighted sum of rewards reports its parts", rewards_are_summed },
    { "an extension without a required member is refused",
      incomplete_extensions_are_refused },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
