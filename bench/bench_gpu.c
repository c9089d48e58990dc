/* bench_gpu.c - whole training steps on a GPU: forward, backward, clipping and AdamW; and decode
 * with many adapters.
 *
 *     bench_gpu MODEL_DIR N_SEQ SEQ_LEN STEPS [MAX_TOKENS [LORA_RANK [FORMAT [GRADIENTS]]]]
 *     bench_gpu MODEL_DIR decode STREAMS IN OUT ADAPTERS LORA_RANK
 *     bench_gpu MODEL_DIR quantized STREAMS IN OUT [DTYPE...]
 *     bench_gpu MODEL_DIR kv STREAMS IN OUT [WEIGHTS/KV...]
 *     bench_gpu MODEL_DIR speculate STREAMS IN OUT DRAFTS
 *
 * Made-up weights of the shape that MODEL_DIR/config.json has, in bf16 with f32 masters; a loss at
 * every position.  Prints lines of a name and a number: the median step, tokens per second, the
 * share of 989 TFLOP/s by 6 x matmul parameters (the LM head once, of experts those that a token
 * has) + 6 x layers x heads x head size x T per token, memory as planned and as used, and how long
 * weights take to be published.  With a rank, an adapter on all linear layers is trained: 4 x matmul
 * parameters, since the weights have no gradients, and the adapter alone is published.  With a
 * format (and rank 0), passes read a quantized copy, as with --fp8-format; GRADIENTS is e4m3 or e5m2, as
 * with --fp8-backward.
 *
 * Decode: tokens per second of decode steps alone, of the weights, and with an adapter for each
 * stream, in turn, in the same batch.
 *
 * Quantized: the same of weights in bf16 and in the quantized formats, or in those that are named, and
 * the bytes of each; ratios are to the first.  Peak: of all memory on the GPU, until then.
 *
 * KV: rollouts with a KV cache in bf16 and in 8 bits, of weights in bf16 and fp8-blockwise, or those
 * that are named, such as fp8-blockwise/fp8_e4m3; ratios are to the first.
 *
 * Speculate: the same with at most DRAFTS draft tokens of the model's multi-token prediction layer.
 * The layer and its head are computed for each draft token, which is then replaced: by the token
 * that plain decoding has drawn, with a probability of 60, 70 and 80 percent, else by a wrong one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/request.h"
#include "model/mtp.h"
#include "run/memory_plan.h"
#include "train/memory.h"

enum { MAX_STEPS = 1000 };
#define PEAK 989e12

static _Noreturn void die(const char *what) {
    fprintf(stderr, "bench_gpu: %s\n", what);
    exit(1);
}

/* The mean of -log p. */
static ml_status nll(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    (void)ud;
    (void)err;
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; t < io[i].n_response; t++) {
            io[i].loss -= (double)io[i].logprob[t];
            io[i].dlogprob[t] = -1.0f;
        }
    return ML_OK;
}

static double flops_per_token(const ml_spec *s, double seq_len, bool frozen) {
    double products = 0, attention = 0;

    for (int32_t i = 0; i < s->n_node; i++) {
        const ml_node *n = &s->node[i];
        if (n->op == ML_OP_LINEAR || n->op == ML_OP_LMHEAD)
            products +=
                (double)s->param[n->w[0]].shape[0] * (double)s->param[n->w[0]].shape[1];
        if (n->op == ML_OP_MOE_LINEAR)
            products += (double)n->attr.moe.top_k * (double)s->param[n->w[0]].shape[0] *
                        (double)s->param[n->w[0]].shape[1];
        if (n->op == ML_OP_ATTN)
            attention += (double)n->attr.attn.n_head * n->attr.attn.head_dim;
    }
    return (frozen ? 4 : 6) * products + 6 * attention * seq_len;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static ml_train_sample *make_samples(ml_arena *a, int32_t n, int32_t len, int64_t vocab) {
    ml_train_sample *s = ML_NEW(a, ml_train_sample, n);
    int32_t *token = ML_NEW(a, int32_t, (int64_t)n * len);
    uint32_t state = 1;

    for (int64_t i = 0; i < (int64_t)n * len; i++) {
        state = state * 1664525u + 1013904223u;
        token[i] = (int32_t)((state >> 8) % (uint32_t)vocab);
    }
    for (int32_t i = 0; i < n; i++)
        s[i] = (ml_train_sample){ .token = token + (size_t)i * (size_t)len,
                                  .n_token = len,
                                  .n_response = len - 1,
                                  .rollout = i };
    return s;
}

static void report(const ml_spec *spec, double *took, int n_step, double tokens,
                   double seq_len, bool frozen) {
    double median, flops = flops_per_token(spec, seq_len, frozen);

    qsort(took, (size_t)n_step, sizeof *took, by_value);
    median = took[n_step / 2];
    printf("step_ms %.1f\ntokens_per_s %.0f\ntflops %.1f\nmfu %.1f\n", 1e3 * median,
           tokens / median, flops * tokens / median / 1e12,
           100 * flops * tokens / median / PEAK);
}

/* What was planned before anything was taken, and the most that was in use. */
static void report_memory(ml_backend *be, const ml_spec *spec, const ml_trainer_opts *opts,
                          size_t weight_bytes, size_t base) {
    const char *const set[] = { "weights", NULL };
    ml_memory_request ask = { .spec = spec,
                              .be = be,
                              .weight_bytes = weight_bytes,
                              .bf16 = true,
                              .set = set,
                              .opts = *opts,
                              .base_bytes = base };
    size_t peak = ml_memory_peak(be);
    ml_memory plan;
    ml_err err;

    if (ml_memory_plan(&plan, &ask, &err))
        die(err.msg);
    for (int i = 0; i < plan.n; i++)
        fprintf(stderr, "  %-24s %9.3f GiB\n", plan.row[i].what,
                (double)plan.row[i].bytes / 0x1p30);
    printf("planned_gib %.3f\npeak_gib %.3f\n", (double)plan.total / 0x1p30,
           (double)peak / 0x1p30);
}

/* An adapter on all linear layers. */
typedef struct adapter {
    ml_lora lora;
    const ml_lora_site *site;
    ml_lora_table table;
} adapter;

static void make_adapter(ml_lora *out, int32_t rank, int32_t seed, const ml_spec *spec,
                         ml_backend *be) {
    ml_lora_opts o = {
        .rank = rank, .alpha = rank, .target = "all-linear", .seed = (uint64_t)seed
    };
    ml_err err;

    if (ml_lora_new(out, spec, NULL, &o, be, &err))
        die(err.msg);
}

static void open_adapter(adapter *x, int32_t rank, ml_spec *spec, ml_backend *be,
                         ml_arena *a) {
    bool *wanted;

    make_adapter(&x->lora, rank, 1, spec, be);
    wanted = ML_NEW(a, bool, x->lora.n_site);
    ml_lora_mark(&x->lora, wanted);
    ml_spec_lora_insert(spec, wanted, x->lora.max_rank);
    x->site = x->lora.site;
    x->table = (ml_lora_table){ .adapter = &x->site, .n_adapter = 1, .all = true };
}

/* How long it takes until an engine uses the weights of a step: the same memory, or a copy of
 * `trained`, the weights or the adapter. */
static void report_publication(ml_backend *be, const ml_spec *spec, ml_weights *w,
                               const ml_weights *trained, ml_arena *a) {
    ml_engine_opts opts = {
        .context = 256, .max_running = 8, .max_waiting = 8, .chunk = 64
    };
    ml_engine *engine;
    ml_weights copy;
    ml_err err;
    double start, shared;

    if (ml_engine_open(&engine, spec, w, be, &opts, &err) ||
        ml_weights_clone(&copy, trained, be, a, &err))
        die(err.msg);
    start = ml_clock_s();
    ml_engine_switch(engine, w, ML_SWITCH_RECOMPUTE);
    shared = ml_clock_s() - start;
    start = ml_clock_s();
    if (ml_weights_copy(&copy, trained, be, &err))
        die(err.msg);
    ml_engine_switch(engine, trained == w ? &copy : w, ML_SWITCH_RECOMPUTE);
    printf("publish_ms %.3f\npublish_copy_ms %.3f\n", 1e3 * shared,
           1e3 * (ml_clock_s() - start));
    ml_engine_close(engine);
    ml_weights_close(&copy);
}

/* With CUDA_LAUNCH_BLOCKING=1 these are the times of ops; else of their launches. */
static void print_ops(const ml_plan_stats *s, int n_step) {
    for (int i = 0; i < ML_OP_COUNT; i++)
        if (s->rows[i])
            printf("  %-12s forward %8.2f ms, backward %8.2f ms a step\n",
                   ml_op_infos[i].name, 1e3 * s->forward_s[i] / n_step,
                   1e3 * s->backward_s[i] / n_step);
}

/* ---- decode with many adapters ---- */

enum { MOST_ADAPTERS = 256 };

typedef struct load {
    int32_t n_stream, n_in, n_out, n_adapter, rank;
    ml_weight_dtype dtype; /* of the weights; 0: bf16 */
    ml_dtype kv;           /* ML_KV_*; 0: bf16 */
} load;

typedef struct rate {
    double tokens_per_s; /* of decode steps alone */
    double whole_s;
} rate;

static void on_update(void *ud, const ml_gen_update *u) {
    int64_t *n_token = ud;

    if (u->finish == ML_FINISH_ABORT)
        die("a request was aborted");
    *n_token += u->answer.n;
}

static void submit(ml_engine *e, const load *l, int32_t *prompt, int32_t i, ml_gen_fn *fn,
                   void *ud) {
    ml_gen_request r = { .prompt = prompt,
                         .n_prompt = l->n_in,
                         .draw = { .temperature = 1.0f,
                                   .top_p = 1.0f,
                                   .repetition = 1.0f,
                                   .sample = (uint64_t)i },
                         .max_new = l->n_out,
                         .ignore_eos = true,
                         .score_from = -1 };
    ml_err err;

    if (l->n_adapter)
        r.adapter = r.adapter_id = 1 + i % l->n_adapter;
    for (int32_t t = 0; t < l->n_in; t++)
        prompt[t] = (int32_t)(((uint32_t)t * 2654435761u + (uint32_t)i * 40503u) % 10007u);
    if (ml_engine_submit(e, &r, fn, ud, (uint64_t)i, &err))
        die(err.msg);
}

static rate decode(ml_engine *e, const load *l, ml_arena *a) {
    int32_t *prompt = ML_NEW(a, int32_t, l->n_in);
    int64_t n_token = 0, before = 0;
    double began = ml_clock_s(), start = 0, now = 0;

    for (int32_t i = 0; i < l->n_stream; i++)
        submit(e, l, prompt, i, on_update, &n_token);
    while (ml_engine_step(e)) {
        now = ml_clock_s();
        if (!before && n_token >= l->n_stream * 8) { /* all decode, and graphs exist */
            before = n_token;
            start = now;
        }
    }
    return (rate){ (double)(n_token - before) / (now - start), now - began };
}

static void open_adapters(adapter *x, ml_spec *spec, const load *l, ml_backend *be,
                          ml_arena *a) {
    const ml_lora_site **site = ML_NEW(a, const ml_lora_site *, l->n_adapter);
    bool *wanted;
    ml_err err;

    for (int32_t i = 0; i < l->n_adapter; i++) {
        make_adapter(&x[i].lora, l->rank, i, spec, be);
        if (ml_lora_round(&x[i].lora, &err))
            die(err.msg);
        site[i] = x[i].lora.site;
    }
    wanted = ML_NEW(a, bool, x[0].lora.n_site);
    ml_lora_mark(&x[0].lora, wanted);
    ml_spec_lora_insert(spec, wanted, l->rank);
    x[0].table = (ml_lora_table){ .adapter = site, .n_adapter = l->n_adapter };
}

/* Without adapters: the weights alone. */
static rate measure_decode(const char *dir, const load *l, ml_weights *w, ml_backend *be,
                           ml_arena *a) {
    ml_engine_opts opts = { .context = l->n_in + l->n_out,
                            .max_running = l->n_stream,
                            .max_waiting = l->n_stream,
                            .chunk = 8192 };
    adapter *x = ML_NEW(a, adapter, MOST_ADAPTERS);
    ml_engine *engine;
    ml_spec spec;
    rate speed;
    ml_err err;

    if (ml_spec_open(&spec, dir, &err))
        die(err.msg);
    ml_weights_mark_codes(&spec, NULL, l->dtype);
    if (l->kv)
        ml_spec_keep_kv(&spec, l->kv);
    if (l->n_adapter)
        open_adapters(x, &spec, l, be, a);
    else if (ml_weights_dummy(w, &spec, l->dtype ? l->dtype : ML_WEIGHT_BF16, 1, be, a,
                              &err))
        die(err.msg);
    w->lora = l->n_adapter ? &x[0].table : NULL;
    if (ml_engine_open(&engine, &spec, w, be, &opts, &err))
        die(err.msg);
    speed = decode(engine, l, a);
    ml_engine_close(engine);
    for (int32_t i = 0; i < l->n_adapter; i++)
        ml_lora_close(&x[i].lora);
    ml_spec_close(&spec);
    return speed;
}

static void open_gpu(ml_backend *be) {
    ml_err err;

    if (ml_backend_open(
            be,
            &(ml_backend_opts){ .device = "cuda",
                                .n_thread = (int)sysconf(_SC_NPROCESSORS_ONLN) },
            &err))
        die(err.msg);
}

static int bench_decode(const char *dir, load l) {
    load alone = l;
    double base, adapted;
    ml_backend be;
    ml_weights w;
    ml_arena a;

    if (l.n_stream < 1 || l.n_in < 1 || l.n_out < 16 || l.rank < 1 || l.n_adapter < 1 ||
        l.n_adapter > MOST_ADAPTERS)
        die("STREAMS, IN and RANK are at least 1, OUT 16, ADAPTERS 1 to 256");
    alone.n_adapter = 0;
    ml_arena_init(&a, "bench");
    open_gpu(&be);
    base = measure_decode(dir, &alone, &w, &be, &a).tokens_per_s;
    adapted = measure_decode(dir, &l, &w, &be, &a).tokens_per_s;
    printf("base_tokens_per_s %.0f\nadapter_tokens_per_s %.0f\nratio %.3f\n", base, adapted,
           adapted / base);
    ml_weights_close(&w);
    ml_backend_close(&be);
    ml_arena_release(&a);
    return 0;
}

static void check_load(const load *l) {
    if (l->n_stream < 1 || l->n_in < 1 || l->n_out < 16)
        die("STREAMS and IN are at least 1, OUT 16");
}

/* ---- quantized weights ---- */

static ml_weight_dtype weight_dtype_named(const char *name) {
    static const ml_weight_dtype known[] = { ML_WEIGHT_BF16,      ML_WEIGHT_INT4,
                                             ML_WEIGHT_INT4_G128, ML_WEIGHT_FP8,
                                             ML_WEIGHT_INT8,      ML_WEIGHT_FP8_BLOCKWISE,
                                             ML_WEIGHT_NF4,       ML_WEIGHT_MXFP8 };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, ml_weight_dtype_name(known[i])) == 0)
            return known[i];
    die("DTYPE is bf16 or a quantized format, such as int4");
}

static int bench_quantized(const char *dir, load l, const char *const *names, int n) {
    static const char *const all[] = { "bf16", "int4", "int4-g128",
                                       "fp8",  "int8", "fp8-blockwise" };
    double base = 0, speed;
    ml_backend be;
    ml_weights w;
    ml_arena a;

    check_load(&l);
    open_gpu(&be);
    if (n == 0) {
        names = all;
        n = sizeof all / sizeof *all;
    }
    for (int i = 0; i < n; i++) {
        ml_arena_init(&a, "bench");
        l.dtype = weight_dtype_named(names[i]);
        speed = measure_decode(dir, &l, &w, &be, &a).tokens_per_s;
        base = base > 0 ? base : speed;
        printf("%s: tokens_per_s %.0f, ratio %.2f, weights %.2f GiB, peak %.2f GiB\n",
               names[i], speed, speed / base, (double)w.buf.bytes / 0x1p30,
               (double)ml_memory_peak(&be) / 0x1p30);
        ml_weights_close(&w);
        ml_arena_release(&a);
    }
    ml_backend_close(&be);
    return 0;
}

/* ---- a KV cache in 8 bits ---- */

static ml_dtype kv_dtype_named(const char *name) {
    for (int i = ML_KV_E4M3; i <= ML_KV_INT8; i++)
        if (strcmp(name, ml_dtype_name((ml_dtype)i)) == 0)
            return (ml_dtype)i;
    if (strcmp(name, "bf16") != 0)
        die("KV is bf16, fp8_e4m3, fp8_e5m2 or int8");
    return 0;
}

/* Weights and KV cache of "WEIGHTS/KV". */
static void set_formats(load *l, const char *name) {
    const char *slash = strchr(name, '/');
    char weights[32];

    if (!slash || slash - name >= (ptrdiff_t)sizeof weights)
        die("a case of kv is WEIGHTS/KV, such as bf16/fp8_e4m3");
    snprintf(weights, sizeof weights, "%.*s", (int)(slash - name), name);
    l->dtype = weight_dtype_named(weights);
    l->kv = kv_dtype_named(slash + 1);
}

static int bench_kv(const char *dir, load l, const char *const *names, int n) {
    static const char *const all[] = { "bf16/bf16", "fp8-blockwise/bf16",
                                       "fp8-blockwise/fp8_e4m3", "bf16/fp8_e4m3",
                                       "bf16/int8" };
    rate base = { 0 }, now;
    ml_backend be;
    ml_weights w;
    ml_arena a;

    check_load(&l);
    open_gpu(&be);
    if (n == 0) {
        names = all;
        n = sizeof all / sizeof *all;
    }
    for (int i = 0; i < n; i++) {
        ml_arena_init(&a, "bench");
        set_formats(&l, names[i]);
        now = measure_decode(dir, &l, &w, &be, &a);
        base = i == 0 ? now : base;
        printf("%s: %.2f s, ratio %.3f; decode tokens_per_s %.0f, ratio %.3f\n", names[i],
               now.whole_s, now.whole_s / base.whole_s, now.tokens_per_s,
               now.tokens_per_s / base.tokens_per_s);
        ml_weights_close(&w);
        ml_arena_release(&a);
    }
    ml_backend_close(&be);
    return 0;
}

/* ---- speculative decoding ---- */

enum { MOST_STREAMS = 1024 };

/* What plain decoding has drawn, and how often draft tokens are right. */
typedef struct spoken {
    int32_t *token[MOST_STREAMS], n[MOST_STREAMS];
    int32_t n_in, percent;
    int64_t n_token, n_vocab;
    bool ended; /* one of the streams */
} spoken;

static void on_spoken(void *ud, const ml_gen_update *u) {
    spoken *s = ud;

    if (u->finish == ML_FINISH_ABORT)
        die("a request was aborted");
    for (int32_t i = 0; s->token[u->ticket] && !s->percent && i < u->answer.n; i++)
        s->token[u->ticket][s->n[u->ticket]++] = u->answer.id[i];
    s->n_token += u->answer.n;
    s->ended = s->ended || u->finish != ML_FINISH_NOT;
}

static int32_t forced(void *ud, const struct ml_request *r, int32_t chain, int32_t *out,
                      int32_t n) {
    const spoken *s = ud;
    int32_t i = 0;

    (void)chain;
    for (; i < n && r->n_token - s->n_in + i < s->n[r->ticket]; i++) {
        int32_t at = r->n_token - s->n_in + i;
        uint64_t mix = ((uint64_t)r->ticket << 32 | (uint32_t)at) * 0x9e3779b97f4a7c15u;
        bool right = (mix >> 40) % 100 < (uint64_t)s->percent;
        out[i] = (int32_t)((s->token[r->ticket][at] + !right) % s->n_vocab);
    }
    return i;
}

/* Tokens per second of decode steps of all streams, until the first one ends; percent 0: without
 * drafts. */
static double speak(const char *dir, const ml_spec *spec, const ml_weights *w,
                    const ml_weights *mtp, ml_backend *be, const load *l, int32_t n_draft,
                    spoken *s, ml_arena *a) {
    ml_engine_opts opts = { .context = l->n_in + l->n_out + 16,
                            .max_running = l->n_stream,
                            .max_waiting = l->n_stream,
                            .chunk = 8192 };
    int32_t *prompt = ML_NEW(a, int32_t, l->n_in);
    int64_t before = 0, tokens = 0, first_step = 0, steps = 0;
    double start = 0, now = 0;
    ml_gen_stats stats;
    ml_engine *e;
    ml_err err;

    if (s->percent)
        opts.draft = (ml_draft_opts){ .n = n_draft,
                                      .mtp = dir,
                                      .mtp_weights = mtp,
                                      .dtype = ML_WEIGHT_BF16,
                                      .fn = forced,
                                      .ud = s };
    s->n_token = 0;
    s->ended = false;
    if (ml_engine_open(&e, spec, w, be, &opts, &err))
        die(err.msg);
    for (int32_t i = 0; i < l->n_stream; i++)
        submit(e, l, prompt, i, on_spoken, s);
    while (ml_engine_step(e)) {
        if (s->ended)
            continue;
        ml_engine_stats(e, &stats);
        now = ml_clock_s();
        tokens = s->n_token;
        steps = stats.n_step;
        /* all decode, and graphs exist */
        if (!before && tokens >= (int64_t)l->n_stream * (l->n_out / 4)) {
            before = tokens;
            first_step = steps;
            start = now;
        }
    }
    ml_engine_stats(e, &stats);
    fprintf(stderr, "%lld of %lld draft tokens right, %.2f ms a step\n",
            (long long)stats.n_accepted, (long long)stats.n_draft,
            1e3 * (now - start) / (double)(steps - first_step));
    ml_engine_close(e);
    return (double)(tokens - before) / (now - start);
}

static int bench_speculate(const char *dir, load l, int32_t n_draft) {
    ml_spec spec, mtp_spec;
    ml_weights w, mtp;
    spoken s = { .n_in = l.n_in };
    double plain;
    ml_backend be;
    ml_arena a;
    ml_err err;

    if (l.n_stream < 1 || l.n_stream > MOST_STREAMS || l.n_in < 1 || l.n_out < 16 ||
        n_draft < 1)
        die("STREAMS is 1 to 1024, IN and DRAFTS are at least 1, OUT 16");
    ml_arena_init(&a, "bench");
    if (ml_backend_open(
            &be,
            &(ml_backend_opts){ .device = "cuda",
                                .n_thread = (int)sysconf(_SC_NPROCESSORS_ONLN) },
            &err) ||
        ml_spec_open(&spec, dir, &err) || ml_mtp_open(&mtp_spec, dir, &err) ||
        ml_weights_dummy(&w, &spec, ML_WEIGHT_BF16, 1, &be, &a, &err) ||
        ml_weights_dummy(&mtp, &mtp_spec, ML_WEIGHT_BF16, 2, &be, &a, &err))
        die(err.msg);
    s.n_vocab = spec.n_vocab;
    for (int32_t i = 0; i < l.n_stream; i++)
        s.token[i] = ML_NEW(&a, int32_t, l.n_out);
    plain = speak(dir, &spec, &w, NULL, &be, &l, 0, &s, &a);
    printf("plain_tokens_per_s %.0f\n", plain);
    for (s.percent = 60; s.percent <= 80; s.percent += 10) {
        double speed = speak(dir, &spec, &w, &mtp, &be, &l, n_draft, &s, &a);
        printf("tokens_per_s_%d %.0f\nratio_%d %.3f\n", s.percent, speed, s.percent,
               speed / plain);
    }
    ml_weights_close(&mtp);
    ml_weights_close(&w);
    ml_backend_close(&be);
    ml_spec_close(&mtp_spec);
    ml_spec_close(&spec);
    ml_arena_release(&a);
    return 0;
}

/* ---- training ---- */

static ml_weight_dtype format_named(const char *name) {
    for (int i = ML_WEIGHT_FP8; i <= ML_WEIGHT_MXFP8; i++)
        if (strcmp(name, ml_weight_dtype_name((ml_weight_dtype)i)) == 0)
            return (ml_weight_dtype)i;
    die("FORMAT is fp8-blockwise, mxfp8 or another quantized format");
}

static ml_grad_format gradients_named(const char *name) {
    if (strcmp(name, "e4m3") == 0)
        return ML_GRAD_E4M3;
    if (strcmp(name, "e5m2") == 0)
        return ML_GRAD_E5M2;
    die("GRADIENTS is e4m3 or e5m2");
}

/* The quantized copy that a trainer of these weights reads. */
static void quantize(ml_weights *out, const ml_weights *w, ml_spec *spec,
                     ml_weight_dtype format, ml_backend *be, ml_arena *a) {
    ml_err err;

    ml_weights_mark_codes(spec, NULL, format);
    if (ml_weights_quantize(out, w, spec, format, be, a, &err) ||
        ml_weights_requantize(out, w, spec, be->n_thread, &err))
        die(err.msg);
}

static int bench_train(int argc, char **argv) {
    double began = ml_clock_s(), took[MAX_STEPS];
    int32_t n_seq = argc > 4 ? atoi(argv[2]) : 0, len = argc > 4 ? atoi(argv[3]) : 0;
    int n_step = argc > 4 ? atoi(argv[4]) : 0;
    int64_t max_tokens = argc > 5 ? atoll(argv[5]) : (int64_t)n_seq * len;
    int32_t rank = argc > 6 ? atoi(argv[6]) : 0;
    ml_weight_dtype format = argc > 7 ? format_named(argv[7]) : ML_WEIGHT_AUTO;
    ml_trainer_opts opts = {
        .optimizer = { .rule = { .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 },
                       .clip_grad = 1 },
        .lr = { .train_iters = 1000, .global_batch_size = n_seq, .lr = 1e-4 },
        .batch = { .global_batch_size = n_seq, .dynamic = true, .max_tokens = max_tokens },
        .keep_logits = true,
        .grad_format = argc > 8 ? gradients_named(argv[8]) : ML_GRAD_PLAIN,
        .stop_on_bad = true,
    };
    ml_arena a;
    ml_spec spec;
    ml_backend be;
    ml_weights w, quantized = { 0 };
    ml_trainer *trainer;
    adapter adapted = { 0 };
    ml_schedule plan;
    ml_step_result r;
    ml_train_sample *sample;
    ml_err err = { 0 };
    size_t base;

    if (n_seq < 1 || len < 2 || n_step < 1 || n_step > MAX_STEPS)
        die("usage: bench_gpu MODEL_DIR N_SEQ SEQ_LEN STEPS [MAX_TOKENS [LORA_RANK "
            "[FORMAT [GRADIENTS]]]]");
    ml_arena_init(&a, "bench");
    if (ml_spec_open(&spec, argv[1], &err) ||
        ml_backend_open(
            &be,
            &(ml_backend_opts){ .device = "cuda",
                                .n_thread = (int)sysconf(_SC_NPROCESSORS_ONLN) },
            &err))
        die(err.msg);
    base = ml_memory_base(&be);
    sample = make_samples(&a, n_seq, len, spec.n_vocab);
    if (rank)
        open_adapter(&adapted, rank, &spec, &be, &a);
    opts.lora = rank ? &adapted.lora : NULL;
    if (ml_weights_dummy(&w, &spec, ML_WEIGHT_BF16, 1, &be, &a, &err))
        die(err.msg);
    w.lora = rank ? &adapted.table : NULL;
    opts.trained = format ? &w : NULL;
    if (format)
        quantize(&quantized, &w, &spec, format, &be, &a);
    if (ml_trainer_open(&trainer, &spec, format ? &quantized : &w, &be, &opts, &err) ||
        ml_trainer_schedule(&plan, trainer, &a, sample, n_seq, &err))
        die(err.msg);
    for (int i = 0; i < n_step; i++) {
        double start = ml_clock_s();
        if (ml_trainer_step(trainer,
                            &(ml_step){ .sample = sample,
                                        .micro = &plan.step[0].rank[0],
                                        .n_rollout = n_seq,
                                        .denominator = (double)n_seq * (len - 1),
                                        .loss = nll },
                            &r, &err) != ML_OK)
            die(err.msg);
        took[i] = ml_clock_s() - start;
        if (i == 0)
            printf("first_step_s %.2f\n", ml_clock_s() - began);
    }
    fprintf(stderr, "loss %.6f, gradient norm %.6f\n", r.loss, r.grad_norm);
    report(&spec, took, n_step, (double)n_seq * len, len, rank > 0);
    report_memory(&be, &spec, &opts, w.buf.bytes + quantized.buf.bytes, base);
    if (getenv("CUDA_LAUNCH_BLOCKING"))
        print_ops(ml_trainer_stats(trainer), n_step);
    ml_trainer_close(trainer);
    if (!format)
        report_publication(&be, &spec, &w, rank ? &adapted.lora.weights : &w, &a);
    ml_weights_close(&quantized);
    ml_lora_close(&adapted.lora);
    ml_weights_close(&w);
    ml_backend_close(&be);
    ml_spec_close(&spec);
    ml_arena_release(&a);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 7 && strcmp(argv[2], "speculate") == 0)
        return bench_speculate(argv[1],
                               (load){ .n_stream = atoi(argv[3]),
                                       .n_in = atoi(argv[4]),
                                       .n_out = atoi(argv[5]) },
                               atoi(argv[6]));
    if (argc >= 6 && strcmp(argv[2], "quantized") == 0)
        return bench_quantized(argv[1],
                               (load){ .n_stream = atoi(argv[3]),
                                       .n_in = atoi(argv[4]),
                                       .n_out = atoi(argv[5]) },
                               (const char *const *)argv + 6, argc - 6);
    if (argc >= 6 && strcmp(argv[2], "kv") == 0)
        return bench_kv(argv[1],
                        (load){ .n_stream = atoi(argv[3]),
                                .n_in = atoi(argv[4]),
                                .n_out = atoi(argv[5]) },
                        (const char *const *)argv + 6, argc - 6);
    if (argc == 8 && strcmp(argv[2], "decode") == 0)
        return bench_decode(argv[1], (load){ .n_stream = atoi(argv[3]),
                                             .n_in = atoi(argv[4]),
                                             .n_out = atoi(argv[5]),
                                             .n_adapter = atoi(argv[6]),
                                             .rank = atoi(argv[7]) });
    return bench_train(argc, argv);
}
