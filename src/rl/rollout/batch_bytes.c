#include "rl/rollout/batch_bytes.h"

#include <string.h>

enum { HAS_MASK = 1, HAS_LOGPROB = 2, HAS_VERSION = 4, HAS_TEACHER = 8, HAS_KL = 16 };

/* The numbers of a sample; its arrays follow. */
typedef struct head {
    int64_t index, group, rollout, row;
    int64_t width[ML_N_ROUTING], n_support;
    double reward, shaped;
    int32_t n_token, n_response, n_turn, status;
    int32_t n_routed[ML_N_ROUTING];
    uint8_t has, has_reward, has_shaped, remove;
    int32_t n_answer; /* no byte of the struct is undefined */
} head;

/* --- writing ------------------------------------------------------------------ */

static void add(ml_text *out, const void *data, int64_t n, size_t size) {
    if (data && n > 0)
        ml_text_add(out, data, (size_t)n * size);
}

static head head_of(const ml_sample *s) {
    head h = { .index = s->index,
               .group = s->group,
               .rollout = s->rollout,
               .row = s->row,
               .reward = s->reward,
               .shaped = s->shaped,
               .n_token = s->n_token,
               .n_response = s->n_response,
               .n_turn = s->n_turn,
               .n_answer = s->n_answer,
               .status = (int32_t)s->status,
               .n_support = (int64_t)s->supports.len,
               .has_reward = s->has_reward,
               .has_shaped = s->has_shaped,
               .remove = s->remove };

    h.has =
        (uint8_t)((s->mask ? HAS_MASK : 0) | (s->logprob ? HAS_LOGPROB : 0) |
                  (s->version ? HAS_VERSION : 0) | (s->teacher_logprob ? HAS_TEACHER : 0) |
                  (s->opd_reverse_kl ? HAS_KL : 0));
    for (int i = 0; i < ML_N_ROUTING; i++) {
        h.n_routed[i] = s->routed[i].n;
        h.width[i] = s->routed[i].width;
    }
    return h;
}

static void write_sample(ml_text *out, const ml_sample *s) {
    head h = head_of(s);

    ml_text_add(out, (const char *)&h, sizeof h);
    add(out, s->token, s->n_token, sizeof *s->token);
    add(out, s->mask, s->n_response, sizeof *s->mask);
    add(out, s->logprob, s->n_response, sizeof *s->logprob);
    add(out, s->version, s->n_response, sizeof *s->version);
    add(out, s->teacher_logprob, s->n_response, sizeof *s->teacher_logprob);
    add(out, s->opd_reverse_kl, s->n_response, sizeof *s->opd_reverse_kl);
    for (int i = 0; i < ML_N_ROUTING; i++)
        add(out, s->routed[i].row, s->routed[i].n * s->routed[i].width, sizeof(int32_t));
    add(out, s->supports.ptr, (int64_t)s->supports.len, 1);
}

void ml_rollout_batch_write(ml_text *out, const ml_rollout_batch *h) {
    ml_text_add(out, (const char *)&h->n, sizeof h->n);
    ml_text_add(out, (const char *)&h->n_drawn, sizeof h->n_drawn);
    for (int64_t i = 0; i < h->n; i++)
        write_sample(out, h->sample[i]);
}

/* --- reading ------------------------------------------------------------------ */

typedef struct reader {
    ml_arena *a;
    ml_str left;
    bool bad;
} reader;

static void take(reader *r, void *out, size_t n) {
    if (r->bad || n > r->left.len) {
        r->bad = true;
        return;
    }
    memcpy(out, r->left.ptr, n);
    r->left.ptr += n;
    r->left.len -= n;
}

/* An array of n elements in the arena; NULL if the sample has none. */
static void *take_array(reader *r, bool has, int64_t n, size_t size) {
    void *out;

    if (!has)
        return NULL;
    if (r->bad || n < 0 || (size_t)n > r->left.len / size) {
        r->bad = true;
        return NULL;
    }
    out = ml_arena_take(r->a, (size_t)n + 1, size);
    take(r, out, (size_t)n * size);
    return out;
}

static void read_routing(reader *r, const head *h, ml_sample *s, int i) {
    int64_t n = h->n_routed[i], width = h->width[i];

    if (!n)
        return;
    if (n < 0 || width < 1 || width > INT32_MAX) {
        r->bad = true;
        return;
    }
    s->routed[i].row = take_array(r, true, n * width, sizeof(int32_t));
    s->routed[i].n = (int32_t)n;
    s->routed[i].width = width;
}

static void read_sample(reader *r, ml_sample *s) {
    head h = { 0 };

    take(r, &h, sizeof h);
    r->bad |= h.n_token < 0 || h.n_response < 0 || h.n_response > h.n_token ||
              h.n_answer < 0 || h.n_answer > h.n_response;
    *s = (ml_sample){ .index = h.index,
                      .group = h.group,
                      .rollout = h.rollout,
                      .row = h.row,
                      .reward = h.reward,
                      .shaped = h.shaped,
                      .n_token = h.n_token,
                      .n_response = h.n_response,
                      .n_turn = h.n_turn,
                      .n_answer = h.n_answer,
                      .status = (ml_sample_status)h.status,
                      .has_reward = h.has_reward,
                      .has_shaped = h.has_shaped,
                      .remove = h.remove };
    s->token = take_array(r, true, h.n_token, sizeof *s->token);
    s->mask = take_array(r, h.has & HAS_MASK, h.n_response, sizeof *s->mask);
    s->logprob = take_array(r, h.has & HAS_LOGPROB, h.n_response, sizeof *s->logprob);
    s->version = take_array(r, h.has & HAS_VERSION, h.n_response, sizeof *s->version);
    s->teacher_logprob =
        take_array(r, h.has & HAS_TEACHER, h.n_response, sizeof *s->teacher_logprob);
    s->opd_reverse_kl =
        take_array(r, h.has & HAS_KL, h.n_response, sizeof *s->opd_reverse_kl);
    for (int i = 0; i < ML_N_ROUTING; i++)
        read_routing(r, &h, s, i);
    s->supports.ptr = take_array(r, true, h.n_support, 1);
    s->supports.len = r->bad ? 0 : (size_t)h.n_support;
}

ml_status ml_rollout_batch_read(ml_rollout_batch *out, ml_arena *a, ml_str bytes,
                                ml_err *err) {
    reader r = { .a = a, .left = bytes };
    int64_t n = 0;
    ml_sample *sample;

    take(&r, &n, sizeof n);
    take(&r, &out->n_drawn, sizeof out->n_drawn);
    if (r.bad || n < 0 || (size_t)n > r.left.len / sizeof(head))
        return ml_fail(err, ML_EFORMAT, "the rollout batch from rank 0 is truncated");
    sample = ML_NEW(a, ml_sample, n + 1);
    out->sample = ML_NEW(a, const ml_sample *, n + 1);
    for (out->n = 0; out->n < n && !r.bad; out->n++) {
        read_sample(&r, &sample[out->n]);
        out->sample[out->n] = &sample[out->n];
    }
    if (r.bad || r.left.len)
        return ml_fail(err, ML_EFORMAT,
                       "the rollout batch from rank 0 is inconsistent at sample %lld",
                       (long long)out->n);
    return ML_OK;
}
