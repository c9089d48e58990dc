#include "io/pickle.h"

#include <inttypes.h>
#include <string.h>

/* A growing array of nodes in the arena. */
typedef struct nodes {
    ml_pickle **at;
    int32_t n, cap;
} nodes;

typedef struct parser {
    ml_arena *a;
    ml_str src;
    size_t pos, op_at, base;
    const char *name;
    nodes stack, memo, external;
    int32_t *mark; /* stack heights */
    int32_t n_mark, cap_mark;
    ml_err *err;
} parser;

/* --- errors and bytes ----------------------------------------------------------- */

static ml_status fail(const parser *p, const char *what) {
    return ml_fail(p->err, ML_EFORMAT, "%s: byte %zu of the pickle: %s", p->name,
                   p->base + p->op_at, what);
}

static ml_status fail_truncated(const parser *p) {
    return ml_fail(
        p->err, ML_EFORMAT,
        "%s: the pickle ends at byte %zu inside an opcode; the file is truncated", p->name,
        p->base + p->src.len);
}

static bool take(parser *p, size_t n, const unsigned char **out) {
    if (n > p->src.len - p->pos)
        return false;
    *out = (const unsigned char *)p->src.ptr + p->pos;
    p->pos += n;
    return true;
}

static bool take_uint(parser *p, size_t n, uint64_t *out) {
    const unsigned char *b;

    *out = 0;
    if (!take(p, n, &b))
        return false;
    for (size_t i = n; i > 0; i--)
        *out = *out << 8 | b[i - 1];
    return true;
}

static bool take_line(parser *p, ml_str *out) {
    const char *from = p->src.ptr + p->pos;
    const char *end = memchr(from, '\n', p->src.len - p->pos);

    if (!end)
        return false;
    *out = (ml_str){ from, (size_t)(end - from) };
    p->pos += out->len + 1;
    return true;
}

/* --- nodes ------------------------------------------------------------------------ */

static ml_pickle *new_node(parser *p, ml_pickle_type type) {
    ml_pickle *v = ML_NEW(p->a, ml_pickle, 1);
    v->type = (uint8_t)type;
    v->at = p->base + p->op_at;
    return v;
}

static void grow(parser *p, ml_pickle ***at, int32_t n, int32_t *cap) {
    ml_pickle **more;

    if (n < *cap)
        return;
    *cap = *cap ? 2 * *cap : 4;
    more = ML_NEW(p->a, ml_pickle *, *cap);
    if (n)
        memcpy(more, *at, (size_t)n * sizeof *more);
    *at = more;
}

static void add(parser *p, nodes *to, ml_pickle *v) {
    grow(p, &to->at, to->n, &to->cap);
    to->at[to->n++] = v;
}

static ml_status push(parser *p, ml_pickle *v) {
    add(p, &p->stack, v);
    return ML_OK;
}

static ml_status push_int(parser *p, int64_t i) {
    ml_pickle *v = new_node(p, ML_PICKLE_INT);
    v->i = i;
    return push(p, v);
}

static ml_status push_bool(parser *p, bool b) {
    ml_pickle *v = new_node(p, ML_PICKLE_BOOL);
    v->i = b;
    return push(p, v);
}

/* A node below the last mark belongs to another collection. */
static int32_t floor_of(const parser *p) {
    return p->n_mark ? p->mark[p->n_mark - 1] : 0;
}

static ml_pickle *pop(parser *p) {
    return p->stack.n > floor_of(p) ? p->stack.at[--p->stack.n] : NULL;
}

static ml_pickle *top(const parser *p) {
    return p->stack.n > floor_of(p) ? p->stack.at[p->stack.n - 1] : NULL;
}

static void set_mark(parser *p) {
    if (p->n_mark == p->cap_mark) {
        int32_t cap = p->cap_mark ? 2 * p->cap_mark : 16;
        int32_t *more = ML_NEW(p->a, int32_t, cap);
        if (p->n_mark)
            memcpy(more, p->mark, (size_t)p->n_mark * sizeof *more);
        p->mark = more;
        p->cap_mark = cap;
    }
    p->mark[p->n_mark++] = p->stack.n;
}

/* The nodes since the last mark, which are removed from the stack. */
static bool take_mark(parser *p, ml_pickle ***items, int32_t *n) {
    int32_t from;

    if (!p->n_mark)
        return false;
    from = p->mark[--p->n_mark];
    *items = from ? p->stack.at + from : p->stack.at; /* NULL: nothing was pushed */
    *n = p->stack.n - from;
    p->stack.n = from;
    return *n < INT32_MAX / 2;
}

static void append(parser *p, ml_pickle *to, ml_pickle *const *items, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        grow(p, &to->item, to->n, &to->cap);
        to->item[to->n++] = items[i];
    }
}

static ml_status push_items(parser *p, ml_pickle_type type, ml_pickle *const *items,
                            int32_t n) {
    ml_pickle *v = new_node(p, type);
    append(p, v, items, n);
    return push(p, v);
}

static ml_status push_marked(parser *p, ml_pickle_type type) {
    ml_pickle **items;
    int32_t n;

    if (!take_mark(p, &items, &n))
        return fail(p, "there is no mark before the end of a collection");
    if (type == ML_PICKLE_DICT && n % 2)
        return fail(p, "a dict has a key without a value");
    return push_items(p, type, items, n);
}

static ml_status push_tuple(parser *p, int32_t n) {
    if (p->stack.n - floor_of(p) < n)
        return fail(p, "a tuple has fewer items than its opcode says");
    p->stack.n -= n;
    return push_items(p, ML_PICKLE_TUPLE, p->stack.at + p->stack.n, n);
}

/* The node that receives items: of a call, its items. */
static ml_pickle *receiver(parser *p, ml_pickle *v, ml_pickle_type type) {
    if (v && v->type == ML_PICKLE_CALL) {
        if (!v->call->items)
            v->call->items = new_node(p, type);
        v = v->call->items;
    }
    return v && v->type == type ? v : NULL;
}

static ml_status add_items(parser *p, ml_pickle_type type, ml_pickle *const *items,
                           int32_t n) {
    ml_pickle *to = receiver(p, top(p), type);

    if (!to)
        return fail(p, "items are added to something that is no list, set or dict");
    if (type == ML_PICKLE_DICT && n % 2)
        return fail(p, "a dict has a key without a value");
    if (to->n + n >= INT32_MAX / 2)
        return fail(p, "a collection has more than a billion items");
    append(p, to, items, n);
    return ML_OK;
}

static ml_status add_marked(parser *p, ml_pickle_type type) {
    ml_pickle **items;
    int32_t n;

    if (!take_mark(p, &items, &n))
        return fail(p, "there is no mark before items are added");
    return add_items(p, type, items, n);
}

static ml_status add_top(parser *p, ml_pickle_type type, int32_t n) {
    if (p->stack.n - floor_of(p) < n + 1)
        return fail(p, "items are added to an empty stack");
    p->stack.n -= n;
    return add_items(p, type, p->stack.at + p->stack.n, n);
}

/* --- text and numbers --------------------------------------------------------------- */

static ml_status push_text(parser *p, ml_pickle_type type, size_t length_bytes) {
    uint64_t n;
    const unsigned char *b;
    ml_pickle *v;

    if (!take_uint(p, length_bytes, &n) || n > SIZE_MAX || !take(p, (size_t)n, &b))
        return fail_truncated(p);
    v = new_node(p, type);
    v->text = (ml_str){ (const char *)b, (size_t)n };
    return push(p, v);
}

static ml_status push_long(parser *p, size_t length_bytes) {
    uint64_t n, x = 0;
    const unsigned char *b;
    ml_pickle *v;

    if (!take_uint(p, length_bytes, &n) || n > INT32_MAX || !take(p, (size_t)n, &b))
        return fail_truncated(p);
    if (n > ML_PICKLE_LONG_BYTES)
        return fail(p, "an int has more than 4096 bits");
    if (n > 8) {
        v = new_node(p, ML_PICKLE_LONG);
        v->text = (ml_str){ (const char *)b, (size_t)n };
        return push(p, v);
    }
    if (n && b[n - 1] & 0x80)
        x = UINT64_MAX; /* the sign's bits */
    for (size_t i = (size_t)n; i > 0; i--)
        x = x << 8 | b[i - 1];
    return push_int(p, (int64_t)x);
}

static ml_status push_uint(parser *p, size_t n) {
    uint64_t x;
    if (!take_uint(p, n, &x))
        return fail_truncated(p);
    return push_int(p, n == 4 ? (int32_t)(uint32_t)x : (int64_t)x);
}

static ml_status push_float(parser *p) {
    const unsigned char *b;
    uint64_t x = 0;
    ml_pickle *v;

    if (!take(p, 8, &b))
        return fail_truncated(p);
    for (int i = 0; i < 8; i++)
        x = x << 8 | b[i];
    v = new_node(p, ML_PICKLE_FLOAT);
    memcpy(&v->f, &x, sizeof v->f);
    return push(p, v);
}

/* --- names and calls ---------------------------------------------------------------- */

static ml_status push_global(parser *p, ml_str module, ml_str name) {
    ml_pickle *v = new_node(p, ML_PICKLE_GLOBAL);
    char *text;

    if (memchr(module.ptr, 0, module.len) || memchr(name.ptr, 0, name.len))
        return fail(p, "the name of a class or function contains a NUL");
    if (module.len + name.len > 1000)
        return fail(p, "the name of a class or function has more than 1000 bytes");
    text = ml_arena_printf(p->a, "%.*s.%.*s", (int)module.len, module.ptr, (int)name.len,
                           name.ptr);
    v->text = ml_str_of(text);
    return push(p, v);
}

static ml_status global_of_lines(parser *p) {
    ml_str module, name;
    if (!take_line(p, &module) || !take_line(p, &name))
        return fail_truncated(p);
    return push_global(p, module, name);
}

static ml_status global_of_stack(parser *p) {
    ml_pickle *name = pop(p), *module = name ? pop(p) : NULL;
    if (!module || module->type != ML_PICKLE_STR || name->type != ML_PICKLE_STR)
        return fail(p, "a class or function is named by something other than two strings");
    return push_global(p, module->text, name->text);
}

/* n: the arguments below which the function is; with a dict of keywords, two. */
static ml_status push_call(parser *p, int n) {
    ml_pickle *keywords = n == 2 ? pop(p) : NULL;
    ml_pickle *args = n == 1 || keywords ? pop(p) : NULL;
    ml_pickle *fn = args ? pop(p) : NULL;
    ml_pickle *v;

    if (!fn || args->type != ML_PICKLE_TUPLE ||
        (fn->type != ML_PICKLE_GLOBAL && fn->type != ML_PICKLE_CALL))
        return fail(p, "a call has no function and tuple of arguments before it");
    v = new_node(p, ML_PICKLE_CALL);
    v->call = ML_NEW(p->a, ml_pickle_call, 1);
    *v->call = (ml_pickle_call){ .fn = fn, .args = args, .state = keywords };
    return push(p, v);
}

static ml_status build(parser *p) {
    ml_pickle *state = pop(p), *v = top(p);

    if (!state || !v || v->type != ML_PICKLE_CALL)
        return fail(p, "a state is set on something that is no object");
    v->call->state = state;
    return ML_OK;
}

static ml_status push_external(parser *p) {
    ml_pickle *id = pop(p), *v;

    if (!id)
        return fail(p, "a persistent id is missing");
    v = new_node(p, ML_PICKLE_PERSISTENT);
    append(p, v, &id, 1);
    add(p, &p->external, v);
    return push(p, v);
}

/* --- memo --------------------------------------------------------------------------- */

static ml_status memoize(parser *p, uint64_t i) {
    ml_pickle *v = top(p);

    if (!v)
        return fail(p, "an empty stack is memoized");
    if (i > p->src.len || i > INT32_MAX / 2) /* an entry needs at least a byte */
        return fail(p, "a memo index exceeds the length of the pickle");
    while ((uint64_t)p->memo.n <= i)
        add(p, &p->memo, NULL);
    p->memo.at[i] = v;
    return ML_OK;
}

static ml_status memoize_at(parser *p, size_t n) {
    uint64_t i;
    return take_uint(p, n, &i) ? memoize(p, i) : fail_truncated(p);
}

static ml_status recall(parser *p, size_t n) {
    uint64_t i;

    if (!take_uint(p, n, &i))
        return fail_truncated(p);
    if (i >= (uint64_t)p->memo.n || !p->memo.at[i])
        return fail(p, "a memo entry is read that was not written");
    return push(p, p->memo.at[i]);
}

/* --- opcodes ------------------------------------------------------------------------ */

static ml_status read_protocol(parser *p) {
    uint64_t v;
    if (!take_uint(p, 1, &v))
        return fail_truncated(p);
    if (v < 2 || v > 5)
        return fail(p, "the pickle has another protocol than 2 to 5");
    return ML_OK;
}

static ml_status skip_frame(parser *p) {
    uint64_t n;
    if (!take_uint(p, 8, &n))
        return fail_truncated(p);
    return n > p->src.len - p->pos ? fail(p, "a frame ends after the file") : ML_OK;
}

static ml_status drop(parser *p) {
    ml_pickle **items;
    int32_t n;
    if (pop(p) || take_mark(p, &items, &n))
        return ML_OK;
    return fail(p, "an empty stack is popped");
}

static ml_status duplicate(parser *p) {
    ml_pickle *v = top(p);
    return v ? push(p, v) : fail(p, "an empty stack is duplicated");
}

static ml_status drop_marked(parser *p) {
    ml_pickle **items;
    int32_t n;
    return take_mark(p, &items, &n) ? ML_OK : fail(p, "there is no mark to return to");
}

static ml_status fail_opcode(const parser *p, int op) {
    return ml_fail(p->err, ML_EUNSUP,
                   "%s: byte %zu of the pickle: opcode 0x%02x is not one that protocols 2 "
                   "to 5 write for data",
                   p->name, p->base + p->op_at, (unsigned)op);
}

static ml_status run_collection(parser *p, int op) {
    switch (op) {
    case '(': set_mark(p); return ML_OK;
    case '0': return drop(p);
    case '1': return drop_marked(p);
    case '2': return duplicate(p);
    case ']': return push_items(p, ML_PICKLE_LIST, NULL, 0);
    case 'l': return push_marked(p, ML_PICKLE_LIST);
    case 'a': return add_top(p, ML_PICKLE_LIST, 1);
    case 'e': return add_marked(p, ML_PICKLE_LIST);
    case ')': return push_items(p, ML_PICKLE_TUPLE, NULL, 0);
    case 't': return push_marked(p, ML_PICKLE_TUPLE);
    case 0x85: return push_tuple(p, 1);
    case 0x86: return push_tuple(p, 2);
    case 0x87: return push_tuple(p, 3);
    case '}': return push_items(p, ML_PICKLE_DICT, NULL, 0);
    case 'd': return push_marked(p, ML_PICKLE_DICT);
    case 's': return add_top(p, ML_PICKLE_DICT, 2);
    case 'u': return add_marked(p, ML_PICKLE_DICT);
    case 0x8f: return push_items(p, ML_PICKLE_SET, NULL, 0);
    case 0x90: return add_marked(p, ML_PICKLE_SET);
    case 0x91: return push_marked(p, ML_PICKLE_SET); /* frozenset */
    default: return fail_opcode(p, op);
    }
}

static ml_status run_value(parser *p, int op) {
    switch (op) {
    case 'N': return push(p, new_node(p, ML_PICKLE_NONE));
    case 0x88: return push_bool(p, true);
    case 0x89: return push_bool(p, false);
    case 'J': return push_uint(p, 4);
    case 'K': return push_uint(p, 1);
    case 'M': return push_uint(p, 2);
    case 0x8a: return push_long(p, 1);
    case 0x8b: return push_long(p, 4);
    case 'G': return push_float(p);
    case 'U': /* str of Python 2 */
    case 0x8c: return push_text(p, ML_PICKLE_STR, 1);
    case 'T': /* str of Python 2 */
    case 'X': return push_text(p, ML_PICKLE_STR, 4);
    case 0x8d: return push_text(p, ML_PICKLE_STR, 8);
    case 'C': return push_text(p, ML_PICKLE_BYTES, 1);
    case 'B': return push_text(p, ML_PICKLE_BYTES, 4);
    case 0x8e:
    case 0x96: /* bytearray */ return push_text(p, ML_PICKLE_BYTES, 8);
    default: return run_collection(p, op);
    }
}

static ml_status run(parser *p, int op) {
    switch (op) {
    case 0x80: return read_protocol(p);
    case 0x95: return skip_frame(p);
    case 'c': return global_of_lines(p);
    case 0x93: return global_of_stack(p);
    case 'R':
    case 0x81: return push_call(p, 1);
    case 0x92: return push_call(p, 2);
    case 'b': return build(p);
    case 'Q': return push_external(p);
    case 'q': return memoize_at(p, 1);
    case 'r': return memoize_at(p, 4);
    case 0x94: return memoize(p, (uint64_t)p->memo.n);
    case 'h': return recall(p, 1);
    case 'j': return recall(p, 4);
    default: return run_value(p, op);
    }
}

/* --- the whole ---------------------------------------------------------------------- */

/* What a node refers to, in order; NULL after the last. */
static ml_pickle *child_of(const ml_pickle *v, int32_t i) {
    switch (v->type) {
    case ML_PICKLE_LIST:
    case ML_PICKLE_TUPLE:
    case ML_PICKLE_SET:
    case ML_PICKLE_DICT:
    case ML_PICKLE_PERSISTENT: return i < v->n ? v->item[i] : NULL;
    case ML_PICKLE_CALL: {
        ml_pickle *of[4] = { v->call->fn, v->call->args }, **to = of + 2;
        if (v->call->items)
            *to++ = v->call->items;
        if (v->call->state)
            *to = v->call->state;
        return i < 4 ? of[i] : NULL;
    }
    default: return NULL;
    }
}

#define OPEN 255 /* the depth of a node on the way down */

static bool is_leaf(const ml_pickle *v) {
    return !child_of(v, 0) || v->type == ML_PICKLE_GLOBAL;
}

static ml_status fail_node(const parser *p, const ml_pickle *v, const char *what) {
    return ml_fail(p->err, ML_EFORMAT, "%s: byte %zu of the pickle: %s", p->name, v->at,
                   what);
}

/* Sets the depth and size of a subtree; refuses cycles and trees beyond the limits. */
static ml_status measure(const parser *p, ml_pickle *v, int32_t level) {
    ml_pickle *child;
    uint64_t n = 1;
    uint8_t depth = 0;
    bool leaf = is_leaf(v);

    if (v->depth == OPEN)
        return fail_node(p, v, "a value contains itself");
    if (v->depth)
        return level + v->depth <= ML_PICKLE_DEPTH
                   ? ML_OK
                   : fail_node(p, v, "values are nested more than 200 deep");
    if (level >= ML_PICKLE_DEPTH)
        return fail_node(p, v, "values are nested more than 200 deep");
    v->depth = OPEN;
    for (int32_t i = 0; !leaf && (child = child_of(v, i)); i++) {
        ml_status st = measure(p, child, level + 1);
        if (st != ML_OK)
            return st;
        n += is_leaf(child) ? 1 : child->n_node;
        depth = child->depth > depth ? child->depth : depth;
        if (n > ML_PICKLE_NODES)
            return fail_node(p, v, "shared values expand to more than 2000000000");
    }
    v->depth = (uint8_t)(depth + 1);
    if (!leaf)
        v->n_node = (uint32_t)n;
    return ML_OK;
}

static ml_status finish(parser *p, ml_pickle_doc *out) {
    ml_pickle *root = pop(p);

    if (!root || p->stack.n || p->n_mark)
        return fail(p, "the stack does not have exactly one value at the end");
    *out = (ml_pickle_doc){ .root = root,
                            .end = p->pos,
                            .external = p->external.at,
                            .n_external = (int32_t)p->external.n };
    return measure(p, root, 0);
}

ml_status ml_pickle_parse(ml_pickle_doc *out, ml_arena *a, ml_str src, size_t base,
                          const char *name, ml_err *err) {
    parser p = { .a = a, .src = src, .base = base, .name = name, .err = err };
    ml_status st = ML_OK;

    if (src.len < 2 || (unsigned char)src.ptr[0] != 0x80)
        return ml_fail(err, ML_EFORMAT,
                       "%s: at byte %zu a pickle was expected, which begins with the byte "
                       "0x80 and its protocol",
                       name, base);
    while (st == ML_OK) {
        p.op_at = p.pos;
        if (p.pos == src.len)
            return fail_truncated(&p);
        if (p.stack.n > INT32_MAX / 4)
            return fail(&p, "the stack has more than 500 million values");
        if (src.ptr[p.pos++] == '.')
            return finish(&p, out);
        st = run(&p, (unsigned char)src.ptr[p.pos - 1]);
    }
    return st;
}

/* --- access --------------------------------------------------------------------------- */

const ml_pickle *ml_pickle_items(const ml_pickle *v) {
    if (v && v->type == ML_PICKLE_CALL)
        v = v->call->items;
    return v && v->type >= ML_PICKLE_LIST && v->type <= ML_PICKLE_DICT ? v : NULL;
}

const ml_pickle *ml_pickle_get(const ml_pickle *v, const char *key) {
    const ml_pickle *found = NULL;

    v = ml_pickle_items(v);
    for (int32_t i = 0; v && v->type == ML_PICKLE_DICT && i + 1 < v->n; i += 2)
        if (ml_pickle_is_str(v->item[i], key))
            found = v->item[i + 1];
    return found;
}

const ml_pickle *ml_pickle_attr(const ml_pickle *v, const char *name) {
    return v && v->type == ML_PICKLE_CALL ? ml_pickle_get(v->call->state, name) : NULL;
}

bool ml_pickle_is_call(const ml_pickle *v, const char *name) {
    return v && v->type == ML_PICKLE_CALL && v->call->fn->type == ML_PICKLE_GLOBAL &&
           ml_str_is(v->call->fn->text, name);
}

const ml_pickle *ml_pickle_arg(const ml_pickle *v, int32_t i) {
    if (!v || v->type != ML_PICKLE_CALL || i >= v->call->args->n)
        return NULL;
    return v->call->args->item[i];
}

bool ml_pickle_is_str(const ml_pickle *v, const char *text) {
    return v && v->type == ML_PICKLE_STR && ml_str_is(v->text, text);
}

const char *ml_pickle_what(const ml_pickle *v) {
    static const char *const names[] = {
        [ML_PICKLE_NONE] = "None",      [ML_PICKLE_BOOL] = "a bool",
        [ML_PICKLE_INT] = "an int",     [ML_PICKLE_LONG] = "an int of more than 64 bits",
        [ML_PICKLE_FLOAT] = "a float",  [ML_PICKLE_STR] = "a string",
        [ML_PICKLE_BYTES] = "bytes",    [ML_PICKLE_LIST] = "a list",
        [ML_PICKLE_TUPLE] = "a tuple",  [ML_PICKLE_SET] = "a set",
        [ML_PICKLE_DICT] = "a dict",    [ML_PICKLE_GLOBAL] = "a class or function",
        [ML_PICKLE_CALL] = "an object", [ML_PICKLE_PERSISTENT] = "a persistent id",
    };
    return v ? names[v->type] : "nothing";
}
