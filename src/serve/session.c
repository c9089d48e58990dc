#include "serve/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/bug.h"
#include "base/clock.h"
#include "base/oom.h"
#include "serve/chat_messages.h"
#include "serve/json_tree.h"

#define BUCKETS 4096

struct ml_session_table {
    ml_session_opts opts;
    ml_session *bucket[BUCKETS];
    int64_t n;
    double swept_s;
};

/* --- the table ---------------------------------------------------------------------- */

ml_session_table *ml_session_table_new(const ml_session_opts *opts) {
    ml_session_table *t = ml_memory_grow(NULL, sizeof *t, "sessions");

    memset(t, 0, sizeof *t);
    t->opts = *opts;
    t->swept_s = ml_clock_s();
    return t;
}

const ml_session_opts *ml_session_table_opts(const ml_session_table *t) {
    return &t->opts;
}

int64_t ml_session_table_count(const ml_session_table *t) {
    return t->n;
}

/* Ids are random: four digits of one are a hash. */
static ml_session **bucket_of(ml_session_table *t, const char *id) {
    uint32_t h = 0;

    for (int i = 0; i < 4; i++)
        h = h * 16 + (uint32_t)(id[i] <= '9' ? id[i] - '0' : id[i] - 'a' + 10);
    return &t->bucket[h % BUCKETS];
}

static void free_session(ml_session *s) {
    ml_arena arena = s->arena;
    ml_session_node *next;

    for (ml_session_node *n = s->first; n; n = next) {
        ml_arena a = n->arena;
        next = n->next;
        ml_arena_release(&a);
    }
    pthread_mutex_destroy(&s->lock);
    ml_arena_release(&arena);
}

void ml_session_use(ml_session *s) {
    s->n_ref++;
    s->n_busy++;
    s->used_s = ml_clock_s();
}

void ml_session_leave(ml_session *s) {
    s->n_busy--;
    s->used_s = ml_clock_s();
    if (--s->n_ref == 0)
        free_session(s);
}

void ml_session_delete(ml_session *s) {
    ml_session_table *t = s->table;

    if (s->prev)
        s->prev->next = s->next;
    else
        *bucket_of(t, s->id) = s->next;
    if (s->next)
        s->next->prev = s->prev;
    t->n--;
    s->table = NULL;
    if (--s->n_ref == 0)
        free_session(s);
}

/* Deletes the idle sessions, or those of an owner. */
static void sweep(ml_session_table *t, double idle_before_s, ml_str owner) {
    ml_session *next;

    for (int i = 0; i < BUCKETS; i++)
        for (ml_session *s = t->bucket[i]; s; s = next) {
            next = s->next;
            if ((s->n_busy == 0 && s->used_s < idle_before_s) ||
                (owner.len && ml_str_eq(s->owner, owner)))
                ml_session_delete(s);
        }
}

void ml_session_table_free(ml_session_table *t) {
    if (!t)
        return;
    for (int i = 0; i < BUCKETS; i++)
        while (t->bucket[i])
            ml_session_delete(t->bucket[i]);
    free(t);
}

static ml_status new_id(char *out, ml_err *err) {
    unsigned char bytes[16];

    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return ml_fail(err, ML_EIO, "no random bytes for the id of a session");
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return ML_OK;
}

ml_status ml_session_open(ml_session **out, ml_session_table *t, ml_str owner,
                          ml_err *err) {
    double now = ml_clock_s();
    char id[ML_SESSION_ID] = "";
    ml_session *s, **at;
    ml_arena arena;
    ml_status st = new_id(id, err);

    if (st)
        return st;
    if (owner.len || now - t->swept_s > ML_SESSION_IDLE_S / 10) {
        sweep(t, now - ML_SESSION_IDLE_S, owner);
        t->swept_s = now;
    }
    if (t->n >= ML_SESSION_MAX)
        return ml_fail(err, ML_EAGAIN, "there are %d sessions already: delete some",
                       ML_SESSION_MAX);
    ml_arena_init(&arena, "a session");
    s = ML_NEW(&arena, ml_session, 1);
    *s = (ml_session){
        .arena = arena, .opts = &t->opts, .table = t, .n_ref = 1, .used_s = now
    };
    s->owner = ml_str_keep(&s->arena, owner);
    memcpy(s->id, id, sizeof id);
    ML_BUG_IF(pthread_mutex_init(&s->lock, NULL));
    at = bucket_of(t, id);
    s->next = *at;
    if (*at)
        (*at)->prev = s;
    *at = s;
    t->n++;
    *out = s;
    return ML_OK;
}

ml_session *ml_session_find(ml_session_table *t, ml_str id) {
    if (id.len != ML_SESSION_ID - 1)
        return NULL;
    for (size_t i = 0; i < id.len; i++)
        if (!((id.ptr[i] >= '0' && id.ptr[i] <= '9') ||
              (id.ptr[i] >= 'a' && id.ptr[i] <= 'f')))
            return NULL;
    for (ml_session *s = *bucket_of(t, id.ptr); s; s = s->next)
        if (memcmp(s->id, id.ptr, id.len) == 0)
            return s;
    return NULL;
}

/* --- options ---------------------------------------------------------------------------- */

#define FOUR_ROLES "tool user system assistant"
#define THREE_ROLES "tool user assistant"

/* Miles' families: the template options that keep the reasoning of earlier answers. */
static const struct {
    const char *name, *kwargs, *roles;
} families[] = {
    { "default", NULL, NULL },
    { "qwen3", "{\"clear_thinking\": false}", FOUR_ROLES },
    { "qwen35", "{\"clear_thinking\": false}", THREE_ROLES },
    { "qwennext", "{\"clear_thinking\": false}", FOUR_ROLES },
    { "glm47", "{\"clear_thinking\": false}", FOUR_ROLES },
    { "nemotron3", "{\"truncate_history_thinking\": false}", FOUR_ROLES },
    { "kimi25", "{\"preserve_thinking\": true}", FOUR_ROLES },
    { "kimi26", "{\"preserve_thinking\": true}", FOUR_ROLES },
    { "minimax_m25", "{\"clear_thinking\": false}", THREE_ROLES },
    { "minimax_m27", "{\"clear_thinking\": false}", THREE_ROLES },
    { "deepseekv32", "{\"drop_thinking\": false}", FOUR_ROLES },
    { "deepseekv4", NULL, THREE_ROLES },
    { "inkling", NULL, FOUR_ROLES },
};

static ml_status join_kwargs(ml_session_opts *o, ml_arena *a, const char *own,
                             const char *given, ml_err *err) {
    ml_json_list all = ml_json_list_begin(a, ML_JSON_OBJECT);
    const ml_json *x = NULL, *y = NULL;
    ml_status st = ML_OK;

    if (own)
        st = ml_json_parse(&x, a, ml_str_of(own), "--tito-model", err);
    if (st == ML_OK && given)
        st = ml_json_parse(&y, a, ml_str_of(given), "--apply-chat-template-kwargs", err);
    for (const ml_json *v = x ? x->child : NULL; v && st == ML_OK; v = v->next) {
        const ml_json *other = ml_json_get(y, ml_arena_str(a, v->key.ptr, v->key.len));
        if (other && !ml_json_tree_equal(v, other, true))
            st = ml_fail(err, ML_EUSAGE,
                         "--apply-chat-template-kwargs sets %.*s, which --tito-model sets "
                         "to another value: remove one of the two",
                         (int)v->key.len, v->key.ptr);
    }
    if (st != ML_OK)
        return st;
    if (x)
        ml_json_list_join(&all, x);
    if (y)
        ml_json_list_join(&all, y);
    o->kwargs = x || y ? all.list : NULL;
    return ML_OK;
}

ml_message_matcher ml_message_matcher_find(const char *name) {
    static const char *const names[] = { "strict", "loose_tool_call", "role_content_only" };

    for (int i = 0; i < ML_MATCH_FUNCTION; i++)
        if (strcmp(name, names[i]) == 0)
            return (ml_message_matcher)i;
    return ML_MATCH_FUNCTION;
}

ml_status ml_session_opts_make(ml_session_opts *out, ml_arena *a, int kind,
                               const char *matcher, ml_match_fn match, const char *family,
                               const char *kwargs, ml_err *err) {
    *out = (ml_session_opts){ .on = kind > 0,
                              .kind = (ml_session_kind)(kind > 0 ? kind - 1 : 0),
                              .matcher = ml_message_matcher_find(matcher),
                              .match = match };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].name, family) == 0) {
            out->roles = families[i].roles;
            return join_kwargs(out, a, families[i].kwargs, kwargs, err);
        }
    return ml_fail(err, ML_EUSAGE, "--tito-model %s is unknown", family);
}

/* --- equal messages ------------------------------------------------------------------- */

/* Missing, null and "" are the same. */
static ml_str text_of(const ml_json *message, const char *key) {
    const ml_json *v = ml_json_get(message, key);
    return v && v->type == ML_JSON_STRING ? v->text : (ml_str){ "", 0 };
}

static bool same_text(const ml_json *a, const ml_json *b, const char *key) {
    return ml_str_eq(text_of(a, key), text_of(b, key));
}

/* A call as sent and for templates, where arguments in a string have become JSON. */
typedef struct call {
    const ml_json *raw, *normal;
} call;

/* As they were sent, if both are strings; otherwise, and if `loose`, as values. */
static bool same_arguments(const ml_json *a, const ml_json *b, const ml_json *value_a,
                           const ml_json *value_b, bool loose) {
    bool text = a && b && a->type == ML_JSON_STRING && b->type == ML_JSON_STRING;

    if (text && (!loose || ml_str_eq(a->text, b->text)))
        return ml_str_eq(a->text, b->text);
    if (!value_a || !value_b)
        return !value_a && !value_b;
    return ml_json_tree_equal(value_a, value_b, loose);
}

static const ml_json *arguments_of(const ml_json *v) {
    return ml_json_get(ml_json_get(v, "function"), "arguments");
}

static bool same_call(call a, call b, bool loose) {
    return same_text(a.raw, b.raw, "id") &&
           same_text(ml_json_get(a.raw, "function"), ml_json_get(b.raw, "function"),
                     "name") &&
           same_arguments(arguments_of(a.raw), arguments_of(b.raw), arguments_of(a.normal),
                          arguments_of(b.normal), loose);
}

static const ml_json *calls_of(const ml_json *message) {
    const ml_json *v = ml_json_get(message, "tool_calls");
    return v && v->type == ML_JSON_ARRAY ? v->child : NULL;
}

static call next_call(call c) {
    return (call){ c.raw->next, c.normal->next };
}

static bool same_calls(call a, call b, bool loose) {
    for (; a.raw && b.raw; a = next_call(a), b = next_call(b))
        if (!same_call(a, b, loose))
            return false;
    return !a.raw && !b.raw;
}

bool ml_session_same_message(ml_message_matcher m, const ml_json *raw_a,
                             const ml_json *normal_a, const ml_json *raw_b,
                             const ml_json *normal_b) {
    if (!same_text(raw_a, raw_b, "role") || !same_text(normal_a, normal_b, "content"))
        return false;
    if (m == ML_MATCH_ROLE_CONTENT_ONLY)
        return true;
    return same_text(raw_a, raw_b, "reasoning_content") &&
           same_calls((call){ calls_of(raw_a), calls_of(normal_a) },
                      (call){ calls_of(raw_b), calls_of(normal_b) },
                      m == ML_MATCH_LOOSE_TOOL_CALL);
}

/* --- attaching a request ---------------------------------------------------------------- */

/* A comparison of a request's messages with the recorded ones. */
typedef struct compare {
    const ml_session_opts *opts;
    const ml_session_turn *turn;
    ml_status st; /* of the user's function */
    ml_err *err;
} compare;

/* The number of messages of the node, from its first, that the request repeats. */
static int32_t count_same(compare *c, const ml_session_node *n) {
    const ml_json *raw = n->raw->child, *normal = n->normal->child, *raw_left = n->raw_left,
                  *normal_left = n->normal_left;
    int32_t k = 0;

    if (c->opts->matcher == ML_MATCH_FUNCTION) {
        if (c->st == ML_OK && raw_left)
            c->st = c->opts->match(raw, raw_left, &k, c->err);
        return c->st == ML_OK ? k : 0;
    }
    for (; raw && raw_left &&
           ml_session_same_message(c->opts->matcher, raw, normal, raw_left, normal_left);
         k++) {
        raw = raw->next;
        normal = normal->next;
        raw_left = raw_left->next;
        normal_left = normal_left->next;
    }
    return k;
}

/* Whether the request repeats the node's messages after those of its parent, whose result
 * is there already: parents are older than their children. */
static bool pass_node(compare *c, ml_session_node *n) {
    const ml_session_node *p = n->parent;

    n->raw_left = p ? p->raw_left : c->turn->raw->child;
    n->normal_left = p ? p->normal_left : c->turn->normal->child;
    n->passed = (!p || p->passed) && count_same(c, n) == n->raw->n;
    for (int32_t i = 0; n->passed && i < n->raw->n; i++) {
        n->raw_left = n->raw_left->next;
        n->normal_left = n->normal_left->next;
    }
    return n->passed;
}

/* The deepest node that the request repeats; of equal ones the latest. */
static ml_session_node *deepest(const ml_session *s, compare *c) {
    ml_session_node *best = NULL;

    for (ml_session_node *n = s->first; n; n = n->next)
        if (pass_node(c, n) && (!best || n->n_message >= best->n_message))
            best = n;
    return best;
}

static ml_status attach_tree(const ml_session *s, compare *c, ml_session_turn *t,
                             ml_err *err) {
    t->parent = deepest(s, c);
    if (c->st != ML_OK)
        return c->st;
    if (t->parent && t->parent->finish == ML_FINISH_LENGTH)
        return ml_fail(err, ML_EUSAGE,
                       "the answer to be continued was cut off (finish_reason length): a "
                       "conversation cannot continue after it; branch before it");
    return ML_OK;
}

static ml_session_node *path_pass(compare *c, ml_session_node *n) {
    ml_session_node *best = n->parent ? path_pass(c, n->parent) : NULL;

    return pass_node(c, n) ? n : best;
}

/* Linear: the end of the path, or the node before it. */
static ml_status attach_path(ml_session *s, compare *c, ml_session_turn *t, ml_err *err) {
    ml_session_node *best = s->head ? path_pass(c, s->head) : NULL;

    if (c->st != ML_OK)
        return c->st;
    if (best != s->head && best != s->head->parent)
        return ml_fail(err, ML_EUSAGE,
                       "the messages differ from the recorded ones before the last "
                       "answer: a linear session (v1) discards one answer at most; "
                       "repeat the history, or use --use-session-server v2");
    if (best != s->head) {
        s->head = best;
        s->n_change++;
    }
    t->parent = best;
    return ML_OK;
}

ml_status ml_session_attach(ml_session *s, ml_session_turn *t, ml_err *err) {
    const ml_session_opts *o = s->opts;
    compare c = { .opts = o, .turn = t, .err = err };
    ml_status st;

    pthread_mutex_lock(&s->lock);
    st = o->kind == ML_SESSION_TREE ? attach_tree(s, &c, t, err)
                                    : attach_path(s, &c, t, err);
    t->n_matched = t->parent ? t->parent->n_message : 0;
    t->n_change = s->n_change;
    t->seed = s->seed + 0x9E3779B97F4A7C15U * ++s->n_request;
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* --- recording an answer ------------------------------------------------------------------ */

/* An array of copies of the elements from `skip` on, and of `last`. */
static ml_json *copy_from(ml_arena *a, const ml_json *list, int32_t skip,
                          const ml_json *last) {
    ml_json_list out = ml_json_list_begin(a, ML_JSON_ARRAY);
    int32_t i = 0;

    for (const ml_json *v = list->child; v; v = v->next)
        if (i++ >= skip)
            ml_json_list_add(&out, ml_json_tree_copy(a, v));
    ml_json_list_add(&out, last);
    return out.list;
}

static ml_status take_messages(ml_session_node *n, const ml_session_turn *t, ml_str message,
                               ml_err *err) {
    ml_arena *a = &n->arena;
    ml_str text = { ml_arena_str(a, message.ptr, message.len), message.len };
    const ml_json *raw = NULL, *list = NULL;
    ml_json one = { .type = ML_JSON_ARRAY, .n = 1 };
    ml_status st = ml_json_parse(&raw, a, text, "the answer", err);

    one.child = raw;
    if (st == ML_OK)
        st = ml_chat_messages_read(&list, &one, a, err);
    if (st)
        return st;
    n->raw = copy_from(a, t->raw, t->n_matched, raw);
    n->normal = copy_from(a, t->normal, t->n_matched, list->child);
    n->n_message = t->n_matched + n->raw->n;
    return ML_OK;
}

static void take_tokens(ml_session_node *n, const int32_t *prompt,
                        const ml_scored *answer) {
    int32_t n_new = n->n_prompt - n->keep, n_drawn = answer->n;
    int32_t *token = ML_NEW(&n->arena, int32_t, n_new + n_drawn + 1);
    float *logprob = ML_NEW(&n->arena, float, n_drawn + 1);
    int64_t *version = ML_NEW(&n->arena, int64_t, n_drawn + 1);

    if (n_new)
        memcpy(token, prompt + n->keep, (size_t)n_new * sizeof *token);
    for (int32_t i = 0; i < n_drawn; i++) {
        token[n_new + i] = answer->id[i];
        logprob[i] = answer->logprob[i];
        version[i] = answer->version ? (int64_t)answer->version[i] : 0;
    }
    n->token = token;
    n->logprob = logprob;
    n->version = version;
}

ml_status ml_session_turn_end(ml_session_turn *t, const ml_json *tools, ml_str message,
                              const int32_t *prompt, int32_t n_prompt,
                              const ml_scored *answer, ml_finish finish, ml_err *err) {
    ml_arena arena;
    ml_session_node *n;

    ml_arena_init(&arena, "an answer of a session");
    n = ML_NEW(&arena, ml_session_node, 1);
    n->arena = arena;
    t->node = n;
    n->parent = t->parent;
    n->keep = t->keep;
    n->n_prompt = n_prompt;
    n->n_token = n_prompt + answer->n;
    n->finish = finish;
    n->time = ml_clock_unix_s();
    n->tools = tools ? ml_json_tree_copy(&n->arena, tools) : NULL;
    take_tokens(n, prompt, answer);
    return take_messages(n, t, message, err);
}

bool ml_session_commit(ml_session *s, ml_session_turn *t) {
    bool linear = s->opts->kind == ML_SESSION_LINEAR;
    bool good;

    pthread_mutex_lock(&s->lock);
    good =
        s->table && s->n_node < ML_SESSION_NODES && !(linear && s->n_change != t->n_change);
    if (good) {
        t->node->seq = s->n_node++;
        if (s->last)
            s->last->next = t->node;
        else
            s->first = t->node;
        s->last = s->head = t->node;
        if (t->node->parent)
            t->node->parent->n_child++;
        s->n_change++;
        t->node = NULL;
    } else {
        s->n_lost++;
    }
    pthread_mutex_unlock(&s->lock);
    return good;
}

void ml_session_turn_release(ml_session_turn *t) {
    ml_arena arena;

    if (!t->node)
        return;
    arena = t->node->arena;
    t->node = NULL;
    ml_arena_release(&arena);
}

/* --- paths --------------------------------------------------------------------------- */

/* The first `n` tokens of the path. */
static void fill(const ml_session_node *node, int32_t *out, int32_t n) {
    if (node->parent)
        fill(node->parent, out, n < node->keep ? n : node->keep);
    if (n > node->keep)
        memcpy(out + node->keep, node->token, (size_t)(n - node->keep) * sizeof *out);
}

void ml_session_path_tokens(const ml_session_node *n, int32_t *out) {
    fill(n, out, n->n_token);
}

void ml_session_path_messages(const ml_session_node *n, bool raw, ml_json_list *list) {
    if (n->parent)
        ml_session_path_messages(n->parent, raw, list);
    ml_json_list_join(list, raw ? n->raw : n->normal);
}
