/* grammar.h - constrained decoding: which tokens may continue an answer.
 *
 * A JSON schema, a regular expression, an EBNF or a structural tag is compiled to a
 * nondeterministic pushdown automaton over bytes.  A matcher follows it along the tokens
 * of one answer and computes the mask of tokens that the grammar allows next.  The
 * automaton is determinized lazily; masks are computed by walking a trie of the
 * vocabulary's bytes.  As in XGrammar (Dong et al. 2024), what a state allows without
 * looking below the top of the stack is computed once per state, and only tokens that
 * leave the state's rule are checked against the stack; for a finite automaton this is the
 * index of Outlines (Willard & Louf 2023).
 *
 * A mask is a function of the grammar and the answer's tokens alone.  Grammars are
 * untrusted: text, rules, states, ambiguity, stack depth, work and memory are limited.
 *
 * thread: a cache and its grammars may be used by any thread; a matcher has one owner. */
#ifndef ML_TEXT_GRAMMAR_GRAMMAR_H
#define ML_TEXT_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "text/tokenizer/tokenizer.h"

typedef enum ml_grammar_kind {
    ML_GRAMMAR_NONE,
    ML_GRAMMAR_JSON_SCHEMA, /* "$$ANY$$": any JSON value, as in SGLang */
    ML_GRAMMAR_REGEX,       /* the whole answer matches */
    ML_GRAMMAR_EBNF,        /* XGrammar's syntax; begins with the rule root */
    ML_GRAMMAR_STRUCTURAL_TAG,
} ml_grammar_kind;

/* The name of the request field: "json_schema", ...; NULL for none. */
const char *ml_grammar_kind_name(ml_grammar_kind k);

/* A grammar as its author wrote it. */
typedef struct ml_grammar_source {
    ml_grammar_kind kind;
    ml_str text;
} ml_grammar_source;

#define ML_GRAMMAR_MAX_TEXT ((size_t)256 << 10) /* bytes of a source */

typedef struct ml_grammar ml_grammar;
typedef struct ml_grammar_cache ml_grammar_cache;
typedef struct ml_matcher ml_matcher;

typedef struct ml_grammar_opts {
    const ml_tokenizer *tokenizer;
    int32_t n_vocab; /* of the model: masks have a bit for each id */
    bool compact;    /* JSON without free whitespace: ", " and ": " only */
} ml_grammar_opts;

/* Compiled grammars by content, the least recently used leaves first.  The caller keeps the
 * tokenizer; the trie of its vocabulary is built with the first grammar. */
ml_grammar_cache *ml_grammar_cache_new(const ml_grammar_opts *opts);
void ml_grammar_cache_free(ml_grammar_cache *c); /* NULL is allowed; no grammar is in use */

/* Compiles a source, or finds it in the cache; the caller releases it. */
ml_status ml_grammar_get(ml_grammar **out, ml_grammar_cache *c, ml_grammar_source s,
                         ml_err *err);
void ml_grammar_release(ml_grammar *g); /* NULL is allowed */
ml_grammar_source ml_grammar_source_of(const ml_grammar *g);

/* Holds the grammar until it is freed. */
ml_matcher *ml_matcher_new(ml_grammar *g);
void ml_matcher_free(ml_matcher *m); /* NULL is allowed */

typedef struct ml_matched {
    bool complete; /* the answer so far is a text of the grammar: it may end */
    int32_t n;     /* tokens that may continue it */
} ml_matched;

/* Number of 32-bit words of a mask; token i is bit i % 32 of word i / 32. */
static inline int32_t ml_mask_words(int64_t n_vocab) {
    return (int32_t)((n_vocab + 31) / 32);
}

/* The mask after an answer of n tokens.  Tokens that were passed before are not read again,
 * except after the grammar's memory was released.  Special tokens are never allowed. */
ml_status ml_matcher_mask(ml_matcher *m, const int32_t *answer, int32_t n, uint32_t *mask,
                          ml_matched *out, ml_err *err);

/* Whether the grammar allows the text, and whether it is complete; for tests and tools. */
bool ml_grammar_accepts(ml_grammar *g, ml_str text, bool *complete);

#endif
