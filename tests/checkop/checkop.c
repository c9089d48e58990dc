/* checkop.c - runs all cases of all ops; see checkop.h.
 *
 *     checkop [op | op/case]...   [--level L] [--threads N] [--seed S]
 *     checkop --device cuda       on a GPU, in bf16; cuda-f32: in f32
 *     checkop --write-hashes      rewrites tests/checkop/hashes.txt (of the ops named)
 *     checkop --coverage          fails when an op has no cases */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/checkop/checkop.h"

#define HASHES "tests/checkop/hashes.txt"
#define SEED 1 /* of the committed hashes */

static const ck_suite *const suites[] = {
    &ck_embed,
    &ck_rmsnorm,
    &ck_rope_table,
    &ck_rope,
    &ck_add,
    &ck_glu,
    &ck_moe_route,
    &ck_moe_gather,
    &ck_moe_combine,
    &ck_attn,
    &ck_lmhead,
    &ck_linear,
    &ck_moe_linear,
    &ck_head_linear,
    &ck_join,
    &ck_pick,
    &ck_conv,
    &ck_rates,
    &ck_recur,
    &ck_row_gate,
    &ck_scale,
    &ck_moe_scale,
    &ck_layernorm,
    &ck_index,
    &ck_attn_chosen,
    &ck_moe_weigh,
    &ck_merge,
    &ck_split,
    &ck_order,
    &ck_col_scale,
    &ck_tanh,
    &ck_cutoff,
    &ck_match_rms,
    &ck_stream_mix,
    &ck_hyper_coef,
    &ck_compress,
    &ck_lora,
    &ck_lora_experts,
    &ck_linear_codes,
    &ck_linear_fp8,
    &ck_linear_fp8_back,
    &ck_moe_linear_codes,
    &ck_moe_linear_fp8,
    &ck_moe_linear_wide,
};
enum { N_SUITE = sizeof suites / sizeof *suites };

/* u = 2^-24 = 6e-8 is the rounding of one f32 operation. */
static const ck_bound bounds[ML_OP_COUNT] = {
    [ML_OP_EMBED] = { 1e-7, 1e-6, "one product; sums over a few equal ids" },
    [ML_OP_LINEAR] = { 3e-6, 1e-5, "chains of up to some hundred FMAs" },
    [ML_OP_RMSNORM] = { 5e-7, 5e-6, "a 16-lane sum, a root and three products" },
    [ML_OP_ROPE_TABLE] = { 1e-7, 0, "one rounding to f32" },
    [ML_OP_ROPE] = { 3e-7, 1e-6, "a product and an FMA" },
    [ML_OP_ATTN] = { 5e-6, 2e-5, "exp, softmax sums and two chains over the keys" },
    [ML_OP_ADD] = { 1e-7, 1e-6, "one addition" },
    [ML_OP_GLU] = { 1e-6, 5e-6, "sigmoid or tanh of a few ulp and three products" },
    [ML_OP_MOE_ROUTE] = { 1e-6, 5e-6, "exp, a 16-lane sum and two divisions" },
    [ML_OP_MOE_GATHER] = { 0, 1e-6, "a copy; backward adds a few rows" },
    [ML_OP_MOE_LINEAR] = { 3e-6, 1e-5, "as linear" },
    [ML_OP_MOE_COMBINE] = { 5e-7, 3e-6, "an FMA per rank; a 16-lane dot product" },
    [ML_OP_MOE_WEIGH] = { 1e-7, 2e-6, "a product; a 16-lane dot product" },
    [ML_OP_HEAD_LINEAR] = { 3e-6, 1e-5, "as linear" },
    [ML_OP_CONCAT] = { 0, 1e-6, "a copy" },
    [ML_OP_SLICE] = { 0, 1e-6, "a copy" },
    [ML_OP_CONV] = { 1e-6, 5e-6, "a chain of taps, a sigmoid" },
    [ML_OP_DECAY] = { 2e-7, 1e-6, "f64, rounded once; sums over rows in backward" },
    [ML_OP_LINEAR_RNN] = { 5e-6, 2e-5, "two chains per token, carried through the state" },
    [ML_OP_ROW_GATE] = { 2e-7, 2e-6, "a product; a 16-lane dot product" },
    [ML_OP_SCALE] = { 1e-7, 1e-6, "a product" },
    [ML_OP_MOE_SCALE] = { 1e-7, 2e-6, "a product; sums over tokens in backward" },
    [ML_OP_LAYERNORM] = { 1e-6, 1e-5, "two 16-lane sums, a root and three products" },
    [ML_OP_INDEX] = { 0, 0, "a choice" },
    [ML_OP_ATTN_CHOSEN] = { 5e-6, 2e-5, "exp, softmax sums and two chains over the keys" },
    [ML_OP_COL_SCALE] = { 1e-7, 2e-6, "a product; sums over tokens in backward" },
    [ML_OP_TANH] = { 5e-7, 1e-6, "tanh of 4 ulp; three products" },
    [ML_OP_CUTOFF] = { 1e-6, 5e-6, "two 16-lane sums, a root, a difference" },
    [ML_OP_MATCH_RMS] = { 1e-6, 5e-6, "two 16-lane sums, two roots and two products" },
    [ML_OP_STREAM_MIX] = { 1e-6, 3e-6, "an FMA per stream; a 16-lane dot product" },
    [ML_OP_HYPER_COEF] = { 2e-7, 2e-6, "f64, rounded once; sums over tokens in backward" },
    [ML_OP_COMPRESS] = { 2e-7, 2e-6, "f64, rounded once; sums over windows in backward" },
    [ML_OP_MERGE_COLS] = { 0, 0, "a copy" },
    [ML_OP_SPLIT_COLS] = { 0, 1e-6, "a copy" },
    [ML_OP_ORDER_ROWS] = { 0, 1e-6, "a copy" },
    [ML_OP_LORA] = { 3e-6, 1e-5, "two chains, as linear" },
    [ML_OP_LMHEAD] = { 5e-6, 2e-5, "a chain, exp, sums over a vocabulary" },
};

/* Bounds of a GPU: it uses the hardware's exponential (2^-22); in bf16 an output is
 * rounded to 2^-9, and so are softmax weights and intermediate gradients. */
static ck_bound device_bound(const ml_backend *b, ml_op_id op) {
    ck_bound r = bounds[op];

    r.forward = 20 * r.forward;
    r.backward = 20 * r.backward;
    if (b->act != ML_BF16)
        return r;
    r.forward = op == ML_OP_ROPE_TABLE || op == ML_OP_LMHEAD ? r.forward : 0x1p-7;
    r.backward = 0x1p-6;
    return r;
}

typedef struct options {
    const char *level, *device;
    int threads;
    bool write_hashes, coverage;
    uint64_t seed;
    char **filter;
    int n_filter;
} options;

static ck_env env; /* global, for the signal handler */

void ck_fail(ck_env *e, const char *fmt, ...) {
    const ml_backend *b = &e->backend[e->now_backend];
    const char *op = ml_op_infos[e->now->suite->op].name;
    int n = (int)strcspn(e->now->name, " "); /* derived cases add words to the name */
    va_list ap;

    printf("FAIL %s/%s, level %s, %d threads: ", op, e->now->name, b->level, b->n_thread);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("; again: checkop %s/%.*s --level %s --threads %d --seed %llu\n", op, n,
           e->now->name, b->level, b->n_thread, (unsigned long long)e->seed);
    e->n_fail++;
}

static void on_crash(int sig) {
    ck_fail(&env, "signal %d, probably memory past a tensor", sig);
    printf("0 passed, 1 failed, 0 skipped\n"); /* the remaining cases were not run */
    fflush(stdout);
    _exit(1);
}

/* ---- one case ---- */

static bool fill_gradients(ck_case *c) {
    const ml_op_info *info = &ml_op_infos[c->suite->op];
    bool any = false;

    for (int i = 0; i < ML_OP_OUT; i++)
        if (c->suite->grad_out & 1u << i && c->out[i].n_dim) {
            c->dout[i] = c->out[i];
            ck_fill(c, &c->dout[i], 1.0f);
        }
    for (int i = 0; i < ML_OP_IN; i++)
        if (info->grad_in & 1u << i && c->in[i].data) {
            c->din[i] = c->in[i];
            ck_fill(c, &c->din[i], 1.0f);
            any = true;
        }
    for (int i = 0; i < ML_OP_W; i++)
        if (c->w[i].data && !c->suite->frozen) {
            c->dw[i] = c->w[i];
            c->dw[i].dtype = ML_F32;
            ck_fill(c, &c->dw[i], 1.0f);
            any = true;
        }
    return any;
}

/* Gradients written and gradients added: every other mode must reproduce both results. */
typedef struct pair {
    ck_result alone, sum;
} pair;

static void run_pair(const ck_case *c, ck_mode m, pair *p) {
    m.add = false;
    ck_run(&env, c, m, &p->alone);
    m.add = m.backward;
    ck_run(&env, c, m, &p->sum);
}

static void check_levels(const ck_case *c, ck_mode m, const pair *base) {
    for (int i = 1; i < env.n_backend; i++) { /* base is of the first */
        pair p;
        m.backend = i;
        m.end = i % 2 == 1;
        run_pair(c, m, &p);
        ck_same_result(&env, "differs from level c", &base->alone, &p.alone);
        ck_same_result(&env, "differs from level c when added", &base->sum, &p.sum);
    }
}

static void check_in_place(const ck_case *c, ck_mode m, const pair *base) {
    m.backward = false;
    for (int i = 0; i < ML_OP_IN; i++) {
        if (!(ml_op_infos[c->suite->op].in_place & 1u << i) || !c->in[i].data ||
            ml_tensor_bytes(&c->in[i]) != ml_tensor_bytes(&c->out[0]))
            continue;
        m.in_place = i;
        for (m.backend = 0; m.backend < env.n_backend; m.backend++) {
            ck_result r;
            ck_run(&env, c, m, &r);
            ck_same(&env, "differs in place: out[0]", &base->alone.out[0], &r.out[0]);
        }
    }
}

static void check_single_gradients(const ck_case *c, ck_mode m, const pair *base) {
    m.backend = env.n_backend - 1;
    for (m.only = 0; m.only < ML_OP_IN + ML_OP_W; m.only++) {
        ck_result r;
        ck_run(&env, c, m, &r);
        ck_same_result(&env, "differs as the only gradient", &base->alone, &r);
    }
}

static void check_rows(const ck_case *c, ck_mode m, const pair *base) {
    m.backward = false;
    m.special = true; /* outputs that are not rows remain poisoned */
    m.backend = env.n_backend - 1;
    for (int32_t t = 0; t < c->rows.n_token; t++) {
        ck_case row = ck_row(c, t);
        ck_result r;
        ck_run(&env, &row, m, &r);
        for (int i = 0; i < ML_OP_OUT; i++) {
            ml_tensor want = base->alone.out[i];
            if (!(c->suite->row_out & 1u << i) || !want.data)
                continue;
            want.shape[0] = 1;
            want.data = (char *)want.data + (size_t)t * ml_tensor_bytes(&want);
            ck_same(&env, "differs from its row in the batch: out", &want, &r.out[i]);
        }
    }
}

static uint64_t check_case(ck_case *c, const ck_bound *bound) {
    ck_mode m = { .in_place = CK_ALL, .only = CK_ALL };
    ck_case special;
    pair base, odd;

    m.backward = fill_gradients(c);
    if (env.backend[0].act == ML_BF16)
        ck_round(c);
    if (env.backend[0].act == ML_BF16 && c->suite->settle)
        c->suite->settle(c);
    run_pair(c, m, &base);
    check_levels(c, m, &base);
    check_in_place(c, m, &base);
    if (m.backward)
        check_single_gradients(c, m, &base);
    if (c->suite->row_out)
        check_rows(c, m, &base);
    env.now = c;
    env.now_backend = 0;
    ck_check_forward(&env, c, &base.alone, bound);
    if (!c->suite->rounds)
        ck_check_backward(&env, c, &base.alone, bound);
    ck_check_add(&env, c, &base.alone, &base.sum, bound);
    if (c->suite->also)
        c->suite->also(&env, c);

    special = ck_special(c);
    m.special = true;
    run_pair(&special, m, &odd);
    check_levels(&special, m, &odd);
    env.now = c;
    env.now_backend = 0;
    return ck_hash(ck_hash(ck_hash(0xcbf29ce484222325u, &base.alone), &base.sum),
                   &odd.alone);
}

/* ---- all cases ---- */

static bool wanted(const options *o, const char *op, const char *full) {
    for (int i = 0; i < o->n_filter; i++)
        if (strcmp(o->filter[i], op) == 0 || strcmp(o->filter[i], full) == 0)
            return true;
    return o->n_filter == 0;
}

/* How many cases passed, failed and were skipped.  One that is filtered out is not counted. */
static void walk_case(const options *o, const ck_suite *s, int i, const ck_hashes *known,
                      ck_hashes *fresh, int count[3]) {
    const char *op = ml_op_infos[s->op].name;
    char full[120];
    ml_err err;
    ml_arena arena;
    ck_case c = { .arena = &arena, .suite = s };

    ml_arena_init(&arena, "checkop case");
    c.random = o->seed << 32 | (uint64_t)s->op << 16 | (uint64_t)i;
    s->build(&c, i);
    snprintf(full, sizeof full, "%s/%s", op, c.name);
    if (c.gpu_only && !o->device) {
        ml_arena_release(&arena);
        return;
    }
    if (o->device && wanted(o, op, full) && !ck_device_takes(&env, &c, &err)) {
        printf("skipped: %s: %s\n", full, err.msg);
        count[2]++;
        ml_arena_release(&arena);
        return;
    }
    if (wanted(o, op, full)) {
        ck_bound bound = o->device ? device_bound(&env.backend[0], s->op) : bounds[s->op];
        uint64_t hash;
        env.n_fail = 0;
        hash = check_case(&c, &bound);
        ck_hashes_set(fresh, full, hash);
        if (!o->device && !o->write_hashes && o->seed == SEED)
            ck_hashes_check(&env, known, full, hash);
        count[env.n_fail > 0]++;
    } else {
        ck_hashes_keep(fresh, known, full);
    }
    ml_arena_release(&arena);
}

static void walk_suite(const options *o, const ck_suite *s, const ck_hashes *known,
                       ck_hashes *fresh, int count[3]) {
    if (s->device_only && !o->device)
        return;
    if (!env.backend[0].ops->forward[s->op]) {
        printf("skipped: backend %s has no op %s\n", env.backend[0].name,
               ml_op_infos[s->op].name);
        count[2] += s->n_case;
        return;
    }
    for (int i = 0; i < s->n_case; i++)
        walk_case(o, s, i, known, fresh, count);
}

static int summary(const int count[3]) {
    printf("%d passed, %d failed, %d skipped\n", count[0], count[1], count[2]);
    return count[1] || !count[0];
}

static int walk(const options *o) {
    int count[3] = { 0 };
    ck_hashes *known, *fresh;
    ml_arena arena;

    ml_arena_init(&arena, "checkop hashes");
    known = ck_hashes_read(&arena, HASHES);
    fresh = ck_hashes_read(&arena, NULL);
    for (int k = 0; k < N_SUITE; k++)
        walk_suite(o, suites[k], known, fresh, count);
    if (o->write_hashes && !ck_hashes_write(fresh, HASHES)) {
        printf("FAIL %s cannot be written: %s\n", HASHES, strerror(errno));
        count[1]++;
    }
    ml_arena_release(&arena);
    return summary(count);
}

static int coverage(void) {
    int count[3] = { 0 };
    for (int op = 0; op < ML_OP_COUNT; op++) {
        int n = 0;
        if (ml_op_infos[op].comm) /* no backend has it */
            continue;
        for (int k = 0; k < N_SUITE; k++)
            n += (int)suites[k]->op == op ? suites[k]->n_case : 0;
        printf("%s %s: %d cases\n", n ? "ok  " : "FAIL", ml_op_infos[op].name, n);
        count[n == 0]++;
    }
    return summary(count);
}

/* ---- the environment ---- */

static void open_backend(const char *level, int threads) {
    ml_err err;
    if (ml_backend_cpu_open(&env.backend[env.n_backend++], threads, level, &err)) {
        fprintf(stderr, "checkop: %s\n", err.msg);
        exit(2);
    }
}

/* Two backends, so that results can be compared. */
static bool open_device(const options *o) {
    ml_backend_opts b = { .device = "cuda",
                          .n_thread = 1,
                          .f32 = strcmp(o->device, "cuda-f32") == 0 };
    ml_err err;

    for (int i = 0; i < 2; i++)
        if (ml_backend_open(&env.backend[env.n_backend++], &b, &err)) {
            printf("skipped: %s\n0 passed, 0 failed, 1 skipped\n", err.msg);
            return false;
        }
    return true;
}

/* The reference is level c with one thread.  It is slow, so that it has one more number of threads only,
 * unless it is asked for. */
static bool open_backends(const options *o) {
    static const int threads[] = { 1, 2, 3, 8 };
    static ml_backend store[32];

    env.backend = store;
    env.seed = o->seed;
    if (o->device)
        return open_device(o);
    open_backend("c", 1);
    if (o->level && o->threads) {
        open_backend(o->level, o->threads);
        return true;
    }
    for (const char *const *l = ml_backend_cpu_levels(); *l; l++)
        for (int i = 0; i < 4; i++)
            if ((o->level ? strcmp(o->level, *l) == 0
                          : strcmp(*l, "c") != 0 || o->threads || threads[i] == 3) &&
                (!o->threads || o->threads == threads[i]))
                open_backend(*l, threads[i]);
    return true;
}

static options parse(int argc, char **argv) {
    options o = { .seed = SEED, .filter = argv + 1 };
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--write-hashes") == 0) {
            o.write_hashes = true;
        } else if (strcmp(argv[i], "--coverage") == 0) {
            o.coverage = true;
        } else if (strcmp(argv[i], "--level") == 0 && more) {
            o.level = argv[++i];
        } else if (strcmp(argv[i], "--device") == 0 && more) {
            o.device = argv[++i];
        } else if (strcmp(argv[i], "--threads") == 0 && more) {
            o.threads = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--seed") == 0 && more) {
            o.seed = strtoull(argv[++i], NULL, 10);
        } else if (argv[i][0] == '-') {
            fprintf(stderr, "checkop: %s is no option, or lacks its value\n", argv[i]);
            exit(2);
        } else {
            o.filter[o.n_filter++] = argv[i];
        }
    }
    if (o.write_hashes && o.seed != SEED) {
        fprintf(stderr, "checkop: --write-hashes takes no --seed but %d\n", SEED);
        exit(2);
    }
    return o;
}

int main(int argc, char **argv) {
    options o = parse(argc, argv);
    int rc;

    if (o.coverage)
        return coverage();
    if (!open_backends(&o))
        return 0;
    signal(SIGSEGV, on_crash);
    signal(SIGBUS, on_crash);
    rc = walk(&o);
    for (int i = 0; i < env.n_backend; i++)
        ml_backend_close(&env.backend[i]);
    return rc;
}
