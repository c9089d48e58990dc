#include "train/micro.h"

#include <string.h>

#include "base/bug.h"
#include "train/prefix.h"

static int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static bool is_divided(const ml_context_opts *o) {
    return o->n_rank > 1;
}

/* --- capacity --------------------------------------------------------------------- */

static int32_t rows_of(const ml_piece *piece, int32_t n) {
    int32_t rows = 0;

    for (int32_t i = 0; i < n; i++)
        rows += piece[i].n;
    return rows;
}

/* The most rows that a rank of the group has of these samples. */
static int32_t largest_share(const ml_train_sample *s, const ml_bin *bin,
                             const ml_context_opts *o) {
    int32_t *len, most = 0;
    ml_piece *piece;
    ml_arena a;

    ml_arena_init(&a, "pieces of samples");
    len = ML_NEW(&a, int32_t, bin->n);
    piece = ML_NEW(&a, ml_piece, 2 * bin->n);
    for (int32_t i = 0; i < bin->n; i++)
        len[i] = s[bin->item[i]].n_token;
    for (int32_t r = 0; r < o->n_rank; r++)
        most = larger(most, rows_of(piece, ml_context_pieces(piece, len, bin->n, o, r)));
    ml_arena_release(&a);
    return most;
}

/* A bin's nodes, in preorder: trees of samples, or each sample by itself. */
static int32_t nodes_of(ml_prefix_node *out, const ml_train_sample *s, const ml_bin *bin,
                        bool share) {
    if (share)
        return ml_prefix_tree(out, s, bin);
    for (int32_t i = 0; i < bin->n; i++)
        out[i] = (ml_prefix_node){ -1, 0, s[bin->item[i]].n_token, i, 1 };
    return bin->n;
}

static void count_rows(ml_batch_caps *c, const ml_train_sample *s, const ml_bin *bin,
                       bool share) {
    ml_prefix_node *node;
    ml_arena a;

    ml_arena_init(&a, "prefixes of samples");
    node = ML_NEW(&a, ml_prefix_node, 2 * bin->n);
    c->n_seq = nodes_of(node, s, bin, share);
    for (int32_t i = 0; i < c->n_seq; i++) {
        int32_t again = node[i].first / ML_PAGE; /* pages of the nodes above it */
        c->n_token += node[i].end - node[i].first;
        c->n_page += ml_kv_pages_for(node[i].end) - again;
        c->n_again += again;
    }
    ml_arena_release(&a);
}

ml_batch_caps ml_micro_need(const ml_train_sample *s, const ml_bin *bin,
                            const ml_context_opts *context) {
    ml_batch_caps c = { 0 };

    for (int32_t i = 0; i < bin->n; i++)
        c.n_loss += s[bin->item[i]].n_response;
    count_rows(&c, s, bin, context->share);
    if (is_divided(context)) {
        c.n_share = largest_share(s, bin, context);
        c.n_token = c.n_share;
        c.n_loss = smaller(c.n_loss, c.n_share);
        c.n_seq = 2 * bin->n;
        c.n_context = context->n_rank;
    }
    return c;
}

ml_batch_caps ml_micro_max(ml_batch_caps a, ml_batch_caps b) {
    return (ml_batch_caps){ .n_token = larger(a.n_token, b.n_token),
                            .n_seq = larger(a.n_seq, b.n_seq),
                            .n_loss = larger(a.n_loss, b.n_loss),
                            .n_page = larger(a.n_page, b.n_page),
                            .n_again = larger(a.n_again, b.n_again),
                            .n_context = larger(a.n_context, b.n_context),
                            .n_share = larger(a.n_share, b.n_share) };
}

/* The capacity for the whole samples, where a rank has pieces of them. */
static ml_batch_caps whole_caps(ml_batch_caps c) {
    if (c.n_context) {
        c.n_token = c.n_context * c.n_share;
        c.n_loss *= c.n_context;
    }
    return c;
}

static void init_context(ml_micro *m, ml_batch_caps whole, size_t n) {
    float *x = ML_NEW(&m->arena, float, 4 * n);

    ml_batch_init(&m->whole, &m->arena, whole);
    m->seq = ML_NEW(&m->arena, int32_t, whole.n_seq);
    m->order = ML_NEW(&m->arena, int32_t, whole.n_token);
    m->loss_at = ML_NEW(&m->arena, int32_t, whole.n_token);
    m->result = ML_NEW(&m->arena, int32_t, whole.n_token);
    m->all_results = ML_NEW(&m->arena, float, 3 * (size_t)whole.n_token);
    m->own_logprob = x;
    m->own_entropy = x + n;
    m->own_dlogprob = x + 2 * n;
    m->own_dentropy = x + 3 * n;
    m->samples = &m->whole.rows;
}

void ml_micro_init(ml_micro *m, ml_batch_caps caps, const ml_context_opts *context,
                   bool critic) {
    ml_batch_caps whole = whole_caps(caps);
    size_t n = (size_t)larger(whole.n_loss, critic ? whole.n_token : 0);
    float *x;

    *m = (ml_micro){ .caps = caps, .critic = critic, .context = *context };
    ml_arena_init(&m->arena, "a micro-batch");
    if (is_divided(context))
        caps.n_page *= 2; /* two pieces of a sample list its pages */
    ml_batch_init(&m->batch, &m->arena, caps);
    m->target = ML_NEW(&m->arena, int32_t, whole.n_token);
    m->io = ML_NEW(&m->arena, ml_loss_io, caps.n_seq);
    m->response = ML_NEW(&m->arena, int32_t, caps.n_seq);
    m->node = ML_NEW(&m->arena, ml_prefix_node, 2 * caps.n_seq);
    m->loss_of = ML_NEW(&m->arena, int32_t, n);
    m->piece = ML_NEW(&m->arena, ml_piece, 2 * caps.n_seq);
    x = ML_NEW(&m->arena, float, 8 * n);
    m->own_logprob = m->row_logprob = x;
    m->own_entropy = m->row_entropy = x + n;
    m->own_dlogprob = m->row_dlogprob = x + 2 * n;
    m->own_dentropy = m->row_dentropy = x + 3 * n;
    m->logprob = x + 4 * n;
    m->entropy = x + 5 * n;
    m->dlogprob = x + 6 * n;
    m->dentropy = x + 7 * n;
    m->samples = &m->batch.rows;
    if (is_divided(context))
        init_context(m, whole, n);
}

void ml_micro_release(ml_micro *m) {
    if (m->arena.tag)
        ml_arena_release(&m->arena);
    *m = (ml_micro){ 0 };
}

static void find_samples(ml_micro *m) {
    m->samples = is_divided(&m->context) ? &m->whole.rows : &m->batch.rows;
}

void ml_micro_swap(ml_micro *a, ml_micro *b) {
    ml_micro x = *a;

    *a = *b;
    *b = x;
    find_samples(a);
    find_samples(b);
}

/* --- rows ------------------------------------------------------------------------- */

/* Whether response token t of the sample has a row in the LM head. */
static bool scored(const ml_micro *m, const ml_loss_io *io, int32_t t) {
    return m->everywhere || !io->mask || io->mask[t];
}

/* The response token that row `row` of a sample predicts, or -1. */
static int32_t predicts(const ml_train_sample *x, int32_t row) {
    int32_t first = x->n_token - x->n_response - (x->target ? 0 : 1);

    return row >= first && row < first + x->n_response ? row - first : -1;
}

/* What row `row` of a node's samples scores: the token of those that score one. */
static int32_t target_of(const ml_micro *m, const ml_train_sample *s, const ml_bin *bin,
                         const ml_prefix_node *node, int32_t row) {
    for (int32_t i = node->item; i < node->item + node->n_item; i++) {
        const ml_train_sample *x = &s[bin->item[i]];
        int32_t t = predicts(x, row);
        if (t >= 0 && scored(m, &m->io[i], t))
            return x->target ? x->target[t] : x->token[row + 1];
    }
    return ML_TARGET_SKIP;
}

/* Notes which row of logits scores the response tokens of a node's samples. */
static void note_losses(ml_micro *m, const ml_train_sample *s, const ml_bin *bin,
                        const ml_prefix_node *node, const int32_t *target, int32_t loss) {
    for (int32_t row = node->first; row < node->end; row++) {
        if (target[row - node->first] == ML_TARGET_SKIP)
            continue;
        for (int32_t i = node->item; i < node->item + node->n_item; i++) {
            int32_t t = predicts(&s[bin->item[i]], row);
            if (t >= 0 && scored(m, &m->io[i], t))
                m->loss_of[m->response[i] + t] = loss;
        }
        loss++;
    }
}

static void add_node(ml_micro *m, ml_batch *b, const ml_train_sample *s, const ml_bin *bin,
                     const ml_prefix_node *node) {
    const ml_train_sample *x = &s[bin->item[node->item]];
    int32_t *target = m->target + b->rows.n_token, n = node->end - node->first;
    int32_t loss = b->rows.n_loss;

    ML_BUG_IF(x->n_token - x->n_response < (x->target ? 0 : 1));
    for (int32_t i = 0; i < n; i++)
        target[i] = target_of(m, s, bin, node, node->first + i);
    if (node->parent >= 0)
        ml_batch_add_suffix(b, x->token + node->first, target, n, node->parent);
    else
        ml_batch_add(b, x->token, target, n, 0, NULL);
    note_losses(m, s, bin, node, target, loss);
}

/* Adds this rank's pieces of the whole samples to the batch. */
static void add_pieces(ml_micro *m) {
    const ml_batch *w = &m->whole;

    for (int32_t i = 0; i < m->n_piece; i++) {
        ml_piece p = m->piece[i];
        int32_t row = w->seq_start[p.seq] + p.first;
        ml_batch_add(&m->batch, w->id + row, m->target + row, p.n, p.first,
                     w->page + w->page_start[p.seq]);
        m->seq[i] = p.seq;
    }
    m->batch.rows.context = &m->rows;
}

/* Notes where a rank's rows and results belong among those of whole samples. */
static void place_rank(ml_micro *m, const ml_piece *piece, int32_t n, int32_t rank) {
    int32_t row = rank * m->rows.n_share, at = rank * m->n_result;

    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < piece[i].n; k++) {
            int32_t of = m->whole.seq_start[piece[i].seq] + piece[i].first + k;
            m->order[of] = row++;
            if (m->loss_at[of] >= 0)
                m->result[at++] = m->loss_at[of];
        }
    while (at < (rank + 1) * m->n_result)
        m->result[at++] = -1;
}

static int32_t results_of(const ml_micro *m, const ml_piece *piece, int32_t n) {
    int32_t count = 0;

    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < piece[i].n; k++)
            count += m->loss_at[m->whole.seq_start[piece[i].seq] + piece[i].first + k] >= 0;
    return count;
}

/* Rows without a token, which complete the permutation. */
static void order_padding(ml_micro *m, const int32_t *n_row) {
    int32_t at = m->whole.rows.n_token;

    for (int32_t r = 0; r < m->rows.n_rank; r++)
        for (int32_t k = n_row[r]; k < m->rows.n_share; k++)
            m->order[at++] = r * m->rows.n_share + k;
}

/* Divides the whole samples over the ranks. */
static void divide(ml_micro *m) {
    const ml_rows *w = &m->whole.rows;
    int32_t n_rank = m->context.n_rank, *len, *n_row, *n_piece;
    ml_piece *piece;
    ml_arena a;

    ml_arena_init(&a, "pieces of samples");
    len = ML_NEW(&a, int32_t, w->n_seq);
    n_row = ML_NEW(&a, int32_t, n_rank);
    n_piece = ML_NEW(&a, int32_t, n_rank);
    piece = ML_NEW(&a, ml_piece, 2 * (size_t)w->n_seq * (size_t)n_rank);
    for (int32_t i = 0; i < w->n_seq; i++)
        len[i] = w->seq_start[i + 1] - w->seq_start[i];
    for (int32_t i = 0; i < w->n_token; i++)
        m->loss_at[i] = m->critic ? i : -1;
    for (int32_t i = 0; i < w->n_loss && !m->critic; i++)
        m->loss_at[w->loss_row[i]] = i;
    m->rows = (ml_context_rows){ .seq = m->seq, .order = m->order, .n_rank = n_rank };
    m->n_result = 0;
    for (int32_t r = 0; r < n_rank; r++) {
        ml_piece *p = piece + 2 * r * w->n_seq;
        n_piece[r] = ml_context_pieces(p, len, w->n_seq, &m->context, r);
        n_row[r] = rows_of(p, n_piece[r]);
        m->rows.n_share = larger(m->rows.n_share, n_row[r]);
        m->n_result = larger(m->n_result, results_of(m, p, n_piece[r]));
    }
    for (int32_t r = 0; r < n_rank; r++)
        place_rank(m, piece + 2 * r * w->n_seq, n_piece[r], r);
    order_padding(m, n_row);
    m->rows.whole = *w;
    m->rows.whole.context = &m->rows;
    m->n_piece = n_piece[m->context.rank];
    memcpy(m->piece, piece + 2 * m->context.rank * w->n_seq,
           (size_t)m->n_piece * sizeof *piece);
    ml_arena_release(&a);
    add_pieces(m);
}

/* The arrays of a sample's results and derivatives. */
static ml_loss_io io_of(const ml_micro *m, int32_t item, const ml_train_sample *x,
                        int32_t at) {
    ml_loss_io io = { .sample = item, .n_response = x->n_response, .mask = x->mask };

    if (m->critic) {
        io.value = m->logprob + at;
        io.dvalue = m->dlogprob + at;
    } else {
        io.logprob = m->logprob + at;
        io.entropy = m->entropy + at;
        io.dlogprob = m->dlogprob + at;
        io.dentropy = m->dentropy + at;
    }
    return io;
}

void ml_micro_fill(ml_micro *m, const ml_train_sample *s, const ml_bin *bin,
                   bool everywhere, float temperature) {
    ml_batch *b = is_divided(&m->context) ? &m->whole : &m->batch;
    int32_t at = 0, n_node;

    ml_batch_clear(&m->batch);
    ml_batch_clear(b);
    m->batch.rows.temperature = temperature;
    m->batch.rows.support = NULL;
    m->everywhere = everywhere;
    m->n_sample = bin->n;
    for (int32_t i = 0; i < bin->n; i++) {
        const ml_train_sample *x = &s[bin->item[i]];
        m->io[i] = io_of(m, bin->item[i], x, at);
        m->response[i] = at;
        m->piece[i] = (ml_piece){ i, 0, x->n_token };
        for (int32_t t = 0; t < x->n_response; t++)
            m->loss_of[at++] = -1;
    }
    m->n_piece = bin->n;
    n_node = nodes_of(m->node, s, bin, m->context.share);
    for (int32_t i = 0; i < n_node; i++)
        add_node(m, b, s, bin, &m->node[i]);
    if (is_divided(&m->context))
        divide(m);
}

/* --- sampling supports ------------------------------------------------------------ */

static void open_supports(ml_micro *m) {
    size_t n = (size_t)whole_caps(m->caps).n_loss;
    float *x = ML_NEW(&m->arena, float, 8 * n + 1);

    m->row_support = m->own_support = ML_NEW(&m->arena, ml_str, n + 1);
    m->row_over = m->own_over = x;
    m->row_dover = m->own_dover = x + n;
    m->full = x + 2 * n;
    m->dfull = x + 3 * n;
    if (is_divided(&m->context)) {
        m->own_support = ML_NEW(&m->arena, ml_str, n + 1);
        m->own_over = x + 4 * n;
        m->own_dover = x + 5 * n;
    }
    m->support = (ml_support_rows){ .of = m->own_support,
                                    .logprob = m->own_over,
                                    .stat = x + 6 * n,
                                    .dlogprob = m->own_dover };
}

void ml_micro_take_supports(ml_micro *m, const ml_train_sample *s, const ml_bin *bin) {
    int32_t at = 0;
    bool any = false;

    for (int32_t i = 0; i < bin->n; i++)
        any |= s[bin->item[i]].support != NULL;
    if (!any || m->critic)
        return;
    if (!m->row_support)
        open_supports(m);
    for (int32_t i = 0; i < bin->n; i++) {
        const ml_str *support = s[bin->item[i]].support;
        m->io[i].full_logprob = m->full + at;
        m->io[i].dfull_logprob = m->dfull + at;
        for (int32_t t = 0; t < m->io[i].n_response; t++, at++)
            if (m->loss_of[at] >= 0)
                m->row_support[m->loss_of[at]] = support ? support[t] : (ml_str){ 0 };
    }
    for (int32_t k = 0; k < m->batch.rows.n_loss; k++)
        m->own_support[k] = m->row_support[ml_micro_result(m, k)];
    m->batch.rows.support = &m->support;
}

static bool has_supports(const ml_micro *m) {
    return m->batch.rows.support != NULL;
}

/* --- results ---------------------------------------------------------------------- */

ml_status ml_micro_exchange(ml_micro *m, ml_ranks *ranks, ml_err *err) {
    size_t n = (size_t)m->n_result, bytes = 3 * n * sizeof(float);
    float *own = m->all_results + (size_t)m->context.rank * 3 * n;
    ml_status st;

    if (!is_divided(&m->context))
        return ML_OK;
    memcpy(own, m->own_logprob, n * sizeof *own);
    memcpy(own + n, m->own_entropy, n * sizeof *own);
    memcpy(own + 2 * n, has_supports(m) ? m->own_over : m->own_logprob, n * sizeof *own);
    st = ml_ranks_collect(ranks, m->all_results, own, bytes, err);
    for (int32_t r = 0; r < m->context.n_rank && st == ML_OK; r++)
        for (size_t i = 0; i < n; i++) {
            int32_t at = m->result[(size_t)r * n + i];
            if (at < 0)
                continue;
            m->row_logprob[at] = m->all_results[(size_t)r * 3 * n + i];
            m->row_entropy[at] = m->all_results[((size_t)r * 3 + 1) * n + i];
            if (has_supports(m))
                m->row_over[at] = m->all_results[((size_t)r * 3 + 2) * n + i];
        }
    return st;
}

int32_t ml_micro_result(const ml_micro *m, int32_t k) {
    size_t own = (size_t)m->context.rank * (size_t)m->n_result;
    return is_divided(&m->context) ? m->result[own + (size_t)k] : k;
}

/* Index of a loss row's number: a critic has one for every row. */
static int32_t place_of(const ml_micro *m, int32_t loss) {
    return m->critic ? m->samples->loss_row[loss] : loss;
}

/* Response tokens of all samples. */
static int32_t n_response_of(const ml_micro *m) {
    int32_t last = m->n_sample - 1;

    return last < 0 ? 0 : m->response[last] + m->io[last].n_response;
}

void ml_micro_spread(ml_micro *m) {
    int32_t n = n_response_of(m);

    for (int32_t at = 0; at < n; at++) {
        int32_t loss = m->loss_of[at];
        bool has_row = loss >= 0;
        m->logprob[at] = has_row ? m->row_logprob[place_of(m, loss)] : 0.0f;
        if (has_supports(m)) {
            m->full[at] = m->logprob[at];
            m->logprob[at] = has_row ? m->row_over[loss] : 0.0f;
        }
        m->entropy[at] = has_row && !m->critic ? m->row_entropy[loss] : 0.0f;
    }
    memset(m->dlogprob, 0, (size_t)n * sizeof *m->dlogprob);
    memset(m->dentropy, 0, (size_t)n * sizeof *m->dentropy);
    if (has_supports(m))
        memset(m->dfull, 0, (size_t)n * sizeof *m->dfull);
}

/* Takes the derivatives of this rank's rows. */
static void take_own(ml_micro *m) {
    const int32_t *of = m->result + (size_t)m->context.rank * (size_t)m->n_result;

    for (int32_t i = 0; i < m->n_result && of[i] >= 0; i++) {
        m->own_dlogprob[i] = m->row_dlogprob[of[i]];
        m->own_dentropy[i] = m->row_dentropy[of[i]];
        if (has_supports(m))
            m->own_dover[i] = m->row_dover[of[i]];
    }
}

static void clear_rows(ml_micro *m) {
    size_t n = (size_t)(m->critic ? m->samples->n_token : m->samples->n_loss);

    memset(m->row_dlogprob, 0, n * sizeof *m->row_dlogprob);
    memset(m->row_dentropy, 0, (size_t)m->samples->n_loss * sizeof *m->row_dentropy);
    if (has_supports(m))
        memset(m->row_dover, 0, n * sizeof *m->row_dover);
}

/* The derivatives of a row are summed in the order of its samples. */
bool ml_micro_collect(ml_micro *m) {
    int32_t n = n_response_of(m);
    bool any = false;

    clear_rows(m);
    for (int32_t at = 0; at < n; at++) {
        int32_t loss = m->loss_of[at];
        float full = has_supports(m) ? m->dfull[at] : m->dlogprob[at];
        if (loss < 0)
            continue;
        if (has_supports(m))
            m->row_dover[loss] += m->dlogprob[at];
        m->row_dlogprob[place_of(m, loss)] += full;
        m->row_dentropy[loss] += m->dentropy[at];
        any |= m->dlogprob[at] != 0.0f || m->dentropy[at] != 0.0f || full != 0.0f;
    }
    if (is_divided(&m->context))
        take_own(m);
    return any;
}
