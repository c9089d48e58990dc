/* check_engine.c - what was generated on a GPU is what is trained on, bit for bit.
 *
 *     check_engine MODEL_DIR
 *
 * Made-up weights of the shape of MODEL_DIR/config.json.  Requests of many lengths go through the
 * engine (batched, in chunks, with shared prefixes, put back when pages run out, recorded steps,
 * steps begun ahead);
 * then the trainer scores the same tokens, packed, and every log-prob must have the same bits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "train/trainer.h"

enum { MAX_REQ = 160, MAX_PROMPT = 150, MAX_NEW = 60, CONTEXT = 256, MAX_ENDS = 2000 };

/* One way of batching.  Kernels follow from the number of rows of a step. */
typedef struct load {
    int n_req, running, chunk;
    int short_of; /* there is one page for so many that all could want */
} load;

static const load loads[] = { { 48, 16, 64, 10 }, { 160, 96, 256, 2 } };

typedef struct answer {
    int32_t token[CONTEXT], n_prompt, n;
    float logprob[CONTEXT];
    bool ended;
} answer;

static answer answers[MAX_REQ];

static int32_t ends[MAX_ENDS]; /* ids whose draw ends some answers, which nobody foresees */

static _Noreturn void die(const char *what) {
    fprintf(stderr, "check_engine: %s\n", what);
    exit(1);
}

static uint32_t dice(void) {
    static uint32_t state = 7;
    state = state * 1664525u + 1013904223u;
    return state >> 8;
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
static void make_prompt(answer *a, int i, int64_t vocab) {
    a->n_prompt = a->n = 1 + (int32_t)(dice() % MAX_PROMPT);
    for (int32_t k = 0; k < a->n; k++)
        a->token[k] =
            (int32_t)((i % 2 && k < 70 ? (uint32_t)(k * 7919) : dice()) % (uint32_t)vocab);
}

static void generate(ml_engine *e, int64_t vocab, int n_req) {
    ml_err err;

    memset(answers, 0, sizeof answers);
    for (int32_t i = 0; i < MAX_ENDS; i++)
        ends[i] = (int32_t)((int64_t)i * 61 % vocab);
    for (int i = 0; i < n_req; i++) {
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
        make_prompt(a, i, vocab);
        r.prompt = a->token;
        r.n_prompt = a->n_prompt;
        if (ml_engine_submit(e, &r, on_update, NULL, (uint64_t)i, &err))
            die(err.msg);
    }
    while (ml_engine_step(e))
        ;
}

static int compare(ml_trainer *t, int n_req) {
    ml_train_sample sample[MAX_REQ];
    float *scored[MAX_REQ];
    int bad = 0, n = 0;
    ml_err err;

    for (int i = 0; i < n_req; i++) {
        answer *a = &answers[i];
        if (!a->ended)
            die("a request did not end");
        sample[i] = (ml_train_sample){ .token = a->token,
                                       .n_token = a->n,
                                       .n_response = a->n - a->n_prompt,
                                       .rollout = i };
        scored[i] = calloc(CONTEXT, sizeof(float));
    }
    if (ml_trainer_score(t, NULL, sample, n_req, scored, NULL, &err))
        die(err.msg);
    for (int i = 0; i < n_req; i++) {
        const answer *a = &answers[i];
        for (int32_t k = a->n_prompt; k < a->n; k++, n++)
            bad += memcmp(&a->logprob[k], &scored[i][k - a->n_prompt], sizeof(float)) != 0;
        free(scored[i]);
    }
    printf("%d of %d log-probs differ between rollout and training\n", bad, n);
    return bad;
}

static int check(const load *l, const ml_spec *spec, const ml_weights *w, ml_backend *be,
                 ml_trainer *trainer) {
    ml_engine_opts opts = { .context = CONTEXT,
                            .max_running = l->running,
                            .max_waiting = l->n_req,
                            .chunk = l->chunk };
    ml_gen_stats stats;
    ml_engine *engine;
    ml_err err;

    opts.kv_bytes =
        ml_kv_bytes(spec, be, l->running * ml_kv_pages_for(CONTEXT) / l->short_of);
    if (ml_engine_open(&engine, spec, w, be, &opts, &err))
        die(err.msg);
    generate(engine, spec->n_vocab, l->n_req);
    ml_engine_stats(engine, &stats);
    printf("%lld tokens in %lld steps, %lld of them begun ahead, %lld requests put back, "
           "%lld prompt tokens shared\n",
           (long long)stats.n_answer_token, (long long)stats.n_step,
           (long long)stats.n_overlapped, (long long)stats.n_preempt,
           (long long)stats.n_cached_token);
    ml_engine_close(engine);
    if (!stats.n_overlapped)
        die("no step was begun before the draws of the one before were known");
    return compare(trainer, l->n_req);
}

int main(int argc, char **argv) {
    ml_trainer_opts train = {
        .optimizer = { .rule = { .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 } },
        .lr = { .train_iters = 1, .global_batch_size = 1, .lr = 1e-4 },
        .batch = { .global_batch_size = 1, .dynamic = true, .max_tokens = 3000 },
    };
    const int n_load = (int)(sizeof loads / sizeof *loads);
    ml_arena a;
    ml_spec spec;
    ml_backend be;
    ml_weights w;
    ml_trainer *trainer;
    ml_status st;
    ml_err err;
    int failed = 0;

    if (argc < 2)
        die("usage: check_engine MODEL_DIR");
    ml_arena_init(&a, "check");
    if (ml_spec_open(&spec, argv[1], &err))
        die(err.msg);
    if (ml_backend_open(&be, &(ml_backend_opts){ .device = "cuda", .n_thread = 2 }, &err)) {
        printf("skipped: %s\n0 passed, 0 failed, 1 skipped\n", err.msg);
        return 0;
    }
    if (ml_weights_dummy(&w, &spec, ML_WEIGHT_BF16, 1, &be, &a, &err))
        die(err.msg);
    st = ml_trainer_open(&trainer, &spec, &w, &be, &train, &err);
    if (st == ML_EUNSUP) {
        printf("skipped: %s: %s\n0 passed, 0 failed, 1 skipped\n", argv[1], err.msg);
        return 0;
    }
    if (st != ML_OK)
        die(err.msg);
    for (int i = 0; i < n_load; i++)
        failed += check(&loads[i], &spec, &w, &be, trainer) != 0;
    printf("%d passed, %d failed, 0 skipped\n", n_load - failed, failed);
    ml_trainer_close(trainer);
    ml_weights_close(&w);
    ml_backend_close(&be);
    ml_spec_close(&spec);
    ml_arena_release(&a);
    return failed != 0;
}
