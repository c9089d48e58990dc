#include <string.h>

#include "base/bug.h"
#include "train/prefix.h"
#include "train/trainer_priv.h"

/* Scoring has no steps: samples are packed as tightly as the token limit allows, if that
 * occupies all ranks. */
static ml_bins *pack_for_scoring(const ml_trainer *t, ml_arena *a, const ml_train_sample *s,
                                 int32_t n) {
    const ml_schedule_opts *b = &t->opts.batch;
    int64_t each = t->opts.score_max_tokens ? t->opts.score_max_tokens : b->max_tokens;
    int64_t cap = each * (b->n_context ? b->n_context : 1);
    int64_t *len = ml_trainer_lengths(a, s, n);
    ml_bins bins = ml_pack_first_fit_decreasing(a, len, n, cap);

    ml_pack_expand(&bins, a, len, ml_trainer_data_size(t));
    for (int32_t i = 0; t->context.share && i < bins.n; i++)
        ml_prefix_group(s, bins.bin[i].item, bins.bin[i].n);
    return ml_pack_deal(a, &bins, len, ml_trainer_data_size(t));
}

/* Where the scores of samples go. */
typedef struct scores {
    ml_trainer *t;
    float *const *logprob, *const *entropy, *const *logits; /* all but logprob: or NULL */
} scores;

static void copy_scores(const ml_micro *m, const scores *to) {
    for (int32_t i = 0; i < m->n_sample; i++) {
        const ml_loss_io *io = &m->io[i];
        size_t bytes = (size_t)io->n_response * sizeof(float);
        if (!bytes)
            continue;
        memcpy(to->logprob[io->sample], io->value ? io->value : io->logprob, bytes);
        if (to->entropy)
            memcpy(to->entropy[io->sample], io->entropy, bytes);
    }
}

/* The logits of this rank's rows; several samples may have one. */
static ml_status copy_logits(const ml_runner *r, const scores *to, ml_err *err) {
    const ml_micro *m = &r->micro;
    const ml_backend *be = to->t->be;
    int64_t vocab = to->t->spec->n_vocab;
    int32_t *row; /* of a result among those of whole samples; -1: it is another rank's */
    ml_arena a;

    ml_arena_init(&a, "rows of results");
    row = ML_NEW(&a, int32_t, m->samples->n_loss + 1);
    for (int32_t k = 0; k < m->samples->n_loss; k++)
        row[k] = -1;
    for (int32_t k = 0; k < m->batch.rows.n_loss; k++)
        row[ml_micro_result(m, k)] = k;
    for (int32_t i = 0; i < m->n_sample; i++)
        for (int32_t t = 0; t < m->io[i].n_response; t++) {
            int32_t loss = m->loss_of[m->response[i] + t];
            if (loss >= 0 && row[loss] >= 0)
                be->dev->copy_out(be->stream, to->logits[m->io[i].sample] + t * vocab,
                                  ml_plan_logits(r->plan) + row[loss] * vocab,
                                  (size_t)vocab * sizeof(float));
        }
    ml_arena_release(&a);
    return be->dev->sync(be->stream, err);
}

/* Appends memory of a sample to a rank's column of the table. */
static void add_span(const ml_trainer *t, ml_rank_spans *s, int32_t rank, int32_t *row,
                     void *data, size_t bytes) {
    if (data && s->span)
        s->span[(int64_t)*row * t->optimizer.ranks.comm->size + rank] =
            (ml_rank_span){ data, bytes };
    *row += data != NULL;
}

/* A rank's rows of the logits of a micro-batch's samples. */
static void add_logits(const ml_trainer *t, ml_rank_spans *out, const ml_bin *bin,
                       int32_t rank, const ml_train_sample *s, float *const *logits,
                       int32_t *row) {
    const ml_mesh *m = t->opts.mesh;
    int32_t at[ML_MESH_DIMS], *len, n_piece;
    int64_t vocab = t->spec->n_vocab;
    ml_piece *piece;
    ml_arena a;

    ml_mesh_at(at, &m->sizes, rank);
    if (at[ML_MESH_PP] < m->sizes.size[ML_MESH_PP] - 1)
        return;
    ml_arena_init(&a, "pieces of samples");
    len = ML_NEW(&a, int32_t, bin->n);
    piece = ML_NEW(&a, ml_piece, 2 * bin->n);
    for (int32_t i = 0; i < bin->n; i++)
        len[i] = s[bin->item[i]].n_token;
    n_piece = ml_context_pieces(piece, len, bin->n, &t->context, at[ML_MESH_CP]);
    for (int32_t i = 0; i < n_piece; i++) {
        const ml_train_sample *x = &s[bin->item[piece[i].seq]];
        int32_t prompt = x->n_token - x->n_response - 1; /* rows before token 0's */
        int32_t first = piece[i].first < prompt ? prompt : piece[i].first;
        int32_t end = piece[i].first + piece[i].n;
        end = end < x->n_token - 1 ? end : x->n_token - 1;
        if (first < end)
            add_span(t, out, rank, row,
                     logits[bin->item[piece[i].seq]] + (first - prompt) * vocab,
                     (size_t)((end - first) * vocab) * sizeof **logits);
    }
    ml_arena_release(&a);
}

/* A rank's column: scores and recorded routing of its samples, if it reports them, and the
 * logits of its rows.  Returns its length. */
static int32_t add_scores(const scores *x, ml_rank_spans *out, const ml_bins *deal,
                          int32_t rank, const ml_train_sample *s) {
    const ml_trainer *t = x->t;
    const ml_mesh *m = t->opts.mesh;
    const ml_bins *bins = &deal[m ? ml_mesh_at_data(&m->sizes, rank) : 0];
    int32_t row = 0;

    for (int32_t k = 0; k < bins->n && ml_trainer_reports(t, rank); k++)
        for (int32_t j = 0; j < bins->bin[k].n; j++) {
            int32_t i = bins->bin[k].item[j];
            size_t bytes = (size_t)s[i].n_response * sizeof(float);
            add_span(t, out, rank, &row, x->logprob[i], bytes);
            add_span(t, out, rank, &row, x->entropy ? x->entropy[i] : NULL, bytes);
            for (int r = 0; r < ML_N_ROUTING; r++)
                add_span(t, out, rank, &row, s[i].routed[r].record,
                         (size_t)(s[i].n_token *
                                  ml_spec_routing_width(t->spec, (ml_routing_kind)r)) *
                             sizeof(int32_t));
        }
    for (int32_t k = 0; k < bins->n && x->logits; k++)
        add_logits(t, out, &bins->bin[k], rank, s, x->logits, &row);
    return row;
}

static ml_status gather_scores(const scores *x, ml_arena *a, const ml_bins *deal,
                               const ml_train_sample *s, ml_err *err) {
    ml_ranks *ranks = ml_trainer_ranks(x->t);
    ml_rank_spans spans = { 0 };
    int32_t most = 0;

    for (int32_t r = 0; r < ranks->comm->size; r++) {
        int32_t n = add_scores(x, &spans, deal, r, s);
        most = n > most ? n : most;
    }
    spans = ml_ranks_spans(ranks, a, most, true);
    for (int32_t r = 0; r < ranks->comm->size; r++)
        add_scores(x, &spans, deal, r, s);
    return ml_ranks_gather(ranks, &spans, err);
}

/* The runner of the last stage. */
static ml_runner *head_of(ml_trainer *t) {
    ml_runner *r = &t->score;

    while (r->next)
        r = r->next;
    return r;
}

static ml_status keep_scores(void *ud, ml_runner *r, const ml_bin *bin, bool *live,
                             ml_err *err) {
    const scores *x = ud;

    (void)bin;
    (void)live;
    copy_scores(&r->micro, x);
    return x->logits ? copy_logits(head_of(x->t), x, err) : ML_OK;
}

/* Each stage has recorded the routing of its layers. */
static ml_status merge_routing(ml_trainer *t, const ml_train_sample *s, const ml_bins *bins,
                               ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t k = 0; k < bins->n; k++)
        for (int32_t j = 0; j < bins->bin[k].n; j++)
            for (int r = 0; r < ML_N_ROUTING && st == ML_OK; r++) {
                const ml_train_sample *x = &s[bins->bin[k].item[j]];
                int64_t width = ml_spec_routing_width(t->spec, (ml_routing_kind)r);
                if (x->routed[r].record)
                    st =
                        ml_ranks_merge(&t->pipe, x->routed[r].record,
                                       (size_t)(x->n_token * width) * sizeof(int32_t), err);
            }
    return st;
}

static ml_status score_in_stages(ml_trainer *t, const ml_weights *w,
                                 const ml_train_sample *s, const ml_bins *bins, scores *to,
                                 int32_t n_round, ml_err *err) {
    ml_status st = ml_trainer_run_pipeline(t, &t->score,
                                           &(ml_pipe_work){ .weights = w,
                                                            .sample = s,
                                                            .micro = bins,
                                                            .n_round = n_round,
                                                            .scored = keep_scores,
                                                            .ud = to },
                                           err);
    return st == ML_OK && w == t->weights ? merge_routing(t, s, bins, err) : st;
}

/* Ranks gather each other's weights, as the plan has their dtypes. */
static ml_status check_weights(const ml_trainer *t, const ml_weights *w, ml_err *err) {
    const ml_mesh_sizes *m = t->opts.mesh ? &t->opts.mesh->sizes : NULL;
    bool gathers = m && (m->gather > 1 || m->etp > 1);

    for (int32_t i = 0; i < w->n && gathers; i++)
        if (w->t[i].dtype != t->stored[i])
            return ml_fail(err, ML_EUNSUP,
                           "parameter %s has another dtype than in the trained model: with "
                           "--tensor-model-parallel-size, --expert-tensor-parallel-size or "
                           "--train-backend fsdp all models "
                           "of a run have the same; give --dtype",
                           t->spec->param[i].name);
    return ML_OK;
}

static ml_status run_bins(ml_trainer *t, const ml_weights *w, const ml_bins *bins,
                          const ml_train_sample *s, scores *to, ml_err *err) {
    ml_batch_caps need = ml_trainer_need(t, s, bins);
    int32_t n_round = 0;
    ml_status st = check_weights(t, w, err);

    if (st == ML_OK)
        st = ml_trainer_rounds(t, &t->score, bins->n, need, &n_round, err);
    if (st == ML_OK && ml_trainer_is_pipeline(t))
        return score_in_stages(t, w, s, bins, to, n_round, err);
    if (st == ML_OK && n_round)
        st = ml_trainer_grow(t, &t->score, false, need, err);
    for (int32_t k = 0; k < n_round && st == ML_OK; k++) {
        if (k >= bins->n) {
            ml_trainer_join(t, &t->score, w, 0, false);
            continue;
        }
        st = ml_trainer_forward(t, &t->score, w, s, &bins->bin[k], true, err);
        if (st == ML_OK)
            st = keep_scores(to, &t->score, NULL, NULL, err);
        ml_work_count_add(t->work_count);
    }
    return st;
}

static ml_status score(scores *to, const ml_weights *w, const ml_train_sample *s, int32_t n,
                       ml_err *err) {
    ml_trainer *t = to->t;
    ml_ranks *ranks = ml_trainer_ranks(t);
    const ml_bins *deal, *bins;
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "scoring");
    deal = pack_for_scoring(t, &a, s, n);
    bins = &deal[ml_trainer_data_place(t)];
    ml_work_count_expect(t->work_count, bins->n);
    st = run_bins(t, w, bins, s, to, err);
    st = ml_ranks_agree(ranks, st, err);
    if (st == ML_OK && ranks->comm->size > 1)
        st = gather_scores(to, &a, deal, s, err);
    ml_arena_release(&a);
    return st;
}

ml_status ml_trainer_score(ml_trainer *t, const ml_weights *w, const ml_train_sample *s,
                           int32_t n, float *const *logprob, float *const *entropy,
                           ml_err *err) {
    return score(&(scores){ .t = t, .logprob = logprob, .entropy = entropy },
                 w ? w : t->weights, s, n, err);
}

ml_status ml_trainer_score_logits(ml_trainer *t, const ml_train_sample *s, int32_t n,
                                  float *const *logprob, float *const *entropy,
                                  float *const *logits, ml_err *err) {
    ML_BUG_IF(!t->opts.score_logits);
    return score(&(scores){ t, logprob, entropy, logits }, t->weights, s, n, err);
}
