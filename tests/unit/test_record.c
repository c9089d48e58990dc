/* What a run writes down of itself, and what it is held against, from the outside. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_run.h"

static char out[16000], more[2000], command[2000];

static int run(const char *save, int rounds) {
    return ml_toy_run("train", ml_test_path(save), rounds, more, out, sizeof out);
}

static bool file_has(const char *name, const char *text) {
    snprintf(command, sizeof command, "grep -qF '%s' %s", text, ml_test_path(name));
    return system(command) == 0;
}

static bool same_files(const char *a, const char *b) {
    snprintf(command, sizeof command, "cmp -s %s %s", ml_test_path(a), ml_test_path(b));
    return system(command) == 0;
}

static void what_is_trained_on(void) {
    ml_toy_run_inputs();
    snprintf(more, sizeof more, "--dump-details %s --use-rollout-entropy",
             ml_test_path("dump"));
    CHECK(run("a", 2) == 0);
    snprintf(command, sizeof command,
             "test $(zstd -qdc %s/train_data/1_0.jsonl.zst | grep -c "
             "'\"tokens\".*\"log_probs\".*\"entropy\".*\"advantages\"') = 16",
             ml_test_path("dump"));
    CHECK(system(command) == 0);
    CHECK(file_has("a/metrics.jsonl", "\"rollout/entropy\": "));
    CHECK(file_has("dump/event_data/events.jsonl", "train_group_step_end"));
    more[0] = 0;
    CHECK(run("b", 2) == 0);
    CHECK(!file_has("b/metrics.jsonl", "\"rollout/entropy\": "));
    CHECK(
        same_files("a/iter_0000001/model.safetensors", "b/iter_0000001/model.safetensors"));
}

/* A round of old samples is found out; so is one that was trained on before. */
static void samples_of_other_weights(void) {
    ml_toy_run_inputs();
    snprintf(more, sizeof more,
             "--true-on-policy-mode --recompute-logprobs-via-prefill --rollout-temperature "
             "0.8 --save-debug-rollout-data %s/{rollout_id}.zst --enable-witness",
             ml_test_dir());
    CHECK(run("a", 2) == 0);
    CHECK(file_has("a/metrics.jsonl", "\"rollout/prefill_logp_max_diff\": 0"));
    snprintf(more, sizeof more,
             "--rollout-temperature 0.8 --load-debug-rollout-data %s/0.zst", ml_test_dir());
    CHECK(run("b", 2) == 0);
    snprintf(more, sizeof more,
             "--rollout-temperature 0.8 --load-debug-rollout-data %s/0.zst "
             "--true-on-policy-mode",
             ml_test_dir());
    CHECK(run("c", 2) == 1);
    CHECK_HAS(out, "tokens of rollout 1 were not drawn with the current weights");
    snprintf(
        more, sizeof more,
        "--rollout-temperature 0.8 --load-debug-rollout-data %s/0.zst --enable-witness",
        ml_test_dir());
    CHECK(run("d", 2) == 1);
    CHECK_HAS(out,
              "rollout 1 trains on sample 0, but rollout 0, step 0, trained on it before");
    snprintf(more, sizeof more, "--enable-witness --witness-buffer-size 15");
    CHECK(run("e", 1) == 2);
    CHECK_HAS(out, "is less than the 16 samples of a rollout");
    snprintf(more, sizeof more, "--true-on-policy-mode");
    CHECK(ml_toy_run("train-async", ml_test_path("f"), 2, more, out, sizeof out) == 2);
    CHECK_HAS(out, "--true-on-policy-mode needs every token");
    snprintf(more, sizeof more, "--recompute-logprobs-via-prefill");
    CHECK(run("g", 2) == 2);
    CHECK_HAS(out, "needs --true-on-policy-mode");
}

static void rounds_are_injected(void) {
    ml_toy_run_inputs();
    snprintf(more, sizeof more,
             "--save-debug-rollout-data %s/{rollout_id}.zst --ci-save-model-hash %s",
             ml_test_dir(), ml_test_path("first"));
    CHECK(run("a", 2) == 0);
    snprintf(more, sizeof more,
             "--ci-inject-rollout-data-path %s/{rollout_id}.zst --rollout-seed 7 "
             "--rollout-temperature 1.0 --ci-save-model-hash %s "
             "--ci-inject-rollout-data-min-match-ratio 0",
             ml_test_dir(), ml_test_path("second"));
    CHECK(run("b", 2) == 0);
    CHECK(same_files("first", "second"));
    CHECK(file_has("b/metrics.jsonl", "\"rollout/injected_match_ratio\": 0"));
    snprintf(more, sizeof more, "--ci-inject-rollout-data-path %s/{rollout_id}.zst",
             ml_test_dir());
    CHECK(run("c", 2) == 0);
    CHECK(file_has("c/metrics.jsonl", "\"rollout/injected_match_ratio\": 1"));
    snprintf(more, sizeof more,
             "--ci-inject-rollout-data-path %s/{rollout_id}.zst --rollout-seed 7 "
             "--ci-inject-rollout-data-start-rollout-id 1",
             ml_test_dir());
    CHECK(run("d", 1) == 0);
    CHECK(run("e", 2) == 1);
    CHECK_HAS(out, "a fraction of the recorded samples of rollout 1, ");
}

/* Rewrites a recording by a sed script. */
static void rewrite(const char *script) {
    snprintf(command, sizeof command, "zstd -qdc %s | sed '%s' | zstd -qfo %s",
             ml_test_path("0.zst"), script, ml_test_path("bad.zst"));
    CHECK(system(command) == 0);
}

/* A recording is checked where it comes in: the model has 83 tokens. */
static void recordings_of_other_models(void) {
    ml_toy_run_inputs();
    snprintf(more, sizeof more, "--save-debug-rollout-data %s/{rollout_id}.zst",
             ml_test_dir());
    CHECK(run("a", 1) == 0);
    rewrite("2s/\"tokens\": *\\[/&83,/");
    snprintf(more, sizeof more, "--load-debug-rollout-data %s", ml_test_path("bad.zst"));
    CHECK(run("b", 1) == 1);
    CHECK_HAS(out, "bad.zst: sample 1 has token 83; the largest token id is 82");
    snprintf(more, sizeof more,
             "--ci-inject-rollout-data-path %s --ci-inject-rollout-data-min-match-ratio 0",
             ml_test_path("bad.zst"));
    CHECK(run("c", 1) == 1);
    CHECK_HAS(out, "bad.zst: sample 1 has token 83");
    rewrite("1s/\"rollout_log_probs\": *\\[[^,]*/\"rollout_log_probs\": [null/");
    snprintf(more, sizeof more, "--load-debug-rollout-data %s", ml_test_path("bad.zst"));
    CHECK(run("d", 1) == 1);
    CHECK_HAS(out, "element 0 of \"rollout_log_probs\" is not a number");
}

/* What generates stays as it was, and a comparison says so unless nothing is compared. */
static void weights_are_not_published(void) {
    ml_toy_run_inputs();
    snprintf(more, sizeof more, "--debug-skip-weight-update");
    CHECK(run("a", 2) == 0);
    CHECK(!file_has("a/metrics.jsonl", "\"rollout/forward_logp_max_diff\": 1"));
    snprintf(command, sizeof command,
             "test $(grep -c '\"rollout/stale_tokens\": 0' %s/metrics.jsonl) = 1",
             ml_test_path("a"));
    CHECK(system(command) == 0);
    snprintf(more, sizeof more, "--debug-skip-weight-update --check-weight-update-equal");
    CHECK(run("b", 2) == 1);
    CHECK_HAS(out, "in the trainer and ");
    snprintf(more, sizeof more,
             "--debug-skip-weight-update --check-weight-update-equal "
             "--check-weight-update-skip-list model. lm_head");
    CHECK(run("c", 2) == 0);
    snprintf(more, sizeof more,
             "--debug-skip-weight-update --check-weight-update-equal "
             "--check-weight-update-skip-list embed_tokens");
    CHECK(run("d", 2) == 1);
}

static void memory_is_recorded(void) {
    ml_toy_run_inputs();
    snprintf(more, sizeof more,
             "--record-memory-history --memory-snapshot-dir %s "
             "--memory-snapshot-num-steps 1",
             ml_test_path("memory"));
    CHECK(run("a", 2) == 0);
    CHECK(file_has("memory/memory_snapshot_rollout_0.json", "\"buffers\": {\""));
    CHECK(access(ml_test_path("memory/memory_snapshot_rollout_1.json"), F_OK) != 0);
    snprintf(more, sizeof more,
             "--record-memory-history --memory-snapshot-dir %s --memory-recorder memray",
             ml_test_path("memory"));
    CHECK(run("b", 2) == 0);
    CHECK(file_has("memory/memory_snapshot_rollout_1.json", "\"heap\": {\"in_use\": "));
}

/* A resumed run goes on with the events of the one before; another run does not fit them. */
static void events_are_analysed(void) {
    ml_toy_run_inputs();
    snprintf(more, sizeof more,
             "--save-debug-event-data %s --enable-event-analyzer --enable-witness",
             ml_test_path("events"));
    CHECK(run("a", 2) == 0);
    CHECK(run("a", 3) == 0);
    CHECK(file_has("events/events.jsonl", "inference_engine_weight_checksum"));
    CHECK(file_has("events/events.jsonl", "\"type\": \"witness_snapshot_param\""));
    snprintf(more, sizeof more,
             "--save-debug-event-data %s --enable-event-analyzer --rollout-seed 7",
             ml_test_path("events"));
    CHECK(run("b", 2) == 1);
    CHECK_HAS(out, "weight version 3 has the checksum ");
    snprintf(more, sizeof more, "--enable-event-analyzer");
    CHECK(run("c", 2) == 2);
    CHECK_HAS(out, "needs --save-debug-event-data");
}

/* Files of the phase that have a tensor of this name. */
static int n_dumped(const char *phase, const char *name) {
    char text[40] = "";
    FILE *f;

    snprintf(command, sizeof command,
             "grep -lr '%s' %s/dump/%s/rollout_1 2>/dev/null | wc -l", name, ml_test_dir(),
             phase);
    f = popen(command, "r");
    CHECK(f && fgets(text, sizeof text, f));
    if (f)
        pclose(f);
    return atoi(text);
}

static void tensors_are_dumped(void) {
    ml_toy_run_inputs();
    snprintf(
        more, sizeof more,
        "--dumper-enable --dumper-dir %s/dump --use-rollout-entropy --eval-interval 100 "
        "--skip-eval-before-train --dumper-inference filter=lmhead",
        ml_test_dir());
    CHECK(run("a", 2) == 0);
    CHECK(n_dumped("inference", "lmhead") >= 12);
    CHECK(n_dumped("inference", "down_proj") == 0);
    CHECK(n_dumped("fwd-only", "linear.model.layers.0.mlp.down_proj") >= 1);
    CHECK(n_dumped("fwd-bwd", "\"grad.*linear.model.layers.0.mlp.down_proj") >= 2);
    CHECK(n_dumped("fwd-only", "\"grad") == 0);
    more[0] = 0;
    CHECK(run("b", 2) == 0);
    CHECK(
        same_files("a/iter_0000001/model.safetensors", "b/iter_0000001/model.safetensors"));
    snprintf(more, sizeof more, "--dumper-fwd-bwd filter");
    CHECK(run("c", 1) == 2);
    CHECK_HAS(out, "expected enable=1, enable=0 or filter=PART");
}

/* The figures are those of evaluations between rounds, whenever they come. */
static void evaluations_meanwhile(void) {
    ml_toy_run_inputs();
    snprintf(more, sizeof more, "--eval-interval 1");
    CHECK(run("here", 3) == 0);
    snprintf(more, sizeof more,
             "--eval-interval 1 --eval-num-gpus 2 --eval-num-gpus-per-engine 1 "
             "--eval-max-in-flight 1 --eval-keep-snapshots 1 --eval-hf-dir %s",
             ml_test_path("snapshots"));
    CHECK(run("meanwhile", 3) == 0);
    snprintf(command, sizeof command,
             "grep eval/toy %s/metrics.jsonl > %s && grep eval/toy %s/metrics.jsonl > %s",
             ml_test_path("here"), ml_test_path("one"), ml_test_path("meanwhile"),
             ml_test_path("two"));
    CHECK(system(command) == 0);
    CHECK(same_files("one", "two"));
    CHECK(access(ml_test_path("snapshots/step_2/config.json"), F_OK) == 0);
    CHECK(access(ml_test_path("snapshots/step_1"), F_OK) != 0);
    snprintf(more, sizeof more,
             "--eval-interval 1 --eval-num-gpus 1 --eval-max-in-flight 1 "
             "--eval-overflow-policy skip --eval-max-response-len 60");
    CHECK(run("skip", 4) == 0);
    snprintf(command, sizeof command,
             "test $(grep -cE 'eval/toy\"|eval/skipped_busy' %s/metrics.jsonl) = 5",
             ml_test_path("skip"));
    CHECK(system(command) == 0);
    snprintf(more, sizeof more, "--eval-num-gpus 3 --eval-num-gpus-per-engine 2");
    CHECK(run("bad", 1) == 2);
    CHECK_HAS(out, "must be a multiple of --eval-num-gpus-per-engine");
}

/* Flags of another model are refused; what is random follows the seed. */
static void claims_of_the_model(void) {
    ml_toy_run_inputs();
    snprintf(more, sizeof more, "--padded-vocab-size 3 --model-name llama");
    CHECK(run("a", 1) == 2);
    CHECK_HAS(out, "--padded-vocab-size is 3, but config.json has ");
    CHECK_HAS(out, "--model-name is llama, but config.json has qwen3");
    snprintf(more, sizeof more,
             "--padded-vocab-size 100000 --model-name Qwen3Config --dtype bf16 "
             "--check-rematerialize-param-from-master-weight");
    CHECK(run("b", 1) == 0);
}

static void a_critic_begins_by_its_seed(void) {
    ml_toy_run_inputs();
    snprintf(more, sizeof more, "--advantage-estimator ppo");
    CHECK(run("a", 1) == 0);
    snprintf(more, sizeof more, "--advantage-estimator ppo --seed 1234");
    CHECK(run("b", 1) == 0);
    snprintf(more, sizeof more, "--advantage-estimator ppo --seed 5");
    CHECK(run("c", 1) == 0);
    CHECK(same_files("a_critic/iter_0000000/model.safetensors",
                     "b_critic/iter_0000000/model.safetensors"));
    CHECK(!same_files("a_critic/iter_0000000/model.safetensors",
                      "c_critic/iter_0000000/model.safetensors"));
}

/* Evaluations end where their own context does. */
static void evaluations_have_a_context(void) {
    ml_toy_run_inputs();
    snprintf(more, sizeof more, "--eval-interval 1 --eval-max-response-len 40");
    CHECK(run("a", 1) == 0);
    CHECK(file_has("a/metrics.jsonl", "\"eval/toy/response_len/max\": 40"));
    snprintf(more, sizeof more,
             "--eval-interval 1 --eval-max-response-len 40 --eval-max-context-len 60");
    CHECK(run("b", 1) == 0);
    CHECK(!file_has("b/metrics.jsonl", "\"eval/toy/response_len/max\": 40"));
    CHECK(file_has("b/metrics.jsonl", "\"rollout/response_len/max\": 12"));
}

static const ml_test tests[] = {
    { "--dump-details records what is trained on", what_is_trained_on },
    { "--true-on-policy-mode finds samples of other weights", samples_of_other_weights },
    { "injected rounds train to the same weights", rounds_are_injected },
    { "a recording of another model is refused", recordings_of_other_models },
    { "--debug-skip-weight-update leaves the engine's weights and is noticed",
      weights_are_not_published },
    { "--record-memory-history writes snapshots", memory_is_recorded },
    { "--enable-event-analyzer finds events of another run", events_are_analysed },
    { "--dumper-enable writes tensors of the chosen ops", tensors_are_dumped },
    { "evaluations during training give the metrics of those between rounds",
      evaluations_meanwhile },
    { "model flags that contradict config.json are refused", claims_of_the_model },
    { "a critic's first weights follow --seed", a_critic_begins_by_its_seed },
    { "evaluations end at their own context length", evaluations_have_a_context },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
