#include "engine/ngram.h"

#include <string.h>

/* Matches have at least MIN tokens, and of more than MAX it does not matter how many; tokens
 * that a lookup reads at most. */
enum { MIN_MATCH = 2, MAX_MATCH = 6, MAX_READ = 1 << 16 };

void ml_ngram_init(ml_ngram *g, ml_arena *a) {
    *g = (ml_ngram){ .token = ML_NEW(a, int32_t, ML_NGRAM_TOKENS),
                     .answer = ML_NEW(a, ml_ngram_answer, ML_NGRAM_ANSWERS) };
}

uint64_t ml_ngram_hash(const int32_t *token, int32_t n) {
    uint64_t h = 0xcbf29ce484222325u;

    for (int32_t i = 0; i < n; i++)
        h = (h ^ (uint32_t)token[i]) * 0x100000001b3u; /* FNV-1a, by words */
    return h;
}

/* A kept answer begins with the last tokens of its prompt, so that its first tokens are
 * found, too.  It does not wrap around. */
void ml_ngram_keep(ml_ngram *g, const ml_request *r) {
    int32_t from = r->params.n_prompt - MAX_MATCH;
    int32_t first = from < 0 ? 0 : from, n = r->n_token - first;
    int64_t left = ML_NGRAM_TOKENS - g->n_token % ML_NGRAM_TOKENS;

    if (n > ML_NGRAM_TOKENS / 4 || r->n_token == r->params.n_prompt)
        return;
    g->n_token += n > left ? left : 0;
    memcpy(g->token + g->n_token % ML_NGRAM_TOKENS, r->token + first,
           (size_t)n * sizeof *g->token);
    g->answer[g->n_answer++ % ML_NGRAM_ANSWERS] =
        (ml_ngram_answer){ .prompt_hash = r->prompt_hash, .at = g->n_token, .n = n };
    g->n_token += n;
}

/* --- lookup ------------------------------------------------------------------- */

/* The best matches so far, the longest first. */
typedef struct matches {
    const ml_request *r;
    ml_ngram_match *at;
    int32_t n, most;
    int32_t n_read;
} matches;

/* Tokens before and including text[at] that equal the request's latest. */
static int32_t match_at(const int32_t *text, int32_t at, const ml_request *r) {
    const int32_t *last = r->token + r->n_token - 1;
    int32_t most = at + 1 < r->n_token ? at + 1 : r->n_token, n = 0;

    most = most < MAX_MATCH ? most : MAX_MATCH;
    while (n < most && text[at - n] == last[-n])
        n++;
    return n;
}

/* Whether no match could be better. */
static bool is_full(const matches *m) {
    return m->n == m->most && m->at[m->n - 1].len == MAX_MATCH;
}

/* Replaces a shorter match with the same next token, or the last of too many. */
static void add(matches *m, ml_ngram_match x) {
    int32_t i = 0;

    while (i < m->n && m->at[i].next[0] != x.next[0])
        i++;
    if (i == m->most)
        i--;
    if (i < m->n && m->at[i].len >= x.len)
        return;
    m->n += i == m->n;
    for (; i > 0 && m->at[i - 1].len < x.len; i--)
        m->at[i] = m->at[i - 1];
    m->at[i] = x;
}

/* Looks in text, whose last token is followed by nothing, from its end on. */
static void look_in(matches *m, const int32_t *text, int32_t n, bool own) {
    int32_t last = m->r->token[m->r->n_token - 1];

    for (int32_t at = n - 2; at >= 0 && !is_full(m) && m->n_read < MAX_READ;
         at--, m->n_read++) {
        int32_t len = text[at] == last ? match_at(text, at, m->r) : 0;
        if (len >= MIN_MATCH)
            add(m, (ml_ngram_match){ text + at + 1, n - at - 1, len, own });
    }
}

static void look_in_group(matches *m, const ml_request_list *running) {
    for (const ml_request *q = running->last; q; q = q->prev) {
        int32_t from = q->params.n_prompt - MAX_MATCH;
        from = from < 0 ? 0 : from;
        if (q != m->r && q->prompt_hash == m->r->prompt_hash)
            look_in(m, q->token + from, q->n_token - from, false);
    }
}

static void look_in_kept(matches *m, const ml_ngram *g) {
    int64_t oldest = g->n_answer - ML_NGRAM_ANSWERS;

    for (int64_t i = g->n_answer - 1; i >= 0 && i >= oldest; i--) {
        const ml_ngram_answer *x = &g->answer[i % ML_NGRAM_ANSWERS];
        if (x->at < g->n_token - ML_NGRAM_TOKENS)
            return; /* overwritten, as all before it */
        if (x->prompt_hash == m->r->prompt_hash)
            look_in(m, g->token + x->at % ML_NGRAM_TOKENS, x->n, false);
    }
}

int32_t ml_ngram_find(const ml_ngram *g, const ml_request_list *running,
                      const ml_request *r, ml_ngram_match *out, int32_t n) {
    matches m = { .r = r, .at = out, .most = n };

    look_in(&m, r->token, r->n_token, true);
    look_in_group(&m, running);
    look_in_kept(&m, g);
    return m.n;
}

int32_t ml_ngram_read(const ml_ngram_match *m, int32_t *out, int32_t n) {
    if (!m->repeats && m->n_next < n)
        n = m->n_next;
    for (int32_t i = 0; i < n; i++)
        out[i] = i < m->n_next ? m->next[i] : out[i - m->n_next];
    return n;
}
