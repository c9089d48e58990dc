/* check_engine.c - what was generated on a GPU is what is trained on, bit for bit.
 *
 *     check_engine MODEL_DIR [ADAPTERS RANK | eagle3 HEAD_DIR | quantized DTYPE | kv DTYPE]
 *
 * Made-up weights of the shape of MODEL_DIR/config.json.  Requests of many lengths go through the
 * engine (batched, in chunks, with shared prefixes, put back when pages run out, recorded steps,
 * steps begun ahead);
 * then the trainer scores the same tokens, packed, and every log-prob must have the same bits.  With
 * adapters (LoRA), requests of a batch have different ones, or none; the engine's are rounded as
 * far as the backend rounds them, the trainer's are not.  The weights, or the KV cache, may be
 * quantized.  Speculative decoding of the same requests
 * must give the same tokens and log-probs: with draft tokens by prompt lookup, and with those of a
 * multi-token prediction module or an EAGLE-3 head, if there is one, most of which are replaced by
 * right ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/request.h"
#include "model/lora.h"
#include "model/mtp.h"
#include "train/trainer.h"

enum {
    MAX_ADAPTERS = 64,
    MAX_REQ = 160,
    MAX_PROMPT = 1000,
    MAX_NEW = 60,
    MORE = 106, /* tokens that a context has behind the longest prompt */
    CONTEXT = MAX_PROMPT + MORE,
    MAX_ENDS = 2000
};

/* One way of batching.  Kernels follow from the number of rows of a step. */
typedef struct load {
    int n_req, running, chunk;
    int short_of; /* there is one page for so many that all could want */
    int longest;  /* prompt */
} load;

/* In the second step of the third one some requests have draft tokens, others join, and then there are
 * too many for more draft tokens. */
static const load loads[] = { { 48, 16, 64, 10, 150 },
                              { 160, 96, 256, 2, 150 },
                              { 66, 66, 4096, 1, 150 },
                              { 14, 14, 4096, 1, MAX_PROMPT } };

typedef struct answer {
    int32_t token[CONTEXT], n_prompt, n;
    float logprob[CONTEXT];
    bool ended;
} answer;

static answer answers[MAX_REQ], plain[MAX_REQ];

static int32_t ends[MAX_ENDS]; /* ids whose draw ends some answers, which nobody foresees */

static _Noreturn void die(const char *what) {
    fprintf(stderr, "check_engine: %s\n", what);
    exit(1);
}

static uint32_t dice_state;

static uint32_t dice(void) {
    dice_state = dice_state * 1664525u + 1013904223u;
    return dice_state >> 8;
}

static void on_update(void *ud, const ml_gen_update *u) {
    answer *a = &answers[u->ticket];

    (void)ud;
    for (int32_t i = 0; i < u->answer.n; i++) {
        a->token[a->n] = u->answer.id[i];
        a->logprob[a->n++] = u->answer.logprob[i];
    }
    a->ended = u->finish != ML_FINISH_NOT;
}

/* Half of the prompts begin alike. */
static void make_prompt(answer *a, int i, int64_t vocab, int longest) {
    a->n_prompt = a->n = 1 + (int32_t)(dice() % (uint32_t)longest);
    for (int32_t k = 0; k < a->n; k++)
        a->token[k] =
            (int32_t)((i % 2 && k < 70 ? (uint32_t)(k * 7919) : dice()) % (uint32_t)vocab);
}

/* ---- adapters ---- */

typedef struct adapter {
    ml_lora trained, served;
    const ml_lora_site *site;
    ml_lora_table table; /* of `trained` alone */
    ml_weights view;     /* the base with it */
} adapter;

static struct {
    adapter of[MAX_ADAPTERS];
    const ml_lora_site *site[MAX_ADAPTERS]; /* as the engine has them */
    ml_lora_table table;
    int n;
} adapters;

/* The adapter of a request, or -1. */
static int adapter_of(int request) {
    return request % (adapters.n + 1) - 1;
}

static void new_adapter(ml_lora *l, int i, int32_t rank, const ml_spec *spec,
                        ml_backend *be) {
    ml_lora_opts o = { .rank = rank, .alpha = 1.5 * rank, .target = "all-linear" };
    uint32_t state = (uint32_t)i + 1;
    ml_err err;

    if (ml_lora_new(l, spec, NULL, &o, be, &err))
        die(err.msg);
    for (int32_t p = 0; p < l->spec.n_param; p++) {
        const ml_param *of = &l->spec.param[p];
        int64_t n = of->shape[0] * of->shape[1];
        float *value = malloc((size_t)n * sizeof *value);
        for (int32_t e = 0; e < of->n_stack; e++) {
            for (int64_t k = 0; k < n; k++) {
                state = state * 1664525u + 1013904223u;
                value[k] = ((float)(state >> 8) * 0x1p-23f - 1.0f) * 0.05f;
            }
            ml_weights_pack(&l->weights, p, e, 0, of->shape[0], value);
        }
        free(value);
    }
}

static void open_adapters(int n, int32_t rank, ml_spec *spec, ml_backend *be) {
    bool *wanted;
    ml_err err;

    for (int i = 0; i < n; i++) {
        adapter *x = &adapters.of[i];
        /* Some have half the rank. */
        int32_t own = i % 3 == 2 ? (rank + 1) / 2 : rank;
        new_adapter(&x->trained, i, own, spec, be);
        new_adapter(&x->served, i, own, spec, be);
        if (ml_lora_round(&x->served, &err))
            die(err.msg);
        x->site = x->trained.site;
        x->table = (ml_lora_table){ .adapter = &x->site, .n_adapter = 1, .all = true };
        adapters.site[i] = x->served.site;
    }
    adapters.n = n;
    adapters.table = (ml_lora_table){ .adapter = adapters.site, .n_adapter = n };
    wanted = calloc((size_t)adapters.of[0].trained.n_site, sizeof *wanted);
    ml_lora_mark(&adapters.of[0].trained, wanted);
    ml_spec_lora_insert(spec, wanted, rank);
    free(wanted);
}

static void close_adapters(void) {
    for (int i = 0; i < adapters.n; i++) {
        ml_lora_close(&adapters.of[i].trained);
        ml_lora_close(&adapters.of[i].served);
    }
}

/* ---- rollout and training ---- */

static void generate(ml_engine *e, int64_t vocab, const load *l) {
    ml_err err;

    dice_state = (uint32_t)l->n_req;
    memset(answers, 0, sizeof answers);
    for (int32_t i = 0; i < MAX_ENDS; i++)
        ends[i] = (int32_t)((int64_t)i * 61 % vocab);
    for (int i = 0; i < l->n_req; i++) {
        answer *a = &answers[i];
        ml_gen_request r = { .max_new = 1 + (int32_t)(dice() % MAX_NEW),
                             .ignore_eos = true,
                             .stop_id = ends,
                             .n_stop_id = i % 3 ? 0 : MAX_ENDS,
                             .score_from = -1,
                             .draw = { .temperature = 1,
                                       .top_p = i % 5 == 4 ? 0.8f : 1,
                                       .repetition = 1,
                                       .seed = 3,
                                       .sample = (uint64_t)i } };
        make_prompt(a, i, vocab, l->longest);
        r.adapter = r.adapter_id = 1 + adapter_of(i);
        r.prompt = a->token;
        r.n_prompt = a->n_prompt;
        if (ml_engine_submit(e, &r, on_update, NULL, (uint64_t)i, &err))
            die(err.msg);
    }
    while (ml_engine_step(e))
        ;
}

/* The answers of one adapter, or of the base: how many log-probs differ; adds to *n all. */
static int compare_adapter(ml_trainer *t, int n_req, int which, int *n) {
    const ml_weights *w = which < 0 ? NULL : &adapters.of[which].view;
    ml_train_sample sample[MAX_REQ];
    float *scored[MAX_REQ];
    int bad = 0, n_own = 0;
    ml_err err;

    for (int i = 0; i < n_req; i++) {
        answer *a = &answers[i];
        if (adapter_of(i) != which)
            continue;
        if (!a->ended)
            die("a request did not end");
        sample[n_own] = (ml_train_sample){ .token = a->token,
                                           .n_token = a->n,
                                           .n_response = a->n - a->n_prompt,
                                           .rollout = i };
        scored[n_own++] = calloc(CONTEXT, sizeof(float));
    }
    if (n_own && ml_trainer_score(t, w, sample, n_own, scored, NULL, &err))
        die(err.msg);
    for (int i = 0; i < n_own; i++) {
        const answer *a = &answers[sample[i].rollout];
        for (int32_t k = a->n_prompt; k < a->n; k++, (*n)++)
            bad += memcmp(&a->logprob[k], &scored[i][k - a->n_prompt], sizeof(float)) != 0;
        free(scored[i]);
    }
    return bad;
}

static int compare(ml_trainer *t, int n_req) {
    int bad = 0, n = 0;

    for (int which = -1; which < adapters.n; which++)
        bad += compare_adapter(t, n_req, which, &n);
    printf("%d of %d log-probs differ between rollout and training\n", bad, n);
    return bad;
}

/* What is checked, and on what. */
typedef struct model {
    const char *dir;
    const ml_spec *spec;
    const ml_weights *weights;
    ml_backend *be;
    ml_trainer *trainer;
    const ml_weights *mtp; /* NULL: it has no such module */
    const char *head;      /* an EAGLE-3 head, or NULL */
} model;

static ml_gen_stats run(const model *m, const load *l, ml_draft_opts draft) {
    const int32_t context = l->longest + MORE;
    ml_engine_opts opts = { .context = context,
                            .max_running = l->running,
                            .max_waiting = l->n_req,
                            .chunk = l->chunk,
                            .draft = draft };
    ml_gen_stats stats;
    ml_weights with = *m->weights;
    ml_engine *engine;
    ml_err err;

    with.lora = adapters.n ? &adapters.table : NULL;
    opts.kv_bytes =
        ml_kv_bytes(m->spec, m->be, l->running * ml_kv_pages_for(context) / l->short_of);
    if (ml_engine_open(&engine, m->spec, &with, m->be, &opts, &err))
        die(err.msg);
    generate(engine, m->spec->n_vocab, l);
    ml_engine_stats(engine, &stats);
    printf("%lld tokens in %lld steps, %lld of them begun ahead, %lld requests put back, "
           "%lld prompt tokens shared, %lld of %lld draft tokens right\n",
           (long long)stats.n_answer_token, (long long)stats.n_step,
           (long long)stats.n_overlapped, (long long)stats.n_preempt,
           (long long)stats.n_cached_token, (long long)stats.n_accepted,
           (long long)stats.n_draft);
    ml_engine_close(engine);
    return stats;
}

/* The tokens that plain decoding has drawn, with errors. */
static int32_t known_tokens(void *ud, const struct ml_request *r, int32_t chain,
                            int32_t *out, int32_t n) {
    const answer *a = &plain[r->ticket];
    const int64_t *vocab = ud;
    int32_t i = 0;

    for (; i < n && r->n_token + i < a->n; i++) {
        uint32_t mix = (uint32_t)(r->n_token + i) * 2654435761u +
                       (uint32_t)r->ticket * 40503u + (uint32_t)chain * 97u * 65536u;
        bool wrong = (mix >> 16) % 4 == 0;
        out[i] = (int32_t)((a->token[r->n_token + i] + wrong) % *vocab);
    }
    return i;
}

static bool same_token(const answer *a, const answer *b, int32_t k) {
    return k < a->n && k < b->n && a->token[k] == b->token[k] &&
           memcmp(&a->logprob[k], &b->logprob[k], sizeof(float)) == 0;
}

/* Prints the first token that is not that of plain decoding. */
static void show_difference(int request) {
    const answer *a = &answers[request], *b = &plain[request];
    int32_t k = a->n_prompt;

    while (same_token(a, b, k))
        k++;
    printf(
        "request %d (prompt %d, plain %d, here %d tokens): token %d is %d (%.9g), plain %d "
        "(%.9g)\n",
        request, a->n_prompt, b->n, a->n, k, a->token[k], (double)a->logprob[k],
        b->token[k], (double)b->logprob[k]);
}

static int compare_with_plain(int n_req) {
    int bad = 0, n = 0, shown = 0;

    for (int i = 0; i < n_req; i++) {
        const answer *a = &answers[i], *b = &plain[i];
        int before = bad;
        bad += a->n != b->n;
        for (int32_t k = a->n_prompt; k < a->n && k < b->n; k++, n++)
            bad += !same_token(a, b, k);
        if (bad > before && shown++ < 4)
            show_difference(i);
    }
    printf("%d of %d tokens and log-probs differ with draft tokens\n", bad, n);
    return bad;
}

static int check_drafts(const model *m, const load *l) {
    int64_t vocab = m->spec->n_vocab;
    ml_draft_opts known = { .n = 5, .fn = known_tokens, .ud = &vocab };
    ml_gen_stats stats;
    int bad;

    memcpy(plain, answers, sizeof plain);
    if (m->mtp) {
        known.mtp = m->dir;
        known.mtp_weights = m->mtp;
        known.dtype = ML_WEIGHT_BF16;
    }
    known.eagle3 = m->head;
    stats = run(m, l, known);
    if (!stats.n_accepted || stats.n_accepted == stats.n_draft)
        die("draft tokens were not right and wrong");
    bad = compare_with_plain(l->n_req);
    if (!ml_kv_slot_bytes(m->spec, m->be)) { /* recurrent layers have no trees */
        known.topk = 3;
        known.rows = 11;
        run(m, l, known);
        bad += compare_with_plain(l->n_req);
    }
    run(m, l, (ml_draft_opts){ .n = 7, .ngram = true });
    return bad + compare_with_plain(l->n_req);
}

static int check(const model *m, const load *l) {
    ml_gen_stats stats = run(m, l, (ml_draft_opts){ 0 });
    int bad;

    if (!stats.n_overlapped)
        die("no step was begun before the draws of the one before were known");
    bad = compare(m->trainer, l->n_req);
    return bad + check_drafts(m, l);
}

/* Weights of the module; false: the family has none. */
static bool open_mtp(ml_weights *w, ml_spec *spec, const model *m, ml_arena *a) {
    ml_err err;

    if (ml_mtp_open(spec, m->dir, &err))
        return false;
    if (ml_weights_dummy(w, spec, ML_WEIGHT_BF16, 9, m->be, a, &err))
        die(err.msg);
    return true;
}

static ml_weight_dtype dtype_named(const char *name) {
    for (int i = ML_WEIGHT_FP8; i <= ML_WEIGHT_MXFP8; i++)
        if (strcmp(name, ml_weight_dtype_name((ml_weight_dtype)i)) == 0)
            return (ml_weight_dtype)i;
    die("DTYPE is fp8, int8, int4, int4-g128, nf4, fp8-blockwise or mxfp8");
}

static ml_dtype kv_dtype_named(const char *name) {
    for (int i = ML_KV_E4M3; i <= ML_KV_INT8; i++)
        if (strcmp(name, ml_dtype_name((ml_dtype)i)) == 0)
            return (ml_dtype)i;
    die("DTYPE is fp8_e4m3, fp8_e5m2 or int8");
}

int main(int argc, char **argv) {
    ml_trainer_opts train = {
        .optimizer = { .rule = { .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 } },
        .lr = { .train_iters = 1, .global_batch_size = 1, .lr = 1e-4 },
        .batch = { .global_batch_size = 1, .dynamic = true, .max_tokens = 3000 },
    };
    const int n_load = (int)(sizeof loads / sizeof *loads);
    ml_arena a;
    ml_spec spec, mtp_spec;
    ml_backend be;
    ml_weights w, mtp;
    ml_trainer *trainer;
    model m;
    bool has_mtp, kv;
    const char *head;
    ml_weight_dtype dtype = ML_WEIGHT_BF16;
    ml_status st;
    ml_err err;
    int failed = 0;

    if (argc != 2 && argc != 4)
        die("usage: check_engine MODEL_DIR [ADAPTERS RANK | eagle3 HEAD_DIR | quantized "
            "DTYPE | kv DTYPE]");
    kv = argc == 4 && strcmp(argv[2], "kv") == 0;
    head = argc == 4 && strcmp(argv[2], "eagle3") == 0 ? argv[3] : NULL;
    if (argc == 4 && strcmp(argv[2], "quantized") == 0) {
        dtype = dtype_named(argv[3]);
        train.use = ML_TRAINER_SCORES; /* quantized weights have no gradients */
    }
    ml_arena_init(&a, "check");
    if (ml_spec_open(&spec, argv[1], &err))
        die(err.msg);
    ml_weights_mark_codes(&spec, NULL, dtype);
    if (kv && ml_spec_check_kv(&spec, kv_dtype_named(argv[3]), &err)) {
        printf("skipped: %s\n0 passed, 0 failed, 1 skipped\n", err.msg);
        return 0;
    }
    if (kv)
        ml_spec_keep_kv(&spec, kv_dtype_named(argv[3]));
    if (ml_backend_open(&be, &(ml_backend_opts){ .device = "cuda", .n_thread = 2 }, &err)) {
        printf("skipped: %s\n0 passed, 0 failed, 1 skipped\n", err.msg);
        return 0;
    }
    if (ml_weights_dummy(&w, &spec, dtype, 1, &be, &a, &err))
        die(err.msg);
    if (argc == 4 && !head && !kv && dtype == ML_WEIGHT_BF16)
        open_adapters(atoi(argv[2]), atoi(argv[3]), &spec, &be);
    for (int i = 0; i < adapters.n; i++) {
        adapters.of[i].view = w;
        adapters.of[i].view.lora = &adapters.of[i].table;
    }
    st = ml_trainer_open(&trainer, &spec, &w, &be, &train, &err);
    if (st == ML_EUNSUP) {
        printf("skipped: %s: %s\n0 passed, 0 failed, 1 skipped\n", argv[1], err.msg);
        return 0;
    }
    if (st != ML_OK)
        die(err.msg);
    m = (model){
        .dir = argv[1], .spec = &spec, .weights = &w, .be = &be, .trainer = trainer
    };
    has_mtp = open_mtp(&mtp, &mtp_spec, &m, &a);
    m.mtp = has_mtp ? &mtp : NULL;
    m.head = head;
    for (int i = 0; i < n_load; i++)
        failed += check(&m, &loads[i]) != 0;
    if (has_mtp) {
        ml_weights_close(&mtp);
        ml_spec_close(&mtp_spec);
    }
    printf("%d passed, %d failed, 0 skipped\n", n_load - failed, failed);
    ml_trainer_close(trainer);
    close_adapters();
    ml_weights_close(&w);
    ml_backend_close(&be);
    ml_spec_close(&spec);
    ml_arena_release(&a);
    return failed != 0;
}
