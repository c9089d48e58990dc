/* grammar.c - compiled grammars, their cache, and masks of tokens. */
#include "text/grammar/grammar.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/oom.h"
#include "text/grammar/grammar_priv.h"

enum {
    MAX_CACHED = 64,      /* grammars that no request uses */
    MAX_BYTES = 24 << 20, /* a grammar's lazily computed memory, before it is released */
    MANY_TOPS = 64,       /* stacks of a config from which on it is walked as a whole */
    MANY_DIRECT = 4096,   /* subtrees to check from which on ... */
    NEAR_LIMIT_DEPTH = 500,
};

/* A set of tokens: ids if they are few, otherwise bits; and the trie's subtrees whose
 * tokens depend on the stack below the state. */
typedef struct token_set {
    bool known;
    bool met;  /* a state's: a config with it was computed as a whole */
    int32_t n; /* tokens */
    int32_t *id;
    uint32_t *bits;
    int32_t *open; /* [n_open] nodes of the trie */
    int32_t n_open;
} token_set;

struct ml_grammar {
    ml_grammar_cache *cache;
    ml_grammar *next; /* in the cache, by latest use */
    int32_t n_user;
    bool cached; /* false: it left the cache and ends with its last user */
    ml_arena arena;
    ml_grammar_source source;
    ml_automaton automaton;

    pthread_mutex_t lock; /* of the fields below */
    ml_stacks *stacks;
    uint64_t generation; /* incremented when memory is released: configs are void then */
    token_set *local;    /* [n_alike] for states on an unknown stack that are alike */
    int32_t n_alike;
    token_set *full; /* [cap_full] for a config */
    int32_t cap_full;
    size_t set_bytes;
    /* scratch of a walk */
    uint32_t *bits;      /* [words] */
    int32_t *config;     /* [depth + 1] by level of the trie */
    bool *escaped;       /* [depth + 1] */
    unsigned char *path; /* [depth + 1] */
    int32_t *open;       /* growing */
    int32_t n_open, cap_open;
};

struct ml_grammar_cache {
    ml_grammar_opts opts;
    pthread_mutex_t lock;
    ml_token_trie *trie; /* NULL until the first grammar */
    ml_grammar *first;
    int32_t n;
};

struct ml_matcher {
    ml_grammar *grammar;
    uint64_t generation;
    int32_t config, n; /* after n tokens; -1: not begun */
};

const char *ml_grammar_kind_name(ml_grammar_kind k) {
    static const char *const names[] = { [ML_GRAMMAR_JSON_SCHEMA] = "json_schema",
                                         [ML_GRAMMAR_REGEX] = "regex",
                                         [ML_GRAMMAR_EBNF] = "ebnf",
                                         [ML_GRAMMAR_STRUCTURAL_TAG] = "structural_tag" };
    return k < ML_N_GRAMMAR ? names[k] : NULL;
}

/* --- compilation ------------------------------------------------------------ */

static ml_status read_source(ml_grules *rules, ml_grammar_source s, ml_err *err) {
    ml_grule_new(rules, "root");
    switch (s.kind) {
    case ML_GRAMMAR_JSON_SCHEMA: return ml_schema_rules(rules, s.text, err);
    case ML_GRAMMAR_REGEX: return ml_regex_rules(rules, s.text, err);
    case ML_GRAMMAR_EBNF: return ml_ebnf_rules(rules, s.text, err);
    case ML_GRAMMAR_STRUCTURAL_TAG: return ml_tag_rules(rules, s.text, err);
    case ML_GRAMMAR_NONE:
    case ML_N_GRAMMAR: break;
    }
    return ml_fail(err, ML_EUSAGE, "a grammar of no kind");
}

static ml_status compile(ml_grammar *g, ml_grammar_source s, bool compact, ml_err *err) {
    ml_arena scratch;
    ml_grules rules = { .arena = &scratch, .compact = compact };
    ml_status st;

    if (s.text.len > ML_GRAMMAR_MAX_TEXT)
        return ml_fail(err, ML_EUSAGE, "it has %zu bytes; expected at most %zu", s.text.len,
                       ML_GRAMMAR_MAX_TEXT);
    ml_arena_init(&scratch, "the rules of a grammar");
    st = read_source(&rules, s, err);
    if (st == ML_OK)
        st = ml_automaton_build(&g->automaton, &g->arena, &rules, err);
    ml_arena_release(&scratch);
    if (st != ML_OK)
        return st;
    g->stacks = ml_stacks_new(&g->automaton);
    if (ml_stacks_root(g->stacks) == ML_NO_CONFIG)
        return ml_fail(err, ML_EUSAGE,
                       "too many rules may begin the text: the grammar is too ambiguous");
    return ML_OK;
}

static void free_set(token_set *s) {
    free(s->id);
    free(s->bits);
    free(s->open);
    *s = (token_set){ 0 };
}

static void free_sets(ml_grammar *g) {
    for (int32_t i = 0; i < g->n_alike; i++)
        free_set(&g->local[i]);
    for (int32_t i = 0; i < g->cap_full; i++)
        free_set(&g->full[i]);
    g->set_bytes = 0;
}

static void free_grammar(ml_grammar *g) {
    ml_arena a = g->arena;

    free_sets(g);
    free(g->full);
    free(g->open);
    ml_stacks_free(g->stacks);
    pthread_mutex_destroy(&g->lock);
    ml_arena_release(&a);
}

static ml_status new_grammar(ml_grammar **out, ml_grammar_cache *c, ml_grammar_source s,
                             ml_err *err) {
    const ml_token_trie *t = c->trie;
    ml_arena a;
    ml_grammar *g;
    ml_status st;

    ml_arena_init(&a, "a grammar");
    g = ML_NEW(&a, ml_grammar, 1);
    g->arena = a;
    g->cache = c;
    pthread_mutex_init(&g->lock, NULL);
    g->source.kind = s.kind;
    g->source.text =
        (ml_str){ ml_arena_str(&g->arena, s.text.ptr, s.text.len), s.text.len };
    st = compile(g, s, c->opts.compact, err);
    if (st != ML_OK) {
        ml_err_prefix(err, "\"%s\"", ml_grammar_kind_name(s.kind));
        free_grammar(g);
        return st;
    }
    g->n_alike = ml_lookahead_classes(&g->automaton, &g->arena, t->usual);
    g->local = ML_NEW(&g->arena, token_set, g->n_alike);
    g->bits = ML_NEW(&g->arena, uint32_t, ml_mask_words(t->n_vocab) + 1);
    g->config = ML_NEW(&g->arena, int32_t, t->depth + 1);
    g->escaped = ML_NEW(&g->arena, bool, t->depth + 1);
    g->path = ML_NEW(&g->arena, unsigned char, t->depth + 1);
    *out = g;
    return ML_OK;
}

/* --- the cache -------------------------------------------------------------- */

ml_grammar_cache *ml_grammar_cache_new(const ml_grammar_opts *opts) {
    ml_grammar_cache *c = ml_memory_grow(NULL, sizeof *c, "grammars");

    *c = (ml_grammar_cache){ .opts = *opts };
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

void ml_grammar_cache_free(ml_grammar_cache *c) {
    if (!c)
        return;
    while (c->first) {
        ml_grammar *g = c->first;
        ML_BUG_IF(g->n_user);
        c->first = g->next;
        free_grammar(g);
    }
    ml_token_trie_free(c->trie);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static bool same_source(ml_grammar_source a, ml_grammar_source b) {
    return a.kind == b.kind && ml_str_eq(a.text, b.text);
}

/* Moves a cached grammar to the front. */
static ml_grammar *find(ml_grammar_cache *c, ml_grammar_source s) {
    for (ml_grammar **at = &c->first; *at; at = &(*at)->next) {
        ml_grammar *g = *at;
        if (!same_source(g->source, s))
            continue;
        *at = g->next;
        g->next = c->first;
        c->first = g;
        return g;
    }
    return NULL;
}

/* Removes the least recently used grammars; those in use end with their last user. */
static void evict(ml_grammar_cache *c) {
    ml_grammar **at = &c->first;

    for (int32_t i = 0; i < MAX_CACHED && *at; i++)
        at = &(*at)->next;
    while (*at) {
        ml_grammar *g = *at;
        *at = g->next;
        c->n--;
        g->cached = false;
        if (!g->n_user)
            free_grammar(g);
    }
}

ml_status ml_grammar_get(ml_grammar **out, ml_grammar_cache *c, ml_grammar_source s,
                         ml_err *err) {
    ml_status st = ML_OK;
    ml_grammar *g;

    pthread_mutex_lock(&c->lock);
    if (!c->trie)
        c->trie = ml_token_trie_new(c->opts.tokenizer, c->opts.n_vocab);
    g = find(c, s);
    if (!g) {
        st = new_grammar(&g, c, s, err);
        if (st == ML_OK) {
            g->cached = true;
            g->next = c->first;
            c->first = g;
            c->n++;
        }
    }
    if (st == ML_OK) {
        g->n_user++;
        evict(c);
        *out = g;
    }
    pthread_mutex_unlock(&c->lock);
    return st;
}

void ml_grammar_release(ml_grammar *g) {
    ml_grammar_cache *c;
    bool last;

    if (!g)
        return;
    c = g->cache;
    pthread_mutex_lock(&c->lock);
    last = --g->n_user == 0 && !g->cached;
    pthread_mutex_unlock(&c->lock);
    if (last)
        free_grammar(g);
}

ml_grammar_source ml_grammar_source_of(const ml_grammar *g) {
    return g->source;
}

/* --- sets of tokens --------------------------------------------------------- */

static int32_t words_of(const ml_grammar *g) {
    return ml_mask_words(g->cache->trie->n_vocab);
}

static void set_bits(uint32_t *bits, const ml_token_trie *t, int32_t node) {
    for (int32_t i = t->first[node]; i < t->first[node + 1]; i++)
        bits[t->token[i] / 32] |= 1u << (t->token[i] % 32);
}

static void add_open(ml_grammar *g, int32_t node) {
    if (g->n_open == g->cap_open) {
        g->cap_open = g->cap_open ? 2 * g->cap_open : 256;
        g->open = ml_memory_grow(g->open, (size_t)g->cap_open * sizeof *g->open,
                                 "a grammar's tokens");
    }
    g->open[g->n_open++] = node;
}

/* Walks the nodes begin .. end - 1, whose parent has the config at its level.  Sets the
 * bits of tokens that end in a config; lists the subtrees that leave an open config. */
static void walk(ml_grammar *g, int32_t begin, int32_t end, bool open) {
    const ml_token_trie *t = g->cache->trie;

    for (int32_t i = begin; i < end && !ml_stacks_overflow(g->stacks);) {
        int32_t level = t->level[i];
        int32_t c = ml_stacks_step(g->stacks, g->config[level - 1], t->byte[i]);
        if (c == ML_NO_CONFIG) {
            if (open && g->escaped[level - 1])
                add_open(g, i);
            i = t->skip[i];
            continue;
        }
        g->config[level] = c;
        g->escaped[level] =
            open && (g->escaped[level - 1] || ml_stacks_escapes(g->stacks, c));
        set_bits(g->bits, t, i++);
    }
}

static void walk_all(ml_grammar *g, int32_t config, bool open) {
    g->config[0] = config;
    g->escaped[0] = false;
    walk(g, 0, g->cache->trie->n, open);
}

/* Checks the tokens of a subtree against the whole stacks of a config. */
static void walk_subtree(ml_grammar *g, int32_t config, int32_t node) {
    const ml_token_trie *t = g->cache->trie;
    unsigned char *path = g->path;
    int32_t level = t->level[node] - 1, at = t->parent[node];

    for (int32_t i = level; i > 0; i--, at = t->parent[at])
        path[i - 1] = t->byte[at];
    g->config[0] = config;
    for (int32_t i = 0; i < level; i++) {
        g->config[i + 1] = ml_stacks_step(g->stacks, g->config[i], path[i]);
        if (g->config[i + 1] == ML_NO_CONFIG)
            return;
    }
    walk(g, node, t->skip[node], false);
}

/* Tokens of more than the usual length: what states that are alike allow may differ in them. */
static void walk_long(ml_grammar *g, int32_t config) {
    const ml_token_trie *t = g->cache->trie;

    if (!t->is_long)
        return;
    for (int32_t i = 0; i < words_of(g); i++)
        g->bits[i] &= ~t->is_long[i];
    g->config[0] = config;
    for (int32_t i = 0; i < t->n && !ml_stacks_overflow(g->stacks);) {
        int32_t level = t->level[i];
        int32_t c = t->leads[i]
                        ? ml_stacks_step(g->stacks, g->config[level - 1], t->byte[i])
                        : ML_NO_CONFIG;
        if (c == ML_NO_CONFIG) {
            i = t->skip[i];
            continue;
        }
        g->config[level] = c;
        if (level > t->usual)
            set_bits(g->bits, t, i);
        i++;
    }
}

static void *copied(ml_grammar *g, const void *from, size_t bytes) {
    g->set_bytes += bytes;
    return memcpy(ml_memory_grow(NULL, bytes + 1, "a grammar's tokens"), from, bytes);
}

/* Stores the bits and the open subtrees of a walk. */
static void pack(ml_grammar *g, token_set *out) {
    int32_t words = words_of(g), n = 0;

    *out = (token_set){ .known = true, .met = true };
    for (int32_t i = 0; i < words; i++)
        out->n += __builtin_popcount(g->bits[i]);
    if (out->n > words) {
        out->bits = copied(g, g->bits, (size_t)words * sizeof *g->bits);
    } else {
        size_t bytes = (size_t)out->n * sizeof *out->id;
        out->id = ml_memory_grow(NULL, bytes + 1, "a grammar's tokens");
        g->set_bytes += bytes;
        for (int32_t i = 0; i < words; i++)
            for (uint32_t w = g->bits[i]; w; w &= w - 1)
                out->id[n++] = 32 * i + __builtin_ctz(w);
    }
    if (g->n_open) {
        out->open = copied(g, g->open, (size_t)g->n_open * sizeof *g->open);
        out->n_open = g->n_open;
    }
}

static void begin_walk(ml_grammar *g) {
    memset(g->bits, 0, (size_t)words_of(g) * sizeof *g->bits);
    g->n_open = 0;
}

static void add_set(uint32_t *bits, const token_set *s, int32_t words) {
    for (int32_t i = 0; s->bits && i < words; i++)
        bits[i] |= s->bits[i];
    for (int32_t i = 0; s->id && i < s->n; i++)
        bits[s->id[i] / 32] |= 1u << (s->id[i] % 32);
}

/* Of all states that are alike. */
static token_set *set_of(const ml_grammar *g, int32_t state) {
    return &g->local[g->automaton.alike[state]];
}

/* What a state allows on any stack, of tokens up to the usual length. */
static const token_set *local_set(ml_grammar *g, int32_t state) {
    token_set *s = set_of(g, state);

    if (s->known)
        return s;
    begin_walk(g);
    walk_all(g, ml_stacks_open(g->stacks, state), true);
    if (!ml_stacks_overflow(g->stacks))
        pack(g, s);
    return s;
}

/* A state that is met for the first time may not be met in another config: its own set
 * would cost as much as that of the config. */
static bool meets_new_state(ml_grammar *g, int32_t config) {
    bool new = false;

    for (int32_t i = 0; i < ml_stacks_tops(g->stacks, config); i++) {
        int32_t top = ml_stacks_top(g->stacks, config, i);
        if (top >= 0 && !set_of(g, top)->met)
            new = set_of(g, top)->met = true;
    }
    return new;
}

/* The subtrees to check, of all stacks of a config; -1: walk the whole trie. */
static int32_t count_open(ml_grammar *g, int32_t config) {
    int32_t n = ml_stacks_tops(g->stacks, config), sum = 0;

    if (n > MANY_TOPS || ml_stacks_depth(g->stacks, config) > NEAR_LIMIT_DEPTH ||
        meets_new_state(g, config))
        return -1;
    for (int32_t i = 0; i < n; i++) {
        int32_t top = ml_stacks_top(g->stacks, config, i);
        if (top >= 0)
            sum += local_set(g, top)->n_open;
    }
    return sum > MANY_DIRECT ? -1 : sum;
}

static void compute_full(ml_grammar *g, int32_t config, token_set *out) {
    bool direct = count_open(g, config) < 0;
    int32_t n = ml_stacks_tops(g->stacks, config);

    begin_walk(g);
    if (direct)
        walk_all(g, config, false);
    for (int32_t i = 0; i < n && !direct; i++) {
        int32_t top = ml_stacks_top(g->stacks, config, i);
        const token_set *s = top < 0 ? NULL : set_of(g, top);
        for (int32_t k = 0; s && k < s->n_open; k++)
            walk_subtree(g, config, s->open[k]);
        if (s)
            add_set(g->bits, s, words_of(g));
    }
    if (!direct)
        walk_long(g, config);
    if (!ml_stacks_overflow(g->stacks))
        pack(g, out);
}

static token_set *full_set(ml_grammar *g, int32_t config) {
    if (config >= g->cap_full) {
        int32_t cap = g->cap_full ? g->cap_full : 64;
        while (cap <= config)
            cap *= 2;
        g->full =
            ml_memory_grow(g->full, (size_t)cap * sizeof *g->full, "a grammar's tokens");
        memset(g->full + g->cap_full, 0, (size_t)(cap - g->cap_full) * sizeof *g->full);
        g->cap_full = cap;
    }
    if (!g->full[config].known)
        compute_full(g, config, &g->full[config]);
    return &g->full[config];
}

/* --- matchers --------------------------------------------------------------- */

ml_matcher *ml_matcher_new(ml_grammar *g) {
    ml_matcher *m = ml_memory_grow(NULL, sizeof *m, "a matcher");

    *m = (ml_matcher){ .grammar = g, .n = -1 };
    pthread_mutex_lock(&g->cache->lock);
    g->n_user++;
    pthread_mutex_unlock(&g->cache->lock);
    return m;
}

void ml_matcher_free(ml_matcher *m) {
    if (!m)
        return;
    ml_grammar_release(m->grammar);
    free(m);
}

static void release_memory(ml_grammar *g) {
    free_sets(g);
    ml_stacks_clear(g->stacks);
    g->generation++;
}

static int32_t step_token(ml_grammar *g, int32_t config, int32_t id) {
    const ml_token_trie *t = g->cache->trie;

    for (uint32_t i = t->at[id]; i < t->at[id + 1] && config != ML_NO_CONFIG; i++)
        config = ml_stacks_step(g->stacks, config, (unsigned char)t->bytes[i]);
    return config;
}

/* Advances to the config after n tokens. */
static void advance(ml_matcher *m, const int32_t *answer, int32_t n) {
    ml_grammar *g = m->grammar;

    if (m->n < 0 || m->n > n || m->generation != g->generation) {
        m->generation = g->generation;
        m->config = ml_stacks_root(g->stacks);
        m->n = 0;
    }
    for (; m->n < n && m->config != ML_NO_CONFIG; m->n++)
        m->config = step_token(g, m->config, answer[m->n]);
}

/* False: a limit was exceeded. */
static bool find_mask(ml_matcher *m, const int32_t *answer, int32_t n,
                      const token_set **set) {
    ml_grammar *g = m->grammar;

    ml_stacks_restart_work(g->stacks);
    advance(m, answer, n);
    *set = m->config == ML_NO_CONFIG ? NULL : full_set(g, m->config);
    return !ml_stacks_overflow(g->stacks);
}

static ml_status fill(ml_matcher *m, const int32_t *answer, int32_t n, uint32_t *mask,
                      ml_matched *out, ml_err *err) {
    ml_grammar *g = m->grammar;
    const token_set *set;
    bool fits;

    if (g->set_bytes + ml_stacks_bytes(g->stacks) > MAX_BYTES)
        release_memory(g);
    fits = find_mask(m, answer, n, &set);
    if (!fits) { /* once more, so that the outcome does not depend on earlier requests */
        release_memory(g);
        fits = find_mask(m, answer, n, &set);
    }
    if (!fits || !set)
        return ml_fail(err, ML_EUSAGE,
                       "the grammar is too ambiguous, or nested too deeply, after %d "
                       "tokens of the answer",
                       n);
    memset(mask, 0, (size_t)words_of(g) * sizeof *mask);
    add_set(mask, set, words_of(g));
    *out =
        (ml_matched){ .complete = ml_stacks_complete(g->stacks, m->config), .n = set->n };
    return ML_OK;
}

ml_status ml_matcher_mask(ml_matcher *m, const int32_t *answer, int32_t n, uint32_t *mask,
                          ml_matched *out, ml_err *err) {
    ml_status st;

    pthread_mutex_lock(&m->grammar->lock);
    st = fill(m, answer, n, mask, out, err);
    pthread_mutex_unlock(&m->grammar->lock);
    return st;
}

bool ml_grammar_accepts(ml_grammar *g, ml_str text, bool *complete) {
    int32_t config;

    pthread_mutex_lock(&g->lock);
    ml_stacks_restart_work(g->stacks);
    config = ml_stacks_root(g->stacks);
    for (size_t i = 0; i < text.len && config != ML_NO_CONFIG; i++)
        config = ml_stacks_step(g->stacks, config, (unsigned char)text.ptr[i]);
    *complete = config != ML_NO_CONFIG && ml_stacks_complete(g->stacks, config);
    pthread_mutex_unlock(&g->lock);
    return config != ML_NO_CONFIG;
}
