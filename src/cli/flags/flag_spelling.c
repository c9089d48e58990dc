#include "cli/flags/flag_spelling.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

#define ROLLOUT "--rollout-function-path"

static bool is(const char *a, const char *b) {
    return a && strcmp(a, b) == 0;
}

ml_cmd ml_flags_command(ml_cmd cmd, int argc, char *const *argv) {
    static const char path[] = "miles.rollout.sft_rollout.generate_rollout";
    bool sft = false;

    if (cmd != ML_CMD_TRAIN && cmd != ML_CMD_TRAIN_ASYNC)
        return cmd;
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], ROLLOUT) == 0 && i + 1 < argc)
            sft = strcmp(argv[i + 1], path) == 0;
        else if (strncmp(argv[i], ROLLOUT "=", sizeof ROLLOUT) == 0)
            sft = strcmp(argv[i] + sizeof ROLLOUT, path) == 0;
    return sft ? ML_CMD_SFT : cmd;
}

static bool is_fully_async(const char *path) {
    return is(path, "miles.rollout.fully_async_rollout.FullyAsyncRolloutFn") ||
           is(path, "miles.rollout.fully_async_rollout.generate_rollout_fully_async") ||
           is(path, "fully_async_rollout.generate_rollout_fully_async");
}

/* Adds the weights of the routers to --freeze. */
static void freeze_routers(ml_config *c) {
    static const char routers[] = "*.gate.weight";
    const char **freeze = &c->run.trainer.optimizer.freeze;

    *freeze = *freeze ? ml_arena_printf(&c->arena, "%s,%s", *freeze, routers) : routers;
}

/* Miles asks a teacher as a reward server; its rewards are 0. */
static void ask_teacher(ml_config *c) {
    static const char module[] = "miles.rollout.on_policy_distillation.";
    ml_run_opts *o = &c->run;
    const char **post = &o->extensions.path.reward_post;

    if (*post && strncmp(*post, module, sizeof module - 1) == 0)
        *post = NULL;
    if (!o->custom_rm_path || strncmp(o->custom_rm_path, module, sizeof module - 1) != 0)
        return;
    o->custom_rm_path = NULL;
    o->reward.rm_type = o->reward.rm_type ? o->reward.rm_type : "zero";
    if (!o->teacher_urls.n && o->reward.rm_url) {
        const char **url = ML_NEW(&c->arena, const char *, 1);
        *url = o->reward.rm_url;
        o->teacher_urls = (ml_string_list){ url, 1 };
    }
}

void ml_flags_respell(ml_config *c, bool says_dynamic) {
    ml_run_opts *o = &c->run;

    if (is_fully_async(o->extensions.path.rollout)) {
        o->extensions.path.rollout = NULL;
        o->mode.fully = true;
    }
    if (is(o->algo.advantage_estimator, "on_policy_distillation")) {
        o->algo.advantage_estimator = "grpo";
        o->algo.use_opd = true;
    }
    if (is(o->opd_type, "sglang"))
        ask_teacher(c);
    if (is(c->qkv_format, "bshd") && !says_dynamic)
        o->trainer.batch.dynamic = false;
    if (c->gradient_checkpointing)
        o->trainer.recompute =
            (ml_recompute){ .granularity = ML_RECOMPUTE_FULL, .n_layer = 1 };
    if (c->freeze_gate)
        freeze_routers(c);
}

/* ---- environment ---- */

typedef struct variable {
    const char *prefix; /* of its name */
    const char *why;
} variable;

static const variable variables[] = {
    { "NVTE_", "Transformer Engine is not used" },
    { "MILES_EXPERIMENTAL_FT_TRAINER", "resume a killed run with --load" },
    { "MILES_USE_LEGACY_ROLLOUT_V1", "there is one implementation of rollouts" },
    { "MILES_SGLANG_DUMMY_LOAD", "the engine has the weights of the trainer" },
    { "MILES_LOGPROB_BACKWARD_DEBUG_DIR", "use --dumper-enable" },
    { "MILES_BACKEND", "the compute device is set by --device" },
    { "SGLANG_", "engines are not SGLang's" },
};

static const char *reason(const char *entry) {
    size_t i = 0, n = sizeof variables / sizeof *variables;

    while (i < n && strncmp(entry, variables[i].prefix, strlen(variables[i].prefix)) != 0)
        i++;
    return i < n ? variables[i].why : NULL;
}

/* A switch that is off needs no warning. */
static bool is_off(const char *value) {
    return !*value || is(value, "0") || is(value, "false") || is(value, "False");
}

/* Miles' switches of quantization-aware training; a flag has precedence. */
static const char *take_fake_quantization(ml_config *c) {
    const char *on = getenv("OPEN_TRAINING_INT4_FAKE_QAT_FLAG");
    const char *size = getenv("OPEN_TRAINING_INT4_GROUP_SIZE");

    if (!on || is_off(on) || c->fake_quantization)
        return NULL;
    c->fake_quantization = size && is(size, "32") ? 1 : 2;
    return !size || is(size, "32") || is(size, "128")
               ? NULL
               : "OPEN_TRAINING_INT4_GROUP_SIZE must be 32 or 128: change the environment, "
                 "or "
                 "give --fake-quantization";
}

const char *ml_flags_take_environment(ml_config *c) {
    for (char **e = environ; *e; e++) {
        const char *why = reason(*e), *equals = strchr(*e, '=');

        if (why && equals && !is_off(equals + 1))
            ml_log(ML_LOG_WARN, "environment variable %.*s is ignored: %s",
                   (int)(equals - *e), *e, why);
    }
    return take_fake_quantization(c);
}
