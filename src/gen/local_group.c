/* local_group.c - weights over TCP: groups that an engine has joined, and updates from them.
 *
 * An update writes into a second set, which replaces the first when it is complete: a
 * connection that breaks in the middle changes nothing.  Each rank of an engine has its own
 * connection, and packs its own rows. */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "base/bug.h"
#include "base/json.h"
#include "gen/local_priv.h"
#include "model/weights_checksum.h"

#define TIMEOUT_S 300.0
#define WHERE "weights over TCP"

/* --- members of a request ------------------------------------------------------ */

static const char *text_of(const ml_json *body, const char *key, ml_arena *a) {
    const ml_json *v = ml_json_get(body, key);

    return v && v->type == ML_JSON_STRING ? ml_arena_str(a, v->text.ptr, v->text.len)
                                          : NULL;
}

static int64_t number_of(const ml_json *body, const char *key, int64_t otherwise) {
    const ml_json *v = ml_json_get(body, key);
    int64_t n;

    return v && ml_json_i64(v, &n) ? n : otherwise;
}

/* --- groups ------------------------------------------------------------------- */

static ml_local_group **find_group(ml_local *l, const char *name) {
    ml_local_group **at = &l->groups;

    ML_BUG_IF(!name); /* the server has checked the request */
    while (*at && strcmp((*at)->name, name) != 0)
        at = &(*at)->next;
    return at;
}

static void leave(ml_local_group **at) {
    ml_local_group *g = *at;

    if (!g)
        return;
    *at = g->next;
    ml_weight_link_close(&g->link);
    free(g);
}

static void drop_incoming(ml_local *l) {
    ml_weight_set_free(l->incoming.set);
    l->incoming = (ml_incoming){ 0 };
}

void ml_local_leave_groups(ml_local *l) {
    while (l->groups)
        leave(&l->groups);
    drop_incoming(l);
}

/* A group of the same name is replaced: its trainer may have started again. */
static ml_status join(ml_local *l, const ml_json *body, ml_arena *a, ml_err *err) {
    int32_t rank = l->group.orders ? l->group.orders->rank : 0;
    ml_weight_link_opts o = { .host = text_of(body, "master_address", a),
                              .port = (int)number_of(body, "master_port", 0),
                              .group = text_of(body, "group_name", a),
                              .key = text_of(body, "group_key", a),
                              .rank = (int32_t)number_of(body, "rank_offset", 1) + rank,
                              .world = (int32_t)number_of(body, "world_size", 2),
                              .timeout_s = (double)number_of(body, "timeout_s", 0) };
    ml_local_group *g;
    ml_status st;

    if (l->opts.weights)
        return ml_fail(err, ML_EUNSUP,
                       "this engine gets its weights from the run that it is a part of");
    o.timeout_s = o.timeout_s > 0 ? o.timeout_s : TIMEOUT_S;
    leave(find_group(l, o.group));
    g = calloc(1, sizeof *g);
    if (!g)
        return ml_fail(err, ML_ENOMEM, "out of memory for a group");
    snprintf(g->name, sizeof g->name, "%s", o.group);
    st = ml_weight_link_open(&g->link, &o, err);
    if (st != ML_OK) {
        free(g);
        return st;
    }
    g->next = l->groups;
    l->groups = g;
    return ML_OK;
}

static ml_status fail_no_group(const char *name, ml_err *err) {
    return ml_fail(err, ML_EPEER, /* after a restart, for instance */
                   "\"group_name\": there is no group %s; /init_weights_update_group opens "
                   "one",
                   name);
}

static ml_status destroy(ml_local *l, const ml_json *body, ml_arena *a, ml_err *err) {
    const char *name = text_of(body, "group_name", a);
    ml_local_group **at = find_group(l, name);

    if (!*at)
        return fail_no_group(name, err);
    leave(at);
    return ML_OK;
}

/* --- sets --------------------------------------------------------------------- */

static ml_status new_set(ml_weight_set **out, ml_err *err) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return ml_fail(err, ML_ENOMEM, "out of memory for a set of weights");
    (*out)->received = true;
    ml_arena_init(&(*out)->arena, "weights");
    return ML_OK;
}

/* The dtypes that the set would have if the weights came from files: f32 if the trainer sends
 * f32 and --dtype is auto, otherwise those of this engine's checkpoint. */
static ml_status new_layout(const ml_local *l, ml_weight_set *s, bool f32, ml_err *err) {
    const ml_local_opts *o = &l->opts;
    ml_weight_dtype dtype = ml_weights_dtype(o->be, o->dtype);
    ml_checkpoint *c = NULL;
    ml_status st = ML_OK;

    if (dtype == ML_WEIGHT_AUTO && f32)
        dtype = ML_WEIGHT_F32;
    if (dtype == ML_WEIGHT_AUTO && !o->dir)
        dtype = ML_WEIGHT_BF16;
    if (o->dir)
        st = ml_checkpoint_open(&c, o->dir, err);
    if (st == ML_OK)
        st = ml_weights_new(&s->w, o->spec, c, dtype, o->be, &s->arena, err);
    ml_checkpoint_close(c);
    return st;
}

static bool rounds(const ml_local *l) {
    return ml_weights_dtype(l->opts.be, l->opts.dtype) == ML_WEIGHT_BF16;
}

static ml_status begin(ml_local *l, const ml_json *body, ml_arena *a, ml_err *err) {
    const char *version = text_of(body, "weight_version", a),
               *dtype = text_of(body, "dtype", a);
    ml_incoming *in = &l->incoming;
    ml_status st;

    drop_incoming(l);
    st = new_set(&in->set, err);
    if (st == ML_OK)
        st = new_layout(l, in->set, dtype && strcmp(dtype, "float32") == 0, err);
    if (st != ML_OK) {
        drop_incoming(l);
        return st;
    }
    ml_str_copy(in->version, sizeof in->version, ml_str_of(version ? version : ""));
    ml_weight_inbox_init(&in->inbox, &in->set->w, l->opts.spec, rounds(l), &in->set->arena);
    return ML_OK;
}

/* --- an update ---------------------------------------------------------------- */

typedef struct update {
    ml_local_group *group;
    const char *version;
    ml_st_tensor *tensor; /* [n] those that the model uses */
    const char **name;
    int32_t n;
    size_t most; /* bytes of one */
} update;

static bool find_dtype(ml_st_dtype *out, ml_str name) {
    static const struct {
        const char *name;
        ml_st_dtype dtype;
    } known[] = { { "float32", ML_ST_F32 },
                  { "bfloat16", ML_ST_BF16 },
                  { "float16", ML_ST_F16 },
                  { "int64", ML_ST_I64 },
                  { "int32", ML_ST_I32 } };

    if (name.len > 6 && memcmp(name.ptr, "torch.", 6) == 0)
        name = (ml_str){ name.ptr + 6, name.len - 6 };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (ml_str_is(name, known[i].name)) {
            *out = known[i].dtype;
            return true;
        }
    return false;
}

static ml_status read_tensor(ml_st_tensor *t, const ml_json *name, const ml_json *dtype,
                             const ml_json *shape, ml_arena *a, ml_err *err) {
    if (!name || !dtype || !shape || name->type != ML_JSON_STRING ||
        dtype->type != ML_JSON_STRING || shape->type != ML_JSON_ARRAY ||
        memchr(name->text.ptr, 0, name->text.len))
        return ml_fail(err, ML_EUSAGE,
                       "\"names\", \"dtypes\" and \"shapes\": expected lists of the same "
                       "length, of strings, strings and lists of numbers");
    *t = (ml_st_tensor){ .name =
                             ml_str_of(ml_arena_str(a, name->text.ptr, name->text.len)) };
    if (!find_dtype(&t->dtype, dtype->text))
        return ml_fail(err, ML_EUSAGE,
                       "\"dtypes\": tensor %s has dtype %.*s; expected float32, bfloat16, "
                       "float16, int64 or int32",
                       t->name.ptr, (int)dtype->text.len, dtype->text.ptr);
    for (const ml_json *v = shape->child; v; v = v->next)
        if (t->n_dim == ML_ST_DIMS || !ml_json_i64(v, &t->shape[t->n_dim++]) ||
            t->shape[t->n_dim - 1] < 0)
            return ml_fail(err, ML_EUSAGE, "\"shapes\": the shape of %s is invalid",
                           t->name.ptr);
    return ml_st_size(t->dtype, t->shape, t->n_dim, &t->bytes)
               ? ML_OK
               : ml_fail(err, ML_EUSAGE, "\"shapes\": the size of %s overflows",
                         t->name.ptr);
}

static ml_status read_update(update *u, const ml_weight_inbox *x, const ml_json *body,
                             ml_arena *a, ml_err *err) {
    const ml_json *names = ml_json_get(body, "names"),
                  *dtypes = ml_json_get(body, "dtypes"),
                  *shapes = ml_json_get(body, "shapes"), *d, *s, *n;
    ml_status st = ML_OK;

    n = names ? names->child : NULL;
    d = dtypes ? dtypes->child : NULL;
    s = shapes ? shapes->child : NULL;
    u->tensor = ML_NEW(a, ml_st_tensor, names ? names->n + 1 : 1);
    u->name = ML_NEW(a, const char *, names ? names->n + 1 : 1);
    while ((n || d || s) && st == ML_OK) {
        ml_st_tensor *t = &u->tensor[u->n];
        bool wanted = false;
        st = read_tensor(t, n, d, s, a, err);
        if (st == ML_OK)
            st = ml_weight_inbox_check(x, t, &wanted, WHERE, err);
        u->name[u->n] = t->name.ptr;
        if (st == ML_OK && wanted) {
            u->most = t->bytes > u->most ? t->bytes : u->most;
            u->n++;
        }
        n = n ? n->next : NULL;
        d = d ? d->next : NULL;
        s = s ? s->next : NULL;
    }
    return st;
}

static ml_status receive(const update *u, ml_weight_inbox *x, ml_err *err) {
    void *bytes = malloc(u->most + 1);
    ml_status st =
        bytes ? ml_weight_inbox_begin(x, err)
              : ml_fail(err, ML_ENOMEM, "out of memory for a tensor of %zu bytes", u->most);

    if (st != ML_OK) {
        free(bytes);
        return st;
    }
    st = ml_weight_link_ask(&u->group->link, u->version, u->name, u->n, err);
    for (int32_t i = 0; i < u->n && st == ML_OK; i++) {
        ml_st_tensor t = u->tensor[i];
        t.data = bytes;
        st = ml_weight_link_take(&u->group->link, u->name[i], bytes, t.bytes, err);
        if (st == ML_OK)
            st = ml_weight_inbox_put(x, &t, WHERE, err);
    }
    if (st == ML_OK)
        st = ml_weight_inbox_end(x, err);
    else
        ml_weight_inbox_end(x, NULL);
    free(bytes);
    return st;
}

/* A link that failed in the middle of an answer is of no more use. */
static ml_status update_set(ml_local *l, ml_weight_inbox *x, const char *version,
                            const ml_json *body, ml_arena *a, ml_err *err) {
    const char *name = text_of(body, "group_name", a);
    ml_local_group **at = find_group(l, name);
    update u = { .group = *at, .version = version };
    ml_status st;

    if (!*at)
        return fail_no_group(name, err);
    st = read_update(&u, x, body, a, err);
    if (st != ML_OK)
        return st;
    st = receive(&u, x, err);
    if (st != ML_OK)
        leave(at);
    return st;
}

/* A copy of the weights in use, for a request that updates some of them. */
static ml_status update_alone(ml_local *l, ml_command *c, const ml_json *body,
                              ml_arena *a) {
    const char *version = text_of(body, "weight_version", a);
    ml_weight_inbox x;
    ml_status st;

    if (!l->own || l->no_weights)
        return ml_fail(c->err, ML_EUSAGE,
                       "the weights are released: take them back before the update");
    st = new_set(&c->set, c->err);
    if (st == ML_OK)
        st = ml_weights_clone(&c->set->w, &l->own->w, l->opts.be, &c->set->arena, c->err);
    if (st != ML_OK)
        return st;
    ml_weight_inbox_init(&x, &c->set->w, l->opts.spec, rounds(l), &c->set->arena);
    return update_set(l, &x, version ? version : "", body, a, c->err);
}

/* --- adapters ----------------------------------------------------------------- */

/* The tensors of a request as a list without values. */
static ml_status read_tensors(ml_st_file **out, const ml_json *body, ml_arena *a,
                              ml_err *err) {
    const ml_json *names = ml_json_get(body, "names"),
                  *dtypes = ml_json_get(body, "dtypes"),
                  *shapes = ml_json_get(body, "shapes"), *d, *s, *n;
    ml_st_file *f;
    ml_st_tensor *t;
    ml_status st = ML_OK;

    n = names ? names->child : NULL;
    d = dtypes ? dtypes->child : NULL;
    s = shapes ? shapes->child : NULL;
    *out = f = ml_st_new("the adapter over TCP", names ? names->n + 1 : 1, &t);
    while ((n || d || s) && st == ML_OK) {
        st = read_tensor(&t[f->n], n, d, s, a, err);
        if (st == ML_OK && !ml_map_add(&f->by_name, t[f->n].name, f->n))
            st = ml_fail(err, ML_EUSAGE, "\"names\": %s is there twice", t[f->n].name.ptr);
        if (st != ML_OK)
            return st;
        t[f->n].data = ML_NEW(&f->arena, char, t[f->n].bytes);
        f->n++;
        n = n ? n->next : NULL;
        d = d ? d->next : NULL;
        s = s ? s->next : NULL;
    }
    return st;
}

/* A link that failed in the middle of an answer is of no more use. */
static ml_status take_tensors(ml_local_group **at, const ml_st_file *f, const char *version,
                              ml_arena *a, ml_err *err) {
    const char **name = ML_NEW(a, const char *, f->n + 1);
    ml_status st;

    for (int32_t i = 0; i < f->n; i++)
        name[i] = f->tensor[i].name.ptr;
    st = ml_weight_link_ask(&(*at)->link, version, name, f->n, err);
    for (int32_t i = 0; i < f->n && st == ML_OK; i++)
        st =
            ml_weight_link_take(&(*at)->link, name[i], (void *)(uintptr_t)f->tensor[i].data,
                                f->tensor[i].bytes, err);
    if (st != ML_OK)
        leave(at);
    return st;
}

static ml_status receive_adapter(ml_local *l, ml_lora *out, const ml_json *body,
                                 ml_st_file **f, ml_arena *a, ml_err *err) {
    const char *group = text_of(body, "group_name", a),
               *version = text_of(body, "weight_version", a),
               *config = text_of(body, "config_text", a);
    ml_local_group **at = group ? find_group(l, group) : NULL;
    ml_status st;

    if (!at || !*at)
        return fail_no_group(group ? group : "without a name", err);
    if (!config)
        return ml_fail(err, ML_EUSAGE,
                       "expected \"config_text\", the text of adapter_config.json");
    st = read_tensors(f, body, a, err);
    if (st == ML_OK)
        st = take_tensors(at, *f, version ? version : "", a, err);
    if (st == ML_OK)
        st =
            ml_lora_load_tensors(out, l->opts.spec, ml_str_of(config), *f, l->opts.be, err);
    return st;
}

ml_status ml_local_receive_adapter(ml_local *l, ml_lora *out, const char *json,
                                   ml_err *err) {
    const ml_json *body;
    ml_st_file *f = NULL;
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "a request for an adapter");
    st = ml_json_parse(&body, &a, ml_str_of(json), "request body", err);
    if (st == ML_OK)
        st = receive_adapter(l, out, body, &f, &a, err);
    ml_st_close(f);
    ml_arena_release(&a);
    return st;
}

/* --- the end ------------------------------------------------------------------ */

static ml_status check_crc(const ml_local *l, const ml_weights *w, const char *want,
                           ml_err *err) {
    uint64_t crc = 0;
    ml_status st;

    if (!want || l->opts.spec->n_rank) /* it is one of whole matrices */
        return ML_OK;
    st = ml_weights_crc64(&crc, w, l->opts.spec, err);
    if (st == ML_OK && crc != strtoull(want, NULL, 16))
        st = ml_fail(
            err, ML_EFORMAT,
            "the trainer's weights have checksum %s, but the received ones %016llx: "
            "this engine keeps them in another dtype",
            want, (unsigned long long)crc);
    return st;
}

static ml_status end(ml_local *l, ml_command *c, const ml_json *body, ml_arena *a) {
    ml_incoming *in = &l->incoming;
    ml_status st;

    if (!in->set)
        return ml_fail(c->err, ML_EPEER,
                       "/end_weight_update without /begin_weight_update before it");
    st = ml_weight_inbox_complete(&in->inbox, WHERE, c->err);
    if (st == ML_OK)
        st = check_crc(l, &in->set->w, text_of(body, "weights_crc64", a), c->err);
    if (st == ML_OK) {
        c->set = in->set;
        in->set = NULL;
    }
    drop_incoming(l);
    return st;
}

static ml_status run(ml_local *l, ml_command *c, ml_arena *a) {
    const ml_json *body;
    ml_status st = ml_json_parse(&body, a, ml_str_of(c->dir), "request body", c->err);

    if (st != ML_OK)
        return st;
    switch (c->op) {
    case ML_GROUP_INIT: return join(l, body, a, c->err);
    case ML_GROUP_DESTROY: return destroy(l, body, a, c->err);
    case ML_GROUP_BEGIN: return begin(l, body, a, c->err);
    case ML_GROUP_UPDATE:
        return l->incoming.set
                   ? update_set(l, &l->incoming.inbox, l->incoming.version, body, a, c->err)
                   : update_alone(l, c, body, a);
    case ML_GROUP_END: return end(l, c, body, a);
    }
    return ML_OK;
}

ml_status ml_local_do_group(ml_local *l, ml_command *c) {
    ml_gen_stats now;
    ml_status st = ML_OK;
    ml_arena a;

    if (!c->set) { /* else this is a retry */
        ml_arena_init(&a, "a request for weights");
        st = ml_rank_group_agree(&l->group, run(l, c, &a), c->err);
        ml_arena_release(&a);
    }
    if (st == ML_OK && c->set) {
        ml_engine_stats(l->engine, &now);
        c->set->w.version = c->version ? c->version : now.version + 1;
        st = ml_local_replace(l, c);
    }
    if (st == ML_OK)
        free(c->dir);
    return st;
}
