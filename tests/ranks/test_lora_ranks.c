/* Ranks that train an adapter, as threads of this process: log-probs, entropies and losses
 * have the bits of one rank in every layout; gradients repeat and differ by rounding, or not
 * at all where only layers are divided; with the same gradients, adapters and snapshots have
 * the bytes of one rank, and resume in any other layout.  MILES_LONG=1 runs more models and
 * layouts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "base/file.h"
#include "model/moves.h"
#include "model/spec_shard.h"
#include "tests/support/deep_model.h"
#include "tests/support/job_rank.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "train/snapshot.h"

enum { SAMPLES = 10, TRAINED = 4, MAX_RESPONSE = 24, LAYERS = 4, CHUNKS = 2, MAX_RANK = 8 };

typedef struct layout {
    int32_t n_rank;
    ml_mesh_opts sizes;
    int32_t n_chunk; /* stages of a rank; 0: 1 */
} layout;

/* Every direction with others, in few jobs. */
static const layout few[] = {
    { 2, { .tp = 2 } },
    { 2, { .pp = 2 } },
    { 4, { .tp = 2, .ep = 2, .etp = 2 } },
    { 8, { .tp = 2, .cp = 2, .pp = 2, .ep = 2 } },
};
static const layout all[] = {
    { 2 },
    { 3 },
    { 2, { .tp = 2 } },
    { 6, { .tp = 3 } },
    { 3, { .fsdp = true } },
    { 4, { .fsdp = true, .replicate = 2 } },
    { 2, { .cp = 2 } },
    { 6, { .cp = 3 } },
    { 2, { .pp = 2 } },
    { 6, { .pp = 2 } },
    { 2, { .pp = 2 }, CHUNKS },
    { 4, { .tp = 2, .pp = 2 }, CHUNKS },
    { 2, { .ep = 2 } },
    { 6, { .ep = 3 } },
    { 2, { .etp = 2 } },
    { 4, { .ep = 2, .etp = 2 } },
    { 8, { .pp = 2, .ep = 2, .etp = 2 } },
    { 4, { .tp = 2, .cp = 2 } },
    { 8, { .fsdp = true, .cp = 2, .pp = 2 } },
    { 4, { .tp = 2, .ep = 4 } },
    { 8, { .cp = 2, .pp = 2, .ep = 4 } },
    { 8, { .tp = 2, .cp = 2, .pp = 2, .ep = 2 } },
};
#define COUNT(x) ((int)(sizeof(x) / sizeof *(x)))

static const layout *layouts(int *n) {
    bool many = getenv("MILES_LONG") && !ML_TEST_SANITIZED;

    *n = many ? COUNT(all) : COUNT(few);
    return many ? all : few;
}

/* A job, and what one rank computes in it. */
typedef struct job {
    const char *model, *dir;
    layout of;
    ml_lora_opts lora;
    double dropout;
    float logprob[SAMPLES][MAX_RESPONSE], entropy[SAMPLES][MAX_RESPONSE];
    float trained[SAMPLES][MAX_RESPONSE];
    double loss;
    unsigned char *bytes; /* gradients or values of the adapter */
    size_t n_byte;
    char save[512];        /* where snapshots go */
    const struct job *one; /* the same on one rank; NULL: this is it */
} job;

typedef struct rank {
    ml_job_rank r;
    job *j;
    ml_comm *c;
    ml_train_sample sample[SAMPLES];
} rank;

static void differs(const rank *p, const char *what) {
    const ml_mesh_opts *m = &p->j->of.sizes;

    ml_test_fail(__FILE__, __LINE__,
                 "%s: rank %d of %d (tp %d%s, cp %d, pp %d, ep %d, etp %d, %d chunks) has "
                 "other %s",
                 p->j->model, p->c->rank, p->c->size, m->tp, m->fsdp ? ", fsdp" : "", m->cp,
                 m->pp, m->ep, m->etp, p->j->of.n_chunk, what);
}

static void open_rank(rank *p, job *j, ml_comm *c) {
    ml_job_rank_opts o = { .dir = j->dir,
                           .dtype = ML_WEIGHT_F32,
                           .sizes = j->of.sizes,
                           .stages.n_chunk = j->of.n_chunk,
                           .lora = &j->lora,
                           .dropout = j->dropout,
                           .trainer = ml_train_fixture_defaults() };

    o.trainer.whole_grads = true;
    o.trainer.batch.global_batch_size = SAMPLES;
    o.trainer.batch.max_tokens = 40;
    p->j = j;
    p->c = c;
    ml_job_rank_open(&p->r, &o, c);
    for (int32_t i = 0; i < SAMPLES; i++) {
        const ml_train_sample *x = &p->r.t.sample[i % p->r.t.n_sample];
        int32_t n = x->n_token < 10 + 2 * i ? x->n_token : 10 + 2 * i;
        uint8_t *mask = ML_NEW(&p->r.arena, uint8_t, n);
        for (int32_t k = 0; k < n; k++)
            mask[k] = (5 * k + i) % 4 != 0;
        p->sample[i] = (ml_train_sample){
            .token = x->token, .n_token = n, .n_response = n / 2, .mask = mask, .rollout = i
        };
    }
}

/* One rank keeps a value, several compare theirs with it. */
static void same(const rank *p, void *of_one, const void *here, size_t bytes,
                 const char *what) {
    if (!p->j->one)
        memcpy(of_one, here, bytes);
    else if (memcmp(of_one, here, bytes))
        differs(p, what);
}

static job *one_of(const rank *p) {
    return p->j->one ? (job *)(uintptr_t)p->j->one : p->j;
}

static void keep_bytes(job *j, const ml_weights *w) {
    free(j->bytes);
    j->n_byte = w->buf.bytes;
    j->bytes = malloc(j->n_byte + 1);
    memcpy(j->bytes, w->buf.ptr, j->n_byte);
}

/* Runs a job with one rank, then in every layout that the model has.  exact: gradients must
 * be those of one rank, which pieces of a sample are not. */
static void compare(const job *like, ml_rank_fn *fn, bool exact) {
    static job one, many;
    bool experts = strcmp(like->model, "llama_tied") && strcmp(like->model, "gemma2");
    int n;
    const layout *of = layouts(&n);

    one = *like;
    snprintf(one.save, sizeof one.save, "%s/%s-one", ml_test_dir(), like->model);
    ml_ranks_run(1, fn, &one);
    for (int i = 0; i < n; i++) {
        if (((of[i].sizes.ep > 1 || of[i].sizes.etp > 1) && !experts) ||
            (exact && of[i].sizes.cp > 1))
            continue;
        many = *like;
        snprintf(many.save, sizeof many.save, "%s/%s-%d", ml_test_dir(), like->model, i);
        many.of = of[i];
        many.one = &one;
        ml_ranks_run(of[i].n_rank, fn, &many);
        free(many.bytes);
    }
    free(one.bytes);
}

/* fused and canonical, shared between experts and not. */
static ml_lora_opts adapter(int kind) {
    return (ml_lora_opts){ .rank = kind % 2 ? 4 : 3,
                           .alpha = 8,
                           .target = "all-linear",
                           .fused = kind % 2,
                           .shared_outer = kind % 2,
                           .seed = 3 };
}

/* The short tier has one model with experts. */
static void compare_models(ml_rank_fn *fn, double dropout, bool exact) {
    static const char *const name[] = { "qwen3_moe",  "llama_tied", "deepseek_v3",
                                        "qwen3_next", "gpt_oss",    "gemma2",
                                        NULL };
    bool many = getenv("MILES_LONG") && !ML_TEST_SANITIZED;

    for (int m = 0; name[m] && (many || m == 0); m++) {
        const char *dir = ml_deep_model(name[m], LAYERS);
        for (int kind = 0; kind < (many ? 2 : 1); kind++) {
            job j = { .model = name[m],
                      .dir = dir,
                      .lora = adapter(kind + !many),
                      .dropout = dropout };
            j.lora.shared_outer = j.lora.shared_outer && !exact; /* a sum over ranks */
            if (dropout > 0 && strcmp(name[m], "deepseek_v3") == 0)
                j.lora.exclude = "kv_b_proj";
            compare(&j, fn, exact);
        }
    }
}

/* --- scores and gradients ------------------------------------------------------------- */

static void score(rank *p) {
    float *logprob[SAMPLES], *entropy[SAMPLES];
    job *one = one_of(p);

    for (int i = 0; i < SAMPLES; i++) {
        logprob[i] = ML_NEW(&p->r.arena, float, MAX_RESPONSE);
        entropy[i] = ML_NEW(&p->r.arena, float, MAX_RESPONSE);
    }
    MUST(
        ml_trainer_score(p->r.t.trainer, NULL, p->sample, SAMPLES, logprob, entropy, &err));
    for (int i = 0; i < SAMPLES; i++) {
        CHECK(logprob[i][0] != 0);
        same(p, one->logprob[i], logprob[i], sizeof *one->logprob, "log-probs");
        same(p, one->entropy[i], entropy[i], sizeof *one->entropy, "entropies");
    }
}

/* The base alone, as the reference of a run. */
static void score_base(rank *p) {
    ml_weights base = p->r.t.weights;
    float logprob[SAMPLES][MAX_RESPONSE], *row[SAMPLES];

    base.lora = NULL;
    for (int i = 0; i < SAMPLES; i++)
        row[i] = logprob[i];
    MUST(ml_trainer_score(p->r.t.trainer, &base, p->sample, 1, row, NULL, &err));
    CHECK(logprob[0][0] != one_of(p)->logprob[0][0]);
}

static ml_status loss_of(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    const rank *p = ud;

    for (int32_t i = 0; i < n; i++) {
        same(p, one_of(p)->trained[io[i].sample], io[i].logprob,
             (size_t)io[i].n_response * sizeof(float), "log-probs in training");
        for (int32_t t = 0; t < io[i].n_response; t++)
            io[i].dentropy[t] = 0.01f * (float)(t % 5 - 2);
    }
    return ml_train_fixture_nll(NULL, io, n, err);
}

static double accumulate(rank *p, const ml_bins *bins) {
    ml_step_result out;

    MUST(ml_trainer_accumulate(p->r.t.trainer,
                               &(ml_step){ .sample = p->sample,
                                           .micro = bins,
                                           .n_rollout = SAMPLES,
                                           .denominator = SAMPLES,
                                           .loss = loss_of,
                                           .ud = p,
                                           .entropy = true },
                               &out, &err));
    return out.loss;
}

/* Stages add in the order of one rank. */
static bool only_stages(const job *j, const ml_comm *c) {
    return c->size == (j->of.sizes.pp ? j->of.sizes.pp : 1);
}

/* Of a matrix of few rows, whose gradient is a product of gradients that differ already. */
static double bound_of(const rank *p) {
    return only_stages(p->j, p->c) ? 0 : ML_GRADS_BOUND;
}

static void compare_grads(rank *p) {
    const ml_weights *g = ml_job_rank_whole(&p->r, ml_trainer_grads(p->r.t.trainer));
    job *j = p->j;
    int32_t param = 0;
    double apart;

    if (!j->one) {
        keep_bytes(j, g);
        return;
    }
    apart = ml_job_rank_apart(g, (const float *)(const void *)j->one->bytes, &param);
    if (!(apart <= bound_of(p))) {
        ml_test_fail(__FILE__, __LINE__, "%s is %.3g of its largest gradient apart",
                     p->r.t.lora.spec.param[param].name, apart);
        differs(p, "gradients");
    }
}

static void find_gradients(ml_comm *c, void *ud) {
    unsigned char *before;
    const ml_weights *g;
    double loss;
    ml_bins bins;
    rank p;

    open_rank(&p, ud, c);
    score(&p);
    score_base(&p);
    g = ml_trainer_grads(p.r.t.trainer);
    bins = ml_job_rank_bins(&p.r, p.sample, SAMPLES);
    loss = accumulate(&p, &bins);
    before = ML_NEW(&p.r.arena, unsigned char, (int64_t)g->buf.bytes + 1);
    memcpy(before, g->buf.ptr, g->buf.bytes);
    CHECK(accumulate(&p, &bins) == loss);
    if (memcmp(before, g->buf.ptr, g->buf.bytes))
        differs(&p, "gradients in a repetition");
    same(&p, &one_of(&p)->loss, &loss, sizeof loss, "losses");
    compare_grads(&p);
    ml_job_rank_close(&p.r);
}

static void gradients_are_those_of_one_rank(void) {
    compare_models(find_gradients, 0, false);
}

static void dropout_does_not_know_the_ranks(void) {
    compare_models(find_gradients, 0.25, false);
}

/* --- steps and snapshots --------------------------------------------------------------- */

/* Only the first samples, which one data place has, have derivatives: so that gradients are
 * those of one rank, unless a group of ranks divides these samples, too. */
static ml_status mostly_idle(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    (void)ud;
    for (int32_t i = 0; i < n; i++)
        if (io[i].sample < TRAINED) {
            ml_status st = ml_train_fixture_nll(NULL, &io[i], 1, err);
            if (st != ML_OK)
                return st;
        }
    return ML_OK;
}

static ml_bins bins_of(ml_arena *a, const ml_trainer *t) {
    int32_t n_place = ml_trainer_data_size(t);
    ml_bins b = { .bin = ML_NEW(a, ml_bin, SAMPLES) };

    for (int32_t i = 0; i < SAMPLES; i++) {
        int32_t place =
            i < TRAINED ? 0 : 1 + (i - TRAINED) % (n_place > 1 ? n_place - 1 : 1);
        if (n_place > 1 && place != ml_trainer_data_place(t))
            continue;
        b.bin[b.n].item = ML_NEW(a, int32_t, 1);
        b.bin[b.n].item[0] = i;
        b.bin[b.n++].n = 1;
    }
    return b;
}

static void take_step(rank *p) {
    ml_bins bins = bins_of(&p->r.arena, p->r.t.trainer);
    ml_step_result out;

    MUST(ml_trainer_step(p->r.t.trainer,
                         &(ml_step){ .sample = p->sample,
                                     .micro = &bins,
                                     .n_rollout = SAMPLES,
                                     .denominator = SAMPLES,
                                     .loss = mostly_idle },
                         &out, &err));
    CHECK(out.applied);
}

static void compare_values(rank *p, const char *what) {
    const ml_weights *w = ml_job_rank_whole(&p->r, &p->r.t.lora.weights);

    if (!p->j->one)
        keep_bytes(p->j, w);
    else if (memcmp(w->buf.ptr, p->j->one->bytes, p->j->one->n_byte))
        differs(p, what);
}

static void save(rank *p) {
    ml_saver *s = NULL;
    char hf[520];

    snprintf(hf, sizeof hf, "%s/adapter", p->j->save);
    MUST(ml_saver_open(
        &s,
        &(ml_saver_opts){
            .dir = p->j->save, .hf = hf, .from = p->r.t.checkpoint, .comm = p->c },
        &err));
    MUST(ml_saver_save(s, &(ml_save_models){ .actor = p->r.t.trainer },
                       &(ml_save_state){ .iteration = 1,
                                         .data = ml_str_of("{}"),
                                         .config = ml_str_of("{}") },
                       &err));
    MUST(ml_saver_wait(s, &err));
    ml_saver_close(s);
}

static const char *snapshot_of(rank *p, const job *j) {
    return ml_snapshot_path(&p->r.arena, j->save, 1);
}

static void same_files(const char *a, const char *b, ml_arena *arena) {
    ml_names names;

    MUST(ml_dir_list(&names, a, arena, &err));
    CHECK(names.n >= 2);
    for (int32_t i = 0; i < names.n; i++) {
        ml_file x = { 0 }, y = { 0 };
        MUST(ml_file_map(&x, ml_arena_printf(arena, "%s/%s", a, names.name[i]), &err));
        MUST(ml_file_map(&y, ml_arena_printf(arena, "%s/%s", b, names.name[i]), &err));
        if (x.bytes.len != y.bytes.len || memcmp(x.bytes.ptr, y.bytes.ptr, x.bytes.len))
            ml_test_fail(__FILE__, __LINE__, "%s/%s is not what one rank saved", b,
                         names.name[i]);
        ml_file_unmap(&x);
        ml_file_unmap(&y);
    }
}

/* The next step after the snapshot of a job in another layout is the one that it took. */
static void resume(rank *p, const job *from) {
    ml_save_state state = { 0 };

    MUST(ml_lora_restore(&p->r.t.lora, &p->r.t.spec, snapshot_of(p, from), &err));
    MUST(ml_snapshot_load(snapshot_of(p, from),
                          &(ml_snapshot_into){ .trainer = p->r.t.trainer }, &state,
                          &p->r.arena, &err));
    CHECK(state.iteration == 1);
}

static void train(ml_comm *c, void *ud) {
    job *j = ud;
    rank p;

    open_rank(&p, j, c);
    take_step(&p);
    take_step(&p);
    save(&p);
    if (j->one && c->rank == 0) {
        same_files(snapshot_of(&p, j->one), snapshot_of(&p, j), &p.r.arena);
        same_files(ml_arena_printf(&p.r.arena, "%s/adapter", j->one->save),
                   ml_arena_printf(&p.r.arena, "%s/adapter", j->save), &p.r.arena);
    }
    take_step(&p);
    compare_values(&p, "adapters after three steps");
    ml_job_rank_close(&p.r);
    if (!j->one)
        return;
    open_rank(&p, j, c);
    resume(&p, j->one);
    take_step(&p);
    compare_values(&p, "adapters after a resumed step");
    ml_job_rank_close(&p.r);
}

static void snapshots_do_not_know_the_ranks(void) {
    compare_models(train, 0, true);
}

/* --- publication ------------------------------------------------------------------------ */

/* From the ranks of a layout, each of which has a part of the adapter, to engines of `size`
 * ranks; what each should have, it reads from a file. */
static void publish_to(rank *p, const char *dir, int32_t size, bool in_place) {
    ml_lora *l = &p->r.t.lora;
    const ml_shard_range *from[MAX_RANK];
    const ml_spec *to[MAX_RANK];
    ml_spec cut[MAX_RANK], lora[MAX_RANK];
    ml_dtype *dtype = ML_NEW(&p->r.arena, ml_dtype, l->spec.n_param);
    ml_moves_opts o = { .whole = &l->spec,
                        .linear = p->r.t.be.linear,
                        .dtype = dtype,
                        .n_rank = p->c->size,
                        .rank = p->c->rank,
                        .from = from,
                        .to = to,
                        .bucket_bytes = 4096,
                        .in_place = in_place };
    ml_shard_map map;
    ml_weights got;
    ml_moves moves;
    ml_lora want;

    ml_lora_map(&map, &p->r.arena, l, &p->r.mesh.sizes);
    for (int32_t i = 0; i < l->spec.n_param; i++)
        dtype[i] = ML_F32;
    for (int32_t r = 0; r < p->c->size; r++) {
        MUST(ml_spec_shard_copy(&cut[r], &p->r.t.spec, size, r % size, &err));
        lora[r] = ml_lora_cut_spec(&p->r.arena, l, &cut[r]);
        from[r] = ml_shard_residents(&map, &p->r.arena, r);
        to[r] = &lora[r];
    }
    MUST(ml_moves_receiver(&got, &o, &l->weights, &p->r.t.be, &p->r.arena, &err));
    ml_moves_plan(&moves, &o);
    ml_moves_spoil(&moves, &got);
    MUST(ml_moves_run(&moves, p->c, &l->weights, &got, &err));
    MUST(ml_lora_load(&want, &cut[p->c->rank], dir, &p->r.t.be, &err));
    for (int32_t i = 0; i < got.n; i++)
        if (memcmp(got.t[i].data, want.weights.t[i].data, ml_tensor_bytes(&got.t[i])))
            differs(p, want.spec.param[i].name);
    ml_lora_close(&want);
    ml_moves_close(&moves);
    ml_weights_close(&got);
    for (int32_t r = 0; r < p->c->size; r++)
        ml_spec_close(&cut[r]);
}

static void publish(ml_comm *c, void *ud) {
    job *j = ud;
    rank p;

    open_rank(&p, j, c);
    if (!j->one) {
        MUST(ml_dir_make(j->save, &err));
        MUST(ml_lora_save(&p.r.t.lora, &p.r.t.lora.weights, j->save, &err));
    }
    for (int32_t size = 1; size <= c->size; size++)
        if (c->size % size == 0) {
            publish_to(&p, one_of(&p)->save, size, false);
            publish_to(&p, one_of(&p)->save, size, true);
        }
    ml_job_rank_close(&p.r);
}

static void engines_of_any_size_get_the_adapter(void) {
    compare_models(publish, 0, false);
}

static const ml_test tests[] = {
    { "ranks that train an adapter have the log-probs of one",
      gradients_are_those_of_one_rank, 3600 },
    { "dropout of an adapter does not know the ranks", dropout_does_not_know_the_ranks,
      3600 },
    { "snapshots of an adapter do not know the ranks", snapshots_do_not_know_the_ranks,
      3600 },
    { "engines of any size get the rows of an adapter", engines_of_any_size_get_the_adapter,
      3600 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
