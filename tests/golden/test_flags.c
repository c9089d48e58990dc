/* The flags of Miles, as its specification lists them, and the command lines of its launch
 * scripts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/flags/flag_family.h"
#include "tests/support/test.h"

/* ---- rows ---- */

/* May grow, and must not shrink. */
#define LEAST_LIVE 199

static const ml_flag *row_of(const ml_flag_list *l, const char *name) {
    int at = ml_flag_list_find(l, ml_str_of(name));

    if (at < 0 && strncmp(name, "no-", 3) == 0)
        at = ml_flag_list_find(l, ml_str_of(name + 3));
    return at < 0 ? NULL : l->row[at];
}

static bool is_central(const char *group) {
    static const char *const central[] = { "train", "rollout",   "data",
                                           "eval",  "algorithm", "debug" };

    for (size_t i = 0; i < sizeof central / sizeof *central; i++)
        if (strcmp(group, central[i]) == 0)
            return true;
    return false;
}

/* Every flag does something, or says why it does not. */
static void every_flag_has_a_row(void) {
    FILE *f = fopen("tests/golden/flags/miles.txt", "r");
    int n = 0, count[3] = { 0 };
    char group[40], name[100];
    ml_flag_list l;

    ml_flag_list_init(&l, ML_CMD_TRAIN);
    CHECK(f != NULL);
    while (f && fscanf(f, "%39s %99s", group, name) == 2) {
        const ml_flag *row = row_of(&l, name);
        const ml_flag_family *family = ml_family_find(ML_CMD_TRAIN, ml_str_of(name));
        n++;
        if (row && family)
            ml_test_fail(__FILE__, __LINE__, "--%s has a row and a family", name);
        if (!row && family)
            count[family->state] += is_central(group);
        else if (!row)
            ml_test_fail(__FILE__, __LINE__, "--%s (%s) has no row", name, group);
        else if (is_central(group))
            count[row->state]++;
    }
    if (f)
        fclose(f);
    CHECK(n > 590);
    printf("central groups: %d flags are live, %d are ignored, %d are not supported\n",
           count[ML_FLAG_LIVE], count[ML_FLAG_NOOP], count[ML_FLAG_REFUSED]);
    CHECK(count[ML_FLAG_LIVE] >= LEAST_LIVE);
}

/* Every argument of SGLang's servers and router that Miles passes through is known, and so
 * is its twin for evaluations. */
static void every_passed_flag_is_known(void) {
    FILE *f = fopen("tests/golden/flags/passed.txt", "r");
    char name[100], eval[120];
    ml_flag_list l;
    int n = 0;

    ml_flag_list_init(&l, ML_CMD_TRAIN);
    CHECK(f != NULL);
    for (; f && fscanf(f, "%99s", name) == 1; n++) {
        const ml_flag_family *family = ml_family_find(ML_CMD_TRAIN, ml_str_of(name));
        if (!row_of(&l, name) == !family)
            ml_test_fail(__FILE__, __LINE__, "--%s has %s", name,
                         family ? "a row and a family" : "neither row nor family");
        snprintf(eval, sizeof eval, "eval-%s", name);
        if (strncmp(name, "sglang-", 7) == 0 && (family || row_of(&l, name)) &&
            !ml_family_find(ML_CMD_TRAIN, ml_str_of(eval)))
            ml_test_fail(__FILE__, __LINE__, "--%s is unknown", eval);
    }
    if (f)
        fclose(f);
    CHECK(n > 600);
}

/* ---- launch scripts ---- */

static ml_text wrong;

static ml_status parse(const char *words) {
    static char line[8000];
    char *argv[400], *save = NULL;
    ml_help_asked help;
    ml_config config;
    int argc = 0;
    ml_status st;

    snprintf(line, sizeof line, "%s", words);
    for (char *w = strtok_r(line, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    ml_text_release(&wrong);
    st = ml_flags_parse(&config, &help, ML_CMD_TRAIN, argc, argv, &wrong);
    ml_config_release(&config);
    return st;
}

static void parses(const char *script) {
    if (parse(script) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "flags are rejected:\n%s", wrong.ptr);
}

/* What they all pass. */
#define CHECKPOINT "--hf-checkpoint m --ref-load r --load l --save s --save-interval 20 "
#define ROLLOUT                                                                            \
    "--prompt-data d.jsonl --input-key prompt --label-key label --apply-chat-template "    \
    "--rollout-shuffle --num-rollout 3000 --rollout-batch-size 32 "                        \
    "--n-samples-per-prompt 8 --rollout-max-response-len 8192 --global-batch-size 256 "    \
    "--balance-data "
#define EVAL                                                                               \
    "--eval-interval 20 --eval-prompt-data aime a.jsonl --n-samples-per-eval-prompt 16 "   \
    "--eval-max-response-len 16384 "
#define PERF                                                                               \
    "--sequence-parallel --pipeline-model-parallel-size 1 "                                \
    "--expert-tensor-parallel-size 1 --recompute-granularity full --recompute-method "     \
    "uniform --recompute-num-layers 1 --use-dynamic-batch-size "
#define GRPO                                                                               \
    "--advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.00 --kl-loss-type "         \
    "low_var_kl --entropy-coef 0.00 --eps-clip 0.2 --eps-clip-high 0.28 "
#define OPTIMIZER                                                                          \
    "--optimizer adam --lr 1e-6 --lr-decay-style constant --weight-decay 0.1 "             \
    "--adam-beta1 0.9 --adam-beta2 0.98 "
#define MISC                                                                               \
    "--attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32 "   \
    "--attention-softmax-in-fp32 --attention-backend flash --actor-num-nodes 1 "
#define SHAPE                                                                              \
    "--swiglu --hidden-size 4096 --ffn-hidden-size 13696 --num-attention-heads 32 "        \
    "--group-query-attention --disable-bias-linear --normalization RMSNorm "               \
    "--norm-epsilon "                                                                      \
    "1e-5 --vocab-size 151552 --kv-channels 128 "
#define ALL CHECKPOINT ROLLOUT EVAL PERF GRPO OPTIMIZER MISC SHAPE

static void qwen3_4b(void) {
    parses(ALL
           "--num-layers 36 --num-query-groups 8 --qk-layernorm "
           "--use-rotary-position-embeddings --rotary-base 1000000 --rm-type deepscaler "
           "--rollout-temperature 1 --eval-top-p 1 --tensor-model-parallel-size 2 "
           "--context-parallel-size 1 --expert-model-parallel-size 1 --max-tokens-per-gpu "
           "9216 --rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.7 "
           "--sglang-disable-custom-all-reduce --actor-num-gpus-per-node 8 --colocate "
           "--use-wandb --wandb-project p --wandb-group g --wandb-key k");
}

static void qwen3_30b(void) {
    parses(ALL
           "--num-layers 48 --num-query-groups 4 --qk-layernorm --moe-ffn-hidden-size 768 "
           "--use-rotary-position-embeddings --rotary-base 1000000 --num-experts 128 "
           "--moe-router-score-function softmax --moe-token-dispatcher-type alltoall "
           "--moe-router-topk 8 --moe-layer-freq [1]*48 --moe-grouped-gemm "
           "--moe-token-drop-policy probs --moe-router-dtype fp32 --moe-permute-fusion "
           "--moe-aux-loss-coeff 0 --rm-type math --rollout-temperature 0.8 --eval-top-p "
           "0.7 --apply-chat-template-kwargs {\"enable_thinking\":false} "
           "--tensor-model-parallel-size 4 --context-parallel-size 1 "
           "--expert-model-parallel-size 8 --max-tokens-per-gpu 20480 "
           "--optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d "
           "--use-precision-aware-optimizer --rollout-num-gpus-per-engine 8 "
           "--sglang-mem-fraction-static 0.7 --sglang-cuda-graph-bs 1 2 4 8 16 24 "
           "--actor-num-gpus-per-node 8 --colocate");
}

static void glm4_9b(void) {
    parses(ALL
           "--num-layers 40 --num-query-groups 2 --post-self-attn-layernorm "
           "--post-mlp-layernorm --rotary-interleaved --rotary-percent 0.5 "
           "--use-rotary-position-embeddings --rotary-base 10000 "
           "--untie-embeddings-and-output-weights --rm-type deepscaler "
           "--rollout-temperature 1 --eval-top-p 1 --tensor-model-parallel-size 2 "
           "--context-parallel-size 2 --expert-model-parallel-size 1 --max-tokens-per-gpu "
           "4608 --rollout-num-gpus-per-engine 2 --actor-num-gpus-per-node 4 "
           "--rollout-num-gpus 4");
}

static const ml_test tests[] = {
    { "every flag of Miles has a row", every_flag_has_a_row },
    { "every flag that Miles passes to SGLang is known", every_passed_flag_is_known },
    { "the Qwen3-4B script of Miles parses", qwen3_4b },
    { "the Qwen3-30B-A3B script of Miles parses", qwen3_30b },
    { "the GLM-4-9B script of Miles parses", glm4_9b },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
