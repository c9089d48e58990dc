#include "cli/commands/score_ranks.h"

#include <stdlib.h>
#include <string.h>

#include "run/opts.h"
#include "train/trainer.h"

/* A rank scores micro-batches of about this many tokens. */
#define PACK_TOKENS 4096

typedef struct job {
    const ml_score_ranks_in *in;
    const ml_run_ranks *ranks;
    ml_score_output *out;
    ml_arena arena;
    const int32_t *stage; /* of each node; NULL: one */
    ml_weights weights;
    ml_lora_table table; /* the adapter of all sequences */
    ml_trainer *trainer;
} job;

static ml_lora *lora_of(const job *j) {
    return j->in->adapters->n ? &j->in->adapters->lora[0] : NULL;
}

/* What has gradients, and the tensors of the output that have them. */
static const ml_spec *trained(const job *j) {
    return lora_of(j) ? &lora_of(j)->spec : j->in->spec;
}

static const ml_named *tensors(const job *j, int32_t *n) {
    const ml_score_adapters *x = j->in->adapters;

    *n = x->n ? x->n_named[0] : j->out->n_named;
    return x->n ? x->named[0] : j->out->named;
}

static bool is_first(const job *j) {
    return ml_run_ranks_first(j->ranks);
}

/* --- opening ---------------------------------------------------------------- */

ml_status ml_score_ranks_open(ml_run_ranks *out, const ml_config *c, ml_err *err) {
    ml_place_opts place = c->run.place;
    ml_status st;

    place.engine_size = 1;
    st = ml_run_ranks_open(out, c->run.ranks.world, &place, err);
    if (st != ML_OK || ml_run_ranks_size(out) == 1)
        return st;
    if (c->score.batching == ML_BATCH_TOKENWISE)
        return ml_fail(
            err, ML_EUSAGE,
            "--batching tokenwise needs one rank: start miles without mpirun, or "
            "choose packed or single, which have the same results");
    if (c->score.dry_run)
        return ml_fail(err, ML_EUSAGE,
                       "--dry-run of miles score plans one rank: start it without mpirun; "
                       "miles plan plans the ranks of a job");
    return ml_run_ranks_check(out, &c->run, err);
}

/* The rank's part of the adapter; all rows have it. */
static ml_status open_adapter(job *j, ml_err *err) {
    ml_lora *l = lora_of(j);

    if (!l)
        return ML_OK;
    j->table = j->in->adapters->table;
    j->table.all = true;
    j->weights.lora = &j->table;
    return ml_lora_divide(l, j->in->spec, &j->ranks->mesh.sizes, j->ranks->mesh.rank,
                          j->stage, err);
}

static ml_status open_trainer(job *j, ml_err *err) {
    const ml_config *c = j->in->config;
    ml_trainer_opts o = { .use = c->score.grads ? ML_TRAINER_GRADS : ML_TRAINER_SCORES,
                          .lr = { .train_iters = 1, .global_batch_size = 1 },
                          .temperature = c->score.temperature,
                          .batch = { .dynamic = true, .max_tokens = PACK_TOKENS },
                          .score_logits = c->score.logits,
                          .mesh = &j->ranks->mesh,
                          .lora = lora_of(j) };
    const ml_shard_range *part;
    ml_status st =
        ml_run_ranks_stages(&j->stage, &j->arena, &c->run.place, j->in->spec, err);

    if (st != ML_OK)
        return st;
    o.stage = j->stage;
    o.contiguous = c->run.trainer.contiguous;
    part = ml_trainer_parts(&j->arena, j->in->spec, o.mesh, o.stage, j->in->be->linear);
    st = ml_weights_load_part(&j->weights, j->in->spec, j->in->checkpoint, c->run.dtype,
                              part, j->in->be, &j->arena, err);
    if (st == ML_OK)
        st = open_adapter(j, err);
    return st == ML_OK
               ? ml_trainer_open(&j->trainer, j->in->spec, &j->weights, j->in->be, &o, err)
               : st;
}

/* --- scores ----------------------------------------------------------------- */

/* The sequences of a call: those with logits have few tokens, because every rank gets the
 * logits of all. */
static int32_t group_end(const job *j, int32_t first) {
    const ml_sequences *q = j->in->seq;
    int64_t most = PACK_TOKENS, n = 0;
    int32_t i = first;

    if (!j->in->config->score.logits)
        most *= ml_trainer_data_size(j->trainer);
    for (; i < q->n && (i == first || n + q->len[i] <= most); i++)
        n += q->len[i];
    return i;
}

/* All tokens but the first are response.  more: another one follows, so that the last row
 * has logits; what it is does not matter to the rows before it. */
static ml_train_sample sample_of(ml_arena *a, const ml_sequences *q, int32_t i, bool more) {
    int32_t n = q->len[i] + more, *id = ML_NEW(a, int32_t, n);

    memcpy(id, q->id[i], (size_t)q->len[i] * sizeof *id);
    return (
        ml_train_sample){ .token = id, .n_token = n, .n_response = n - 1, .rollout = i };
}

static ml_status score_group(job *j, int32_t first, int32_t end, ml_err *err) {
    bool logits = j->in->config->score.logits;
    int32_t n = end - first;
    int64_t vocab = j->in->spec->n_vocab;
    ml_train_sample *s;
    float **logprob, **entropy, **logit;
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "sequences");
    s = ML_NEW(&a, ml_train_sample, n);
    logprob = ML_NEW(&a, float *, 3 * n);
    entropy = logprob + n;
    logit = logprob + 2 * n;
    for (int32_t i = 0; i < n; i++) {
        s[i] = sample_of(&a, j->in->seq, first + i, logits);
        logprob[i] = ML_NEW(&a, float, s[i].n_response + 1);
        entropy[i] = ML_NEW(&a, float, s[i].n_response + 1);
        logit[i] = logits ? ML_NEW(&a, float, s[i].n_response *vocab) : NULL;
    }
    st = logits ? ml_trainer_score_logits(j->trainer, s, n, logprob, entropy, logit, err)
                : ml_trainer_score(j->trainer, NULL, s, n, logprob, entropy, err);
    for (int32_t i = 0; i < n && st == ML_OK && is_first(j); i++)
        st = ml_score_output_rows(j->out, first + i, 0, s[i].n_response,
                                  (ml_score_rows){ logprob[i], entropy[i], logit[i] }, err);
    ml_arena_release(&a);
    return ml_comm_agree(j->ranks->world, st, err);
}

/* --- gradients -------------------------------------------------------------- */

static ml_status mean_nll(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    const job *j = ud;
    float each = -1.0f / (float)j->in->seq->n_next;

    (void)err;
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; t < io[i].n_response; t++) {
            io[i].dlogprob[t] = each;
            io[i].loss -= (double)io[i].logprob[t];
        }
    return ML_OK;
}

/* The micro-batches of this rank's data place: a run of consecutive sequences, whose order
 * is that of one rank. */
static ml_bins own_bins(const job *j, ml_arena *a) {
    const ml_sequences *q = j->in->seq;
    int32_t n_place = ml_trainer_data_size(j->trainer);
    int32_t place = ml_trainer_data_place(j->trainer);
    int32_t first = (int32_t)((int64_t)q->n * place / n_place);
    int32_t end = (int32_t)((int64_t)q->n * (place + 1) / n_place);
    int64_t most = (int64_t)PACK_TOKENS * j->ranks->mesh.sizes.size[ML_MESH_CP], n = 0;
    ml_bins b = { .bin = ML_NEW(a, ml_bin, end - first + 1) };

    for (int32_t i = first; i < end; i++) {
        ml_bin *bin;
        if (b.n == 0 || n + q->len[i] > most) {
            b.bin[b.n++].item = ML_NEW(a, int32_t, end - first);
            n = 0;
        }
        bin = &b.bin[b.n - 1];
        bin->item[bin->n++] = i;
        n += q->len[i];
    }
    return b;
}

static ml_status find_grads(job *j, ml_err *err) {
    const ml_sequences *q = j->in->seq;
    ml_step_result result;
    ml_train_sample *s;
    ml_status st;
    ml_bins bins;
    ml_arena a;

    ml_arena_init(&a, "sequences");
    s = ML_NEW(&a, ml_train_sample, q->n);
    for (int32_t i = 0; i < q->n; i++)
        s[i] = sample_of(&a, q, i, false);
    bins = own_bins(j, &a);
    st = ml_trainer_accumulate(j->trainer,
                               &(ml_step){ .sample = s,
                                           .micro = &bins,
                                           .denominator = (double)q->n_next,
                                           .loss = mean_nll,
                                           .ud = j },
                               &result, err);
    if (st == ML_OK && result.bad[0])
        st = ml_fail(err, ML_EFORMAT, "%s", result.bad);
    ml_arena_release(&a);
    return st;
}

/* Rank 0 gets all of a parameter's gradient. */
static ml_status fetch_grad(job *j, int32_t param, ml_weights *whole, ml_err *err) {
    const ml_weights *g = ml_trainer_grads(j->trainer);
    const ml_optimizer *o = ml_trainer_optimizer(j->trainer);
    ml_backend *be = j->in->be;
    ml_tensor t = ml_weights_tensor(&trained(j)->param[param], ML_F32, be->linear), mine;
    ml_status st = ML_OK;

    mine = ml_weights_view(g, param, ml_optimizer_range(o, param, j->ranks->mesh.rank));
    mine.dtype = ML_F32;
    t.data = is_first(j) ? malloc(ml_tensor_bytes(&t) + 1) : NULL;
    if (is_first(j) && !t.data)
        st = ml_fail(err, ML_ENOMEM, "out of memory for the gradient of %s",
                     trained(j)->param[param].name);
    whole->t[param] = t;
    st = ml_comm_agree(j->ranks->world, st, err);
    return st == ML_OK ? ml_optimizer_collect(o, param, &mine, be->stream, t.data, err)
                       : st;
}

/* A tensor of the checkpoint may be several parameters, and a parameter several tensors,
 * which follow each other. */
static ml_status put_grad(job *j, int32_t k, ml_weights *whole, ml_err *err) {
    int32_t n;
    const ml_named *of = tensors(j, &n), *t = &of[k];
    const ml_spec *s = trained(j);
    bool composed = t->member == ML_NONE;
    bool last = k + 1 == n || of[k + 1].param != t->param;
    ml_status st = ML_OK;

    for (int32_t i = t->param; i != ML_NONE && st == ML_OK;
         i = composed ? s->param[i].part->next : ML_NONE)
        if (!whole->t[i].n_dim)
            st = fetch_grad(j, i, whole, err);
    if (st == ML_OK && is_first(j))
        st = ml_score_output_grad(j->out, k, whole, err);
    for (int32_t i = t->param; i != ML_NONE && last;
         i = composed ? s->param[i].part->next : ML_NONE) {
        free(whole->t[i].data);
        whole->t[i].data = NULL;
    }
    return ml_comm_agree(j->ranks->world, st, err);
}

static ml_status put_grads(job *j, ml_err *err) {
    ml_weights whole = { .n = trained(j)->n_param,
                         .t = ML_NEW(&j->arena, ml_tensor, trained(j)->n_param) };
    ml_status st = find_grads(j, err);
    int32_t n;

    if (st == ML_OK && is_first(j))
        st = ml_score_output_loss(j->out, err);
    tensors(j, &n);
    for (int32_t k = 0; k < n && st == ML_OK; k++)
        st = put_grad(j, k, &whole, err);
    for (int32_t i = 0; i < whole.n; i++)
        free(whole.t[i].data);
    return st;
}

/* --- all -------------------------------------------------------------------- */

ml_status ml_score_ranks_run(const ml_score_ranks_in *in, const ml_run_ranks *ranks,
                             ml_score_output *out, ml_err *err) {
    job j = { .in = in, .ranks = ranks, .out = out };
    ml_status st;

    ml_arena_init(&j.arena, "score");
    st = open_trainer(&j, err);
    st = ml_comm_agree(ranks->world, st, err);
    for (int32_t i = 0, end; i < in->seq->n && st == ML_OK; i = end) {
        end = group_end(&j, i);
        st = score_group(&j, i, end, err);
    }
    if (st == ML_OK && in->config->score.grads)
        st = put_grads(&j, err);
    ml_trainer_close(j.trainer);
    ml_weights_close(&j.weights);
    ml_arena_release(&j.arena);
    return st;
}
