/* grammar_priv.h - declarations shared by the files of this folder.
 *
 * The frontends (schema, regex, EBNF, structural tag) build rules, each a tree of nodes
 * over code points; automaton.c turns them into states with edges over bytes. */
#ifndef ML_TEXT_GRAMMAR_GRAMMAR_PRIV_H
#define ML_TEXT_GRAMMAR_GRAMMAR_PRIV_H

#include "base/arena.h"
#include "base/json.h"
#include "base/map.h"
#include "text/grammar/grammar.h"

/* --- rules ------------------------------------------------------------------ */

typedef enum ml_gnode_kind {
    ML_GNODE_EMPTY,
    ML_GNODE_BYTES,    /* these bytes */
    ML_GNODE_CLASS,    /* one of these code points, in UTF-8 */
    ML_GNODE_BYTE_SET, /* one byte of `range`, whose values are bytes */
    ML_GNODE_SEQ,      /* the children one after the other */
    ML_GNODE_ALT,      /* one of the children */
    ML_GNODE_REPEAT,   /* the child min to max times; max -1: any number */
    ML_GNODE_REF,      /* a rule */
    ML_GNODE_BEGIN,    /* ^ of a regular expression, until the anchors are resolved */
    ML_GNODE_END,      /* $ */
} ml_gnode_kind;

typedef struct ml_grange {
    uint32_t lo, hi;
} ml_grange;

typedef struct ml_gnode ml_gnode;
struct ml_gnode {
    ml_gnode_kind kind;
    ml_str bytes;
    ml_grange *range; /* [n_range] sorted, disjoint */
    int32_t n_range;
    int32_t min, max;
    int32_t rule;
    ml_gnode *child, *last; /* of the children */
    ml_gnode *next;         /* sibling */
};

typedef struct ml_grule {
    ml_str name; /* for messages; may be empty */
    ml_gnode *body;
} ml_grule;

typedef struct ml_grules {
    ml_arena *arena;
    ml_grule *rule; /* [n]; rule 0 is the root */
    int32_t n, cap;
    int32_t n_node;
    bool compact;
} ml_grules;

#define ML_GRULES_MAX_NODES 2000000 /* a frontend that copies its input checks this */

int32_t ml_grule_new(ml_grules *g, const char *name);
/* Making the body may move the rules: an assignment would write to their former place. */
static inline void ml_grule_set(ml_grules *g, int32_t rule, ml_gnode *body) {
    g->rule[rule].body = body;
}

ml_gnode *ml_gnode_new(ml_grules *g, ml_gnode_kind kind);
ml_gnode *ml_gnode_text(ml_grules *g, const char *text); /* copied */
ml_gnode *ml_gnode_str(ml_grules *g, ml_str text);
ml_gnode *ml_gnode_ref(ml_grules *g, int32_t rule);
ml_gnode *ml_gnode_repeat(ml_grules *g, ml_gnode *child, int32_t min, int32_t max);
/* Appends a child of SEQ or ALT; returns the parent. */
ml_gnode *ml_gnode_add(ml_gnode *parent, ml_gnode *child);
/* A class of n ranges; sorts and merges a copy.  negated: all other code points. */
ml_gnode *ml_gnode_class(ml_grules *g, const ml_grange *range, int32_t n, bool negated);
ml_gnode *ml_gnode_bytes_of(ml_grules *g, const ml_grange *range, int32_t n);

/* --- frontends -------------------------------------------------------------- */

/* Each fills in rule 0 of `g`. */
ml_status ml_schema_rules(ml_grules *g, ml_str text, ml_err *err);
ml_status ml_regex_rules(ml_grules *g, ml_str text, ml_err *err);
ml_status ml_ebnf_rules(ml_grules *g, ml_str text, ml_err *err);
ml_status ml_tag_rules(ml_grules *g, ml_str text, ml_err *err);

/* A value of a schema as a node; refs begin with # and are looked up in `root`. */
ml_status ml_schema_node(ml_grules *g, ml_gnode **out, const ml_json *schema,
                         const ml_json *root, ml_err *err);

/* How a regular expression becomes a node. */
typedef struct ml_regex_form {
    /* The content of a JSON string: quotes, backslashes and control characters are written
     * as escapes. */
    bool json;
    bool search; /* an end without ^ or $ may be preceded or followed by any text */
} ml_regex_form;
ml_status ml_regex_node(ml_grules *g, ml_gnode **out, ml_str text, ml_regex_form form,
                        ml_err *err);
/* A character of a JSON string: any, escapes included. */
ml_gnode *ml_json_char(ml_grules *g);
/* The regular expression of a format of JSON schema, or NULL: not known. */
const char *ml_json_format(ml_str name);
/* A class as characters of a JSON string. */
ml_gnode *ml_json_class(ml_grules *g, const ml_gnode *class);

/* Whole numbers from lo to hi, without leading zeros.  point > 0: the last `point` digits
 * are decimals, so that 5 with a point of 2 is 0.05. */
ml_gnode *ml_number_range(ml_grules *g, int64_t lo, int64_t hi, int32_t point);

/* --- the automaton ---------------------------------------------------------- */

typedef enum ml_gedge_kind { ML_GEDGE_EMPTY, ML_GEDGE_BYTES, ML_GEDGE_CALL } ml_gedge_kind;

typedef struct ml_gedge {
    ml_gedge_kind kind;
    unsigned char lo, hi;
    int32_t to, rule;
} ml_gedge;

typedef struct ml_gstate {
    int32_t edge, n_edge;
    bool final; /* the end of its rule */
    bool tail;  /* nothing but the end of its rule follows */
    bool reads; /* it has an edge with bytes */
} ml_gstate;

typedef struct ml_automaton {
    ml_gstate *state; /* [n_state] */
    ml_gedge *edge;
    int32_t n_state, n_edge, n_rule;
    int32_t *start;            /* [n_rule] */
    unsigned char class[256];  /* bytes that all edges treat alike have the same class */
    unsigned char sample[256]; /* [n_class] a byte of each class */
    int32_t n_class;
    int32_t *alike; /* [n_state] the class of ml_lookahead_classes */
} ml_automaton;

/* Refuses left recursion and grammars without any text; removes dead ends. */
ml_status ml_automaton_build(ml_automaton *out, ml_arena *a, ml_grules *g, ml_err *err);

/* Sets `alike`: states of a class allow the same texts of up to `depth` bytes, and reach the end of
 * their rule after the same of these texts.  Returns the number of classes. */
int32_t ml_lookahead_classes(ml_automaton *a, ml_arena *arena, int32_t depth);

/* --- the vocabulary --------------------------------------------------------- */

/* A trie of the tokens' bytes in pre-order: the subtree of node i is i .. skip[i] - 1. */
typedef struct ml_token_trie {
    ml_arena arena;
    int32_t n, n_vocab, depth; /* depth: of the deepest node; the root is not a node */
    unsigned char *byte;       /* [n] */
    int32_t *skip, *parent;    /* [n]; parent -1: the root */
    uint16_t *level;           /* [n] from 1 */
    int32_t *token;            /* ids in the order of nodes */
    int32_t *first;            /* [n + 1] node i ends token[first[i]] .. first[i + 1] - 1 */
    const char *bytes;         /* of all tokens */
    uint32_t *at;              /* [n_vocab + 1] */
    /* Tokens of more than `usual` bytes, and the nodes on the way to them. */
    int32_t usual;
    uint32_t *is_long; /* [words] bits of tokens; NULL: there are none */
    bool *leads;       /* [n] */
} ml_token_trie;

ml_token_trie *ml_token_trie_new(const ml_tokenizer *t, int32_t n_vocab);
void ml_token_trie_free(ml_token_trie *t);

/* --- lazy determinization (stacks.c) ---------------------------------------- */

#define ML_NO_CONFIG (-1) /* no continuation */

typedef struct ml_stacks ml_stacks;

/* Sets of stacks, interned; all memory is released by ml_stacks_clear. */
ml_stacks *ml_stacks_new(const ml_automaton *a);
void ml_stacks_free(ml_stacks *s);
void ml_stacks_clear(ml_stacks *s);
size_t ml_stacks_bytes(const ml_stacks *s);
/* Work since the last clear exceeds the limit: what was computed is not to be used. */
bool ml_stacks_overflow(const ml_stacks *s);
void ml_stacks_restart_work(ml_stacks *s);

int32_t ml_stacks_root(ml_stacks *s); /* the config before the first byte */
/* The config of one state on a stack that is not known. */
int32_t ml_stacks_open(ml_stacks *s, int32_t state);
int32_t ml_stacks_step(ml_stacks *s, int32_t config, unsigned char byte);
/* The text so far is complete; for an open config: the unknown stack may be next. */
bool ml_stacks_complete(const ml_stacks *s, int32_t config);
bool ml_stacks_escapes(const ml_stacks *s, int32_t config);
int32_t ml_stacks_depth(const ml_stacks *s, int32_t config); /* of the deepest stack */
/* The states on top of the config's stacks: count, and the i-th (-1: an end). */
int32_t ml_stacks_tops(const ml_stacks *s, int32_t config);
int32_t ml_stacks_top(const ml_stacks *s, int32_t config, int32_t i);

#endif
