/* Context parallel: ranks that have pieces of the same samples, as threads of this process.
 * Log-probs, entropies and losses have the bits of one rank; gradients repeat, and differ by
 * rounding. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "tests/support/job_rank.h"
#include "tests/support/must.h"

/* --- which rank has which tokens ------------------------------------------------------ */

enum { MAX_SEQ = 8 };

static int32_t numbers(int32_t *out, const ml_json *list) {
    int32_t n = 0;

    for (const ml_json *v = list->child; v; v = v->next) {
        int64_t x = -1;
        CHECK(n < MAX_SEQ && ml_json_i64(v, &x));
        out[n++] = (int32_t)x;
    }
    return n;
}

/* A list of [sequence, position]; those without a position are padding. */
static void same_tokens(const ml_json *want, const ml_piece *piece, int32_t n) {
    int32_t i = 0, k = 0;

    for (const ml_json *v = want->child; v; v = v->next) {
        int64_t seq = -1, pos = -1;
        CHECK(ml_json_i64(v->child, &seq) && ml_json_i64(v->child->next, &pos));
        if (pos < 0)
            continue;
        while (i < n && k == piece[i].n)
            i++, k = 0;
        CHECK(i < n && seq == piece[i].seq && pos == piece[i].first + k);
        k++;
    }
    CHECK(i == n || (i == n - 1 && k == piece[i].n));
}

/* Megatron pads the micro-batch with a last sequence. */
static void compare_row(const ml_json *row) {
    int32_t len[MAX_SEQ], n = numbers(len, ml_json_get(row, "total_lengths")), r = 0,
                          all = 0;
    const ml_json *gathered = ml_json_get(row, "allgather_cp"),
                  *stream = ml_json_get(gathered, "local");
    ml_context_opts o = { 0 };
    ml_piece piece[2 * MAX_SEQ];
    int64_t cp = 0, end = 0;

    CHECK(ml_json_i64(ml_json_get(row, "cp"), &cp));
    o.n_rank = (int32_t)cp;
    for (const ml_json *v = ml_json_get(row, "zigzag")->child; v; v = v->next, r++)
        same_tokens(ml_json_get(v, "local"), piece,
                    ml_context_pieces(piece, len, n, &o, r));
    CHECK(r == cp);
    for (int32_t i = 0; i < n; i++)
        all += len[i];
    for (const ml_json *v = ml_json_get(gathered, "cu_seqlens")->child; v; v = v->next)
        CHECK(ml_json_i64(v, &end));
    len[n] = (int32_t)end - all;
    o.contiguous = true;
    r = 0;
    for (const ml_json *v = stream->child; v; v = v->next, r++) {
        int32_t n_piece = ml_context_pieces(piece, len, n + 1, &o, r);
        if (n_piece && piece[n_piece - 1].seq == n)
            n_piece--;
        same_tokens(v, piece, n_piece);
    }
    CHECK(r == cp);
}

static void layouts_are_those_of_megatron(void) {
    const ml_json *root = NULL;
    ml_arena a = { 0 };
    ml_file f = { 0 };
    ml_err err = { 0 };
    int n = 0;

    if (ml_file_map(&f, "tests/golden/parallel/context.json", &err) ||
        ml_json_parse(&root, &a, f.bytes, "context.json", &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    else
        for (const ml_json *row = root->child; row; row = row->next, n++)
            compare_row(row);
    CHECK(n == 4);
    ml_arena_release(&a);
    ml_file_unmap(&f);
}

/* Every token has one rank. */
static void pieces_are_the_samples(void) {
    static const int32_t len[] = { 1, 2, 3, 7, 16, 17, 64, 1001 };

    for (int32_t c = 1; c <= 9; c++)
        for (int contiguous = 0; contiguous < 2; contiguous++) {
            ml_context_opts o = { .n_rank = c, .contiguous = contiguous };
            static uint8_t seen[MAX_SEQ][1001];
            int32_t n = 0;
            memset(seen, 0, sizeof seen);
            for (int32_t r = 0; r < c; r++) {
                ml_piece piece[2 * MAX_SEQ];
                int32_t n_piece = ml_context_pieces(piece, len, MAX_SEQ, &o, r);
                for (int32_t i = 0; i < n_piece; i++)
                    for (int32_t k = 0; k < piece[i].n; k++, n++)
                        CHECK(!seen[piece[i].seq][piece[i].first + k]++);
            }
            CHECK(n == 1 + 2 + 3 + 7 + 16 + 17 + 64 + 1001);
        }
}

/* --- models ----------------------------------------------------------------------------- */

enum { SAMPLES = 9, MAX_RESPONSE = 32, MAX_ROUTED = 8192 };

/* A job, and what its ranks compute; `one` is the same with one rank. */
typedef struct job {
    const char *model;
    ml_weight_dtype dtype;
    ml_mesh_opts sizes;
    int32_t n_rank;
    bool contiguous, critic;
    int n_thread;
    int32_t max_tokens; /* of a micro-batch; 0: 80 */
    ml_recompute recompute;
    float logprob[SAMPLES][MAX_RESPONSE], entropy[SAMPLES][MAX_RESPONSE];
    int32_t routed[MAX_ROUTED];
    double loss;
    int64_t n_token, n_loss;
    float *grads; /* of all tensors */
    const struct job *one;
} job;

static void differs(const job *j, const ml_comm *c, const char *what) {
    ml_test_fail(__FILE__, __LINE__,
                 "%s, %s: rank %d of %d (cp %d%s, tp %d, pp %d) has "
                 "other %s",
                 j->model, j->dtype == ML_WEIGHT_F32 ? "f32" : "bf16", c->rank, c->size,
                 j->sizes.cp, j->contiguous ? " contiguous" : "", j->sizes.tp, j->sizes.pp,
                 what);
}

/* The first ones are shorter than twice the ranks. */
static void make_samples(ml_train_fixture *t, ml_train_sample *out) {
    for (int32_t i = 0; i < SAMPLES; i++) {
        const ml_train_sample *x = &t->sample[i % t->n_sample];
        int32_t n = i < 3 ? 2 + 3 * i : 12 + 5 * i;
        uint8_t *mask = ML_NEW(&t->arena, uint8_t, MAX_RESPONSE + n);
        n = n < x->n_token ? n : x->n_token;
        for (int32_t k = 0; k < n; k++)
            mask[k] = (5 * k + i) % 4 != 1;
        out[i] = (ml_train_sample){ .token = x->token,
                                    .n_token = n,
                                    .n_response = n - 1 < MAX_RESPONSE ? n - 1 : n / 2,
                                    .mask = mask,
                                    .rollout = i };
    }
}

typedef struct trainee {
    ml_job_rank r;
    ml_train_sample sample[SAMPLES];
    char dir[256];
} trainee;

static void open_trainee(trainee *p, const job *j, ml_comm *c) {
    ml_job_rank_opts o = { .dir = p->dir,
                           .dtype = j->dtype,
                           .sizes = j->sizes,
                           .critic = j->critic,
                           .n_thread = j->n_thread,
                           .trainer = ml_train_fixture_defaults() };

    snprintf(p->dir, sizeof p->dir, "tests/golden/data/%s", j->model);
    o.trainer.contiguous = j->contiguous;
    o.trainer.whole_grads = true;
    o.trainer.recompute = j->recompute;
    o.trainer.replay[ML_ROUTING_EXPERTS] = strcmp(j->model, "qwen3_moe") == 0;
    o.trainer.batch.global_batch_size = SAMPLES;
    o.trainer.batch.max_tokens = (j->max_tokens ? j->max_tokens : 80);
    o.trainer.batch.max_tokens /= j->sizes.cp ? j->sizes.cp : 1;
    ml_job_rank_open(&p->r, &o, j->one ? c : NULL);
    make_samples(&p->r.t, p->sample);
}

/* Recorded experts of all samples. */
static int32_t *record(trainee *p) {
    int64_t width = ml_spec_routing_width(&p->r.t.spec, ML_ROUTING_EXPERTS), at = 0;
    int32_t *all = ML_NEW(&p->r.t.arena, int32_t, MAX_ROUTED);

    if (strcmp(p->r.t.spec.family, "qwen3_moe"))
        return all;
    for (int32_t i = 0; i < SAMPLES; i++) {
        p->sample[i].routed[ML_ROUTING_EXPERTS].record = all + at;
        at += width * p->sample[i].n_token;
    }
    CHECK(width > 0 && at <= MAX_ROUTED);
    return all;
}

static void score(ml_comm *c, void *ud) {
    job *j = ud;
    float *logprob[SAMPLES], *entropy[SAMPLES];
    int32_t *routed;
    trainee p;

    open_trainee(&p, j, c);
    routed = record(&p);
    for (int i = 0; i < SAMPLES; i++) {
        logprob[i] = ML_NEW(&p.r.t.arena, float, MAX_RESPONSE);
        entropy[i] = ML_NEW(&p.r.t.arena, float, MAX_RESPONSE);
    }
    MUST(ml_trainer_score(p.r.t.trainer, NULL, p.sample, SAMPLES, logprob,
                          j->critic ? NULL : entropy, &err));
    if (!j->one)
        memcpy(j->routed, routed, sizeof j->routed);
    else if (memcmp(j->one->routed, routed, sizeof j->routed))
        differs(j, c, "recorded experts");
    for (int i = 0; i < SAMPLES; i++) {
        if (!j->one) {
            memcpy(j->logprob[i], logprob[i], sizeof j->logprob[i]);
            memcpy(j->entropy[i], entropy[i], sizeof j->entropy[i]);
            CHECK(logprob[i][0] != 0.0f);
        } else if (memcmp(j->one->logprob[i], logprob[i], sizeof j->logprob[i]) ||
                   memcmp(j->one->entropy[i], entropy[i], sizeof j->entropy[i])) {
            differs(j, c, "scores");
        }
    }
    ml_job_rank_close(&p.r);
}

/* --- gradients ---------------------------------------------------------------------------- */

/* What a rank's loss sees: whole samples. */
typedef struct seen {
    const job *j;
    const ml_comm *c;
    job *one; /* where one rank keeps what it sees; NULL: compare */
} seen;

static ml_status look(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    const seen *s = ud;

    (void)err;
    for (int32_t i = 0; i < n; i++) {
        const float *x = io[i].value ? io[i].value : io[i].logprob;
        float *d = io[i].value ? io[i].dvalue : io[i].dlogprob;
        size_t bytes = (size_t)io[i].n_response * sizeof *x;
        if (s->one)
            memcpy(s->one->logprob[io[i].sample], x, bytes);
        else if (memcmp(s->j->one->logprob[io[i].sample], x, bytes))
            differs(s->j, s->c, "log-probs in training");
        for (int32_t t = 0; t < io[i].n_response; t++) {
            if (!io[i].mask[t])
                continue;
            io[i].loss += (double)x[t];
            d[t] = 1.0f / (float)(1 + t % 3);
            if (io[i].dentropy)
                io[i].dentropy[t] = 0.01f * (float)(t % 5 - 2);
        }
    }
    return ML_OK;
}

static void accumulate(trainee *p, seen *s, const ml_bins *micro, ml_step_result *out) {

    MUST(ml_trainer_accumulate(p->r.t.trainer,
                               &(ml_step){ .sample = p->sample,
                                           .micro = micro,
                                           .n_rollout = SAMPLES,
                                           .denominator = SAMPLES,
                                           .loss = look,
                                           .ud = s,
                                           .entropy = true },
                               out, &err));
}

static void keep_gradients(trainee *p, job *j) {
    const ml_weights *g = ml_trainer_grads(p->r.t.trainer);

    j->grads = malloc(g->buf.bytes);
    memcpy(j->grads, g->buf.ptr, g->buf.bytes);
}

static void compare_gradients(trainee *p, const job *j, const ml_comm *c) {
    const ml_weights *g = ml_job_rank_whole(&p->r, ml_trainer_grads(p->r.t.trainer));
    int32_t param = 0;
    double apart = ml_job_rank_apart(g, j->one->grads, &param);

    if (apart <= ML_GRADS_BOUND)
        return;
    ml_test_fail(__FILE__, __LINE__, "%s is %.3g of its largest gradient apart",
                 p->r.t.spec.param[param].name, apart);
    differs(j, c, "gradients");
}

static void train(ml_comm *c, void *ud) {
    job *j = ud;
    seen s = { .j = j, .c = c, .one = j->one ? NULL : j };
    ml_step_result first, again;
    const ml_weights *g;
    unsigned char *before;
    ml_bins bins;
    trainee p;

    open_trainee(&p, j, c);
    g = ml_trainer_grads(p.r.t.trainer);
    bins = ml_job_rank_bins(&p.r, p.sample, SAMPLES);
    accumulate(&p, &s, &bins, &first);
    before = ML_NEW(&p.r.t.arena, unsigned char, g->buf.bytes + 1);
    memcpy(before, g->buf.ptr, g->buf.bytes);
    accumulate(&p, &s, &bins, &again);
    if (memcmp(before, g->buf.ptr, g->buf.bytes) || first.loss != again.loss)
        differs(j, c, "gradients in a repetition");
    if (!j->one) {
        keep_gradients(&p, j);
        j->loss = first.loss;
        j->n_token = first.n_token;
        j->n_loss = first.n_loss;
    } else {
        compare_gradients(&p, j, c);
        if (first.loss != j->one->loss || first.n_token != j->one->n_token ||
            first.n_loss != j->one->n_loss)
            differs(j, c, "losses");
    }
    ml_job_rank_close(&p.r);
}

/* --- comparisons ------------------------------------------------------------------------ */

/* Runs fn with one rank, then as each of the meshes. */
static void compare(const job *as, const job *mesh, int n, ml_rank_fn *fn) {
    static job one, many;

    one = *as;
    ml_ranks_run(1, fn, &one);
    for (int i = 0; i < n; i++) {
        many = *as;
        many.sizes = mesh[i].sizes;
        many.contiguous = mesh[i].contiguous;
        many.one = &one;
        ml_ranks_run(mesh[i].n_rank, fn, &many);
    }
    free(one.grads);
}

#define CP(c, ranks)                                                                       \
    { .sizes = { .cp = (c) }, .n_rank = (ranks) }
#define CONTIGUOUS(c, ranks)                                                               \
    { .sizes = { .cp = (c) }, .n_rank = (ranks), .contiguous = true }
#define MESH(n, ...)                                                                       \
    { .sizes = { __VA_ARGS__ }, .n_rank = (n) }
#define COUNT(x) ((int)(sizeof(x) / sizeof *(x)))

/* All kinds of layers that read other rows: attention with windows, sinks and chunks, MLA,
 * sparse attention, gated delta nets, Mamba-2. */
static const char *const models[] = { "llama_tied",   "qwen3_moe",  "deepseek_v3",
                                      "qwen3_next",   "gpt_oss",    "gemma2",
                                      "deepseek_v32", "nemotron_h", "llama4_text" };
static const char *const families[] = {
    "gemma3_text",  "gemma3n_text", "gemma4_text",   "gemma4_text_moe",
    "glm4",         "glm4_moe",     "glm4_moe_lite", "glm_moe_dsa",
    "llama_yarn",   "minimax_m2",   "mistral",       "nemotron_h_latent",
    "olmo2",        "phi3",         "qwen2",         "qwen3",
    "qwen3_5_text", "smollm3",      "mixtral",
};
/* Sanitizers look at what ranks exchange, which is the same for all models. */
static const int n_model = ML_TEST_SANITIZED ? 4 : COUNT(models);

static void scores_are_those_of_one_rank(void) {
    static const job mesh[] = { CP(2, 2), CP(4, 4), CP(8, 8), CONTIGUOUS(4, 4), CP(2, 6) };

    for (int m = 0; m < n_model; m++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            job j = { .model = models[m], .dtype = bf16 ? ML_WEIGHT_BF16 : ML_WEIGHT_F32 };
            compare(&j, mesh, ML_TEST_SANITIZED ? 1 : COUNT(mesh), score);
        }
}

static void all_families_score(void) {
    static const job mesh[] = { CP(4, 4), CONTIGUOUS(3, 3) };

    for (int m = 0; m < COUNT(families) && !ML_TEST_SANITIZED; m++)
        compare(&(job){ .model = families[m] }, mesh, COUNT(mesh), score);
}

static void gradients_are_those_of_one_rank(void) {
    static const job mesh[] = { CP(2, 2), CP(4, 4), CONTIGUOUS(3, 3), CP(2, 4), CP(8, 8) };

    for (int m = 0; m < n_model; m++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            job j = { .model = models[m], .dtype = bf16 ? ML_WEIGHT_BF16 : ML_WEIGHT_F32 };
            compare(&j, mesh, ML_TEST_SANITIZED ? 1 : COUNT(mesh), train);
        }
}

static void recomputation_gathers_keys_again(void) {
    static const job mesh[] = { CP(2, 2), CP(3, 3) };
    static const char *const some[] = { "gpt_oss", "qwen3_next", "llama4_text" };

    for (int m = 0; m < COUNT(some); m++) {
        job j = { .model = some[m], .recompute = { .granularity = ML_RECOMPUTE_FULL } };
        compare(&j, mesh, COUNT(mesh), train);
        j.recompute = (ml_recompute){ .granularity = ML_RECOMPUTE_SELECTIVE,
                                      .modules = ML_MODULE_CORE_ATTN };
        compare(&j, mesh, 1, train);
    }
}

/* Two pieces of a sample add to the gradients of the same keys. */
static void threads_change_nothing(void) {
    static const job mesh[] = { CP(3, 3) };

    compare(&(job){ .model = "gemma2", .n_thread = 2 }, mesh, COUNT(mesh), train);
}

/* Micro-batches of which some ranks have no rows. */
static void short_samples_leave_ranks_without_rows(void) {
    static const job mesh[] = { CP(8, 8), CP(4, 4), CONTIGUOUS(4, 8),
                                MESH(8, .cp = 4, .tp = 2) };
    static const char *const some[] = { "llama_tied", "qwen3_next", "deepseek_v32",
                                        "qwen3_moe" };

    for (int m = 0; m < (ML_TEST_SANITIZED ? 1 : COUNT(some)); m++) {
        job j = { .model = some[m], .max_tokens = 8 };
        compare(&j, mesh, COUNT(mesh), score);
        compare(&j, mesh, COUNT(mesh), train);
    }
}

/* With ranks that divide the weights and the layers. */
static void other_directions_change_nothing(void) {
    static const job mesh[] = { MESH(4, .cp = 2, .tp = 2), MESH(4, .cp = 2, .fsdp = true),
                                MESH(4, .cp = 2, .pp = 2),
                                MESH(8, .cp = 2, .pp = 2, .tp = 2),
                                MESH(6, .cp = 3, .pp = 2) };
    static const char *const some[] = { "llama_tied", "qwen3_moe", "qwen3_next",
                                        "gpt_oss" };

    for (int m = 0; m < (ML_TEST_SANITIZED ? 1 : COUNT(some)); m++) {
        compare(&(job){ .model = some[m] }, mesh, COUNT(mesh), score);
        compare(&(job){ .model = some[m] }, mesh, COUNT(mesh), train);
    }
}

static void a_critic_has_values_of_whole_samples(void) {
    static const job mesh[] = { CP(2, 2), CONTIGUOUS(2, 4) };
    job j = { .model = "llama_tied", .critic = true };

    compare(&j, mesh, COUNT(mesh), score);
    compare(&j, mesh, COUNT(mesh), train);
}

static const ml_test tests[] = {
    { "ranks have the tokens that Megatron's have", layouts_are_those_of_megatron },
    { "every token has one rank", pieces_are_the_samples },
    { "pieces have the log-probs and entropies of one rank", scores_are_those_of_one_rank,
      120 },
    { "all families have the log-probs of one rank", all_families_score, 120 },
    { "gradients are close to those of one rank, and repeat",
      gradients_are_those_of_one_rank, 180 },
    { "recomputation gathers keys again", recomputation_gathers_keys_again, 120 },
    { "threads change nothing", threads_change_nothing, 300 },
    { "short samples leave ranks without rows", short_samples_leave_ranks_without_rows,
      120 },
    { "pieces together with other directions of a mesh", other_directions_change_nothing,
      120 },
    { "a critic has values of whole samples", a_critic_has_values_of_whole_samples },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
