/* bench_engine.c - generation through the engine: a 135M-parameter llama shape.
 *
 *     bench_engine [--f32] [--csv FILE]      lines: case,threads,ours,peer,ratio,goal
 *
 * Weights, keys and values are bf16; --f32: f32.
 *
 * Two threads.  Everything takes turns in one run and the best of each counts.
 *   prefill     a step with a prompt of 512; the peer is the time OpenBLAS takes for the
 *               products of the layers alone, in f32.
 *   decode 1    a step of one request at a context of 256 and more; the peer reads the
 *               weights' bytes once.
 *   decode 16   a step of 16 requests, at a context of 32 and more and of 256 and more; the
 *               peers are prefill and decode 1, in tokens/s.  A decoded token pays for its
 *               logits (a fifth of the products; of a prompt only the last token does) and
 *               reads its keys and values from memory (23 KB for each token before it).
 *   lookup      a greedy answer, which repeats itself with such weights, with draft tokens by
 *               prompt lookup; the peer is the same answer without them.
 *   overhead    the part of these steps that is not the forward pass: scheduler and sampler.
 *   start       from the start of `miles bench engine` on a checkpoint in the page cache
 *               until it has written its first token and ended.
 *
 * Linked with -lopenblas, which is a dependency of benchmarks only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cpu/cpu_priv.h"
#include "base/clock.h"
#include "base/file.h"
#include "bench/openblas.h"
#include "engine/engine.h"
#include "io/safetensors.h"

enum {
    PREFILL = 512,
    SHORT = 32, /* prompts of what is decoded */
    LONG = 256,
    DECODE = 24, /* tokens then decoded */
    MANY = 16,
    THREADS = 2,
    TURNS = 7,
    STARTS = 5,
    ANSWER = 128, /* tokens of an answer that repeats itself */
    DRAFTS = 11,
    LINE = 64,
    PIECE_LINES = 8 * 1024,
    WIDEST = 1536, /* the largest side of a layer's product */
};

static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 49152, \"hidden_size\": 576,"
    " \"intermediate_size\": 1536, \"num_hidden_layers\": 30, \"num_attention_heads\": 9,"
    " \"num_key_value_heads\": 3, \"head_dim\": 64, \"tie_word_embeddings\": true}";

/* Seconds: the best of all turns. */
typedef struct best {
    double prefill, reads, products, start, plain, lookup;
} best;

/* Steps that decode: the best, and where the time of all goes. */
typedef struct decoding {
    double best, all, model;
} decoding;

typedef struct bench {
    ml_arena arena;
    ml_spec spec;
    ml_backend be;
    ml_weights w;
    ml_engine *engine, *drafting; /* the latter with draft tokens */
    bool begun[MANY + TURNS];     /* by ticket: has its first token */
    int32_t n_begun;
    float *x, *y, *z; /* OpenBLAS' operands */
    char miles[4000], dir[200];
    FILE *csv;
    bool f32, missed;
} bench;

static void die(const char *what) {
    fprintf(stderr, "bench_engine: %s\n", what);
    exit(1);
}

static float *floats(size_t n) {
    float *p = aligned_alloc(LINE, n * sizeof *p);
    if (!p)
        die("no memory");
    for (size_t i = 0; i < n; i++)
        p[i] = 0.01f * (float)(i % 17);
    return p;
}

static void open_bench(bench *b) {
    ml_weight_dtype type = b->f32 ? ML_WEIGHT_F32 : ML_WEIGHT_BF16;
    ml_err err = { 0 };
    ml_engine_opts opts = { .context = PREFILL + DECODE,
                            .max_running = MANY,
                            .max_waiting = MANY,
                            .chunk = PREFILL };

    ml_arena_init(&b->arena, "bench");
    if (ml_spec_parse(&b->spec, ml_str_of(config), "config", &err) ||
        ml_backend_cpu_open(&b->be, THREADS, NULL, &err) ||
        ml_weights_dummy(&b->w, &b->spec, type, 1, &b->be, &b->arena, &err))
        die(err.msg);
    ml_spec_keep_kv(&b->spec, ml_weights_kv_dtype(&b->spec, NULL, type));
    /* The prompts to decode from are computed once: room to keep them beside the others. */
    opts.kv_bytes = ml_kv_bytes(&b->spec, &b->be, 3 * MANY * ml_kv_pages_for(opts.context));
    if (ml_engine_open(&b->engine, &b->spec, &b->w, &b->be, &opts, &err))
        die(err.msg);
    opts.draft = (ml_draft_opts){ .n = DRAFTS, .ngram = true };
    if (ml_engine_open(&b->drafting, &b->spec, &b->w, &b->be, &opts, &err))
        die(err.msg);
    b->x = floats((size_t)PREFILL * WIDEST);
    b->y = floats((size_t)PREFILL * WIDEST);
    b->z = floats((size_t)WIDEST * WIDEST);
}

static void close_bench(bench *b) {
    ml_engine_close(b->engine);
    ml_engine_close(b->drafting);
    ml_weights_close(&b->w);
    ml_backend_close(&b->be);
    ml_spec_close(&b->spec);
    ml_arena_release(&b->arena);
    free(b->x);
    free(b->y);
    free(b->z);
}

static void keep_least(double *least, double t) {
    if (t < *least)
        *least = t;
}

/* ---- steps ---- */

/* Counts the requests that have begun to answer. */
static void on_update(void *ud, const ml_gen_update *u) {
    bench *b = ud;
    b->n_begun += !b->begun[u->ticket];
    b->begun[u->ticket] = true;
}

static void submit(bench *b, int32_t n_prompt, int32_t n_out, uint64_t sample) {
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
    if (ml_engine_submit(b->engine, &r, on_update, b, sample, &err) != ML_OK)
        die(err.msg);
}

/* Seconds of the next step, and those of its forward pass. */
static double step(bench *b, double *model) {
    ml_gen_stats before, after;

    ml_engine_stats(b->engine, &before);
    if (!ml_engine_step(b->engine))
        die("the engine has nothing to do");
    ml_engine_stats(b->engine, &after);
    *model = after.model_s - before.model_s;
    return after.step_s - before.step_s;
}

/* A prompt that nothing has seen: from a sample of its own. */
static void prefill(bench *b, double *least, int turn) {
    double model;
    submit(b, PREFILL, 1, (uint64_t)(MANY + turn));
    keep_least(least, step(b, &model));
}

/* Once all prompts are in, steps only decode. */
static void decode(bench *b, int32_t n, int32_t prompt, decoding *d) {
    double model;

    b->n_begun = 0;
    memset(b->begun, 0, sizeof b->begun);
    for (int32_t i = 0; i < n; i++)
        submit(b, prompt, DECODE + n, (uint64_t)i);
    while (b->n_begun < n)
        step(b, &model);
    for (int32_t i = 0; i < DECODE; i++) {
        double s = step(b, &model);
        keep_least(&d->best, s);
        d->all += s;
        d->model += model;
    }
    ml_engine_abort_all(b->engine, "measured");
}

static void ignore(void *ud, const ml_gen_update *u) {
    (void)ud, (void)u;
}

/* Seconds of a greedy answer. */
static void answer(ml_engine *e, double *least) {
    int32_t prompt[SHORT];
    ml_gen_request r = { .prompt = prompt,
                         .n_prompt = SHORT,
                         .draw = { .top_p = 1.0f, .repetition = 1.0f },
                         .max_new = ANSWER,
                         .ignore_eos = true,
                         .score_from = -1 };
    ml_gen_stats before, after;
    ml_err err;

    for (int32_t i = 0; i < SHORT; i++)
        prompt[i] = i * 7919 % 49152;
    if (ml_engine_submit(e, &r, ignore, NULL, 1, &err) != ML_OK)
        die(err.msg);
    ml_engine_stats(e, &before);
    while (ml_engine_step(e))
        ;
    ml_engine_stats(e, &after);
    keep_least(least, after.step_s - before.step_s);
}

/* ---- peers ---- */

static bool in_layers(const ml_param *p) {
    return p->n_dim == 2 && p->shape[0] <= WIDEST;
}

/* The products of the layers. */
static double multiply(const bench *b) {
    double start = ml_clock_s();
    for (int32_t i = 0; i < b->spec.n_param; i++) {
        const ml_param *p = &b->spec.param[i];
        const int n = (int)p->shape[0], k = (int)p->shape[1];
        if (in_layers(p))
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, PREFILL, n, k, 1, b->x, k,
                        b->z, k, 0, b->y, n);
    }
    return ml_clock_s() - start;
}

typedef struct reading {
    const char *at;
    uint64_t sum[THREADS];
} reading;

/* One word of every line: memory sends the whole line, and nothing else takes time. */
static void read_lines(void *ud, int64_t begin, int64_t end, int worker) {
    reading *r = ud;
    uint64_t sum = 0, word;

    for (int64_t i = begin; i < end; i++) {
        memcpy(&word, r->at + i * LINE, sizeof word);
        sum += word;
    }
    r->sum[worker] += sum;
}

static double read_weights(const bench *b) {
    reading r = { .at = b->w.buf.ptr };
    double start = ml_clock_s();
    ml_pool_run(ml_cpu(b->be.stream)->pool, (int64_t)(b->w.buf.bytes / LINE), PIECE_LINES,
                read_lines, &r);
    return ml_clock_s() - start;
}

/* ---- start ---- */

static void name(bench *b, char *out, size_t cap, const char *file) {
    snprintf(out, cap, "%s/%s", b->dir, file);
}

static void write_tensors(bench *b, const char *path) {
    int32_t n = b->spec.n_param;
    ml_st_tensor *t = ML_NEW(&b->arena, ml_st_tensor, n);
    ml_st_writer *out;
    ml_err err;

    for (int32_t i = 0; i < n; i++) {
        const ml_param *p = &b->spec.param[i];
        t[i] = (ml_st_tensor){ .name = ml_str_of(p->name),
                               .dtype = ML_ST_BF16,
                               .n_dim = p->n_dim,
                               .shape = { p->shape[0], p->shape[1] } };
    }
    if (ml_st_create(&out, path, &(ml_st_layout){ .n = n, .tensor = t }, &err) != ML_OK)
        die(err.msg);
    for (int32_t i = 0; i < n; i++) {
        const ml_param *p = &b->spec.param[i];
        size_t bytes = (size_t)ml_param_count(p) * sizeof(uint16_t);
        void *all = malloc(bytes);
        if (!all)
            die("no memory");
        ml_weights_unpack(&b->w, i, 0, 0, p->n_dim == 2 ? p->shape[0] : 1, ML_BF16, all);
        if (ml_st_write(out, i, 0, all, bytes, &err) != ML_OK)
            die(err.msg);
        free(all);
    }
    if (ml_st_commit(out, &err) != ML_OK)
        die(err.msg);
}

static void write_checkpoint(bench *b) {
    const char *temp = getenv("TMPDIR");
    char path[300];
    ml_err err;

    snprintf(b->dir, sizeof b->dir, "%s/bench_engine.XXXXXX", temp ? temp : "/tmp");
    if (!mkdtemp(b->dir))
        die("there is no directory for a checkpoint; set TMPDIR");
    name(b, path, sizeof path, "model.safetensors");
    write_tensors(b, path);
    name(b, path, sizeof path, "config.json");
    if (ml_file_replace(path, ml_str_of(config), &err) != ML_OK)
        die(err.msg);
}

static void remove_checkpoint(const bench *b) {
    char path[300];
    snprintf(path, sizeof path, "%s/model.safetensors", b->dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", b->dir);
    unlink(path);
    rmdir(b->dir);
}

/* The program that asks, and the seconds until it has its token and is gone. */
static double start_program(bench *b) {
    double start = ml_clock_s();
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        if (freopen("/dev/null", "w", stdout))
            execl(b->miles, "miles", "bench", "engine", "--model-path", b->dir,
                  "--num-prompts", "1", "--random-input-len", "16", "--random-output-len",
                  "1", "--warmup-requests", "0", "--threads", "2", (char *)NULL);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) ||
        WEXITSTATUS(status) != 0)
        die("miles bench engine did not run");
    return ml_clock_s() - start;
}

/* ---- the report ---- */

static void report(bench *b, const char *what, const char *unit, double ours, double peer,
                   double ratio, double goal, bool ok) {
    printf("%-24s %d threads  %8.2f %-8s peer %8.2f  ratio %5.2f  goal %5.2f  %s\n", what,
           THREADS, ours, unit, peer, ratio, goal, ok ? "ok" : "MISS");
    if (b->csv)
        fprintf(b->csv, "%s,%d,%.3f,%.3f,%.3f,%.2f\n", what, THREADS, ours, peer, ratio,
                goal);
    b->missed = b->missed || !ok;
}

static void at_least(bench *b, const char *what, const char *unit, double ours, double peer,
                     double goal) {
    report(b, what, unit, ours, peer, ours / peer, goal, ours / peer >= goal);
}

static void at_most(bench *b, const char *what, const char *unit, double ours,
                    double goal) {
    report(b, what, unit, ours, goal, ours / goal, 1.0, ours <= goal);
}

/* GFLOP of a token in the layers. */
static double layer_work(const bench *b) {
    double gflop = 0.0;
    for (int32_t i = 0; i < b->spec.n_param; i++)
        if (in_layers(&b->spec.param[i]))
            gflop += 2e-9 * (double)ml_param_count(&b->spec.param[i]);
    return gflop;
}

/* Percent of a step that is scheduler and sampler. */
static double overhead(const decoding *d) {
    return 100.0 * (1.0 - d->model / d->all);
}

static void report_all(bench *b, const best *t, const decoding *one, const decoding *near,
                       const decoding *far) {
    double layers = layer_work(b), gb = 1e-9 * (double)b->w.buf.bytes;

    printf(
        "prefill %.0f tokens/s, decode of %d %.0f and %.0f tokens/s, of 1 %.0f tokens/s\n",
        PREFILL / t->prefill, MANY, MANY / near->best, MANY / far->best, 1.0 / one->best);
    at_least(b, "engine prefill", "GFLOP/s", PREFILL * layers / t->prefill,
             PREFILL * layers / t->products, 0.8);
    at_least(b, "engine decode 1", "GB/s", gb / one->best, gb / t->reads, 0.75);
    at_least(b, "engine 16/prefill at 32", "tokens/s", MANY / near->best,
             PREFILL / t->prefill, 0.75);
    at_least(b, "engine 16/prefill at 256", "tokens/s", MANY / far->best,
             PREFILL / t->prefill, 0.75);
    at_least(b, "engine decode 16/1", "tokens/s", MANY / far->best, 1.0 / one->best, 2.5);
    at_least(b, "engine prompt lookup", "tokens/s", ANSWER / t->lookup, ANSWER / t->plain,
             1.5);
    at_most(b, "engine overhead 1", "%", overhead(one), 3.0);
    at_most(b, "engine overhead 16", "%", overhead(far), 3.0);
    at_most(b, "engine start", "s", t->start, 0.5);
}

static void run(bench *b) {
    best t = { 1e9, 1e9, 1e9, 1e9, 1e9, 1e9 };
    decoding one = { .best = 1e9 }, near = { .best = 1e9 }, far = { .best = 1e9 };

    for (int i = 0; i < TURNS; i++) {
        prefill(b, &t.prefill, i);
        decode(b, 1, LONG, &one);
        decode(b, MANY, SHORT, &near);
        decode(b, MANY, LONG, &far);
        answer(b->engine, &t.plain);
        answer(b->drafting, &t.lookup);
        keep_least(&t.reads, read_weights(b));
        keep_least(&t.products, multiply(b));
    }
    write_checkpoint(b);
    for (int i = 0; i < STARTS; i++)
        keep_least(&t.start, start_program(b));
    remove_checkpoint(b);
    report_all(b, &t, &one, &near, &far);
}

/* miles lies one folder above this program. */
static void find_miles(bench *b, const char *self) {
    const char *slash = strrchr(self, '/');
    snprintf(b->miles, sizeof b->miles, "%.*s/../miles", slash ? (int)(slash - self) : 1,
             slash ? self : ".");
    if (access(b->miles, X_OK) != 0)
        die("there is no program miles one folder above; run make bench");
}

int main(int argc, char **argv) {
    bench b = { 0 };

    openblas_use_best_core(argv);
    find_miles(&b, argv[0]);
    b.f32 = argc > 1 && strcmp(argv[1], "--f32") == 0;
    argc -= b.f32;
    argv += b.f32;
    if (argc == 3 && strcmp(argv[1], "--csv") == 0)
        b.csv = fopen(argv[2], "a");
    if (argc != 1 && !b.csv)
        die("usage: bench_engine [--f32] [--csv FILE], FILE to be written to");
    open_bench(&b);
    openblas_set_num_threads(THREADS);
    run(&b);
    close_bench(&b);
    if (b.csv)
        fclose(b.csv);
    return b.missed ? 1 : 0;
}
