/* dp_groups.c - data-parallel attention: the requests of each DP group of ranks.
 *
 * Every rank schedules the requests of all groups, in lock step, and keeps the account of all
 * pages and slots; it has memory for those of its own group.  The rows of a step are ordered
 * by groups. */
#include "base/bug.h"
#include "comm/device/device_comm.h"
#include "engine/engine_priv.h"

/* How many requests more than the smallest a group may get for the sake of a common prompt. */
enum { PREFERENCE = 8 };

int32_t ml_dp_groups(const ml_spec *s) {
    return s->n_rank && s->attn_dp > 1 ? s->attn_dp : 1;
}

int32_t ml_dp_share(const ml_spec *s, int32_t n) {
    int32_t n_group = ml_dp_groups(s);

    return (n + n_group - 1) / n_group;
}

/* The ranks of this rank's group, and those in its place in each group. */
static ml_status split(ml_engine *e, ml_err *err) {
    ml_comm *c = e->opts.comm;
    int32_t each = c->size / e->n_group;
    ml_status st = c->split(c, &e->dp.cols, c->rank / each, c->rank, err);

    if (st == ML_OK)
        st = c->split(c, &e->dp.rows, c->rank % each, c->rank, err);
    if (st != ML_OK)
        return st;
    e->dp.cols->group = "attention tp";
    e->dp.rows->group = "attention dp";
    st = ml_comm_device_attach(e->dp.cols, e->be->stream, err);
    return st == ML_OK ? ml_comm_device_attach(e->dp.rows, e->be->stream, err) : st;
}

ml_status ml_dp_open(ml_engine *e, ml_err *err) {
    e->n_group = ml_dp_groups(e->spec);
    e->group = ML_NEW(&e->arena, ml_dp_group, e->n_group);
    e->opts.max_running = ml_dp_share(e->spec, e->opts.max_running) * e->n_group;
    if (e->n_group == 1)
        return ML_OK;
    ML_BUG_IF(!e->opts.comm || e->opts.comm->size % e->n_group != 0);
    e->own = e->opts.comm->rank / (e->opts.comm->size / e->n_group);
    e->dp.start = ML_NEW(&e->arena, int32_t, e->n_group + 1);
    ml_batch_init(&e->dp.batch, &e->arena, ml_engine_caps(e->spec, &e->opts));
    e->dp.rows_of =
        (ml_dp_rows){ .start = e->dp.start, .n_group = e->n_group, .group = e->own };
    return split(e, err);
}

void ml_dp_close(ml_engine *e) {
    if (e->dp.rows)
        e->dp.rows->close(e->dp.rows);
    if (e->dp.cols)
        e->dp.cols->close(e->dp.cols);
}

/* Samples of a prompt, which arrive together, share its pages. */
int32_t ml_dp_choose(ml_engine *e, const ml_request *r) {
    const ml_dp_group *g = e->group;
    int32_t least = 0;

    for (int32_t i = 1; i < e->n_group; i++)
        if (g[i].n_request < g[least].n_request)
            least = i;
    if (r->prompt_hash != e->dp.prompt ||
        g[e->dp.latest].n_request >= g[least].n_request + PREFERENCE)
        e->dp.latest = least;
    e->dp.prompt = r->prompt_hash;
    return e->dp.latest;
}

static void add_rows(const ml_engine *e, ml_batch *b, const ml_request *r,
                     const int32_t *page, const int32_t *id, const int32_t *target,
                     int32_t n, int32_t first) {
    ml_batch_add(b, id, target, n, first, page);
    ml_batch_set_adapter(b, r->params.adapter - 1);
    if (e->group->slots.n)
        ml_batch_set_slot(b, r->slot);
}

/* In the batch of all groups, pages have numbers of their own. */
void ml_dp_add_rows(ml_engine *e, const ml_request *r, const int32_t *page,
                    const int32_t *id, const int32_t *target, int32_t n, int32_t first) {
    ml_batch *b = &e->batch;

    add_rows(e, b, r, page, id, target, n, first);
    for (int32_t i = b->page_start[b->rows.n_seq - 1]; r->group && i < b->n_page; i++)
        b->page[i] += r->group * e->group->prefix_cache.n;
    if (e->n_group > 1 && ml_is_own(e, r))
        add_rows(e, &e->dp.batch, r, page, id, NULL, n, first);
}

void ml_dp_clear(ml_engine *e) {
    ml_batch_clear(&e->batch);
    if (e->n_group > 1)
        ml_batch_clear(&e->dp.batch);
}

void ml_dp_count_rows(ml_engine *e) {
    const ml_inflight_step *f = e->step;
    int32_t *start = e->dp.start;

    if (e->n_group == 1)
        return;
    for (int32_t g = 0; g <= e->n_group; g++)
        start[g] = 0;
    for (int32_t i = 0; i < f->n_entry; i++)
        start[f->entry[i].r->group + 1] +=
            f->entry[i].n_row + f->entry[i].n_draft + f->entry[i].n_tree_row;
    for (int32_t g = 0; g < e->n_group; g++)
        start[g + 1] += start[g];
    ML_BUG_IF(start[e->n_group] != e->batch.rows.n_token ||
              start[e->own + 1] - start[e->own] != e->dp.batch.rows.n_token);
    e->dp.rows_of.rows = e->dp.batch.rows;
    e->batch.rows.dp = &e->dp.rows_of;
}

int32_t ml_dp_running(const ml_engine *e, int32_t group) {
    int32_t n = 0;

    if (e->n_group == 1)
        return e->running.n;
    for (const ml_request *r = e->running.first; r; r = r->next)
        n += r->group == group;
    return n;
}

ml_request *ml_dp_youngest(const ml_engine *e, int32_t group) {
    ml_request *r = e->running.last;

    while (r && r->group != group)
        r = r->prev;
    return r;
}
