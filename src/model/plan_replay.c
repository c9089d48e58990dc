#include "model/plan_priv.h"

enum {
    MOST_ROWS = 512, /* above this the GPU time exceeds the launch time */
    MANY_ROWS = 16,  /* above this, multiples of it are captured */
};

/* Row counts that are captured, up to MANY_ROWS.  A kernel for few rows takes as long for one
 * count as for the next smaller one. */
static const int32_t few_rows[] = { 1, 2, 4, 8, 12, MANY_ROWS };

static int32_t captured_rows(int32_t n) {
    int i = 0;

    if (n > MANY_ROWS)
        return (n + MANY_ROWS - 1) / MANY_ROWS * MANY_ROWS;
    while (few_rows[i] < n)
        i++;
    return few_rows[i];
}

static bool is_like(const ml_plan_recording *a, const ml_plan_recording *b) {
    return a->n_token == b->n_token && a->n_seq == b->n_seq && a->n_loss == b->n_loss &&
           a->temperature == b->temperature && a->weights == b->weights &&
           a->head == b->head && a->lora == b->lora && a->lora_version == b->lora_version &&
           a->adapters == b->adapters && a->separate == b->separate && a->kv == b->kv;
}

static void drop(const ml_plan *p, ml_plan_recording *r) {
    if (r->work)
        p->be->replay->free(r->work);
    *r = (ml_plan_recording){ 0 };
}

static int32_t most_rows(const ml_plan *p) {
    int32_t asked = p->opts.record_rows;
    return asked && asked < MOST_ROWS ? asked : MOST_ROWS;
}

/* Only decode is captured, one row per sequence with logits, or none: its shapes repeat. */
static bool is_recorded(const ml_plan *p, const ml_run *r) {
    int32_t n = r->rows->n_token, n_loss = r->rows->n_loss;

    for (int i = 0; i < ML_N_ROUTING; i++)
        if (r->chosen[i] || r->given[i]) /* copied between host and device within the run */
            return false;
    return p->be->replay && !p->dump && !p->opts.group[ML_GROUP_TP] && !p->experts.n &&
           r->kv && n == r->rows->n_seq && n <= most_rows(p) && (n_loss == n || !n_loss);
}

int32_t ml_plan_rows_of(const ml_plan *p, const ml_run *r) {
    const ml_batch_caps *c = &p->opts.caps;
    int32_t n = r->rows->n_token, all = captured_rows(n);

    if (!is_recorded(p, r))
        return n;
    if (all > c->n_token || all > c->n_seq || all > c->n_loss)
        return n;
    return all;
}

/* A multi-token prediction module has the LM head of a trunk, whose weights may move. */
static const void *head_of(const ml_plan *p, const ml_run *r) {
    int32_t w = p->spec->node[p->spec->n_node - 1].w[0];

    return w == ML_NONE ? NULL : r->weights->t[w].data;
}

ml_plan_recording *ml_plan_recording_of(ml_plan *p, const ml_run *r) {
    ml_plan_recording now = { .n_token = r->rows->n_token,
                              .n_seq = r->rows->n_seq,
                              .n_loss = r->rows->n_loss,
                              .temperature = r->rows->temperature,
                              .weights = r->weights->buf.ptr,
                              .head = head_of(p, r),
                              .lora = r->weights->lora,
                              .adapters = r->rows->adapter != NULL,
                              .separate = r->rows->separate,
                              .kv = r->kv ? r->kv->buf.ptr : NULL };

    if (!is_recorded(p, r))
        return NULL;
    now.lora_version = r->weights->lora ? r->weights->lora->version : 0;
    for (int32_t i = 0; i < p->n_recording; i++)
        if (is_like(&p->recording[i], &now))
            return &p->recording[i];
    if (p->n_recording < ML_PLAN_RECORDINGS)
        p->n_recording++;
    drop(p, &p->recording[p->next_recording]);
    p->recording[p->next_recording] = now;
    p->next_recording = (p->next_recording + 1) % ML_PLAN_RECORDINGS;
    return NULL;
}

void ml_plan_forget(ml_plan *p) {
    for (int32_t i = 0; i < p->n_recording; i++)
        drop(p, &p->recording[i]);
    p->n_recording = p->next_recording = 0;
}
