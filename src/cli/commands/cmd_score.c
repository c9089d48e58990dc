/* miles score: log-probs, entropies, logits and gradients of given sequences.  Several ranks
 * score together (score_ranks.h); one rank does it here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/clock.h"
#include "cli/cli.h"
#include "cli/commands/score_output.h"
#include "cli/commands/score_ranks.h"
#include "model/plan.h"
#include "plugin/model_family.h"
#include "run/heartbeat.h"
#include "run/opts.h"
#include "run/rank_messages.h"
#include "train/grads.h"
#include "train/memory.h"

/* Sequences are packed into batches of about this many tokens; longer ones get their
 * own. */
#define PACK_TOKENS 4096

typedef struct score_job {
    const ml_config *config;
    ml_arena arena;
    ml_spec spec;
    ml_checkpoint *checkpoint;
    ml_backend be;
    ml_sequences seq;
    ml_score_adapters adapters;
    ml_score_mtp mtp;
    ml_weights weights;
    ml_grads grads;
    ml_kv kv;
    ml_plan *plan;
    ml_batch batch;
    ml_run_ranks ranks;
    ml_score_output out;
    int32_t *target;    /* [longest sequence] scratch for one sequence's targets */
    float *logprob;     /* [loss rows of a batch] */
    float *entropy;     /* the same */
    float *dlogprob;    /* the same */
    float *logits;      /* [loss rows of a batch, vocab] or NULL */
    float *mtp_logits;  /* [rows of the longest sequence, vocab], with --mtp */
    size_t stage_bytes; /* of the four above */
    size_t base_bytes;  /* resident before the planned memory is allocated */
    int64_t n_step, n_row;
} score_job;

static bool tokenwise(const score_job *j) {
    return j->config->score.batching == ML_BATCH_TOKENWISE;
}

/* --- batches ---------------------------------------------------------------- */

/* Sequences [first, end) of the next batch. */
static int32_t batch_end(const score_job *j, int32_t first) {
    int64_t n = 0;
    int32_t i = first;
    if (j->config->score.batching == ML_BATCH_SINGLE)
        return first + 1;
    for (; i < j->seq.n && (i == first || n + j->seq.len[i] <= PACK_TOKENS); i++)
        n += j->seq.len[i];
    return i;
}

/* The last row of a sequence has no next token; it counts only if logits are requested. */
static int32_t loss_rows(const score_job *j, int32_t len) {
    return len - (j->config->score.logits ? 0 : 1);
}

static ml_batch_caps plan_caps(const score_job *j) {
    ml_batch_caps most = { 0 };

    if (tokenwise(j))
        return (ml_batch_caps){ 1, 1, 1, ml_kv_pages_for(j->seq.max_len) };
    for (int32_t i = 0, end; i < j->seq.n; i = end) {
        ml_batch_caps c = { 0 };
        end = batch_end(j, i);
        for (int32_t k = i; k < end; k++) {
            c.n_token += j->seq.len[k];
            c.n_loss += loss_rows(j, j->seq.len[k]);
            c.n_page += ml_kv_pages_for(j->seq.len[k]);
        }
        c.n_seq = end - i;
        most.n_token = c.n_token > most.n_token ? c.n_token : most.n_token;
        most.n_seq = c.n_seq > most.n_seq ? c.n_seq : most.n_seq;
        most.n_loss = c.n_loss > most.n_loss ? c.n_loss : most.n_loss;
        most.n_page = c.n_page > most.n_page ? c.n_page : most.n_page;
    }
    return most;
}

static void set_targets(score_job *j, int32_t i) {
    int32_t n = j->seq.len[i];
    memcpy(j->target, j->seq.id[i] + 1, (size_t)(n - 1) * sizeof *j->target);
    j->target[n - 1] = j->config->score.logits ? ML_TARGET_NONE : ML_TARGET_SKIP;
}

/* --- results ---------------------------------------------------------------- */

/* Loss rows [row, row+n) of the last forward are positions [at, at+n) of sequence i. */
static ml_status put_rows(score_job *j, int32_t i, int32_t row, int32_t at, int32_t n,
                          ml_err *err) {
    return ml_score_output_rows(
        &j->out, i, at, n,
        (ml_score_rows){ j->logprob + row, j->entropy + row,
                         j->logits ? j->logits + row * j->spec.n_vocab : NULL },
        err);
}

static ml_status put_grads(score_job *j, ml_err *err) {
    ml_status st = ml_score_output_loss(&j->out, err);

    if (st == ML_OK && j->adapters.n)
        return ml_score_output_adapters(&j->out, err);
    ml_grads_join(&j->grads);
    for (int32_t k = 0; k < j->out.n_named && st == ML_OK; k++)
        st = ml_score_output_grad(&j->out, k, &j->grads.sum, err);
    if (j->mtp.on)
        ml_grads_join(&j->mtp.runner.grads);
    return st == ML_OK && j->mtp.on ? ml_score_output_mtp(&j->out, err) : st;
}

/* The module's logits and gradients of sequences first .. end-1. */
static ml_status run_mtp(score_job *j, int32_t first, int32_t end, ml_err *err) {
    int64_t vocab = j->spec.n_vocab, row = 0;
    ml_trunk_rows trunk = { &j->spec, j->plan, &j->batch.rows };
    ml_status st = ml_score_mtp_run(&j->mtp, trunk, first, end, err);
    const float *logits = ml_plan_logits(j->mtp.runner.plan);

    for (int32_t i = first; i < end && st == ML_OK; i++) {
        int32_t n = j->seq.len[i] - 1;
        j->be.dev->copy_out(j->be.stream, j->mtp_logits, logits + row * vocab,
                            (size_t)(n * vocab) * sizeof(float));
        st = j->be.dev->sync(j->be.stream, err);
        if (st == ML_OK)
            st = ml_score_output_mtp_rows(&j->out, i, j->mtp_logits, err);
        row += n;
    }
    return st;
}

/* --- memory ----------------------------------------------------------------- */

typedef struct memory_row {
    const char *what;
    size_t bytes;
} memory_row;

enum { MEMORY_ROWS = 9 };

/* How many tokens have gradients of their own (ml_grads_bytes). */
static int64_t embedded(const score_job *j) {
    int64_t n = 0;

    for (int32_t i = 0; j->be.dev->zero_sparse && i < j->seq.n; i++)
        n += j->seq.len[i];
    return n;
}

static size_t grad_bytes(const score_job *j) {
    if (!j->config->score.grads)
        return 0;
    return j->adapters.n ? ml_score_adapters_bytes(&j->adapters, true)
                         : ml_grads_bytes(&j->spec, NULL, true, embedded(j));
}

static size_t memory_plan(const score_job *j, memory_row row[MEMORY_ROWS]) {
    size_t total = 0;
    memory_row all[] = {
        { "program", j->base_bytes },
        { "weights", ml_weights_bytes(&j->spec, j->checkpoint,
                                      ml_weights_dtype(&j->be, j->config->run.dtype)) },
        { "adapters", ml_score_adapters_bytes(&j->adapters, false) },
        { "gradients", grad_bytes(j) },
        { "activations", ml_plan_act_bytes(j->plan) },
        { "scratch", ml_plan_scratch_bytes(j->plan) },
        { "KV pages", tokenwise(j)
                          ? ml_kv_bytes(&j->spec, &j->be, ml_kv_pages_for(j->seq.max_len)) +
                                ml_kv_slot_bytes(&j->spec, &j->be)
                          : 0 },
        { "results", j->be.dev->host ? j->stage_bytes : 0 },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        row[i] = all[i];
        total += all[i].bytes;
    }
    row[MEMORY_ROWS - 1] = (memory_row){ "total", total };
    return total;
}

static void print_memory(const score_job *j) {
    memory_row row[MEMORY_ROWS];
    memory_plan(j, row);
    printf("memory plan of %s, %lld parameters:\n", j->spec.family,
           (long long)ml_spec_param_count(&j->spec));
    for (int i = 0; i < MEMORY_ROWS; i++)
        printf("  %-12s %12.3f MiB\n", row[i].what, (double)row[i].bytes / 0x1p20);
}

/* Of several ranks: memory and threads are rank 0's. */
static void print_speed(const score_job *j, double seconds) {
    int64_t n = j->seq.n_next + j->seq.n;

    printf("%d ranks, backend %s %s, %d threads each\n", (int)ml_run_ranks_size(&j->ranks),
           j->be.name, j->be.level, j->be.n_thread);
    printf("tokens %lld, %.3f s, %.1f tokens/s\n", (long long)n, seconds,
           (double)n / seconds);
    printf("memory: peak %.3f MiB\n", (double)ml_memory_peak(&j->be) / 0x1p20);
}

static void print_stats(const score_job *j, double seconds) {
    memory_row row[MEMORY_ROWS];
    size_t planned = memory_plan(j, row), peak = ml_memory_peak(&j->be);
    const ml_plan_stats *op = ml_plan_stats_of(j->plan);

    printf("backend %s %s, %d threads\n", j->be.name, j->be.level, j->be.n_thread);
    for (int i = 0; i < ML_OP_COUNT; i++)
        if (op->rows[i])
            printf("rows %-12s %10lld   forward %9.3f ms   backward %9.3f ms\n",
                   ml_op_infos[i].name, (long long)op->rows[i], op->forward_s[i] * 1e3,
                   op->backward_s[i] * 1e3);
    printf("steps %lld, tokens %lld, %.3f s, %.1f tokens/s\n", (long long)j->n_step,
           (long long)j->n_row, seconds, (double)j->n_row / seconds);
    printf("memory: planned %.3f MiB, peak %.3f MiB\n", (double)planned / 0x1p20,
           (double)peak / 0x1p20);
}

/* --- steps ------------------------------------------------------------------ */

/* The derivative of the loss with respect to a log-prob of sequence i. */
static float derivative(const score_job *j, int32_t i) {
    const ml_score_adapters *x = &j->adapters;

    if (!x->n)
        return -1.0f / (float)j->seq.n_next;
    return x->of[i] < 0 ? 0.0f : -1.0f / (float)x->n_next[x->of[i]];
}

static void set_derivatives(score_job *j, int32_t first, int32_t end) {
    for (int32_t i = first, row = 0; i < end; i++)
        for (int32_t k = 0; k < loss_rows(j, j->seq.len[i]); k++, row++)
            j->dlogprob[row] = j->batch.rows.loss_id[row] < 0 ? 0.0f : derivative(j, i);
}

static void add_rows(score_job *j, int32_t i, int32_t at, int32_t n, const int32_t *page) {
    ml_batch_add(&j->batch, j->seq.id[i] + at, j->target + at, n, at, page);
    if (j->adapters.n)
        ml_batch_set_adapter(&j->batch, j->adapters.of[i]);
}

static ml_status score_batch(score_job *j, int32_t first, int32_t end, ml_err *err) {
    ml_run run = { .weights = &j->weights, .rows = &j->batch.rows };
    ml_status st = ML_OK;

    ml_batch_clear(&j->batch);
    for (int32_t i = first; i < end; i++) {
        set_targets(j, i);
        add_rows(j, i, 0, j->seq.len[i], NULL);
    }
    ml_plan_forward(j->plan, &run);
    j->n_step++;
    j->n_row += j->batch.rows.n_token;
    ml_plan_read(j->plan, &j->batch.rows, j->logprob, j->entropy, j->logits);
    st = j->be.dev->sync(j->be.stream, err);
    for (int32_t i = first, row = 0; i < end && st == ML_OK; i++) {
        st = put_rows(j, i, row, 0, loss_rows(j, j->seq.len[i]), err);
        row += loss_rows(j, j->seq.len[i]);
    }
    if (st == ML_OK && j->mtp.on)
        st = run_mtp(j, first, end, err);
    if (st == ML_OK && j->config->score.grads) {
        set_derivatives(j, first, end);
        if (!j->adapters.n)
            ml_grads_bind(&j->grads, &run);
        ml_plan_backward(j->plan, &run, j->dlogprob, NULL);
        st = j->be.dev->sync(j->be.stream, err);
    }
    return st;
}

/* Each token is a step of one row, as in decode; keys are read from the KV pages. */
static ml_status score_tokenwise(score_job *j, int32_t i, const int32_t *page,
                                 ml_err *err) {
    ml_run run = { .weights = &j->weights, .kv = &j->kv, .rows = &j->batch.rows };
    ml_status st = ML_OK;

    set_targets(j, i);
    for (int32_t k = 0; k < j->seq.len[i] && st == ML_OK; k++) {
        ml_batch_clear(&j->batch);
        add_rows(j, i, k, 1, page);
        ml_plan_forward(j->plan, &run);
        j->n_step++;
        j->n_row++;
        ml_plan_read(j->plan, &j->batch.rows, j->logprob, j->entropy, j->logits);
        st = j->be.dev->sync(j->be.stream, err);
        if (st == ML_OK)
            st = put_rows(j, i, 0, k, j->batch.rows.n_loss, err);
    }
    return st;
}

static ml_status score_all(score_job *j, ml_err *err) {
    ml_status st = ML_OK;
    int32_t n_page = ml_kv_pages_for(j->seq.max_len);
    int32_t *page = ML_NEW(&j->arena, int32_t, n_page);

    for (int32_t i = 0; i < n_page; i++)
        page[i] = i;
    for (int32_t i = 0; tokenwise(j) && i < j->seq.n && st == ML_OK; i++)
        st = score_tokenwise(j, i, page, err);
    for (int32_t i = 0, end; !tokenwise(j) && i < j->seq.n && st == ML_OK; i = end) {
        end = batch_end(j, i);
        st = score_batch(j, i, end, err);
    }
    return st;
}

/* --- the command ------------------------------------------------------------ */

static ml_status open_adapters(score_job *j, ml_err *err) {
    const ml_config *c = j->config;

    if (ml_run_ranks_size(&j->ranks) > 1 && c->score.lora_paths.n)
        return ml_fail(err, ML_EUNSUP,
                       "--lora-paths: several ranks score all sequences with one adapter "
                       "(--lora-adapter-path); start one process");
    return ml_score_adapters_open(&j->adapters, &j->arena, c, &j->spec, &j->seq, &j->be,
                                  err);
}

static ml_score_mtp_in mtp_in(const score_job *j) {
    const ml_config *c = j->config;
    return (ml_score_mtp_in){ .dir = c->run.hf_checkpoint,
                              .input = c->score.input,
                              .seq = &j->seq,
                              .checkpoint = j->checkpoint,
                              .factor = c->run.mtp.factor,
                              .grads = c->score.grads };
}

static ml_status open_mtp(score_job *j, ml_err *err) {
    ml_score_mtp_in in = mtp_in(j);

    if (!j->config->score.mtp)
        return ML_OK;
    if (ml_run_ranks_size(&j->ranks) > 1)
        return ml_fail(err, ML_EUNSUP,
                       "--mtp: several ranks do not score the multi-token prediction "
                       "module; start one process");
    return ml_score_mtp_open(&j->mtp, &in, &j->arena, err);
}

static ml_status open_inputs(score_job *j, ml_err *err) {
    const ml_config *c = j->config;
    ml_backend_opts opts = c->run.backend;
    ml_status st = ml_model_open(&j->spec, c->run.hf_checkpoint, c->run.arch.spec.word,
                                 c->run.arch.spec.n, err);

    if (st == ML_OK)
        st = ml_checkpoint_open(&j->checkpoint, c->run.hf_checkpoint, err);
    if (st == ML_OK)
        st = ml_weights_check(&j->spec, j->checkpoint, err);
    if (st == ML_OK)
        st =
            ml_weights_keep_kv(&j->spec, j->checkpoint, c->run.dtype, c->run.kv_dtype, err);
    if (st == ML_OK)
        st = ml_sequences_read(&j->seq, &j->arena, c->score.input, j->spec.n_vocab, err);
    if (st == ML_OK && c->score.grads && j->seq.n_next == 0)
        st = ml_fail(err, ML_EFORMAT, "%s: --grads needs a sequence of at least two tokens",
                     c->score.input);
    opts.n_thread = ml_run_ranks_threads(&j->ranks, opts.n_thread);
    if (st == ML_OK)
        st = ml_backend_open(&j->be, &opts, err);
    if (st == ML_OK)
        st = open_adapters(j, err);
    if (st == ML_OK)
        st = open_mtp(j, err);
    return ml_comm_agree(j->ranks.world, st, err);
}

static ml_status make_plan(score_job *j, ml_err *err) {
    ml_batch_caps caps = plan_caps(j);
    ml_plan_opts opts = { .caps = caps,
                          .backward = j->config->score.grads,
                          .frozen = j->adapters.n > 0,
                          .logits = j->config->score.logits,
                          .hidden = j->mtp.on,
                          .kv_shared = tokenwise(j) };

    j->stage_bytes = (size_t)caps.n_loss * 3 * sizeof(float);
    if (opts.logits)
        j->stage_bytes += (size_t)caps.n_loss * (size_t)j->spec.n_vocab * sizeof(float);
    return ml_plan_new(&j->plan, &j->spec, &j->be, opts, err);
}

static ml_status take_memory(score_job *j, ml_err *err) {
    ml_batch_caps caps = plan_caps(j);
    ml_score_mtp_in in = mtp_in(j);
    ml_status st = ml_weights_load(&j->weights, &j->spec, j->checkpoint,
                                   j->config->run.dtype, &j->be, &j->arena, err);

    if (st == ML_OK && j->config->score.grads && !j->adapters.n)
        st = ml_grads_open(&j->grads, &j->spec, NULL, true, &j->be, &j->arena, err);
    if (st == ML_OK && tokenwise(j))
        st = ml_kv_open(&j->kv, &j->spec, caps.n_page, caps.n_seq, &j->be, &j->arena, err);
    if (st == ML_OK)
        st = ml_plan_alloc(j->plan, err);
    if (st == ML_OK && j->mtp.on)
        st = ml_score_mtp_load(&j->mtp, &in, j->config->run.dtype, &j->spec, &j->weights,
                               &j->be, &j->arena, err);
    if (st != ML_OK)
        return st;
    j->weights.lora = j->adapters.n ? &j->adapters.table : NULL;
    ml_grads_zero(&j->grads);
    ml_batch_init(&j->batch, &j->arena, caps);
    j->batch.rows.temperature = (float)j->config->score.temperature;
    j->target = ML_NEW(&j->arena, int32_t, j->seq.max_len);
    j->logprob = malloc(j->stage_bytes + 1);
    if (!j->logprob)
        return ml_fail(err, ML_ENOMEM, "out of memory for %zu bytes of results",
                       j->stage_bytes);
    j->entropy = j->logprob + caps.n_loss;
    j->dlogprob = j->entropy + caps.n_loss;
    j->logits = j->config->score.logits ? j->dlogprob + caps.n_loss : NULL;
    if (j->mtp.on)
        j->mtp_logits = ML_NEW(&j->arena, float, (int64_t)j->seq.max_len * j->spec.n_vocab);
    return ML_OK;
}

/* One rank. */
static ml_status score_here(score_job *j, ml_err *err) {
    ml_status st = take_memory(j, err);

    if (st == ML_OK)
        st = score_all(j, err);
    return st == ML_OK && j->config->score.grads ? put_grads(j, err) : st;
}

static ml_status score_together(score_job *j, ml_err *err) {
    ml_score_ranks_in in = { j->config, &j->spec,     j->checkpoint,
                             &j->seq,   &j->adapters, &j->be };

    return ml_score_ranks_run(&in, &j->ranks, &j->out, err);
}

static ml_status run_job(score_job *j, ml_err *err) {
    bool several = ml_run_ranks_size(&j->ranks) > 1;
    ml_status st = open_inputs(j, err);
    double start;

    if (st == ML_OK && !several)
        st = make_plan(j, err);
    if (st != ML_OK)
        return st;
    j->base_bytes = ml_memory_base(&j->be);
    if (j->config->score.dry_run) {
        print_memory(j);
        return ML_OK;
    }
    if (j->config->score.grads)
        st = ml_score_adapters_take(&j->adapters, !several, &j->arena, err);
    if (st == ML_OK)
        st = ml_score_output_open(&j->out, j->config, &j->spec, &j->seq, j->checkpoint,
                                  &j->adapters, j->mtp.on ? &j->mtp : NULL,
                                  ml_run_ranks_first(&j->ranks), &j->arena, err);
    st = ml_comm_agree(j->ranks.world, st, err);
    if (st != ML_OK)
        return st;
    start = ml_clock_s();
    st = several ? score_together(j, err) : score_here(j, err);
    if (st == ML_OK)
        st = ml_score_output_commit(&j->out, err);
    if (st == ML_OK && j->config->score.stats && ml_run_ranks_first(&j->ranks))
        (several ? print_speed : print_stats)(j, ml_clock_s() - start);
    return st;
}

ml_status ml_cmd_score(const ml_config *c, ml_err *err) {
    score_job j = { .config = c };
    ml_heartbeat_opts beats = ml_heartbeat_times(&c->run.place);
    ml_heartbeat *heartbeat = NULL;
    ml_status st;

    ml_arena_init(&j.arena, "score");
    st = ml_score_ranks_open(&j.ranks, c, err);
    if (st == ML_OK)
        st = ml_heartbeat_open(&heartbeat, j.ranks.world, &beats, err);
    if (st == ML_OK)
        st = run_job(&j, err);
    st = ml_comm_agree(j.ranks.world, st, err);
    if (st == ML_OK)
        st = ml_rank_messages_meet(j.ranks.world, err);
    ml_score_output_abort(&j.out);
    free(j.logprob);
    ml_plan_free(j.plan);
    ml_kv_close(&j.kv);
    ml_score_mtp_close(&j.mtp);
    ml_score_adapters_close(&j.adapters);
    ml_grads_close(&j.grads);
    ml_weights_close(&j.weights);
    ml_heartbeat_close(heartbeat);
    ml_run_ranks_close(&j.ranks);
    if (j.be.name)
        ml_backend_close(&j.be);
    ml_checkpoint_close(j.checkpoint);
    ml_spec_close(&j.spec);
    ml_arena_release(&j.arena);
    return st;
}
