/* Pre-tokenizers: divide a view into smaller ones. */
#include <stdlib.h>

#include "text/tokenizer/tok_priv.h"

/* --- patterns --------------------------------------------------------------- */

static ml_status find_literal(ml_str what, ml_str text, size_t from, size_t *begin,
                              size_t *end) {
    const char *hit = memmem(text.ptr + from, text.len - from, what.ptr, what.len);

    if (!hit)
        return ML_EAGAIN;
    *begin = (size_t)(hit - text.ptr);
    *end = *begin + what.len;
    return ML_OK;
}

ml_status ml_pattern_find(const ml_pattern *p, ml_finder *f, ml_str text, size_t from,
                          size_t *begin, size_t *end, ml_err *err) {
    if (p->scan)
        return p->scan(p, text, from, begin, end) ? ML_OK : ML_EAGAIN;
    if (p->regex)
        return ml_regex_find(p->regex, f, text, from, begin, end, err);
    return find_literal(p->literal, text, from, begin, end);
}

void ml_pattern_release(ml_pattern *p) {
    ml_regex_free(p->regex);
    p->regex = NULL;
}

static void push_match(ml_matches *m, size_t begin, size_t end, bool is_match) {
    m->at = ml_tok_grow(m->at, &m->cap, m->n + 1, sizeof *m->at);
    m->at[m->n++] = (ml_match){ begin, end, is_match };
}

ml_status ml_pattern_split(const ml_pattern *p, ml_finder *f, ml_str text, ml_matches *out,
                           ml_err *err) {
    size_t from = 0, done = 0, begin, end;
    bool any = false;

    out->n = 0;
    while (from <= text.len) {
        ml_status st = ml_pattern_find(p, f, text, from, &begin, &end, err);
        if (st == ML_EAGAIN)
            break;
        if (st != ML_OK)
            return st;
        if (begin == end && any && end == done) {
            /* An empty match right after the last match: search from the next character. */
            const char *next = text.ptr + from;
            if (from == text.len)
                break;
            ml_utf8_next(&next);
            from = (size_t)(next - text.ptr);
            continue;
        }
        if (done != begin)
            push_match(out, done, begin, false);
        push_match(out, begin, end, true);
        from = done = end;
        any = true;
    }
    if (done != text.len)
        push_match(out, done, text.len, false);
    return ML_OK;
}

/* --- splitting -------------------------------------------------------------- */

/* Joins and drops matches in place, according to the behavior. */
static void arrange(ml_matches *m, ml_split behavior) {
    bool before = false;
    size_t n = 0;

    if (behavior == ML_SPLIT_WITH_NEXT) {
        size_t first = m->n; /* the matches to keep are moved to the end */
        for (size_t i = m->n; i-- > 0;) {
            ml_match x = m->at[i];
            if (x.is_match && !before && first < m->n)
                m->at[first].begin = x.begin;
            else
                m->at[--first] = x;
            before = x.is_match;
        }
        memmove(m->at, m->at + first, (m->n - first) * sizeof *m->at);
        m->n -= first;
        return;
    }
    for (size_t i = 0; i < m->n; i++) {
        ml_match x = m->at[i];
        bool join =
            behavior == ML_SPLIT_CONTIGUOUS ? x.is_match == before : x.is_match && !before;
        if (behavior == ML_SPLIT_REMOVED ? x.is_match : false)
            continue;
        if (behavior > ML_SPLIT_ISOLATED && join && n)
            m->at[n - 1].end = x.end;
        else
            m->at[n++] = x;
        before = x.is_match;
    }
    m->n = n;
}

static ml_status hand_on(ml_encoder *e, int k, ml_view v) {
    return v.len ? ml_pre_run(e, k + 1, v) : ML_OK;
}

static ml_status hand_on_all(ml_encoder *e, int k, ml_view v, ml_matches *m,
                             ml_split behavior) {
    ml_status st = ML_OK;

    arrange(m, behavior);
    for (size_t i = 0; i < m->n && st == ML_OK; i++)
        st = hand_on(e, k, ml_view_sub(v, m->at[i].begin, m->at[i].end));
    return st;
}

/* The common case, without a list of matches. */
static ml_status split_isolated(ml_encoder *e, int k, const ml_pattern *p, ml_view v) {
    ml_str text = { v.ptr, v.len };
    size_t done = 0, begin, end;
    ml_status st = ML_OK;

    while (st == ML_OK && done < v.len && p->scan(p, text, done, &begin, &end)) {
        if (done < begin)
            st = hand_on(e, k, ml_view_sub(v, done, begin));
        if (st == ML_OK)
            st = hand_on(e, k, ml_view_sub(v, begin, end));
        done = end;
    }
    if (st == ML_OK && done < v.len)
        st = hand_on(e, k, ml_view_sub(v, done, v.len));
    return st;
}

static ml_status split(ml_encoder *e, int k, const ml_pattern *p, ml_split behavior,
                       bool invert, ml_view v) {
    ml_matches *m = &e->matches[k];
    ml_status st;

    if (p->scan && behavior == ML_SPLIT_ISOLATED)
        return split_isolated(e, k, p, v);
    st = ml_pattern_split(p, e->finder, (ml_str){ v.ptr, v.len }, m, e->err);
    for (size_t i = 0; i < m->n && invert; i++)
        m->at[i].is_match = !m->at[i].is_match;
    return st == ML_OK ? hand_on_all(e, k, v, m, behavior) : st;
}

/* --- by character ----------------------------------------------------------- */

typedef bool char_test(const ml_unicode *u, uint32_t c);

static bool is_space(const ml_unicode *u, uint32_t c) {
    (void)u;
    return ml_char_is_space(c);
}

/* Every character that passes is its own match. */
static ml_status split_chars(ml_encoder *e, int k, char_test *test, ml_split behavior,
                             ml_view v) {
    ml_matches *m = &e->matches[k];
    size_t done = 0;

    m->n = 0;
    for (const char *p = v.ptr; p < v.ptr + v.len;) {
        size_t begin = (size_t)(p - v.ptr), end;
        bool hit = test(&e->tok->unicode, ml_utf8_next(&p));
        end = (size_t)(p - v.ptr);
        if (!hit)
            continue;
        if (done < begin)
            push_match(m, done, begin, false);
        push_match(m, begin, end, true);
        done = end;
    }
    if (done < v.len)
        push_match(m, done, v.len, false);
    return hand_on_all(e, k, v, m, behavior);
}

/* Runs of \w, and runs of characters that are neither \w nor whitespace. */
static ml_status split_words(ml_encoder *e, int k, ml_view v) {
    enum { SPACE, WORD, OTHER } now, run = SPACE;
    size_t begin = 0;
    ml_status st = ML_OK;

    for (const char *p = v.ptr; p < v.ptr + v.len && st == ML_OK;) {
        size_t at = (size_t)(p - v.ptr);
        uint32_t c = ml_utf8_next(&p);
        now = ml_char_is_space(c)                    ? SPACE
              : ml_char_is_word(&e->tok->unicode, c) ? WORD
                                                     : OTHER;
        if (now != run && run != SPACE)
            st = hand_on(e, k, ml_view_sub(v, begin, at));
        if (now != run)
            begin = at;
        run = now;
    }
    if (st == ML_OK && run != SPACE)
        st = hand_on(e, k, ml_view_sub(v, begin, v.len));
    return st;
}

/* --- ByteLevel and Metaspace ------------------------------------------------ */

static void start_edit(ml_encoder *e, int k) {
    e->pre[k].text.len = 0;
    e->pre[k].track = e->track;
}

/* The model maps bytes to characters, since it knows the spelling of its tokens. */
static ml_status byte_level(ml_encoder *e, int k, const ml_pre *s, ml_view v) {
    if (s->prefix_space && v.ptr[0] != ' ') {
        start_edit(e, k);
        ml_edit_put(&e->pre[k], " ", 1, ml_view_span(v, 0, 1));
        ml_edit_copy(&e->pre[k], v, 0, v.len);
        v = ml_edit_view(&e->pre[k]);
    }
    return s->use_regex ? split_isolated(e, k, &s->pattern, v) : hand_on(e, k, v);
}

static bool starts_with(ml_view v, ml_str s) {
    return v.len >= s.len && memcmp(v.ptr, s.ptr, s.len) == 0;
}

static ml_status metaspace(ml_encoder *e, int k, const ml_pre *s, ml_view v) {
    ml_edit *out = &e->pre[k];
    bool prepend = s->prepend == ML_PREPEND_ALWAYS ||
                   (s->prepend == ML_PREPEND_FIRST && ml_view_span(v, 0, 1).begin == 0);
    ml_pattern mark = { .literal = s->replacement };

    start_edit(e, k);
    if (prepend && !starts_with(v, s->replacement) && v.ptr[0] != ' ')
        ml_edit_put(out, s->replacement.ptr, s->replacement.len, ml_view_span(v, 0, 1));
    for (size_t at = 0, end; at < v.len; at = end) {
        const char *space = memchr(v.ptr + at, ' ', v.len - at);
        end = space ? (size_t)(space - v.ptr) : v.len;
        ml_edit_copy(out, v, at, end);
        if (space) {
            ml_edit_put(out, s->replacement.ptr, s->replacement.len,
                        ml_view_span(v, end, end + 1));
            end++;
        }
    }
    v = ml_edit_view(out);
    return s->split ? split(e, k, &mark, ML_SPLIT_WITH_NEXT, false, v) : hand_on(e, k, v);
}

ml_status ml_pre_run(ml_encoder *e, int k, ml_view v) {
    const ml_pre *s = &e->tok->pre[k];

    if (k == e->tok->n_pre)
        return ml_bpe_run(e, v);
    switch (s->type) {
    case ML_PRE_SPLIT: return split(e, k, &s->pattern, s->behavior, s->invert, v);
    case ML_PRE_BYTE_LEVEL: return byte_level(e, k, s, v);
    case ML_PRE_METASPACE: return metaspace(e, k, s, v);
    case ML_PRE_DIGITS: return split_chars(e, k, ml_char_is_numeric, s->behavior, v);
    case ML_PRE_PUNCT: return split_chars(e, k, ml_char_is_punct, s->behavior, v);
    case ML_PRE_SPACE_SPLIT: return split_chars(e, k, is_space, ML_SPLIT_REMOVED, v);
    case ML_PRE_WORDS: return split_words(e, k, v);
    }
    return ML_OK;
}
