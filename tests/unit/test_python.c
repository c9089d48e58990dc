/* Training with Python functions that have Miles' signatures. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"

static void make_inputs(void) {
    ml_text t = { 0 };

    ml_toy_model(ml_toy_chatml);
    for (int i = 0; i < 8; i++)
        ml_text_printf(&t,
                       "{\"input\": \"what is %d+%d?\", \"label\": \"%d\", \"metadata\": "
                       "{\"row\": %d}}\n",
                       i, i % 3, i + i % 3, i);
    ml_toy_file("data.jsonl", t.ptr);
    ml_text_release(&t);
}

static int run(const char *save, const char *more, char *out, size_t cap) {
    char args[3000];

    snprintf(
        args, sizeof args,
        "train --hf-checkpoint %s --prompt-data %s --label-key label --metadata-key "
        "metadata --apply-chat-template --rollout-batch-size 2 --n-samples-per-prompt 4 "
        "--num-rollout 2 --rollout-max-response-len 8 --lr 1e-3 --reward-workers 2 "
        "--lr-decay-style constant --save %s %s",
        ml_test_path("model"), ml_test_path("data.jsonl"), save, more);
    return ml_test_miles(out, cap, args);
}

static bool file_has(const char *name, const char *text) {
    char command[2000];

    snprintf(command, sizeof command, "grep -qF '%s' %s", text, ml_test_path(name));
    return system(command) == 0;
}

/* As a user of Miles writes them: imports of the package, async functions, keywords. */
static const char user_module[] =
    "import asyncio\n"
    "from miles.rollout.filter_hub.base_types import DynamicFilterOutput\n"
    "from miles.rollout.rm_hub import async_rm, grade_answer_verl\n"
    "from miles.utils.misc import load_function\n"
    "from miles.utils.processing_utils import load_tokenizer\n"
    "from miles.utils.tracking_utils import log\n"
    "from miles.utils.types import Sample\n"
    "\n"
    "async def reward_func(args, sample, **kwargs):\n"
    "    assert isinstance(sample, Sample) and sample.status in (Sample.Status.COMPLETED, "
    "Sample.Status.TRUNCATED)\n"
    "    assert args.n_samples_per_prompt == 4 and args.rm_type is None\n"
    "    assert len(sample.tokens) > sample.response_length > 0\n"
    "    assert len(sample.rollout_log_probs) == sample.response_length\n"
    "    assert isinstance(sample.metadata['row'], int) and isinstance(sample.label, str)\n"
    "    tokenizer = load_tokenizer(args.hf_checkpoint, trust_remote_code=True)\n"
    "    assert tokenizer.decode(sample.tokens[-sample.response_length:]) == "
    "sample.response\n"
    "    assert not grade_answer_verl(sample.response, sample.label)\n"
    "    await asyncio.sleep(0.01)\n"
    "    return float(sample.index % 2)\n"
    "\n"
    "async def group_rewards(args, samples, **kwargs):\n"
    "    return [float(s.index % 2) for s in samples]\n"
    "\n"
    "def keep_group(args, samples, **kwargs):\n"
    "    assert all(s.get_reward_value(args) in (0, 1) for s in samples)\n"
    "    keep = samples[0].group_index != 1\n"
    "    return DynamicFilterOutput(keep=keep, reason=None if keep else 'second')\n"
    "\n"
    "def post_process(args, samples):\n"
    "    raw = [s.get_reward_value(args) for s in samples]\n"
    "    return raw, [2 * r - 1 for r in raw]\n"
    "\n"
    "def filter_samples(args, groups):\n"
    "    assert len(groups) == 2 and len(groups[0]) == 4\n"
    "    groups[0][0].remove_sample = True\n"
    "\n"
    "def see_all(args, groups, data_source):\n"
    "    print('saw', len(groups), 'groups')\n"
    "\n"
    "def log_rollout(rollout_id, args, samples, extra_metrics, rollout_time):\n"
    "    log(args, {'rollout/mine': 7.5 + rollout_id}, step_key='rollout/step')\n"
    "    return False\n"
    "\n"
    "def on_init(args):\n"
    "    print('init', args.lr)\n"
    "\n"
    "def before_step(args, rollout_id, step_id, model, optimizer, scheduler):\n"
    "    print('step', rollout_id, step_id)\n"
    "\n"
    "def on_save(args, rollout_id, checkpoint_dir, hf_checkpoint_dir):\n"
    "    print('saved', rollout_id)\n";

static void functions_of_miles_run(void) {
    char out[20000], more[2000];

    make_inputs();
    ml_toy_file("user_module.py", user_module);
    setenv("PYTHONPATH", ml_test_dir(), 1);
    snprintf(more, sizeof more,
             "--custom-rm-path user_module.reward_func "
             "--dynamic-sampling-filter-path user_module.keep_group "
             "--custom-reward-post-process-path user_module:post_process "
             "--rollout-sample-filter-path %s/user_module.py:filter_samples "
             "--rollout-all-samples-process-path user_module.see_all "
             "--custom-rollout-log-function-path user_module.log_rollout "
             "--custom-megatron-init-path user_module.on_init "
             "--custom-megatron-before-train-step-hook-path user_module.before_step "
             "--custom-megatron-post-save-hook-path user_module.on_save",
             ml_test_dir());
    if (run(ml_test_path("save"), more, out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    CHECK(file_has("save/metrics.jsonl", "\"rollout/raw_reward\": 0.5"));
    CHECK(file_has("save/metrics.jsonl", "rollout/dynamic_filter/drop_second\": 1"));
    CHECK(file_has("save/metrics.jsonl", "\"rollout/removed_samples\": 1"));
    CHECK(file_has("save/metrics.jsonl", "\"rollout/mine\": 8.5"));
    CHECK_HAS(out, "saw 4 groups");
    CHECK_HAS(out, "init 0.001");
    CHECK_HAS(out, "step 1 0");
    CHECK_HAS(out, "saved 1");
}

/* The same bytes as with the rewards of a built-in function, for any number of workers. */
static void group_rewards_equal_single_ones(void) {
    char out[20000], more[2000];

    make_inputs();
    ml_toy_file("user_module.py", user_module);
    setenv("PYTHONPATH", ml_test_dir(), 1);
    CHECK(run(ml_test_path("one"), "--custom-rm-path user_module.reward_func", out,
              sizeof out) == 0);
    CHECK(run(ml_test_path("group"),
              "--group-rm --custom-rm-path user_module.group_rewards", out,
              sizeof out) == 0);
    snprintf(more, sizeof more, "cmp %s/metrics.jsonl %s/metrics.jsonl >&2",
             ml_test_path("one"), ml_test_path("group"));
    CHECK(system(more) == 0);
}

static void wrong_functions_are_named(void) {
    static const struct {
        const char *flag, *source, *why;
    } bad[] = {
        { "dynamic-sampling-filter-path", "def f(args, samples):\n    return None\n",
          "the filter returned None" },
        { "custom-reward-post-process-path", "def f(args, samples):\n    return [1]\n",
          "no pair (raw rewards, processed rewards)" },
        { "custom-reward-post-process-path", "def f(args, samples):\n    return [1], [1]\n",
          "returned 1 processed rewards for 8 samples" },
        { "custom-reward-post-process-path",
          "def f(args, samples):\n    return None, [float('nan')] * len(samples)\n",
          "entry 0 of the processed rewards is 'nan'" },
        { "rollout-sample-filter-path", "def f(args, groups):\n    groups[9]\n",
          "IndexError: list index out of range (" },
        { "custom-megatron-init-path", "import os\ndef f(args):\n    os._exit(9)\n",
          "exited with status 9" },
    };
    char out[20000], more[2000];

    make_inputs();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ml_toy_file("bad.py", bad[i].source);
        snprintf(more, sizeof more, "--overwrite --rm-type deterministic_random --%s %s:f",
                 bad[i].flag, ml_test_path("bad.py"));
        CHECK(run(ml_test_path("bad"), more, out, sizeof out) != 0);
        CHECK_HAS(out, bad[i].why);
        CHECK_HAS(out, "bad.py");
        CHECK(!ml_test_has(out, "Traceback"));
    }
}

/* Before weights are loaded, with the flag. */
static void missing_functions_are_named(void) {
    char out[20000];

    make_inputs();
    CHECK(run(ml_test_path("bad"),
              "--rm-type math --dynamic-sampling-filter-path no.such.f", out,
              sizeof out) == 1);
    CHECK_HAS(out,
              "--dynamic-sampling-filter-path: no.such.f: ModuleNotFoundError: No module "
              "named 'no' (add its directory to PYTHONPATH)");
    CHECK(run(ml_test_path("bad"),
              "--rm-type math --dynamic-sampling-filter-path json.nope", out,
              sizeof out) == 1);
    CHECK_HAS(out, "json.nope: NameError: the module json has no function nope");
    CHECK(!ml_test_has(out, "weights"));
}

static const ml_test tests[] = {
    { "Python functions with Miles' signatures run in a training run",
      functions_of_miles_run, 120 },
    { "Python rewards of groups equal single ones", group_rewards_equal_single_ones, 120 },
    { "Python functions that return nonsense are named", wrong_functions_are_named, 120 },
    { "Python functions that are missing are named before weights are loaded",
      missing_functions_are_named, 60 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
