#include "train/micro.h"

#include <string.h>

#include "base/bug.h"

ml_batch_caps ml_micro_need(const ml_train_sample *s, const ml_bin *bin) {
    ml_batch_caps c = { .n_seq = bin->n };

    for (int32_t i = 0; i < bin->n; i++) {
        const ml_train_sample *x = &s[bin->item[i]];
        c.n_token += x->n_token;
        c.n_loss += x->n_response;
        c.n_page += ml_kv_pages_for(x->n_token);
    }
    return c;
}

static int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

ml_batch_caps ml_micro_max(ml_batch_caps a, ml_batch_caps b) {
    return (ml_batch_caps){ .n_token = larger(a.n_token, b.n_token),
                            .n_seq = larger(a.n_seq, b.n_seq),
                            .n_loss = larger(a.n_loss, b.n_loss),
                            .n_page = larger(a.n_page, b.n_page) };
}

void ml_micro_init(ml_micro *m, ml_batch_caps caps, bool critic) {
    float *x;
    size_t n = (size_t)larger(caps.n_loss, critic ? caps.n_token : 0);

    *m = (ml_micro){ .caps = caps, .critic = critic };
    ml_arena_init(&m->arena, "a micro-batch");
    ml_batch_init(&m->batch, &m->arena, caps);
    m->target = ML_NEW(&m->arena, int32_t, caps.n_token);
    m->io = ML_NEW(&m->arena, ml_loss_io, caps.n_seq);
    x = ML_NEW(&m->arena, float, 8 * n);
    m->row_logprob = x;
    m->row_entropy = x + n;
    m->row_dlogprob = x + 2 * n;
    m->row_dentropy = x + 3 * n;
    m->logprob = x + 4 * n;
    m->entropy = x + 5 * n;
    m->dlogprob = x + 6 * n;
    m->dentropy = x + 7 * n;
}

void ml_micro_release(ml_micro *m) {
    if (m->arena.tag)
        ml_arena_release(&m->arena);
    *m = (ml_micro){ 0 };
}

/* Whether response token t of the sample has a row in the LM head. */
static bool scored(const ml_micro *m, const ml_loss_io *io, int32_t t) {
    return m->everywhere || !io->mask || io->mask[t];
}

static void add_sample(ml_micro *m, const ml_train_sample *x, const ml_loss_io *io) {
    int32_t first = x->n_token - x->n_response - 1; /* the row that predicts token 0 */

    ML_BUG_IF(first < 0);
    for (int32_t i = 0; i < x->n_token; i++) {
        int32_t t = i - first;
        bool response = t >= 0 && t < x->n_response;
        m->target[i] = response && scored(m, io, t) ? x->token[i + 1] : ML_TARGET_SKIP;
    }
    ml_batch_add(&m->batch, x->token, m->target, x->n_token, 0, NULL);
}

void ml_micro_fill(ml_micro *m, const ml_train_sample *s, const ml_bin *bin,
                   bool everywhere, float temperature) {
    int32_t at = 0;

    ml_batch_clear(&m->batch);
    m->batch.rows.temperature = temperature;
    m->everywhere = everywhere;
    m->n_sample = bin->n;
    for (int32_t i = 0; i < bin->n; i++) {
        const ml_train_sample *x = &s[bin->item[i]];
        m->io[i] = (ml_loss_io){ .sample = bin->item[i],
                                 .n_response = x->n_response,
                                 .mask = x->mask };
        if (m->critic) {
            m->io[i].value = m->logprob + at;
            m->io[i].dvalue = m->dlogprob + at;
        } else {
            m->io[i].logprob = m->logprob + at;
            m->io[i].entropy = m->entropy + at;
            m->io[i].dlogprob = m->dlogprob + at;
            m->io[i].dentropy = m->dentropy + at;
        }
        add_sample(m, x, &m->io[i]);
        at += x->n_response;
    }
}

/* Index of a loss row's number: a critic has one for every row. */
static int32_t place_of(const ml_micro *m, int32_t loss) {
    return m->critic ? m->batch.loss_row[loss] : loss;
}

void ml_micro_spread(ml_micro *m) {
    int32_t loss = 0, at = 0;

    for (int32_t i = 0; i < m->n_sample; i++)
        for (int32_t t = 0; t < m->io[i].n_response; t++, at++) {
            bool has_row = scored(m, &m->io[i], t);
            m->logprob[at] = has_row ? m->row_logprob[place_of(m, loss)] : 0.0f;
            m->entropy[at] = has_row && !m->critic ? m->row_entropy[loss] : 0.0f;
            loss += has_row;
        }
    memset(m->dlogprob, 0, (size_t)at * sizeof *m->dlogprob);
    memset(m->dentropy, 0, (size_t)at * sizeof *m->dentropy);
}

bool ml_micro_collect(ml_micro *m) {
    int32_t loss = 0, at = 0;
    bool any = false;

    if (m->critic)
        memset(m->row_dlogprob, 0, (size_t)m->batch.rows.n_token * sizeof *m->row_dlogprob);
    for (int32_t i = 0; i < m->n_sample; i++)
        for (int32_t t = 0; t < m->io[i].n_response; t++, at++)
            if (scored(m, &m->io[i], t)) {
                m->row_dlogprob[place_of(m, loss)] = m->dlogprob[at];
                m->row_dentropy[loss++] = m->dentropy[at];
                any |= m->dlogprob[at] != 0.0f || m->dentropy[at] != 0.0f;
            }
    return any;
}
