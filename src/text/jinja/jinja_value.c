/* Creates values, and implements Python's operations on them. */
#include <math.h>
#include <string.h>

#include "text/jinja/jinja_priv.h"

/* --- strings and sequences ---------------------------------------------------------------- */

ml_jval ml_jstr_view(ml_jrun *r, ml_str s) {
    ml_jstr *p = ML_JNEW(r, ml_jstr, 1);
    *p = (ml_jstr){ .ptr = s.ptr, .len = s.len, .n_char = ml_jstr_count_chars(s) };
    return (ml_jval){ .kind = ML_J_STR, .s = p };
}

ml_jval ml_jstr_copy(ml_jrun *r, ml_str s) {
    char *p = ml_jrun_take(r, s.len + 1, 1);
    if (s.len)
        memcpy(p, s.ptr, s.len);
    return ml_jstr_view(r, (ml_str){ p, s.len });
}

ml_jval ml_jstr_of(ml_jrun *r, const char *s) {
    return ml_jstr_view(r, ml_str_of(s));
}

ml_jval ml_jstr_char(ml_jrun *r, uint32_t c) {
    char s[4];
    int n = ml_utf8_put(s, c);
    return ml_jstr_copy(r, (ml_str){ s, (size_t)n });
}

ml_jval ml_jstr_mark(ml_jrun *r, ml_jval s, bool markup) {
    ml_jstr *p;

    if (s.s->markup == markup)
        return s;
    p = ML_JNEW(r, ml_jstr, 1);
    *p = *s.s;
    p->markup = markup;
    return (ml_jval){ .kind = ML_J_STR, .s = p };
}

ml_jval ml_jseq_new(ml_jrun *r, ml_jkind kind, const ml_jval *item, int64_t n) {
    ml_jseq *s = ML_JNEW(r, ml_jseq, 1);

    s->n = n;
    s->item = ML_JNEW(r, ml_jval, n);
    if (n)
        memcpy(s->item, item, (size_t)n * sizeof *item);
    return (ml_jval){ .kind = kind, .seq = s };
}

ml_jval ml_jview_new(ml_jrun *r, const ml_jdict *d, ml_jview_part part) {
    ml_jview *v = ML_JNEW(r, ml_jview, 1);
    *v = (ml_jview){ d, part };
    return (ml_jval){ .kind = ML_J_VIEW, .view = v };
}

void ml_jitems_add(ml_jrun *r, ml_jitems *l, ml_jval v) {
    if (l->n == l->cap) {
        int64_t cap = l->cap ? l->cap * 2 : 8;
        ml_jval *item = ML_JNEW(r, ml_jval, cap);
        if (l->n)
            memcpy(item, l->item, (size_t)l->n * sizeof *item);
        l->item = item;
        l->cap = cap;
    }
    l->item[l->n++] = v;
}

ml_jval ml_jitems_list(ml_jrun *r, const ml_jitems *l) {
    return ml_jseq_new(r, ML_J_LIST, l->item, l->n);
}

/* --- undefined ----------------------------------------------------------------------------- */

static ml_jval undefined(ml_jrun *r, ml_jundef u) {
    ml_jundef *p = ML_JNEW(r, ml_jundef, 1);
    *p = u;
    return (ml_jval){ .kind = ML_J_UNDEFINED, .undef = p };
}

ml_jval ml_jundef_hint(ml_jrun *r, ml_str hint) {
    return undefined(r, (ml_jundef){ .error = "UndefinedError", .hint = hint });
}

ml_jval ml_jundef_name(ml_jrun *r, ml_str name) {
    return undefined(
        r, (ml_jundef){ .error = "UndefinedError", .name = ml_jstr_view(r, name) });
}

ml_jval ml_jundef_attr(ml_jrun *r, ml_jval obj, ml_jval name) {
    return undefined(r, (ml_jundef){ .error = "UndefinedError", .obj = obj, .name = name });
}

ml_jval ml_jundef_unsafe(ml_jrun *r, ml_jval obj, ml_str name) {
    ml_jbuf b = { 0 };

    ml_jbuf_printf(r, &b, "access to attribute ");
    ml_jval_repr(r, &b, ml_jstr_view(r, name));
    ml_jbuf_printf(r, &b, " of '%s' object is unsafe.", ml_jval_type(obj));
    return undefined(r, (ml_jundef){ .error = "SecurityError", .hint = { b.ptr, b.len } });
}

/* --- dicts --------------------------------------------------------------------------------- */

#define FEW 8 /* dicts of up to this many pairs are searched linearly */

ml_jdict *ml_jdict_new(ml_jrun *r, int64_t n_expected) {
    ml_jdict *d = ML_JNEW(r, ml_jdict, 1);
    d->cap = n_expected;
    d->pair = ML_JNEW(r, ml_jpair, n_expected);
    return d;
}

ml_jval ml_jdict_value(ml_jdict *d) {
    return (ml_jval){ .kind = ML_J_DICT, .dict = d };
}

static bool same_key(ml_jrun *r, const ml_jpair *p, ml_jval key, uint64_t hash) {
    return p->hash == hash && ml_jval_eq(r, p->key, key);
}

static ml_jpair *find_pair(ml_jrun *r, const ml_jdict *d, ml_jval key, uint64_t hash) {
    if (!d->slot) {
        for (int64_t i = 0; i < d->n; i++)
            if (same_key(r, &d->pair[i], key, hash))
                return &d->pair[i];
        return NULL;
    }
    for (uint64_t at = hash;; at++) {
        int32_t i = d->slot[at & (uint64_t)(d->n_slot - 1)];
        if (!i)
            return NULL;
        if (same_key(r, &d->pair[i - 1], key, hash))
            return &d->pair[i - 1];
    }
}

static void fill_slot(ml_jdict *d, int64_t i) {
    uint64_t at = d->pair[i].hash;

    while (d->slot[at & (uint64_t)(d->n_slot - 1)])
        at++;
    d->slot[at & (uint64_t)(d->n_slot - 1)] = (int32_t)(i + 1);
}

static void grow(ml_jrun *r, ml_jdict *d) {
    if (d->n == d->cap) {
        int64_t cap = d->cap ? d->cap * 2 : 4;
        ml_jpair *pair = ML_JNEW(r, ml_jpair, cap);
        if (d->n)
            memcpy(pair, d->pair, (size_t)d->n * sizeof *pair);
        d->pair = pair;
        d->cap = cap;
    }
    if (d->n < FEW || d->n * 2 < d->n_slot)
        return;
    d->n_slot = d->n_slot ? d->n_slot * 2 : 4 * FEW;
    d->slot = ML_JNEW(r, int32_t, d->n_slot);
    for (int64_t i = 0; i < d->n; i++)
        fill_slot(d, i);
}

void ml_jdict_set(ml_jrun *r, ml_jdict *d, ml_jval key, ml_jval value) {
    uint64_t hash;
    ml_jpair *p;

    if (!ml_jval_hash(r, key, &hash))
        ml_jraise(r, "TypeError", "unhashable type: '%s'", ml_jval_type(key));
    p = find_pair(r, d, key, hash);
    if (p) {
        p->value = value;
        return;
    }
    grow(r, d);
    d->pair[d->n++] = (ml_jpair){ key, value, hash };
    if (d->slot)
        fill_slot(d, d->n - 1);
}

const ml_jval *ml_jdict_get(ml_jrun *r, const ml_jdict *d, ml_jval key) {
    uint64_t hash;
    const ml_jpair *p;

    if (!ml_jval_hash(r, key, &hash))
        return NULL;
    p = find_pair(r, d, key, hash);
    return p ? &p->value : NULL;
}

const ml_jval *ml_jdict_name(ml_jrun *r, const ml_jdict *d, ml_str key) {
    ml_jstr s = { .ptr = key.ptr, .len = key.len };
    return ml_jdict_get(r, d, (ml_jval){ .kind = ML_J_STR, .s = &s });
}

/* --- predicates and comparisons
 * ------------------------------------------------------------ */

const char *ml_jval_type(ml_jval v) {
    static const char *const names[] = {
        [ML_J_MISSING] = "Undefined",
        [ML_J_UNDEFINED] = "Undefined",
        [ML_J_NONE] = "NoneType",
        [ML_J_BOOL] = "bool",
        [ML_J_INT] = "int",
        [ML_J_BIGINT] = "int",
        [ML_J_FLOAT] = "float",
        [ML_J_STR] = "str",
        [ML_J_LIST] = "list",
        [ML_J_TUPLE] = "tuple",
        [ML_J_DICT] = "dict",
        [ML_J_RANGE] = "range",
        [ML_J_NAMESPACE] = "Namespace",
        [ML_J_MACRO] = "Macro",
        [ML_J_METHOD] = "builtin_function_or_method",
        [ML_J_FUNC] = "function",
        [ML_J_LOOP] = "LoopContext",
        [ML_J_CYCLER] = "Cycler",
        [ML_J_JOINER] = "Joiner",
        [ML_J_SELF] = "TemplateReference",
        [ML_J_BLOCK] = "BlockReference",
    };
    static const char *const views[] = { "dict_keys", "dict_values", "dict_items" };

    if (v.kind == ML_J_VIEW)
        return views[v.view->part];
    if (v.kind == ML_J_ITER)
        return v.iter->type;
    if (v.kind == ML_J_STR && v.s->markup)
        return "Markup";
    if (v.kind == ML_J_FUNC && v.func->is_class)
        return "type";
    return names[v.kind];
}

int64_t ml_jval_len(ml_jval v) {
    switch (v.kind) {
    case ML_J_UNDEFINED: return 0;
    case ML_J_STR: return v.s->n_char;
    case ML_J_LIST:
    case ML_J_TUPLE: return v.seq->n;
    case ML_J_DICT: return v.dict->n;
    case ML_J_VIEW: return v.view->dict->n;
    case ML_J_RANGE: return v.range->n;
    default: return -1;
    }
}

bool ml_jval_truth(ml_jrun *r, ml_jval v) {
    (void)r;
    switch (v.kind) {
    case ML_J_MISSING:
    case ML_J_UNDEFINED:
    case ML_J_NONE: return false;
    case ML_J_BOOL: return v.b;
    case ML_J_INT: return v.i != 0;
    case ML_J_FLOAT: return v.f != 0;
    default: return ml_jval_len(v) != 0;
    }
}

double ml_jval_f64(ml_jval v) {
    switch (v.kind) {
    case ML_J_BOOL: return v.b;
    case ML_J_INT: return (double)v.i;
    case ML_J_FLOAT: return v.f;
    default: return (double)NAN; /* BIGINT: callers reject it */
    }
}

static uint64_t mix(uint64_t h) {
    h ^= h >> 31;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t hash_bytes(ml_str s) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < s.len; i++)
        h = (h ^ (unsigned char)s.ptr[i]) * 0x100000001b3u;
    return mix(h);
}

/* Equal numbers have equal hashes, whatever their types. */
static uint64_t hash_number(ml_jval v) {
    uint64_t bits;
    int64_t i;

    if (ml_jval_i64(v, &i))
        return mix((uint64_t)i);
    if (fabs(v.f) < 9223372036854775808.0 && v.f == (double)(int64_t)v.f)
        return mix((uint64_t)(int64_t)v.f);
    memcpy(&bits, &v.f, sizeof bits);
    return mix(bits);
}

bool ml_jval_hash(ml_jrun *r, ml_jval v, uint64_t *out) {
    bool ok = true;

    *out = (uint64_t)v.kind;
    switch (v.kind) {
    case ML_J_BOOL:
    case ML_J_INT:
    case ML_J_FLOAT: *out = hash_number(v); return true;
    case ML_J_STR:
    case ML_J_BIGINT: *out = hash_bytes(ml_jstr_get(v)); return true;
    case ML_J_LIST:
    case ML_J_DICT:
    case ML_J_VIEW: return false;
    case ML_J_TUPLE:
        ml_jrun_enter(r);
        for (int64_t i = 0; i < v.seq->n && ok; i++) {
            uint64_t h;
            ok = ml_jval_hash(r, v.seq->item[i], &h);
            *out = mix(*out ^ h);
        }
        ml_jrun_leave(r);
        return ok;
    default: return true; /* by identity: one bucket */
    }
}

static bool eq_numbers(ml_jval a, ml_jval b) {
    int64_t i, k;

    if (ml_jval_i64(a, &i) && ml_jval_i64(b, &k))
        return i == k;
    return ml_jval_f64(a) == ml_jval_f64(b);
}

static bool eq_seqs(ml_jrun *r, const ml_jseq *a, const ml_jseq *b) {
    if (a->n != b->n)
        return false;
    ml_jrun_step(r, a->n / 4);
    for (int64_t i = 0; i < a->n; i++)
        if (!ml_jval_eq(r, a->item[i], b->item[i]))
            return false;
    return true;
}

static bool eq_dicts(ml_jrun *r, const ml_jdict *a, const ml_jdict *b) {
    if (a->n != b->n)
        return false;
    for (int64_t i = 0; i < a->n; i++) {
        const ml_jval *v = ml_jdict_get(r, b, a->pair[i].key);
        if (!v || !ml_jval_eq(r, a->pair[i].value, *v))
            return false;
    }
    return true;
}

static bool eq_ranges(const ml_jrange *a, const ml_jrange *b) {
    return a->n == b->n && (a->n == 0 || a->start == b->start) &&
           (a->n < 2 || a->step == b->step);
}

bool ml_jval_eq(ml_jrun *r, ml_jval a, ml_jval b) {
    bool is;

    if (a.kind == ML_J_BIGINT || b.kind == ML_J_BIGINT)
        return a.kind == b.kind && ml_str_eq(ml_jstr_get(a), ml_jstr_get(b));
    if (ml_jval_is_number(a) && ml_jval_is_number(b))
        return eq_numbers(a, b);
    if (a.kind != b.kind)
        return false;
    ml_jrun_enter(r);
    switch (a.kind) {
    case ML_J_MISSING:
    case ML_J_UNDEFINED:
    case ML_J_NONE: is = true; break;
    case ML_J_STR:
        ml_jrun_step(r, a.s->len == b.s->len ? (int64_t)a.s->len / 64 : 0);
        is = ml_str_eq(ml_jstr_get(a), ml_jstr_get(b));
        break;
    case ML_J_LIST:
    case ML_J_TUPLE: is = eq_seqs(r, a.seq, b.seq); break;
    case ML_J_DICT: is = eq_dicts(r, a.dict, b.dict); break;
    case ML_J_RANGE: is = eq_ranges(a.range, b.range); break;
    default: is = a.iter == b.iter;
    }
    ml_jrun_leave(r);
    return is;
}

static int sign(int64_t a, int64_t b) {
    return a < b ? -1 : a > b;
}

static int cmp_strs(ml_jval a, ml_jval b) {
    size_t n = a.s->len < b.s->len ? a.s->len : b.s->len;
    int c = n ? memcmp(a.s->ptr, b.s->ptr, n) : 0;
    return c ? (c < 0 ? -1 : 1) : sign((int64_t)a.s->len, (int64_t)b.s->len);
}

static int cmp_numbers(ml_jval a, ml_jval b) {
    int64_t i, k;
    double x, y;

    if (ml_jval_i64(a, &i) && ml_jval_i64(b, &k))
        return sign(i, k);
    x = ml_jval_f64(a);
    y = ml_jval_f64(b);
    if (isnan(x) || isnan(y))
        return 2;
    return x < y ? -1 : x > y;
}

static int cmp_seqs(ml_jrun *r, const ml_jseq *a, const ml_jseq *b, const char *op) {
    for (int64_t i = 0; i < a->n && i < b->n; i++)
        if (!ml_jval_eq(r, a->item[i], b->item[i])) {
            int c;
            ml_jrun_enter(r);
            c = ml_jval_cmp(r, a->item[i], b->item[i], op);
            ml_jrun_leave(r);
            return c;
        }
    return sign(a->n, b->n);
}

/* More than 64 bits: the sign, then the number of digits, then the digits. */
static int cmp_bigints(ml_jval a, ml_jval b) {
    bool minus_a = a.kind == ML_J_BIGINT ? a.s->ptr[0] == '-' : false;
    bool minus_b = b.kind == ML_J_BIGINT ? b.s->ptr[0] == '-' : false;
    int c;

    if (a.kind != ML_J_BIGINT)
        return minus_b ? 1 : -1;
    if (b.kind != ML_J_BIGINT || minus_a != minus_b)
        return minus_a ? -1 : 1;
    c = a.s->len != b.s->len ? sign((int64_t)a.s->len, (int64_t)b.s->len) : cmp_strs(a, b);
    return minus_a ? -c : c;
}

int ml_jval_cmp(ml_jrun *r, ml_jval a, ml_jval b, const char *op) {
    if (a.kind == ML_J_UNDEFINED)
        ml_jraise_undef(r, a);
    if (b.kind == ML_J_UNDEFINED)
        ml_jraise_undef(r, b);
    if (ml_jval_is_number(a) && ml_jval_is_number(b))
        return a.kind == ML_J_BIGINT || b.kind == ML_J_BIGINT ? cmp_bigints(a, b)
                                                              : cmp_numbers(a, b);
    if (a.kind == ML_J_STR && b.kind == ML_J_STR) {
        ml_jrun_step(r, (int64_t)(a.s->len < b.s->len ? a.s->len : b.s->len) / 64);
        return cmp_strs(a, b);
    }
    if ((a.kind == ML_J_LIST || a.kind == ML_J_TUPLE) && a.kind == b.kind)
        return cmp_seqs(r, a.seq, b.seq, op);
    ml_jraise(r, "TypeError", "'%s' not supported between instances of '%s' and '%s'", op,
              ml_jval_type(a), ml_jval_type(b));
}

/* A stable merge sort.  As in Python, it tests whether the later item is smaller, and
 * compares the first two items first. */
static void sort(ml_jrun *r, ml_jpair *p, ml_jpair *scratch, int64_t n, bool reverse) {
    int64_t half = (n + 1) / 2, i = 0, k = half, at = 0;

    if (n < 2)
        return;
    sort(r, p, scratch, half, reverse);
    sort(r, p + half, scratch, n - half, reverse);
    while (i < half && k < n) {
        bool later_first = reverse ? ml_jval_cmp(r, p[i].key, p[k].key, "<") == -1
                                   : ml_jval_cmp(r, p[k].key, p[i].key, "<") == -1;
        scratch[at++] = later_first ? p[k++] : p[i++];
    }
    while (i < half)
        scratch[at++] = p[i++];
    while (k < n)
        scratch[at++] = p[k++];
    for (i = 0; i < n; i++)
        p[i] = scratch[i];
}

void ml_jpairs_sort(ml_jrun *r, ml_jpair *p, int64_t n, bool reverse) {
    sort(r, p, ML_JNEW(r, ml_jpair, n), n, reverse);
}
