#include "serve/session_samples.h"

#include <stdio.h>
#include <string.h>

#include "serve/json_tree.h"

void ml_session_view_take(ml_session_view *out, ml_session *s, ml_session_kind kind,
                          ml_arena *a) {
    /* A session has at most that many nodes: nothing is allocated under the lock. */
    const ml_session_node **node = ML_NEW(a, const ml_session_node *, ML_SESSION_NODES);
    bool *leaf = ML_NEW(a, bool, ML_SESSION_NODES);
    int32_t n = 0;

    pthread_mutex_lock(&s->lock);
    for (const ml_session_node *x = s->first; x; x = x->next) {
        leaf[n] = x->n_child == 0;
        node[n++] = x;
    }
    *out = (ml_session_view){ node, leaf, n, s->head, kind };
    pthread_mutex_unlock(&s->lock);
}

/* --- one path --------------------------------------------------------------------------- */

typedef struct path {
    const ml_session_node **node; /* [n] from the first answer on */
    int32_t n, n_all;             /* that the sample contains; of the path */
    int32_t *token;               /* of the whole path */
    int32_t end;                  /* tokens of the sample */
    bool cut;                     /* at max_tokens */
} path;

static bool is_complete(const ml_session_node *n) {
    return n->finish == ML_FINISH_TOKEN || n->finish == ML_FINISH_STRING;
}

static path path_to(const ml_session_node *leaf, ml_arena *a) {
    path p = { .end = leaf->n_token };
    int32_t i;

    for (const ml_session_node *n = leaf; n; n = n->parent)
        p.n_all++;
    p.node = ML_NEW(a, const ml_session_node *, p.n_all + 1);
    i = p.n_all;
    for (const ml_session_node *n = leaf; n; n = n->parent)
        p.node[--i] = n;
    p.token = ML_NEW(a, int32_t, leaf->n_token + 2);
    ml_session_path_tokens(leaf, p.token);
    for (p.n = 0; p.n < p.n_all; p.n++)
        if (!is_complete(p.node[p.n])) {
            p.n++;
            break;
        }
    if (p.n && p.n < p.n_all) {
        p.end = p.node[p.n - 1]->n_token;
        ml_session_path_tokens(p.node[p.n - 1], p.token);
    }
    return p;
}

/* Later answers are dropped, and the first one beyond the limit is cut.  False: nothing of
 * the first answer is left. */
static bool limit(path *p, int64_t max) {
    if (max <= 0 || p->end <= max)
        return true;
    while (p->n > 1 && p->node[p->n - 1]->n_prompt >= max)
        p->n--;
    p->end = p->node[p->n - 1]->n_token;
    if (p->end > max) {
        p->end = (int32_t)max;
        p->cut = true;
    }
    return p->end > p->node[0]->n_prompt;
}

/* The end of the answer within the sample: the next prompt may drop its last token. */
static int32_t end_of(const path *p, int32_t i) {
    int32_t end = i + 1 < p->n ? p->node[i + 1]->keep : p->node[i]->n_token;
    return end < p->end ? end : p->end;
}

static const char *status_of(const path *p) {
    const ml_session_node *last = p->node[p->n - 1];

    return p->cut || last->finish == ML_FINISH_LENGTH ? "truncated"
           : last->finish == ML_FINISH_ABORT          ? "aborted"
                                                      : "completed";
}

/* --- the arrays of a sample --------------------------------------------------------------- */

typedef struct arrays {
    int32_t n;
    float *logprob;
    uint8_t *mask;
    int64_t *version; /* a token between answers has that of the next one */
} arrays;

static arrays arrays_of(const path *p, ml_arena *a) {
    int32_t first = p->node[0]->n_prompt, n = p->end - first, at = 0;
    arrays x = { n, ML_NEW(a, float, n + 1), ML_NEW(a, uint8_t, n + 1),
                 ML_NEW(a, int64_t, n + 1) };

    for (int32_t i = 0; i < p->n; i++) {
        const ml_session_node *node = p->node[i];
        for (; at < node->n_prompt - first && at < n; at++)
            x.version[at] = node->n_token > node->n_prompt ? node->version[0] : 0;
        for (; at < end_of(p, i) - first; at++) {
            int32_t k = at + first - node->n_prompt;
            x.mask[at] = 1;
            x.logprob[at] = node->logprob[k];
            x.version[at] = node->version[k];
        }
    }
    return x;
}

static void put_versions(const arrays *x, ml_json_out *o) {
    char word[24];

    ml_json_key(o, "weight_versions");
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < x->n; i++)
        if (i == 0 || x->version[i] != x->version[i - 1]) {
            snprintf(word, sizeof word, "%lld", (long long)x->version[i]);
            ml_json_word(o, word);
        }
    ml_json_end(o, ']');
    ml_json_key(o, "weight_version_tokens");
    ml_json_begin(o, '[');
    for (int32_t i = 0, begin = 0; i < x->n; i++)
        if (i + 1 == x->n || x->version[i] != x->version[i + 1]) {
            ml_json_int(o, i + 1 - begin);
            begin = i + 1;
        }
    ml_json_end(o, ']');
}

static void put_arrays(const path *p, const arrays *x, const ml_session_text *t,
                       ml_json_out *o) {
    ml_text text = { 0 };

    ml_json_key(o, "tokens");
    ml_json_ids(o, p->token, p->end);
    ml_json_put_int(o, "response_length", x->n);
    ml_json_key(o, "loss_mask");
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < x->n; i++)
        ml_json_int(o, x->mask[i]);
    ml_json_end(o, ']');
    ml_json_key(o, "rollout_log_probs");
    ml_json_floats(o, x->logprob, x->n);
    put_versions(x, o);
    ml_text_add(&text, "", 0);
    ml_decode(t->tokenizer, &text, p->token + p->end - x->n, x->n, false);
    ml_json_put_str(o, "response", (ml_str){ text.ptr, text.len });
    ml_text_release(&text);
}

/* --- metadata ------------------------------------------------------------------------------ */

static void put_parent(const ml_session_node *n, ml_json_out *o) {
    ml_json_key(o, "parent");
    if (n->parent)
        ml_json_int(o, n->parent->seq);
    else
        ml_json_null(o);
}

static void put_path_ids(const ml_session_node *leaf, ml_json_out *o, ml_arena *a) {
    path p = path_to(leaf, a);

    ml_json_key(o, "path_node_ids");
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < p.n_all; i++)
        ml_json_int(o, p.node[i]->seq);
    ml_json_end(o, ']');
}

/* Without a tokenizer error this is a list, possibly empty; otherwise null. */
static void put_mismatch(const ml_session_node *leaf, const ml_session_text *x,
                         ml_json_out *o, int64_t *count, ml_arena *a) {
    ml_text text = { 0 };
    ml_json_out inner = { .to = &text };
    ml_err err = { 0 };

    ml_json_key(o, "tito_session_mismatch");
    if (ml_session_compare(leaf, x, &inner, count, a, &err) == ML_OK)
        ml_json_raw(o, (ml_str){ text.ptr, text.len });
    else
        ml_json_null(o);
    ml_text_release(&text);
}

static void put_leaf(const ml_session_node *leaf, ml_json_out *o, ml_arena *a) {
    ml_json_key(o, "leaf");
    ml_json_begin(o, '{');
    ml_json_put_int(o, "node_id", leaf->seq);
    put_parent(leaf, o);
    put_path_ids(leaf, o, a);
    ml_json_put_word(o, "response_id", leaf->id);
    ml_json_end(o, '}');
}

static void put_node(const ml_session_node *n, ml_json_out *o) {
    ml_json_begin(o, '{');
    ml_json_put_int(o, "id", n->seq);
    put_parent(n, o);
    ml_json_put_int(o, "seq", n->seq);
    ml_json_put_bool(o, "truncated", n->finish == ML_FINISH_LENGTH);
    ml_json_key(o, "committed_at");
    ml_json_exact(o, n->time);
    ml_json_key(o, "completion_span");
    ml_json_begin(o, '[');
    ml_json_int(o, n->n_prompt);
    ml_json_int(o, n->n_token);
    ml_json_end(o, ']');
    ml_json_put_int(o, "num_tokens", n->n_token);
    ml_json_put_word(o, "response_id", n->id);
    ml_json_end(o, '}');
}

static void put_tree(const ml_session_view *v, ml_json_out *o, ml_arena *a) {
    ml_json_key(o, "tree");
    ml_json_begin(o, '{');
    ml_json_key(o, "nodes");
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < v->n; i++)
        put_node(v->node[i], o);
    ml_json_end(o, ']');
    ml_json_key(o, "leaves");
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < v->n; i++)
        if (v->leaf[i]) {
            ml_json_begin(o, '{');
            ml_json_put_int(o, "node_id", v->node[i]->seq);
            put_path_ids(v->node[i], o, a);
            ml_json_end(o, '}');
        }
    ml_json_end(o, ']');
    ml_json_end(o, '}');
}

static void put_ids(const ml_session_node *leaf, ml_json_out *o, ml_arena *a) {
    int32_t n = leaf ? leaf->n_token : 0, *token = ML_NEW(a, int32_t, n + 2);

    if (leaf)
        ml_session_path_tokens(leaf, token);
    ml_json_key(o, "accumulated_token_ids");
    ml_json_ids(o, token, n);
}

static void put_session_metadata(const ml_session_view *v, const ml_session_text *x,
                                 ml_json_out *o, int64_t *count, ml_arena *a) {
    ml_json_begin(o, '{');
    if (v->head)
        put_mismatch(v->head, x, o, count, a);
    put_ids(v->head, o, a);
    ml_json_put_int(o, "max_trim_tokens", 1);
    if (v->kind == ML_SESSION_TREE)
        put_tree(v, o, a);
    ml_json_end(o, '}');
}

/* --- samples ---------------------------------------------------------------------------------- */

static void put_cache_info(const path *p, ml_json_out *o) {
    int64_t cached = 0, total = 0;

    for (int32_t i = 0; i < p->n; i++) {
        cached += p->node[i]->n_cached;
        total += p->node[i]->n_prompt;
    }
    ml_json_key(o, "prefix_cache_info");
    ml_json_begin(o, '{');
    ml_json_put_int(o, "cached_tokens", cached);
    ml_json_put_int(o, "total_prompt_tokens", total);
    ml_json_end(o, '}');
}

static bool put_sample(const ml_session_node *leaf, const ml_session_view *v,
                       const ml_session_text *x, int64_t max_tokens, ml_json_out *o,
                       int64_t *count, ml_arena *a) {
    path p = path_to(leaf, a);
    arrays r;

    if (!limit(&p, max_tokens))
        return false;
    r = arrays_of(&p, a);
    ml_json_begin(o, '{');
    put_arrays(&p, &r, x, o);
    ml_json_put_word(o, "status", status_of(&p));
    ml_json_put_int(o, "n_turn", p.n);
    put_cache_info(&p, o);
    ml_json_key(o, "metadata");
    ml_json_begin(o, '{');
    if (v->kind == ML_SESSION_TREE) {
        put_mismatch(leaf, x, o, count, a);
        put_ids(leaf, o, a);
        put_leaf(leaf, o, a);
    }
    ml_json_end(o, '}');
    ml_json_end(o, '}');
    return true;
}

void ml_session_samples_write(const ml_session_view *v, const ml_session_text *x,
                              int64_t max_tokens, ml_json_out *o, int64_t *count,
                              ml_arena *scratch) {
    int64_t unused[ML_MISMATCH_TYPES] = { 0 };
    bool tree = v->kind == ML_SESSION_TREE;
    int32_t n = 0;

    ml_json_begin(o, '{');
    ml_json_key(o, "samples");
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < v->n; i++)
        if (tree ? v->leaf[i] : v->node[i] == v->head)
            n += put_sample(v->node[i], v, x, max_tokens, o, count, scratch);
    ml_json_end(o, ']');
    ml_json_key(o, "session_metadata");
    put_session_metadata(v, x, o, tree ? unused : count, scratch);
    ml_json_put_word(o, "empty_reason",
                     n         ? NULL
                     : v->head ? "all_truncated"
                               : "no_records");
    ml_json_end(o, '}');
}

/* --- records ------------------------------------------------------------------------------------ */

static const char *finish_name(const ml_session_node *n) {
    return n->finish == ML_FINISH_LENGTH  ? "length"
           : n->finish == ML_FINISH_ABORT ? "abort"
                                          : "stop";
}

static void put_record(const ml_session_node *n, ml_json_out *o, ml_arena *a) {
    const ml_json *last = n->raw->child;
    int32_t *token = ML_NEW(a, int32_t, n->n_token + 2);
    ml_json_list messages = ml_json_list_begin(a, ML_JSON_ARRAY);

    while (last->next)
        last = last->next;
    ml_session_path_tokens(n, token);
    ml_session_path_messages(n, true, &messages);
    ml_json_begin(o, '{');
    ml_json_key(o, "timestamp");
    ml_json_exact(o, n->time);
    ml_json_put_word(o, "response_id", n->id);
    ml_json_key(o, "messages");
    ml_json_tree_write(o, messages.list);
    ml_json_key(o, "tools");
    ml_json_tree_write(o, n->tools);
    ml_json_key(o, "message");
    ml_json_tree_write(o, last);
    ml_json_put_word(o, "finish_reason", finish_name(n));
    ml_json_key(o, "input_ids");
    ml_json_ids(o, token, n->n_prompt);
    ml_json_key(o, "output_ids");
    ml_json_ids(o, token + n->n_prompt, n->n_token - n->n_prompt);
    ml_json_key(o, "output_log_probs");
    ml_json_floats(o, n->logprob, n->n_token - n->n_prompt);
    ml_json_end(o, '}');
}

void ml_session_write(const ml_session *s, const ml_session_view *v,
                      const ml_session_text *x, ml_json_out *o, int64_t *count,
                      ml_arena *scratch) {
    ml_json_begin(o, '{');
    ml_json_put_word(o, "session_id", s->id);
    ml_json_key(o, "records");
    ml_json_begin(o, '[');
    if (v->head) {
        path p = path_to(v->head, scratch);
        for (int32_t i = 0; i < p.n_all; i++)
            put_record(p.node[i], o, scratch);
    }
    ml_json_end(o, ']');
    ml_json_key(o, "metadata");
    put_session_metadata(v, x, o, count, scratch);
    ml_json_end(o, '}');
}
