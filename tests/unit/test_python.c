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

static int run_as(const char *command, const char *save, const char *more, char *out,
                  size_t cap) {
    char args[6000];

    snprintf(
        args, sizeof args,
        "%s --hf-checkpoint %s --prompt-data %s --label-key label --metadata-key "
        "metadata --apply-chat-template --rollout-batch-size 2 --n-samples-per-prompt 4 "
        "--num-rollout 2 --rollout-max-response-len 8 --lr 1e-3 --reward-workers 2 "
        "--lr-decay-style constant --save %s %s",
        command, ml_test_path("model"), ml_test_path("data.jsonl"), save, more);
    return ml_test_miles(out, cap, args);
}

static int run(const char *save, const char *more, char *out, size_t cap) {
    return run_as("train", save, more, out, cap);
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

/* A multi-turn function as Miles' examples have them: tokens as they were drawn, and masked
 * tokens in between. */
static const char generate_module[] =
    "from miles.rollout.sglang_rollout import GenerateState\n"
    "from miles.rollout.sglang_rollout import generate as single\n"
    "from miles.utils.http_utils import post\n"
    "from miles.utils.types import Sample\n"
    "\n"
    "async def two_turns(args, sample: Sample, sampling_params) -> Sample:\n"
    "    state = GenerateState(args)\n"
    "    url = f'http://{args.sglang_router_ip}:{args.sglang_router_port}/generate'\n"
    "    prompt = state.tokenizer(sample.prompt, add_special_tokens=False)['input_ids']\n"
    "    sampling_params['max_new_tokens'] = 3\n"
    "    tokens, mask, logs, text = [], [], [], ''\n"
    "    for turn in range(2):\n"
    "        out = await post(url, {'input_ids': prompt + tokens, 'sampling_params': "
    "sampling_params, 'return_logprob': True})\n"
    "        drawn = out['meta_info']['output_token_logprobs']\n"
    "        tokens += [t[1] for t in drawn]; logs += [t[0] for t in drawn]\n"
    "        mask += [1] * len(drawn); text += out['text']\n"
    "        if turn == 0:\n"
    "            said = state.tokenizer.encode(' and?', add_special_tokens=False)\n"
    "            tokens += said; logs += [0.0] * len(said); mask += [0] * len(said)\n"
    "            text += ' and?'\n"
    "    sample.tokens, sample.response_length = prompt + tokens, len(tokens)\n"
    "    sample.loss_mask, sample.rollout_log_probs, sample.response = mask, logs, text\n"
    "    sample.weight_versions.append(out['meta_info']['weight_version'])\n"
    "    sample.status = Sample.Status.COMPLETED\n"
    "    return sample\n"
    "\n"
    "async def one_turn(args, sample, sampling_params, evaluation=False):\n"
    "    return await single(args, sample, sampling_params)\n"
    "\n"
    "class Turn:\n"
    "    async def __call__(self, input):\n"
    "        from miles.rollout.generate_hub.single_turn import generate\n"
    "        return await generate(input)\n"
    "\n"
    "async def tree(input):\n"
    "    from miles.adapters.episode import Episode\n"
    "    from miles.rollout.base_types import GenerateFnOutput\n"
    "    episode = Episode(input)\n"
    "    asked = [{'role': 'user', 'content': 'solve'}]\n"
    "    first, _ = await episode.chat(asked, max_new_tokens=3)\n"
    "    judged = [{'role': 'user', 'content': 'is this right? ' + repr(first)}]\n"
    "    await episode.chat(judged, max_new_tokens=3)\n"
    "    assert len(episode.samples) == 2\n"
    "    episode.samples[1].reward = 1.0\n"
    "    more = [{'role': 'assistant', 'content': first}, {'role': 'user', 'content': 'go "
    "on'}]\n"
    "    await episode.chat(asked + more, max_new_tokens=3)\n"
    "    assert 2 <= len(episode.samples) <= 3\n"
    "    return GenerateFnOutput(episode.finish(reward=float(input.sample.index % 2)))\n"
    "\n"
    "async def agents(args, sample, sampling_params):\n"
    "    import copy\n"
    "    out = [await single(args, copy.deepcopy(sample), dict(sampling_params)) for _ in "
    "range(3)]\n"
    "    out[1].reward = 5.0\n"
    "    return out\n"
    "\n"
    "async def wrong(args, sample, sampling_params):\n"
    "    sample.tokens, sample.response_length = [1, 2], 1\n"
    "    sample.rollout_log_probs = [0.0, 0.0]\n"
    "    return sample\n"
    "\n"
    "async def many(args, sample, sampling_params):\n"
    "    sample.tokens, sample.response_length = [1, 10 ** 7], 1\n"
    "    sample.rollout_log_probs = [0.0]\n"
    "    return sample\n";

/* A class as Miles has them, and a function; both take prompts from the data source. */
static const char rollout_module[] =
    "import asyncio\n"
    "from miles.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput\n"
    "from miles.rollout.inference_rollout.inference_rollout_common import "
    "InferenceRolloutFn, GenerateState, generate_and_rm_group\n"
    "from miles.rollout.sglang_rollout import generate_rollout as base\n"
    "\n"
    "class Rollout:\n"
    "    def __init__(self, input):\n"
    "        self.args, self.data_source = input.args, input.data_source\n"
    "        self.state = GenerateState(input.args)\n"
    "    async def __call__(self, input):\n"
    "        assert not input.evaluation\n"
    "        groups = self.data_source.get_samples(self.args.rollout_batch_size)\n"
    "        groups = await asyncio.gather(*(generate_and_rm_group(self.state, g, "
    "self.state.sampling_params) for g in groups))\n"
    "        return RolloutFnTrainOutput(samples=groups, metrics={'rollout/own': 3.0})\n"
    "\n"
    "def extended(args, rollout_id, data_source, evaluation=False):\n"
    "    out = base(args, rollout_id, data_source, evaluation=evaluation)\n"
    "    out.metrics = {('eval/own' if evaluation else 'rollout/own'): 5.0 + rollout_id}\n"
    "    return out\n"
    "\n"
    "class Extended(InferenceRolloutFn):\n"
    "    pass\n"
    "\n"
    "def short(args, rollout_id, data_source, evaluation=False):\n"
    "    return [[s for s in data_source.get_samples(1)[0]]]\n";

static void rollout_functions_of_miles_run(void) {
    static const char *const name[] = { "Rollout", "extended", "Extended" };
    char out[20000], more[2000];

    make_inputs();
    ml_toy_file("rollout_module.py", rollout_module);
    setenv("PYTHONPATH", ml_test_dir(), 1);
    for (int i = 0; i < 3; i++) {
        snprintf(more, sizeof more,
                 "--overwrite --rm-type deterministic_random --rollout-function-path "
                 "rollout_module.%s",
                 name[i]);
        if (run(ml_test_path("a"), more, out, sizeof out) != 0)
            ml_test_fail(__FILE__, __LINE__, "%s: %s", name[i], out);
        CHECK_HAS(out, "rollout 1, step 1: loss ");
        CHECK_HAS(out, "forward_logp_max_diff 0,");
        if (i < 2)
            CHECK(file_has("a/metrics.jsonl",
                           i ? "\"rollout/own\": 6" : "\"rollout/own\": 3"));
    }
    snprintf(more, sizeof more,
             "--overwrite --rm-type deterministic_random --eval-function-path "
             "rollout_module.extended --eval-interval 1 --eval-prompt-data toy %s",
             ml_test_path("data.jsonl"));
    if (run(ml_test_path("a"), more, out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    CHECK(file_has("a/metrics.jsonl", "\"eval/own\": 6"));
    CHECK(file_has("a/metrics.jsonl", "\"eval/toy\": 0."));
    CHECK(run(ml_test_path("a"),
              "--overwrite --rm-type zero --rollout-function-path rollout_module.short",
              out, sizeof out) != 0);
    CHECK_HAS(out, "--rollout-function-path: ");
}

/* The log-probs of the samples are those of training, to the bit: forward_logp_max_diff is
 * 0.  A second run trains the same parameters, also with engines in other processes. */
static void generate_functions_of_miles_run(void) {
    static const char *const name[] = { "generate_module.two_turns",
                                        "generate_module.one_turn",
                                        "generate_module.Turn" };
    const char *file = "iter_0000001/model.safetensors";
    char out[20000], more[2000];

    make_inputs();
    ml_toy_file("generate_module.py", generate_module);
    setenv("PYTHONPATH", ml_test_dir(), 1);
    for (int i = 0; i < 3; i++)
        for (int again = 0; again < 2; again++) {
            snprintf(more, sizeof more,
                     "--overwrite --rm-type deterministic_random "
                     "--custom-generate-function-path %s %s",
                     name[i], i == 0 && again ? "--rollout-num-engines 2" : "");
            if (run(ml_test_path(again ? "b" : "a"), more, out, sizeof out) != 0)
                ml_test_fail(__FILE__, __LINE__, "%s: %s", name[i], out);
            CHECK_HAS(out, "rollout 1, step 1: loss ");
            CHECK_HAS(out, "forward_logp_max_diff 0,");
            if (again) {
                snprintf(more, sizeof more, "cmp %s/%s %s/%s >&2", ml_test_path("a"), file,
                         ml_test_path("b"), file);
                CHECK(system(more) == 0);
            }
        }
    if (run(ml_test_path("d"),
            "--rm-type deterministic_random --custom-generate-function-path "
            "generate_module.agents --global-batch-size 8",
            out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    CHECK_HAS(out, "24 samples of 2 prompts");
    CHECK_HAS(out, "reward 0 to 5");
    if (run(ml_test_path("e"),
            "--custom-generate-function-path generate_module.tree --global-batch-size 8 "
            "--rollout-max-response-len 200 --num-rollout 1",
            out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    CHECK_HAS(out, "forward_logp_max_diff 0,");
    CHECK_HAS(out, "reward 0 to 1");
    CHECK(run(ml_test_path("c"),
              "--rm-type zero --custom-generate-function-path generate_module.wrong", out,
              sizeof out) == 3);
    CHECK_HAS(out, "rollout_log_probs has 2 entries, but response_length is 1");
    CHECK(run(ml_test_path("c"),
              "--overwrite --rm-type zero --custom-generate-function-path "
              "generate_module.many",
              out, sizeof out) == 3);
    CHECK_HAS(out, "has token 10000000");
}

/* PPO's clipped loss, three ways: derivatives by autograd, by hand, and miles' own. */
static const char loss_module[] =
    "import math\n"
    "try:\n"
    "    import torch\n"
    "except ImportError:\n"
    "    torch = None\n"
    "from miles.backends.training_utils.loss_hub.logit_processors import "
    "get_log_probs_and_entropy\n"
    "\n"
    "def by_autograd(args, batch, logits, sum_of_sample_mean):\n"
    "    out = get_log_probs_and_entropy(logits, args=args, unconcat_tokens=None, "
    "total_lengths=batch['total_lengths'], response_lengths=batch['response_lengths'])\n"
    "    now, old = torch.cat(out['log_probs']), torch.cat(batch['log_probs'])\n"
    "    advantages, ratio = torch.cat(batch['advantages']), (now - old).exp()\n"
    "    clipped = ratio.clamp(1 - args.eps_clip, 1 + args.eps_clip)\n"
    "    loss = sum_of_sample_mean(torch.maximum(-ratio * advantages, -clipped * "
    "advantages))\n"
    "    return loss, {'my_ratio': sum_of_sample_mean(ratio.detach())}\n"
    "\n"
    "def by_hand(args, batch, logits, sum_of_sample_mean):\n"
    "    now, old, mask = logits.log_probs[0], batch['log_probs'][0], "
    "batch['loss_masks'][0]\n"
    "    values, d, ratios, n = [], [], [], max(sum(mask), 1)\n"
    "    for x, y, a, m in zip(now, old, batch['advantages'][0], mask):\n"
    "        r = math.exp(x - y)\n"
    "        plain, clipped = -r * a, -min(max(r, 1 - args.eps_clip), 1 + args.eps_clip) * "
    "a\n"
    "        values.append(max(plain, clipped)); ratios.append(r)\n"
    "        d.append(-r * a * m / n if plain >= clipped else 0.0)\n"
    "    return sum_of_sample_mean(values), {'my_ratio': sum_of_sample_mean(ratios)}, d\n"
    "\n"
    "grpo = by_autograd if torch else by_hand\n"
    "\n"
    "def weights(*, args, pg_loss, train_log_probs, rollout_log_probs, loss_masks, "
    "response_lengths, **kwargs):\n"
    "    return pg_loss, loss_masks, {}\n"
    "\n"
    "def reducer(total_lengths, response_lengths, loss_masks, calculate_per_token_loss):\n"
    "    def reduce(x):\n"
    "        total, at = 0.0, 0\n"
    "        for n, mask in zip(response_lengths, loss_masks):\n"
    "            total += sum(float(a * b) for a, b in zip(x[at:at + n], mask)) / 8.0\n"
    "            at += n\n"
    "        return total\n"
    "    return reduce\n"
    "\n"
    "def estimator(args, data):\n"
    "    out = [[r] * n for r, n in zip(data['rewards'], data['response_lengths'])]\n"
    "    return out, out\n"
    "\n"
    "def zero(args, batch, logits, sum_of_sample_mean):\n"
    "    out = list(grpo(args, batch, logits, sum_of_sample_mean))\n"
    "    out[0] = out[0] * 0.0\n"
    "    out[2:] = [[0.0] * len(x) for x in out[2:]]\n"
    "    return tuple(out)\n"
    "\n"
    "def adds_grpo(args, rollout_id, step_id, model, optimizer, scheduler):\n"
    "    model[0].add_loss(grpo)\n"
    "\n"
    "def changes(args, rollout_id, step_id, model, optimizer, scheduler):\n"
    "    from miles.utils.tracking_utils import log\n"
    "    for group in optimizer.param_groups:\n"
    "        assert group['lr'] == args.lr\n"
    "        group['lr'] = 0.125\n"
    "    if rollout_id == 0:\n"
    "        model[0].scale_grads('*', 0)\n"
    "    else:\n"
    "        model[0].clip_grads('model.layers.0.*', 1e-3)\n"
    "        model[0].scale_grads('model.[en]*', 0)\n"
    "        model[0].scale_grads('lm_head*', 0)\n"
    "        model[0].scale_grads('model.layers.[!0]*', 0)\n"
    "    log(args, {'train/mine': 4.5}, step_key='train/step')\n"
    "\n"
    "def wrong_name(args, rollout_id, step_id, model, optimizer, scheduler):\n"
    "    model[0].clip_grads('nothing.*', 1.0)\n"
    "\n"
    "def wrong_rate(args, rollout_id, step_id, model, optimizer, scheduler):\n"
    "    optimizer.param_groups[0]['lr'] = -1\n"
    "\n"
    "def nan(args, batch, logits, sum_of_sample_mean):\n"
    "    out = list(grpo(args, batch, logits, sum_of_sample_mean))\n"
    "    out[0] = out[0] * float('nan')\n"
    "    return tuple(out)\n"
    "\n"
    "def short(args, batch, logits, sum_of_sample_mean):\n"
    "    return 1.0\n";

/* Two snapshots of the same parameters, as far as f32 shows. */
static const char compare[] =
    "import json, struct, sys\n"
    "def read(path):\n"
    "    data = open(path, 'rb').read()\n"
    "    n = struct.unpack('<Q', data[:8])[0]\n"
    "    head = json.loads(data[8:8 + n]); head.pop('__metadata__', None)\n"
    "    out = {}\n"
    "    for name, t in head.items():\n"
    "        a, b = t['data_offsets']; raw = data[8 + n + a:8 + n + b]\n"
    "        if t['dtype'] == 'BF16':\n"
    "            raw = b''.join(b'\\0\\0' + raw[i:i + 2] for i in range(0, len(raw), 2))\n"
    "        out[name] = struct.unpack('<%df' % (len(raw) // 4), raw)\n"
    "    return out\n"
    "a, b = read(sys.argv[1]), read(sys.argv[2])\n"
    "worst = max(abs(x - y) for k in a for x, y in zip(a[k], b[k]))\n"
    "print('largest difference', worst, file=sys.stderr)\n"
    "sys.exit(not (a.keys() == b.keys() and worst <= 1e-6))\n";

static int train(const char *save, const char *more, char *out, size_t cap) {
    char args[3000];

    snprintf(args, sizeof args,
             "--rm-type deterministic_random --overwrite --num-rollout 3 "
             "--global-batch-size 4 --lr 1e-2 --save-interval 1 %s",
             more);
    return run(ml_test_path(save), args, out, cap);
}

static bool same_parameters(const char *a, const char *b) {
    char command[2000];

    ml_toy_file("compare.py", compare);
    snprintf(command, sizeof command,
             "python3 %s $(ls -d %s/iter_*2 | tail -1)/model.safetensors "
             "$(ls -d %s/iter_*2 | tail -1)/model.safetensors",
             ml_test_path("compare.py"), ml_test_path(a), ml_test_path(b));
    return system(command) == 0;
}

static void a_python_loss_equals_ours(void) {
    char out[20000];

    make_inputs();
    ml_toy_file("loss_module.py", loss_module);
    setenv("PYTHONPATH", ml_test_dir(), 1);
    if (train("own", "", out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    if (train("python",
              "--loss-type custom_loss --custom-loss-function-path loss_module.grpo "
              "--advantage-estimator loss_module.estimator",
              out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    CHECK(same_parameters("own", "python"));
    CHECK(file_has("python/metrics.jsonl", "\"train/my_ratio\": 1."));
    if (train("python",
              "--use-tis --custom-tis-function-path loss_module.weights "
              "--custom-pg-loss-reducer-function-path loss_module.reducer",
              out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    if (train("reduced", "--custom-pg-loss-reducer-function-path drgrpo --drgrpo-divisor 8",
              out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    CHECK(same_parameters("python", "reduced"));
    CHECK(!same_parameters("own", "reduced"));
    CHECK(train("bad",
                "--loss-type custom_loss --custom-loss-function-path loss_module.nan", out,
                sizeof out) != 0);
    CHECK_HAS(out, "loss_module.nan: ");
    CHECK(train("bad",
                "--loss-type custom_loss --custom-loss-function-path loss_module.short",
                out, sizeof out) != 0);
    CHECK_HAS(out, "TypeError: ");
}

/* Lines of a file of metrics whose number under this name is within the bounds. */
static int n_within(const char *name, const char *key, double low, double high) {
    char command[2000];
    int status;

    ml_toy_file("count.py",
                "import json, sys\n"
                "rows = [json.loads(x) for x in open(sys.argv[1])]\n"
                "low, high = map(float, sys.argv[3:])\n"
                "sys.exit(sum(low <= r.get(sys.argv[2], -1) <= high for r in rows))\n");
    snprintf(command, sizeof command, "python3 %s %s %s %.9g %.9g",
             ml_test_path("count.py"), ml_test_path(name), key, low, high);
    status = system(command);
    return WEXITSTATUS(status);
}

static void a_hook_changes_the_train_step(void) {
    char out[20000];
    static const char hook[] = "--custom-megatron-before-train-step-hook-path";
    char more[400];

    make_inputs();
    ml_toy_file("loss_module.py", loss_module);
    setenv("PYTHONPATH", ml_test_dir(), 1);
    CHECK(train("own", "", out, sizeof out) == 0);
    snprintf(more, sizeof more,
             "--loss-type custom_loss --custom-loss-function-path loss_module.zero %s "
             "loss_module.adds_grpo",
             hook);
    if (train("hooked", more, out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    CHECK(same_parameters("own", "hooked"));
    snprintf(more, sizeof more, "%s loss_module.changes", hook);
    if (train("changed", more, out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    CHECK(n_within("changed/metrics.jsonl", "train/lr-pg_0", 0.125, 0.125) == 6);
    CHECK(n_within("changed/metrics.jsonl", "train/mine", 4.5, 4.5) == 6);
    CHECK(n_within("changed/metrics.jsonl", "train/grad_norm", 0, 0) >= 2);
    CHECK(n_within("changed/metrics.jsonl", "train/grad_norm", 9.9e-4, 1.001e-3) > 0);
    CHECK(n_within("changed/metrics.jsonl", "train/grad_norm", 0, 1.001e-3) == 6);
    snprintf(more, sizeof more, "%s loss_module.wrong_name", hook);
    CHECK(train("bad", more, out, sizeof out) != 0);
    CHECK_HAS(out, "the pattern \"nothing.*\" for gradients matches no parameter");
    snprintf(more, sizeof more, "%s loss_module.wrong_rate", hook);
    CHECK(train("bad", more, out, sizeof out) != 0);
    CHECK_HAS(out, "the hook set the learning rate to -1");
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

/* Data sources: Miles' own class, one without rows of --prompt-data that counts and saves, and a
 * queue; and a conversion like the default one. */
static const char source_module[] =
    "import json, os\n"
    "from miles.rollout.data_source import DataSource, RolloutDataSourceWithBuffer\n"
    "from miles.rollout.fully_async_data_buffer import DefaultDataBuffer\n"
    "from miles.utils.types import Sample\n"
    "\n"
    "class Same(RolloutDataSourceWithBuffer):\n"
    "    def get_samples(self, num_samples):\n"
    "        groups = super().get_samples(num_samples)\n"
    "        assert len(groups) == num_samples and isinstance(groups[0][0], Sample)\n"
    "        return groups\n"
    "\n"
    "class Counts(DataSource):\n"
    "    def __init__(self, args):\n"
    "        self.args, self.n = args, 0\n"
    "    def get_samples(self, num_samples):\n"
    "        out = []\n"
    "        for _ in range(num_samples):\n"
    "            self.n += 1\n"
    "            out.append([Sample(prompt=f'what is {self.n}+1?', label=str(self.n + 1),\n"
    "                               metadata={'n': self.n}) for _ in range(4)])\n"
    "        return out\n"
    "    def add_samples(self, samples):\n"
    "        raise AssertionError\n"
    "    def path(self, folder, rollout_id):\n"
    "        return os.path.join(folder, f'counts_{rollout_id}.json')\n"
    "    def save(self, rollout_id):\n"
    "        print('saved', rollout_id, 'at', self.n)\n"
    "        json.dump(self.n, open(self.path(self.args.save, rollout_id), 'w'))\n"
    "    def load(self, rollout_id=None):\n"
    "        print('load', rollout_id)\n"
    "        if self.args.load and rollout_id >= 0:\n"
    "            self.n = json.load(open(self.path(self.args.load, rollout_id)))\n"
    "\n"
    "class Fails(Counts):\n"
    "    def get_samples(self, num_samples):\n"
    "        raise LookupError('no more')\n"
    "\n"
    "class Short(Counts):\n"
    "    def get_samples(self, num_samples):\n"
    "        return [[Sample(prompt='x')]]\n"
    "\n"
    "class Dies(Counts):\n"
    "    def get_samples(self, num_samples):\n"
    "        if self.n:\n"
    "            os._exit(7)\n"
    "        return super().get_samples(num_samples)\n"
    "\n"
    "class Newest(DefaultDataBuffer):\n"
    "    async def get(self, **context):\n"
    "        self._buffer.sort(key=lambda e: -e.group[0].group_index)\n"
    "        entry = await super().get(**context)\n"
    "        print('took group', entry.group[0].group_index)\n"
    "        return entry\n"
    "\n"
    "def convert(args, samples):\n"
    "    raw, rewards = [s.get_reward_value(args) for s in samples], []\n"
    "    for i in range(0, len(raw), 4):\n"
    "        mean = sum(raw[i:i + 4]) / 4\n"
    "        std = (sum((r - mean) ** 2 for r in raw[i:i + 4]) / 3) ** 0.5\n"
    "        rewards += [(r - mean) / (std + 1e-6) for r in raw[i:i + 4]]\n"
    "    return {'tokens': [s.tokens for s in samples],\n"
    "            'response_lengths': [s.response_length for s in samples],\n"
    "            'rewards': rewards, 'raw_reward': raw,\n"
    "            'truncated': [0] * len(samples),\n"
    "            'sample_indices': [s.index for s in samples],\n"
    "            'loss_masks': [[1] * s.response_length for s in samples],\n"
    "            'rollout_log_probs': [s.rollout_log_probs for s in samples]}\n"
    "\n"
    "def second_half(args, samples):\n"
    "    return {k: v[4:] for k, v in convert(args, samples).items()}\n"
    "\n"
    "def no_rewards(args, samples):\n"
    "    return {'tokens': [], 'response_lengths': []}\n";

static void must_train(const char *save, const char *more) {
    char out[20000];

    if (train(save, more, out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
}

static void sources_give_prompts(void) {
    char out[20000], more[2000];

    make_inputs();
    ml_toy_file("source_module.py", source_module);
    setenv("PYTHONPATH", ml_test_dir(), 1);
    must_train("own", "--rollout-shuffle");
    must_train("same", "--rollout-shuffle --data-source-path source_module.Same");
    CHECK(same_parameters("own", "same"));
    must_train("counts", "--data-source-path source_module.Counts");
    must_train("half", "--data-source-path source_module.Counts --num-rollout 1");
    snprintf(
        more, sizeof more,
        "--rm-type deterministic_random --num-rollout 3 --global-batch-size 4 "
        "--lr 1e-2 --save-interval 1 --data-source-path source_module.Counts --load %s",
        ml_test_path("half"));
    if (run(ml_test_path("half"), more, out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    CHECK_HAS(out, "load 0");
    CHECK_HAS(out, "saved 2 at 6");
    CHECK(same_parameters("counts", "half"));
    CHECK(!same_parameters("counts", "own"));
}

static void bad_sources_are_named(void) {
    static const struct {
        const char *name, *why;
    } bad[] = {
        { "Fails", "LookupError: no more (" },
        { "Short", "returned a group of 1 samples; expected n_samples_per_prompt, 4" },
        { "Dies", "exited with status 7" },
    };
    char out[20000], more[2000];

    make_inputs();
    ml_toy_file("source_module.py", source_module);
    setenv("PYTHONPATH", ml_test_dir(), 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(more, sizeof more,
                 "--overwrite --rm-type deterministic_random --data-source-path "
                 "source_module.%s",
                 bad[i].name);
        CHECK(run(ml_test_path("bad"), more, out, sizeof out) != 0);
        CHECK_HAS(out, bad[i].why);
        CHECK(!ml_test_has(out, "Traceback"));
    }
}

static void samples_are_converted(void) {
    char out[20000];

    make_inputs();
    ml_toy_file("source_module.py", source_module);
    setenv("PYTHONPATH", ml_test_dir(), 1);
    must_train("own", "");
    must_train("same", "--custom-convert-samples-to-train-data-path source_module.convert");
    CHECK(same_parameters("own", "same"));
    must_train("half",
               "--custom-convert-samples-to-train-data-path source_module.second_half");
    CHECK(!same_parameters("own", "half"));
    CHECK(train("bad",
                "--custom-convert-samples-to-train-data-path source_module.no_rewards", out,
                sizeof out) != 0);
    CHECK_HAS(out, "--custom-convert-samples-to-train-data-path: ");
    CHECK_HAS(out, "the training data has no column rewards");
}

static void a_buffer_in_python_selects(void) {
    char out[20000];

    make_inputs();
    ml_toy_file("source_module.py", source_module);
    setenv("PYTHONPATH", ml_test_dir(), 1);
    if (run_as("train-async", ml_test_path("queue"),
               "--rm-type deterministic_random --fully-async --save-interval 1 "
               "--custom-async-data-buffer-path source_module.Newest "
               "--data-source-path source_module.Counts",
               out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    CHECK_HAS(out, "took group");
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
    { "Python generate functions with Miles' signatures run in a training run",
      generate_functions_of_miles_run, 200 },
    { "Python rollout and evaluation functions run in a training run",
      rollout_functions_of_miles_run, 200 },
    { "a Python loss equal to ours trains the same parameters", a_python_loss_equals_ours,
      200 },
    { "a hook changes learning rate, gradients and loss of a train step",
      a_hook_changes_the_train_step, 200 },
    { "a Python data source gives the prompts of a run and resumes with it",
      sources_give_prompts, 200 },
    { "a Python data source that fails is named", bad_sources_are_named, 120 },
    { "a Python function converts samples to training data", samples_are_converted, 200 },
    { "a Python data buffer selects groups of a fully asynchronous run",
      a_buffer_in_python_selects, 120 },
    { "Python rewards of groups equal single ones", group_rewards_equal_single_ones, 120 },
    { "Python functions that return nonsense are named", wrong_functions_are_named, 120 },
    { "Python functions that are missing are named before weights are loaded",
      missing_functions_are_named, 60 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
