/* tok_priv.h - the components of a tokenizer, for tok_*.c, tiktoken.c and detok.c.
 *
 * A text passes through added tokens, normalizers, pre-tokenizers and the model as a view
 * that each component passes to the next; no intermediate lists are built:
 *
 *     tok_encode.c   the pipeline, and the tokens added around a text
 *     tok_added.c    tokens that are matched in the text before anything else
 *     tok_norm.c     normalizers: a view in, an edited text out
 *     tok_pre.c      pre-tokenizers: a view in, several out
 *     tok_scan.c     common split patterns, written by hand
 *     tok_bpe.c      the model: a view in, tokens out
 *     detok.c        decoders, token by token
 *     tok_load.c     tokenizer.json          tok_config.c   the other files
 *     tiktoken.c     tiktoken.model */
#ifndef ML_TEXT_TOKENIZER_TOK_PRIV_H
#define ML_TEXT_TOKENIZER_TOK_PRIV_H

#include <string.h>

#include "base/arena.h"
#include "base/json.h"
#include "base/map.h"
#include "text/regex.h"
#include "text/tokenizer/tokenizer.h"
#include "text/unicode.h"

#define ML_TOK_STAGES 16 /* normalizers, pre-tokenizers or decoders of one tokenizer */
#define ML_TOK_TEXT_MAX ((size_t)1 << 30)

static inline uint64_t ml_tok_mix(uint64_t h) {
    h *= 0xff51afd7ed558ccdu;
    return h ^ h >> 32;
}

static inline uint64_t ml_tok_hash(const char *p, size_t n) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ n, word;

    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&word, p, 8);
        h = ml_tok_mix(h ^ word);
    }
    word = 0;
    memcpy(&word, p, n);
    return ml_tok_mix(ml_tok_mix(h ^ word));
}

/* The number of slots for n entries: a power of two, at least half of them free. */
static inline uint64_t ml_tok_slots(int64_t n) {
    uint64_t slots = 16;
    while ((int64_t)slots < 2 * n)
        slots *= 2;
    return slots;
}

/* --- text in the pipeline --------------------------------------------------- */

typedef struct ml_view {
    const char *ptr;
    size_t len;
    const ml_span *align; /* [len]: origin of each byte; NULL: part of the original */
    size_t origin;
} ml_view;

ml_view ml_view_sub(ml_view v, size_t begin, size_t end);
/* The range in the original of bytes [begin, end), which are not empty. */
ml_span ml_view_span(ml_view v, size_t begin, size_t end);

/* An output text, with the origin of its bytes if `track` is set. */
typedef struct ml_edit {
    ml_text text;
    ml_span *align; /* [text.len] */
    size_t cap;
    bool track;
} ml_edit;

void ml_edit_release(ml_edit *e);
void ml_edit_put(ml_edit *e, const char *p, size_t n, ml_span from);
void ml_edit_put_char(ml_edit *e, uint32_t c, ml_span from);
void ml_edit_copy(ml_edit *e, ml_view v, size_t begin, size_t end);
ml_view ml_edit_view(const ml_edit *e);

/* --- parts ------------------------------------------------------------------ */

/* A pattern of tokenizer.json: a string, an expression, or one of tok_scan.c. */
typedef struct ml_pattern ml_pattern;
typedef bool ml_scan_fn(const ml_pattern *pat, ml_str text, size_t from, size_t *begin,
                        size_t *end);
struct ml_pattern {
    ml_str literal; /* when there is no expression */
    ml_regex *regex;
    ml_scan_fn *scan; /* a function that finds the same matches as regex */
    const ml_unicode *unicode;
    uint32_t letters; /* the categories that the scanner treats as letters */
    int digits;       /* the number of digits per match */
};

/* Sets `scan` if the pattern is a known one. */
void ml_scan_choose(ml_pattern *pat, ml_str source, const ml_unicode *u);
/* The pattern of GPT-2, which ByteLevel implies. */
extern const char ml_scan_gpt2[];

typedef enum ml_norm_type {
    ML_NORM_NFC,
    ML_NORM_NFD,
    ML_NORM_NFKC,
    ML_NORM_NFKD,
    ML_NORM_REPLACE,
    ML_NORM_PREPEND,
    ML_NORM_LOWERCASE,
    ML_NORM_STRIP,
    ML_NORM_STRIP_ACCENTS,
} ml_norm_type;

typedef struct ml_norm {
    ml_norm_type type;
    ml_pattern pattern;
    ml_str content;
    bool left, right;
} ml_norm;

typedef enum ml_split {
    ML_SPLIT_REMOVED,
    ML_SPLIT_ISOLATED,
    ML_SPLIT_WITH_PREVIOUS,
    ML_SPLIT_WITH_NEXT,
    ML_SPLIT_CONTIGUOUS,
} ml_split;

typedef enum ml_prepend {
    ML_PREPEND_ALWAYS,
    ML_PREPEND_FIRST,
    ML_PREPEND_NEVER
} ml_prepend;

typedef enum ml_pre_type {
    ML_PRE_SPLIT,
    ML_PRE_BYTE_LEVEL,
    ML_PRE_METASPACE,
    ML_PRE_DIGITS,
    ML_PRE_PUNCT,
    ML_PRE_SPACE_SPLIT,
    ML_PRE_WORDS,
} ml_pre_type;

typedef struct ml_pre {
    ml_pre_type type;
    ml_pattern pattern; /* SPLIT, and BYTE_LEVEL with use_regex */
    ml_split behavior;
    bool invert;
    bool use_regex, prefix_space; /* BYTE_LEVEL */
    ml_str replacement;           /* METASPACE: one character */
    ml_prepend prepend;
    bool split;
} ml_pre;

typedef enum ml_dec_type {
    ML_DEC_JOIN, /* the default without a decoder: spaces between tokens */
    ML_DEC_BYTE_LEVEL,
    ML_DEC_BYTE_FALLBACK,
    ML_DEC_FUSE,
    ML_DEC_REPLACE,
    ML_DEC_STRIP,
    ML_DEC_METASPACE,
    ML_DEC_BYTES, /* tokens are raw bytes: tiktoken */
} ml_dec_type;

typedef struct ml_dec {
    ml_dec_type type;
    ml_pattern pattern;
    ml_str content;
    int64_t start, stop; /* STRIP */
    bool whole;          /* STRIP: of the whole text, not of each token */
    bool prefix;         /* METASPACE: the mark of the first token is removed */
} ml_dec;

typedef struct ml_added {
    ml_str content;
    int32_t id;
    bool special, single_word, lstrip, rstrip, normalized;
} ml_added;

/* A trie of strings; finds the leftmost match, the longest first. */
typedef struct ml_trie {
    uint64_t *key;  /* [n_slot]: node << 8 | byte; UINT64_MAX: free */
    int32_t *child; /* [n_slot] */
    int64_t n_slot, n_edge;
    int32_t *value; /* [n_node]: index of the added token that ends here, or -1 */
    int32_t n_node, cap_node;
    bool first[256];
} ml_trie;

void ml_trie_init(ml_trie *t, ml_arena *a, size_t n_bytes);
/* If the string exists already, its value is kept. */
void ml_trie_add(ml_trie *t, ml_str s, int32_t value);
/* Returns the value of the next match from `from` on, or -1. */
int32_t ml_trie_find(const ml_trie *t, ml_str text, size_t from, size_t *begin,
                     size_t *end);

typedef struct ml_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: free */
    int32_t rank, id;
} ml_merge;

typedef struct ml_vocab_slot {
    uint32_t hash;
    int32_t id1; /* id + 1; 0: free */
} ml_vocab_slot;

typedef struct ml_bpe {
    ml_str *token; /* [n_id]; ptr NULL where no token has that id */
    int32_t n_id;
    int64_t n_token;
    ml_vocab_slot *slot; /* [n_slot], a power of two */
    uint64_t n_slot;
    ml_merge *merge; /* [n_merge_slot], a power of two */
    uint64_t n_merge_slot;
    uint64_t *joins; /* bits: pairs of characters that a token may contain */
    bool cut;        /* words are cut between characters that no token joins */
    bool by_bytes;   /* the initial symbols are bytes, not characters */
    bool spelled;    /* by_bytes: tokens are spelled with the characters of ml_byte_char */
    int32_t byte_id[256];     /* by_bytes: the symbol of a byte, or -1 */
    int32_t fallback_id[256]; /* "<0xHH>", or -1 */
    bool byte_fallback, fuse_unk, ignore_merges;
    int32_t unk; /* or -1 */
    ml_str prefix, suffix;
} ml_bpe;

typedef struct ml_template_piece {
    bool is_text; /* the sequence itself; otherwise ids */
    int32_t n;
    const int32_t *id; /* [n] */
} ml_template_piece;

struct ml_tokenizer {
    ml_arena arena;
    const char *name; /* name of the file, for messages */
    ml_unicode unicode;
    ml_bpe bpe;
    ml_added *added; /* [n_added] */
    int32_t n_added, cap_added;
    ml_map added_at;         /* index of an added token, by content */
    int32_t max_added;       /* the largest id of an added token, or -1 */
    ml_trie raw, normalized; /* added tokens, by the text in which they are matched */
    uint8_t *special;        /* [n_id] */
    ml_str *added_token;     /* [n_id]: content of added tokens, by id */
    int32_t n_id;
    ml_norm norm[ML_TOK_STAGES];
    ml_pre pre[ML_TOK_STAGES];
    ml_dec dec[ML_TOK_STAGES];
    int n_norm, n_pre, n_dec;
    bool has_template, trim_spans, trim_prefix_space;
    bool always_track;        /* a pre-tokenizer depends on the position in the text */
    bool kimi;                /* long runs are divided as in tokenization_kimi.py */
    ml_template_piece *piece; /* [n_piece] */
    int n_piece;
    int32_t role[ML_TOKEN_ROLES];
};

typedef struct ml_match {
    size_t begin, end;
    bool is_match;
} ml_match;

typedef struct ml_matches {
    ml_match *at;
    size_t n, cap;
} ml_matches;

typedef struct ml_symbol {
    int32_t id, prev, next;
    uint32_t len; /* bytes of the word; 0: merged into its predecessor */
} ml_symbol;

/* A candidate merge: the symbol at pos and the next one become id. */
typedef struct ml_candidate {
    int32_t rank, pos, id;
    uint32_t len; /* bytes of both; if they differ now, the candidate is outdated */
} ml_candidate;

#define ML_CACHE_KEY 26
#define ML_CACHE_IDS 9
#define ML_CACHE_SIZE 8192

/* A cached word with its tokens; one cache line. */
typedef struct ml_cached {
    uint8_t n_key, n_id;
    char key[ML_CACHE_KEY];
    int32_t id[ML_CACHE_IDS];
} ml_cached;

struct ml_encoder {
    ml_arena arena;
    const ml_tokenizer *tok;
    ml_finder *finder;
    ml_tokens *out;
    ml_err *err;
    bool spans, track;
    ml_edit norm[2];
    ml_edit pre[ML_TOK_STAGES];
    ml_matches matches[ML_TOK_STAGES];
    ml_symbol *symbol; /* [cap_symbol] of the current word */
    size_t n_symbol, cap_symbol;
    ml_candidate *heap;
    size_t n_heap, cap_heap;
    ml_text key;      /* a word in the spelling of the vocabulary */
    ml_cached *cache; /* [ML_CACHE_SIZE] */
};

/* --- between the files ------------------------------------------------------ */

void *ml_tok_grow(void *p, size_t *cap, size_t need, size_t size);
void ml_tokens_push(ml_tokens *t, int32_t id, bool spans, ml_span span);

/* Finds the next match of a pattern from `from` on; ML_EAGAIN: none. */
ml_status ml_pattern_find(const ml_pattern *p, ml_finder *f, ml_str text, size_t from,
                          size_t *begin, size_t *end, ml_err *err);
/* Divides the text into matches and the parts between them. */
ml_status ml_pattern_split(const ml_pattern *p, ml_finder *f, ml_str text, ml_matches *out,
                           ml_err *err);
void ml_pattern_release(ml_pattern *p);

/* Runs all normalizers; *v receives the result. */
ml_status ml_norm_run(ml_encoder *e, ml_view *v);
/* Passes a view to pre-tokenizer k and its output to the next one; after the last one comes
 * the model. */
ml_status ml_pre_run(ml_encoder *e, int k, ml_view v);
ml_status ml_bpe_run(ml_encoder *e, ml_view v);

/* Merges the symbols of e, which are those of a word: tok_merge.c. */
void ml_bpe_merge(ml_encoder *e);

/* Vocabulary and merges; called while loading. */
void ml_bpe_init(ml_bpe *b, ml_arena *a, int64_t n_token, int32_t n_id);
void ml_bpe_init_merges(ml_bpe *b, ml_arena *a, int64_t n_merge);
bool ml_bpe_add(ml_bpe *b, ml_str token, int32_t id);
int32_t ml_bpe_find(const ml_bpe *b, ml_str token);
void ml_bpe_add_merge(ml_bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id);
/* Called after the last token and merge. */
void ml_bpe_finish(ml_bpe *b, ml_arena *a);

/* The character that represents a byte in byte-level vocabularies, and the inverse (or
 * -1). */
uint32_t ml_byte_char(uint8_t byte);
int ml_byte_of_char(uint32_t c);

/* Adds the added tokens one by one, which assigns their ids; then builds their tables. */
int32_t ml_added_add(ml_tokenizer *t, const ml_added *token);
ml_status ml_added_finish(ml_tokenizer *t, ml_err *err);
ml_status ml_added_split(ml_encoder *e, const ml_trie *trie, ml_view v,
                         ml_status (*text)(ml_encoder *e, ml_view v));

ml_status ml_tokenizer_read_json(ml_tokenizer *t, ml_str json, ml_err *err);
/* config: tokenizer_config.json, or NULL. */
ml_status ml_tokenizer_read_tiktoken(ml_tokenizer *t, ml_str file, const ml_json *config,
                                     ml_err *err);
ml_tokenizer *ml_tokenizer_new(const char *name);

#endif
