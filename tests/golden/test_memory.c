/* The memory plan is what a run takes: resident memory within 3 % (training: 5 %) of what was
 * printed before the first op, on a model large enough that the program itself does not
 * matter. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "io/safetensors.h"
#include "model/spec.h"
#include "rl/sample.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

#define BOUND 0.03
#define TRAIN_BOUND 0.05

static const char config[] =
    "{\"model_type\": \"qwen3\", \"vocab_size\": 8192, \"hidden_size\": 512,"
    " \"intermediate_size\": 1536, \"num_hidden_layers\": 8, \"num_attention_heads\": 8,"
    " \"num_key_value_heads\": 4, \"head_dim\": 64, \"tie_word_embeddings\": true}";

/* A checkpoint of small numbers with all tensors the spec asks for. */
static void write_model(void) {
    static float piece[1 << 16];
    ml_spec s;
    ml_st_tensor *t;
    ml_st_writer *w;

    for (int i = 0; i < 1 << 16; i++)
        piece[i] = (float)(i * 7919 % 1000 - 500) * 1e-4f;
    CHECK(ml_file_replace(ml_test_path("config.json"), ml_str_of(config), NULL) == ML_OK);
    CHECK(ml_spec_parse(&s, ml_str_of(config), "config.json", NULL) == ML_OK);
    t = calloc((size_t)s.n_param, sizeof *t);
    for (int32_t i = 0; i < s.n_param; i++)
        t[i] = (ml_st_tensor){ .name = ml_str_of(s.param[i].name),
                               .dtype = ML_ST_F32,
                               .n_dim = s.param[i].n_dim,
                               .shape = { s.param[i].shape[0], s.param[i].shape[1] } };
    CHECK(ml_st_create(&w, ml_test_path("model.safetensors"),
                       &(ml_st_layout){ .n = s.n_param, .tensor = t }, NULL) == ML_OK);
    for (int32_t i = 0; i < s.n_param; i++) {
        size_t bytes = (size_t)ml_param_count(&s.param[i]) * sizeof(float);
        for (size_t at = 0; at < bytes; at += sizeof piece)
            CHECK(ml_st_write(w, i, at, piece,
                              bytes - at < sizeof piece ? bytes - at : sizeof piece,
                              NULL) == ML_OK);
    }
    CHECK(ml_st_commit(w, NULL) == ML_OK);
    free(t);
    ml_spec_close(&s);
}

static void write_tokens(void) {
    static const int64_t len[] = { 150, 40 };
    int32_t id[150];
    ml_st_tensor t[2] = { { .name = { "tokens.0", 8 } }, { .name = { "tokens.1", 8 } } };
    ml_st_writer *w;

    for (int i = 0; i < 150; i++)
        id[i] = i * 31 % 8192;
    for (int i = 0; i < 2; i++) {
        t[i].dtype = ML_ST_I32;
        t[i].n_dim = 1;
        t[i].shape[0] = len[i];
    }
    CHECK(ml_st_create(&w, ml_test_path("in.safetensors"),
                       &(ml_st_layout){ .n = 2, .tensor = t }, NULL) == ML_OK);
    for (int i = 0; i < 2; i++)
        CHECK(ml_st_write(w, i, 0, id, (size_t)len[i] * sizeof *id, NULL) == ML_OK);
    CHECK(ml_st_commit(w, NULL) == ML_OK);
}

static void need_resident_memory(void) {
    if (ML_TEST_SANITIZED)
        ml_test_skip("a sanitizer's own memory counts as resident; run another build");
}

static void peak_is_the_plan(void) {
    static const char *const modes[] = { "", "--grads",
                                         "--dtype bf16 --logits --threads 2" };

    need_resident_memory();
    write_model();
    write_tokens();
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        char line[2048], said[8192];
        const char *at;
        double planned = 0, peak = 0;
        snprintf(line, sizeof line,
                 "score --hf-checkpoint %s --input %s --output %s --stats %s",
                 ml_test_dir(), ml_test_path("in.safetensors"),
                 ml_test_path("out.safetensors"), modes[i]);
        CHECK(ml_test_miles(said, sizeof said, line) == 0);
        at = strstr(said, "memory: ");
        CHECK(at &&
              sscanf(at, "memory: planned %lf MiB, peak %lf MiB", &planned, &peak) == 2);
        if (!(peak <= planned * (1 + BOUND) && peak >= planned * (1 - BOUND)))
            ml_test_fail(__FILE__, __LINE__, "%s: planned %.1f MiB, peak %.1f MiB",
                         modes[i], planned, peak);
    }
}

/* --- training with a critic, a reference and a teacher -------------------------------- */

enum { N_SAMPLE = 2, N_TOKEN = 128 };

/* Samples that fill a micro-batch to its last token. */
static void record_round(void) {
    static int32_t token[N_TOKEN];
    static ml_sample s[N_SAMPLE];
    const ml_sample *list[N_SAMPLE];

    for (int i = 0; i < N_TOKEN; i++)
        token[i] = i * 31 % 8192;
    for (int i = 0; i < N_SAMPLE; i++) {
        s[i] = (ml_sample){ .index = i,
                            .rollout = i,
                            .row = -1,
                            .token = token,
                            .n_token = N_TOKEN,
                            .n_response = N_TOKEN - 1,
                            .reward = i,
                            .has_reward = true,
                            .status = ML_SAMPLE_COMPLETED };
        list[i] = &s[i];
    }
    CHECK(ml_samples_save(ml_test_path("round.zst"), list, N_SAMPLE, NULL) == ML_OK);
}

static int train(const char *more, char *said, size_t cap) {
    char line[2048];
    snprintf(
        line, sizeof line,
        "train --hf-checkpoint %s --load-debug-rollout-data %s --num-rollout 1 "
        "--rollout-batch-size 2 --lr 1e-6 --lr-decay-style constant --save %s "
        "--use-dynamic-batch-size --max-tokens-per-gpu %d --use-kl-loss "
        "--advantage-estimator ppo --use-opd --opd-type megatron --opd-teacher-load %s "
        "--threads 2 %s",
        ml_test_dir(), ml_test_path("round.zst"), ml_test_path("run"), N_SAMPLE * N_TOKEN,
        ml_test_dir(), more);
    return ml_test_miles(said, cap, line);
}

/* What the process had after its last op: all of it is still there. */
static double resident(void) {
    char text[4096];
    FILE *f = fopen(ml_test_path("run/timing.jsonl"), "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    const char *at;

    text[n] = 0;
    if (f)
        fclose(f);
    at = strstr(text, "\"perf/resident_bytes\": ");
    return at ? strtod(strchr(at, ' '), NULL) / 0x1p20 : 0;
}

static void a_critic_takes_what_was_planned(void) {
    char said[8192];
    const char *at;
    double planned = 0, took;

    need_resident_memory();
    write_model();
    record_round();
    CHECK(train("--dry-run", said, sizeof said) == 0);
    CHECK_HAS(said, "reference weights");
    CHECK_HAS(said, "teacher weights");
    CHECK_HAS(said, "critic gradients");
    at = strstr(said, "  total");
    CHECK(at && sscanf(at, " total %lf", &planned) == 1);
    CHECK(train("", said, sizeof said) == 0);
    took = resident();
    if (!(took <= planned * (1 + TRAIN_BOUND) && took >= planned * (1 - TRAIN_BOUND)))
        ml_test_fail(__FILE__, __LINE__, "planned %.1f MiB, resident %.1f MiB", planned,
                     took);
}

static const ml_test tests[] = {
    { "the resident memory of miles score is what it planned", peak_is_the_plan, 120 },
    { "training with critic, reference and teacher takes the memory it planned",
      a_critic_takes_what_was_planned, 120 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
