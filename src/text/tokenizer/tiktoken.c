/* tiktoken.model of Kimi checkpoints: a line per token, with its bytes in base64 and its
 * rank, which is its id.  Two neighbours merge if their concatenation is a token, lowest
 * rank first, so the merges follow from the vocabulary.  The split pattern and the names of
 * reserved tokens are Python code in the checkpoint, which is never executed: they are
 * constants here. */
#include <stdio.h>
#include <stdlib.h>

#include "base/base64.h"
#include "text/tokenizer/tok_priv.h"

#define N_SPECIAL 256
#define MAX_TOKENS (1 << 22)

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define UPPER "(?:(?!\\p{Han})[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])"
#define LOWER "(?:(?!\\p{Han})[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])"

/* Runs of Han; words with at most one change from upper to lower case; up to three digits;
 * other characters; spaces. */
static const char kimi_pattern[] =
    "\\p{Han}+|"
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTION "|"
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" CONTRACTION "|"
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

typedef struct line {
    ml_str token;
    int64_t rank;
} line;

/* Reads the next line of the file; false at its end.  A malformed line has rank -1. */
static bool next_line(ml_str *left, line *out) {
    const char *end, *space;
    int64_t rank = 0;
    size_t n;

    if (!left->len)
        return false;
    end = memchr(left->ptr, '\n', left->len);
    n = end ? (size_t)(end - left->ptr) : left->len;
    space = memchr(left->ptr, ' ', n);
    *out = (line){ { left->ptr, space ? (size_t)(space - left->ptr) : 0 }, -1 };
    for (const char *p = space ? space + 1 : NULL; p && p < left->ptr + n; p++) {
        if (*p < '0' || *p > '9' || rank > MAX_TOKENS)
            break;
        rank = rank * 10 + (*p - '0');
        out->rank = p + 1 == left->ptr + n ? rank : -1;
    }
    left->ptr += n + (end != NULL);
    left->len -= n + (end != NULL);
    return true;
}

static ml_status check_lines(const ml_tokenizer *t, ml_str file, int32_t *n, ml_err *err) {
    line at;

    for (*n = 0; next_line(&file, &at); ++*n)
        if (at.rank != *n || *n == MAX_TOKENS || !at.token.len)
            return ml_fail(err, ML_EFORMAT,
                           "%s:%d: a line must be a token in base64, a space and its rank, "
                           "here %d",
                           t->name, *n + 1, *n);
    return ML_OK;
}

static ml_status read_tokens(ml_tokenizer *t, ml_str file, ml_err *err) {
    char *bytes = ML_NEW(&t->arena, char, file.len + 1);
    line at;

    for (int32_t i = 0; next_line(&file, &at); i++) {
        int64_t len = ml_base64_read(bytes, at.token);
        if (len < 1 || !ml_bpe_add(&t->bpe, (ml_str){ bytes, (size_t)len }, i))
            return ml_fail(err, ML_EFORMAT,
                           "%s:%d: this token is not base64, or a duplicate", t->name,
                           i + 1);
        bytes += len;
    }
    return ML_OK;
}

/* Lists every pair of tokens that forms a token; returns their number. */
static int64_t find_merges(ml_bpe *b, bool add) {
    int64_t count = 0;

    for (int32_t id = 0; id < b->n_id; id++) {
        ml_str s = b->token[id];
        for (size_t cut = 1; cut < s.len; cut++) {
            int32_t left = ml_bpe_find(b, (ml_str){ s.ptr, cut }), right = -1;
            if (left >= 0)
                right = ml_bpe_find(b, (ml_str){ s.ptr + cut, s.len - cut });
            if (right < 0)
                continue;
            if (add)
                ml_bpe_add_merge(b, left, right, id, id);
            count++;
        }
    }
    return count;
}

/* The ids after the vocabulary: named by added_tokens_decoder, or reserved. */
static void add_special(ml_tokenizer *t, const ml_json *config) {
    const ml_json *names = ml_json_get(config, "added_tokens_decoder");

    for (int32_t id = t->bpe.n_id; id < t->bpe.n_id + N_SPECIAL; id++) {
        char text[40];
        const ml_json *content;
        ml_added a = { .special = true };
        snprintf(text, sizeof text, "%d", id);
        content = ml_json_get(ml_json_get(names, text), "content");
        snprintf(text, sizeof text, "<|reserved_token_%d|>", id);
        a.content =
            content && content->type == ML_JSON_STRING ? content->text : ml_str_of(text);
        ml_added_add(t, &a);
    }
}

ml_status ml_tokenizer_read_tiktoken(ml_tokenizer *t, ml_str file, const ml_json *config,
                                     ml_err *err) {
    ml_pre *split = &t->pre[0];
    ml_bpe *b = &t->bpe;
    int32_t n = 0;
    ml_status st = check_lines(t, file, &n, err);

    if (st == ML_OK)
        st = ml_regex_new(&split->pattern.regex, &t->unicode, ml_str_of(kimi_pattern), err);
    if (st != ML_OK)
        return st;
    *split = (ml_pre){ .type = ML_PRE_SPLIT,
                       .pattern = split->pattern,
                       .behavior = ML_SPLIT_ISOLATED };
    t->n_pre = 1;
    t->dec[t->n_dec++].type = ML_DEC_BYTES;
    t->kimi = true;
    ml_bpe_init(b, &t->arena, n, n);
    st = read_tokens(t, file, err);
    if (st != ML_OK)
        return st;
    ml_bpe_init_merges(b, &t->arena, find_merges(b, false));
    find_merges(b, true);
    b->by_bytes = b->ignore_merges = true;
    ml_bpe_finish(b, &t->arena);
    add_special(t, config);
    return ML_OK;
}
