/* bench_quant.c - generation with quantized weights: a 135M-parameter llama shape.
 *
 *     bench_quant [--csv FILE]      lines: case,threads,ours,peer,ratio,goal
 *
 * Two threads.  Engines with weights in bf16 and in each format take turns in one run, and the
 * best of each counts; the peer is bf16.  The embedding, which is the LM head too, is bf16 in all
 * of them.
 *   decode     a step of one request at a context of 64 and more
 *   prefill    a step with a prompt of 512 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

enum { PREFILL = 512, PROMPT = 64, DECODE = 24, THREADS = 2, TURNS = 9, FORMATS = 6 };

static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 49152, \"hidden_size\": 576,"
    " \"intermediate_size\": 1536, \"num_hidden_layers\": 30, \"num_attention_heads\": 9,"
    " \"num_key_value_heads\": 3, \"head_dim\": 64, \"tie_word_embeddings\": true}";

/* The first is the peer; goals are ratios to it. */
static const struct format {
    ml_weight_dtype dtype;
    double decode;
} formats[FORMATS] = {
    { ML_WEIGHT_BF16, 0 },   { ML_WEIGHT_INT4, 1.3 }, { ML_WEIGHT_INT4_G128, 1.3 },
    { ML_WEIGHT_INT8, 1.2 }, { ML_WEIGHT_FP8, 1.2 },  { ML_WEIGHT_NF4, 1.3 },
};

typedef struct model {
    ml_arena arena;
    ml_spec spec;
    ml_backend be;
    ml_weights w;
    ml_engine *engine;
    double prefill, decode; /* seconds: the best of all turns */
} model;

static void die(const char *what) {
    fprintf(stderr, "bench_quant: %s\n", what);
    exit(1);
}

static void open_model(model *m, ml_weight_dtype dtype) {
    ml_err err = { 0 };
    ml_engine_opts opts = {
        .context = PREFILL + 1, .max_running = 1, .max_waiting = 1, .chunk = PREFILL
    };

    *m = (model){ .prefill = 1e9, .decode = 1e9 };
    ml_arena_init(&m->arena, "bench");
    if (ml_spec_parse(&m->spec, ml_str_of(config), "config", &err) ||
        ml_backend_cpu_open(&m->be, THREADS, NULL, &err) ||
        ml_weights_dummy(&m->w, &m->spec, dtype, 1, &m->be, &m->arena, &err))
        die(err.msg);
    ml_spec_keep_kv(&m->spec, ml_weights_kv_dtype(&m->spec, NULL, dtype));
    opts.kv_bytes = ml_kv_bytes(&m->spec, &m->be, 4 * ml_kv_pages_for(opts.context));
    if (ml_engine_open(&m->engine, &m->spec, &m->w, &m->be, &opts, &err))
        die(err.msg);
}

static void close_model(model *m) {
    ml_engine_close(m->engine);
    ml_weights_close(&m->w);
    ml_backend_close(&m->be);
    ml_spec_close(&m->spec);
    ml_arena_release(&m->arena);
}

static void ignore(void *ud, const ml_gen_update *u) {
    (void)ud, (void)u;
}

/* A prompt that no engine has seen, for each sample. */
static void submit(model *m, int32_t n_prompt, int32_t n_out, uint64_t sample) {
    int32_t prompt[PREFILL];
    ml_gen_request r = { .prompt = prompt,
                         .n_prompt = n_prompt,
                         .draw = { .temperature = 1.0f,
                                   .top_p = 1.0f,
                                   .repetition = 1.0f,
                                   .sample = sample },
                         .max_new = n_out,
                         .ignore_eos = true,
                         .score_from = -1 };
    ml_err err;

    for (int32_t i = 0; i < n_prompt; i++)
        prompt[i] = (i * 7919 + (int32_t)sample * 10473) % 49152;
    if (ml_engine_submit(m->engine, &r, ignore, NULL, sample, &err) != ML_OK)
        die(err.msg);
}

static double step(model *m) {
    ml_gen_stats before, after;

    ml_engine_stats(m->engine, &before);
    if (!ml_engine_step(m->engine))
        die("the engine has nothing to do");
    ml_engine_stats(m->engine, &after);
    return after.step_s - before.step_s;
}

static void keep_least(double *least, double t) {
    if (t < *least)
        *least = t;
}

static void measure(model *m, int turn) {
    submit(m, PREFILL, 1, (uint64_t)turn);
    keep_least(&m->prefill, step(m));
    submit(m, PROMPT, DECODE + 2, (uint64_t)(turn + TURNS));
    (void)step(m);
    for (int32_t i = 0; i < DECODE; i++)
        keep_least(&m->decode, step(m));
    ml_engine_abort_all(m->engine, "measured");
}

/* Tokens per second against bf16; goal 0: only shown. */
static bool report(FILE *csv, const char *what, const char *format, double ours,
                   double peer, double goal) {
    const double ratio = ours / peer;
    const bool ok = ratio >= goal;

    printf(
        "%-8s %-10s %d threads  %8.1f tokens/s  bf16 %8.1f  ratio %5.2f  goal %5.2f  %s\n",
        what, format, THREADS, ours, peer, ratio, goal, ok ? "ok" : "MISS");
    if (csv)
        fprintf(csv, "quantized %s %s,%d,%.3f,%.3f,%.3f,%.2f\n", what, format, THREADS,
                ours, peer, ratio, goal);
    return ok;
}

int main(int argc, char **argv) {
    static model m[FORMATS];
    FILE *csv = argc == 3 && !strcmp(argv[1], "--csv") ? fopen(argv[2], "a") : NULL;
    bool ok = true;

    for (int i = 0; i < FORMATS; i++)
        open_model(&m[i], formats[i].dtype);
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < FORMATS; i++)
            measure(&m[i], turn);
    for (int i = 1; i < FORMATS; i++) {
        const char *name = ml_weight_dtype_name(formats[i].dtype);
        ok &= report(csv, "decode", name, 1 / m[i].decode, 1 / m[0].decode,
                     formats[i].decode);
        ok &= report(csv, "prefill", name, PREFILL / m[i].prefill, PREFILL / m[0].prefill,
                     0.97);
    }
    printf("weights: bf16 %.0f MB", 1e-6 * (double)m[0].w.buf.bytes);
    for (int i = 1; i < FORMATS; i++)
        printf(", %s %.0f", ml_weight_dtype_name(formats[i].dtype),
               1e-6 * (double)m[i].w.buf.bytes);
    printf("\n");
    for (int i = 0; i < FORMATS; i++)
        close_model(&m[i]);
    if (csv)
        fclose(csv);
    return !ok;
}
