/* miles reward-model against the loss curves of TRL's RewardTrainer and of transformers'
 * regression loss on the same model and data, step by step (tools/gen_reward_model_golden.py);
 * derivatives against finite differences; a resumed run; what is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "rl/builtins.h"
#include "rl/learn/reward_loss.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"

#define GOLDEN "tests/golden/reward_model"
#define PAIRS_OF "tests/golden/preference"
#define BOUND 1e-4 /* of a loss, after up to six steps of AdamW */

/* --- derivatives --------------------------------------------------------------------- */

enum { PAIRS = 3 };

typedef struct batch {
    miles_sample sample[2 * PAIRS];
    ml_preference_row row[2 * PAIRS];
    double value[2 * PAIRS];
} batch;

static void fill(batch *b) {
    for (int i = 0; i < 2 * PAIRS; i++) {
        b->value[i] = 0.3 * ((i * 7) % 5) - 0.7;
        b->sample[i] = (miles_sample){ .size = sizeof b->sample[i],
                                       .n = 1,
                                       .reward = 0.2 * (i % 3),
                                       .old_value = &b->value[i],
                                       .value = &b->value[i] };
        b->row[i] = (ml_preference_row){ .row = &b->sample[i], .n_answer = 1 };
    }
}

static double loss_of_pairs(batch *b, ml_arena *a) {
    ml_preference_opts o = { .on = true, .kind = ML_PREFERENCE_REWARD, .center = 0.1 };
    double sum = 0;

    MUST(ml_reward_pairs_compute(a, &o, b->row, 2 * PAIRS, &err));
    for (int i = 0; i < 2 * PAIRS; i++)
        sum += b->sample[i].preference[ML_PREFERENCE_LOSS];
    return sum;
}

static double loss_of_label(batch *b, int i, double *d) {
    double metric[2];
    miles_loss_out out = {
        .size = sizeof out, .policy_scale = 1, .d_value = d, .metric = metric
    };
    miles_error err;

    CHECK(ml_loss_reward_labels.run(&b->sample[i], NULL, &out, &err) == 0);
    return out.policy;
}

static void derivatives_are_differences(void) {
    const double h = 1e-5;
    static batch b;
    ml_arena a;

    ml_arena_init(&a, "test");
    fill(&b);
    for (int i = 0; i < 2 * PAIRS; i++) {
        double x = b.value[i], pairs, label, d, unused;
        b.value[i] = x + h;
        pairs = loss_of_pairs(&b, &a);
        label = loss_of_label(&b, i, &unused);
        b.value[i] = x - h;
        pairs -= loss_of_pairs(&b, &a);
        label -= loss_of_label(&b, i, &unused);
        b.value[i] = x;
        loss_of_pairs(&b, &a);
        loss_of_label(&b, i, &d);
        CHECK(fabs(pairs / (2 * h) + b.sample[i].advantage[0]) < 1e-8);
        CHECK(fabs(label / (2 * h) - d) < 1e-8);
    }
    ml_arena_release(&a);
}

/* --- curves --------------------------------------------------------------------------- */

static int try_training(char *out, size_t cap, const char *model, const char *save,
                        const char *data, int steps, const char *more) {
    char args[2000];

    snprintf(args, sizeof args,
             "reward-model --hf-checkpoint %s --prompt-data %s --rollout-batch-size 4 "
             "--num-rollout %d --lr 2e-3 --lr-decay-style constant --weight-decay 0 "
             "--clip-grad 1 --save %s --load %s %s",
             model, data, steps, save, save, more);
    return ml_test_miles(out, cap, args);
}

static void run_training(const char *model, const char *save, const char *data, int steps,
                         const char *more) {
    static char out[20000];

    if (try_training(out, sizeof out, model, save, data, steps, more) != 0) {
        ml_test_fail(__FILE__, __LINE__, "miles reward-model %s: %s", more, out);
        exit(1);
    }
}

/* The values of a metric in metrics.jsonl; returns their number. */
static int read_metric(double *out, int cap, const char *name, const char *save,
                       ml_arena *a) {
    ml_file f = { 0 };
    int n = 0;

    MUST(ml_file_map(&f, ml_arena_printf(a, "%s/metrics.jsonl", save), &err));
    for (size_t at = 0; at < f.bytes.len;) {
        const char *end = memchr(f.bytes.ptr + at, '\n', f.bytes.len - at);
        size_t len = (size_t)(end - (f.bytes.ptr + at));
        ml_str line = { ml_arena_str(a, f.bytes.ptr + at, len), len };
        const ml_json *row;
        MUST(ml_json_parse(&row, a, line, "metrics.jsonl", &err));
        if (ml_json_get(row, name) && n < cap)
            CHECK(ml_json_f64(ml_json_get(row, name), &out[n++]));
        at += len + 1;
    }
    ml_file_unmap(&f);
    return n;
}

static void follows(const char *name, const char *data, const char *flags) {
    const char *save = ml_test_path(name);
    const ml_json *root, *v;
    double loss[16];
    ml_file f = { 0 };
    ml_arena a;
    int n, k = 0;

    ml_arena_init(&a, "golden");
    MUST(ml_file_map(&f, GOLDEN "/golden.json", &err));
    MUST(ml_json_parse(&root, &a, f.bytes, "golden.json", &err));
    v = ml_json_get(root, name);
    CHECK(v != NULL && v->n >= 6);
    run_training(GOLDEN "/model", save, data, v->n, flags);
    n = read_metric(loss, 16, "train/loss", save, &a);
    CHECK(n == v->n);
    for (v = v->child; v && k < n; v = v->next, k++) {
        double want = 0;
        CHECK(ml_json_f64(v, &want));
        if (!(fabs(loss[k] - want) <= BOUND))
            ml_test_fail(__FILE__, __LINE__, "%s, step %d: loss %.9g, TRL %.9g", name, k,
                         loss[k], want);
    }
    ml_file_unmap(&f);
    ml_arena_release(&a);
}

static void curves_are_those_of_trl(void) {
    follows("pairs", PAIRS_OF "/chats.jsonl", "");
    follows("implicit", PAIRS_OF "/implicit.jsonl", "");
    follows("text", PAIRS_OF "/texts.jsonl", "");
    follows("margin", GOLDEN "/margins.jsonl", "--center-rewards-coefficient 0.05");
    follows("regression", GOLDEN "/scores.jsonl", "--reward-model-loss labels");
    follows("lora", PAIRS_OF "/chats.jsonl", "--lora-adapter-path " GOLDEN "/adapter");
}

/* --- rewards -------------------------------------------------------------------------- */

/* miles reward writes a line for each sample; its reward, or NaN. */
static double reward_at(const char *line) {
    const char *at = strstr(line, "{\"reward\": ");
    return at ? strtod(at + strlen("{\"reward\": "), NULL) : (double)NAN;
}

static void compare_rewards(const char *name, const char *model) {
    static char out[40000], args[1000];
    const ml_json *root, *pair, *v;
    const char *line = out;
    ml_file f = { 0 };
    ml_arena a;

    ml_arena_init(&a, "golden");
    MUST(ml_file_map(&f, GOLDEN "/golden.json", &err));
    MUST(ml_json_parse(&root, &a, f.bytes, "golden.json", &err));
    snprintf(args, sizeof args,
             "reward --rm-type reward_model --reward-model-path %s < " GOLDEN
             "/samples.jsonl",
             model);
    CHECK(ml_test_miles(out, sizeof out, args) == 0);
    for (pair = ml_json_get(root, name)->child; pair; pair = pair->next)
        for (v = pair->child; v && line; v = v->next) {
            double want = 0;
            CHECK(ml_json_f64(v, &want));
            if (!(fabs(reward_at(line) - want) <= 1e-5))
                ml_test_fail(__FILE__, __LINE__, "reward %.9g, transformers %.9g",
                             reward_at(line), want);
            line = strchr(line, '\n');
            line = line ? line + 1 : NULL;
        }
    CHECK(line != NULL);
    ml_file_unmap(&f);
    ml_arena_release(&a);
}

/* An adapter of PEFT, with its head, is merged into the model that it was made for; or into a
 * language model, which gets the head. */
static void rewards_are_those_of_transformers(void) {
    static char out[20000], args[1000];

    compare_rewards("rewards", GOLDEN "/model");
    for (int language = 0; language < 2; language++) {
        snprintf(args, sizeof args,
                 "convert --hf-checkpoint %s --lora-adapter-path " GOLDEN
                 "/adapter --save-hf %s --dtype f32",
                 language ? PAIRS_OF "/model" : GOLDEN "/model",
                 ml_test_path(language ? "with-head" : "merged"));
        if (ml_test_miles(out, sizeof out, args) != 0)
            ml_test_fail(__FILE__, __LINE__, "miles %s: %s", args, out);
        compare_rewards("lora_rewards", ml_test_path(language ? "with-head" : "merged"));
    }
}

static void a_language_model_is_no_reward_model(void) {
    static char out[20000];

    CHECK(ml_test_miles(out, sizeof out,
                        "reward --rm-type reward_model --reward-model-path " PAIRS_OF
                        "/model < " GOLDEN "/samples.jsonl") != 0);
    CHECK_HAS(out, "has no tensor score.weight");
    CHECK(ml_test_miles(out, sizeof out,
                        "reward --rm-type reward_model < " GOLDEN "/samples.jsonl") != 0);
    CHECK_HAS(out, "--rm-type reward_model needs --reward-model-path");
}

/* A reward model is trained on pairs, and a policy on its rewards. */
static void a_policy_gains_reward(void) {
    const char *rm = ml_test_path("rm"), *policy = ml_test_path("policy");
    static char out[40000];
    double reward[16];
    char args[2000];
    ml_arena a;
    int n;

    ml_arena_init(&a, "test");
    run_training(PAIRS_OF "/model", rm, PAIRS_OF "/chats.jsonl", 20, "");
    snprintf(args, sizeof args,
             "train --hf-checkpoint " PAIRS_OF "/model --prompt-data " PAIRS_OF
             "/chats.jsonl --input-key prompt --apply-chat-template --rm-type reward_model "
             "--reward-model-path %s/iter_0000019 --rollout-batch-size 6 "
             "--n-samples-per-prompt 8 --num-rollout 14 --rollout-max-response-len 8 "
             "--lr 2e-2 --lr-decay-style constant --save %s",
             rm, policy);
    if (ml_test_miles(out, sizeof out, args) != 0)
        ml_test_fail(__FILE__, __LINE__, "miles %s: %s", args, out);
    n = read_metric(reward, 16, "rollout/raw_reward", policy, &a);
    CHECK(n == 14);
    if (!(reward[n - 2] + reward[n - 1] > reward[0] + reward[1] + 0.4))
        ml_test_fail(__FILE__, __LINE__, "mean reward %g at first, %g at last", reward[0],
                     reward[n - 1]);
    ml_arena_release(&a);
}

/* --- snapshots ------------------------------------------------------------------------- */

/* From a language model: the head is new. */
static void resume(const char *name, const char *flags, const char *word,
                   const char *file) {
    char whole[500], parts[500], command[4000];
    const char *model = PAIRS_OF "/model", *data = PAIRS_OF "/chats.jsonl";

    snprintf(whole, sizeof whole, "%s.whole", ml_test_path(name));
    snprintf(parts, sizeof parts, "%s.parts", ml_test_path(name));
    run_training(model, whole, data, 3, flags);
    run_training(model, parts, data, 2, flags);
    run_training(model, parts, data, 3, flags);
    snprintf(command, sizeof command,
             "diff -r %s/iter_0000002 %s/iter_0000002 >&2 && cmp %s/metrics.jsonl "
             "%s/metrics.jsonl >&2 && grep -q %s %s/iter_0000002/%s",
             whole, parts, whole, parts, word, whole, file);
    CHECK(system(command) == 0);
}

static void a_resumed_run_has_the_same_bytes(void) {
    resume("model", "--save-interval 1", "Qwen3ForSequenceClassification", "config.json");
    resume("adapter", "--save-interval 1 --lora-rank 4 --target-modules all-linear",
           "base_model.model.score.weight", "adapter_model.safetensors");
}

static void refused(const char *model, const char *data, const char *flags,
                    const char *says) {
    static char out[20000];

    CHECK(try_training(out, sizeof out, model, ml_test_path("refused"), data, 1, flags) !=
          0);
    CHECK_HAS(out, says);
}

static void what_cannot_be_trained_is_refused(void) {
    static char out[20000];
    const char *data = PAIRS_OF "/chats.jsonl";

    refused(GOLDEN "/model", data, "--global-batch-size 4", "one step on a rollout batch");
    refused(GOLDEN "/model", PAIRS_OF "/single.jsonl", "", "chosen");
    CHECK(ml_test_miles(out, sizeof out,
                        "sft --hf-checkpoint " GOLDEN "/model --prompt-data " PAIRS_OF
                        "/chats.jsonl --input-key chosen --num-rollout 1 "
                        "--rollout-batch-size 1") != 0);
    CHECK_HAS(out, "is a reward model, which generates no tokens");
}

static const ml_test tests[] = {
    { "derivatives of reward losses are finite differences", derivatives_are_differences },
    { "reward models have the loss curves of TRL", curves_are_those_of_trl, 300 },
    { "rewards are those of transformers", rewards_are_those_of_transformers, 60 },
    { "a language model is no reward model", a_language_model_is_no_reward_model, 60 },
    { "a policy gains reward of a trained reward model", a_policy_gains_reward, 300 },
    { "a resumed run of miles reward-model has the same bytes",
      a_resumed_run_has_the_same_bytes, 300 },
    { "reward models refuse several steps and other data",
      what_cannot_be_trained_is_refused, 60 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
