#include "serve/adapters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/oom.h"
#include "serve/admin_priv.h"
#include "serve/weight_path.h"

struct ml_adapters {
    ml_server *server;
    ml_adapter *list; /* in the order of their first loads */
    ml_adapter_wait *first, **last;
    int32_t max_loaded; /* 0: any number */
    int32_t n_id;
    uint64_t clock; /* of uses */
    bool busy;      /* the admin thread fills or empties a slot */
    bool pumping;
};

static void pump(ml_adapters *a);

/* --- entries ------------------------------------------------------------------ */

static char *copy_of(ml_str s) {
    char *c = ml_memory_grow(NULL, s.len + 1, "an adapter's name");

    memcpy(c, s.ptr, s.len);
    c[s.len] = 0;
    return c;
}

static ml_adapter *add_entry(ml_adapters *a, ml_str name, ml_str dir, bool pinned) {
    ml_adapter *e = ml_memory_grow(NULL, sizeof *e, "an adapter"), **end = &a->list;

    *e = (ml_adapter){ .all = a,
                       .name = copy_of(name),
                       .dir = copy_of(dir),
                       .pinned = pinned,
                       .known = true };
    while (*end)
        end = &(*end)->next;
    *end = e;
    return e;
}

static void free_entry(ml_adapters *a, ml_adapter *e) {
    ml_adapter **at = &a->list;

    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    free(e->name);
    free(e->dir);
    free(e->json);
    free(e->crc64);
    free(e);
}

ml_adapter *ml_adapters_find(const ml_adapters *a, ml_str name) {
    for (ml_adapter *e = a ? a->list : NULL; e; e = e->next)
        if (e->known && ml_str_is(name, e->name))
            return e;
    return NULL;
}

const ml_adapter *ml_adapters_next(const ml_adapters *a, const ml_adapter *e) {
    const ml_adapter *at = e ? e->next : a ? a->list : NULL;

    while (at && !at->known)
        at = at->next;
    return at;
}

static void set_in(ml_adapters *a, ml_adapter *e, int32_t slot) {
    e->in = true;
    e->slot = slot;
    e->id = ++a->n_id;
    e->last_use = ++a->clock;
}

/* --- replies ------------------------------------------------------------------ */

/* SGLang's reply to loads and unloads. */
static void answer(ml_adapters *a, ml_http_call **call, const ml_err *err) {
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };
    ml_http_call *c = *call;

    *call = NULL;
    if (!c)
        return;
    ml_json_begin(&o, '{');
    ml_json_put_bool(&o, "success", !err);
    ml_json_put_word(&o, "error_message", err ? err->msg : "");
    ml_json_key(&o, "loaded_adapters");
    ml_json_begin(&o, '{');
    for (const ml_adapter *e = ml_adapters_next(a, NULL); e; e = ml_adapters_next(a, e))
        ml_json_put_word(&o, e->name, e->dir);
    ml_json_end(&o, '}');
    ml_json_end(&o, '}');
    ml_reply_json(c, err ? 400 : 200, &body);
    ml_text_release(&body);
}

static void refuse(ml_http_call *c, ml_adapters *a, const ml_err *err) {
    answer(a, &c, err);
}

/* --- slots, on the admin thread --------------------------------------------------- */

static void run_slot(ml_admin *admin, ml_admin_task *t) {
    const ml_server_opts *o = &admin->server->opts;
    ml_weight_roots roots = { o->weight_root, o->n_weight_root, o->model_path };

    t->st = ML_OK;
    if (t->dir && t->prefix)
        t->st =
            ml_weight_path_check(&t->dir, &t->arena, &roots, t->dir, "lora_path", &t->err);
    if (t->st == ML_OK)
        t->st = o->lora.set(o->gen, t->slot,
                            &(ml_adapter_source){ .dir = t->dir,
                                                  .json = t->source,
                                                  .version = t->version,
                                                  .how = admin->mode == ML_PAUSE_IN_PLACE
                                                             ? ML_SWITCH_INEXACT_KV
                                                             : ML_SWITCH_RECOMPUTE,
                                                  .crc64 = t->crc64 },
                            &t->err);
}

static void leave_queue(ml_adapters *a, ml_adapter_wait *w) {
    ml_adapter_wait **at = &a->first;

    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    if (!*at)
        a->last = at;
    w->queued = false;
    for (int32_t i = 0; i < w->n_need; i++)
        w->need[i]->n_wait--;
}

/* Removes a waiter from the queue and tells it. */
static void finish(ml_adapters *a, ml_adapter_wait *w, const ml_err *err) {
    leave_queue(a, w);
    if (err)
        ml_adapters_release(a, w);
    w->ready(w->ud, err);
}

static void label_version(ml_server *s, uint64_t version) {
    char number[24];

    snprintf(number, sizeof number, "%llu", (unsigned long long)version);
    if (version)
        ml_server_set_label(s, version, ml_str_of(number));
}

static void slot_done(ml_admin_task *t) {
    ml_adapter *e = t->adapter;
    ml_adapters *a = e->all;
    ml_adapter_wait *w = a->first;
    bool load = t->dir || t->source;

    a->busy = false;
    e->in = t->weights; /* of a replaced one that remains */
    if (load && t->st == ML_OK) {
        set_in(a, e, t->slot);
        label_version(a->server, t->version);
    } else if (load && w && w->n_held < w->n_need && w->need[w->n_held] == e) {
        finish(a, w, &t->err);
    }
    pump(a);
}

/* Loads an adapter into a slot, or empties its slot. */
static void begin_slot(ml_adapters *a, ml_adapter *e, int32_t slot, bool load) {
    ml_admin_task *t = ml_admin_new_task(a->server, NULL);

    t->adapter = e;
    t->slot = slot;
    t->dir = load && !e->json ? ml_arena_printf(&t->arena, "%s", e->dir) : NULL;
    t->source = load && e->json ? ml_arena_printf(&t->arena, "%s", e->json) : NULL;
    t->crc64 = e->crc64 ? ml_arena_printf(&t->arena, "%s", e->crc64) : NULL;
    t->version = load ? e->version : 0;
    t->weights = load && e->in;
    t->prefix = e->asked;
    t->run = run_slot;
    t->done = slot_done;
    e->in = e->leaving = e->stale = false; /* nobody may hold it meanwhile */
    a->busy = true;
    ml_admin_hand_over(t);
}

/* --- the queue ------------------------------------------------------------------ */

static bool is_needed(const ml_adapter_wait *w, const ml_adapter *e) {
    for (int32_t i = 0; i < w->n_need; i++)
        if (w->need[i] == e)
            return true;
    return false;
}

/* A slot without an adapter, or -1: as many are in memory as may be. */
static int32_t free_slot(const ml_adapters *a) {
    int32_t n = 0, slot = 0;
    const ml_adapter *e;

    for (e = a->list; e; e = e->next)
        n += e->in;
    if (a->max_loaded && n >= a->max_loaded)
        return -1;
    for (e = a->list; e;)
        if (e->in && e->slot == slot) {
            slot++;
            e = a->list;
        } else {
            e = e->next;
        }
    return slot;
}

/* Idle ones before others; among others, the one that is leaving already. */
static bool is_before(const ml_adapter *x, const ml_adapter *y) {
    if (!x->n_user != !y->n_user)
        return !x->n_user;
    if (x->leaving != y->leaving)
        return x->leaving;
    return x->last_use < y->last_use;
}

/* The adapter to evict for a waiter, or NULL. */
static ml_adapter *find_victim(const ml_adapters *a, const ml_adapter_wait *w) {
    ml_adapter *found = NULL;

    for (ml_adapter *e = a->list; e; e = e->next)
        if (e->in && e->known && !e->pinned && !is_needed(w, e) &&
            (!found || is_before(e, found)))
            found = e;
    return found;
}

static bool any_unloading(const ml_adapters *a) {
    for (const ml_adapter *e = a->list; e; e = e->next)
        if (e->in && !e->known)
            return true;
    return false;
}

/* Loads an adapter for the first waiter; false: it must wait for others. */
static bool bring_in(ml_adapters *a, ml_adapter_wait *w, ml_adapter *e) {
    int32_t slot = e->in ? e->slot : free_slot(a);
    ml_adapter *victim;
    ml_err err = { 0 };

    if (e->in && !e->version && e->n_user)
        return false; /* its requests finish with the values that they began with */
    if (slot >= 0) {
        begin_slot(a, e, slot, true);
        return true;
    }
    victim = find_victim(a, w);
    if (!victim && any_unloading(a))
        return false;
    if (!victim) {
        ml_fail(&err, ML_EUSAGE,
                "the adapter %s does not fit: all %d adapters in memory are pinned or "
                "needed by the same request; unload one, or start the server with a larger "
                "--max-loaded-loras",
                e->name, a->max_loaded);
        finish(a, w, &err);
        return true;
    }
    victim->leaving = victim->n_user > 0;
    if (!victim->leaving)
        begin_slot(a, victim, victim->slot, false);
    return !victim->leaving;
}

static void hold(ml_adapters *a, ml_adapter_wait *w) {
    ml_adapter *e = w->need[w->n_held++];

    e->leaving = false;
    e->n_user++;
    e->last_use = ++a->clock;
}

/* Advances the first waiter; false: it must wait. */
static bool advance(ml_adapters *a, ml_adapter_wait *w) {
    ml_err err = { 0 };

    while (w->n_held < w->n_need) {
        ml_adapter *e = w->need[w->n_held];
        if (!e->known) {
            ml_fail(&err, ML_EUSAGE, "the adapter %s was unloaded", e->name);
            finish(a, w, &err);
            return true;
        }
        if (!e->in || e->stale)
            return bring_in(a, w, e);
        hold(a, w);
    }
    finish(a, w, NULL);
    return true;
}

/* Empties the slot of an unloaded adapter that nobody holds, or frees it; false: there is
 * none. */
static bool drop_unloaded(ml_adapters *a) {
    for (ml_adapter *e = a->list; e; e = e->next) {
        if (e->known || e->n_user || e->n_wait)
            continue;
        if (e->in) {
            begin_slot(a, e, e->slot, false);
            return true;
        }
        answer(a, &e->unload_call, NULL);
        free_entry(a, e);
        return true;
    }
    return false;
}

static void pump(ml_adapters *a) {
    if (a->pumping || a->server->closing)
        return;
    a->pumping = true;
    while (!a->busy && (drop_unloaded(a) || (a->first && advance(a, a->first))))
        continue;
    a->pumping = false;
}

bool ml_adapters_hold(ml_adapters *a, ml_adapter_wait *w) {
    bool ready = true;

    for (int32_t i = 0; i < w->n_need; i++)
        ready = ready && w->need[i]->in && w->need[i]->known && !w->need[i]->leaving &&
                !w->need[i]->stale;
    if (ready) {
        while (w->n_held < w->n_need)
            hold(a, w);
        return true;
    }
    for (int32_t i = 0; i < w->n_need; i++)
        w->need[i]->n_wait++;
    w->next = NULL;
    *a->last = w;
    a->last = &w->next;
    w->queued = true;
    pump(a);
    return false;
}

void ml_adapters_release(ml_adapters *a, ml_adapter_wait *w) {
    if (w->queued)
        leave_queue(a, w);
    while (w->n_held)
        w->need[--w->n_held]->n_user--;
    pump(a);
}

/* --- endpoints ------------------------------------------------------------------ */

typedef struct lora_body {
    ml_str name, path, crc64, version, group;
    bool pinned, upsert;
} lora_body;

static const ml_field common_rows[] = {
    { "lora_name", ML_FIELD_STR, offsetof(lora_body, name) },
    { "pinned", ML_FIELD_BOOL, offsetof(lora_body, pinned) },
    /* An adapter of this name is replaced, also while requests use it. */
    { "upsert", ML_FIELD_BOOL, offsetof(lora_body, upsert) },
    /* miles only: generation has this version from then on; the base must have this
     * checksum */
    { "weight_version", ML_FIELD_STR, offsetof(lora_body, version) },
    { "base_crc64", ML_FIELD_STR, offsetof(lora_body, crc64) },
    { "lora_id", ML_FIELD_IGNORE },
    { "added_tokens_config", ML_FIELD_REFUSE,
      .why = "adapters change linear layers alone" },
    { 0 },
};

static const ml_field load_rows[] = {
    { "lora_path", ML_FIELD_STR, offsetof(lora_body, path) },
    { "", ML_FIELD_MORE, .more = common_rows },
    { 0 },
};

/* The generator reads the fields of the group and the tensors. */
static const ml_field receive_rows[] = {
    { "group_name", ML_FIELD_STR, offsetof(lora_body, group) },
    { "config_text", ML_FIELD_IGNORE },
    { "names", ML_FIELD_IGNORE },
    { "dtypes", ML_FIELD_IGNORE },
    { "shapes", ML_FIELD_IGNORE },
    { "", ML_FIELD_MORE, .more = common_rows },
    { 0 },
};

static const ml_field unload_rows[] = {
    { "lora_name", ML_FIELD_STR, offsetof(lora_body, name) },
    { "lora_id", ML_FIELD_IGNORE },
    { 0 },
};

/* Reads a request of an endpoint; false: it was refused. */
static bool read_body(ml_server *s, ml_http_call *c, const ml_field *rows, lora_body *b,
                      ml_arena *arena) {
    const ml_json *json = NULL;
    ml_err err = { 0 };
    ml_status st = ML_OK;

    if (!s->opts.lora.set)
        st = ml_fail(&err, ML_EUNSUP, "LoRA is off: start the server with --enable-lora");
    if (st == ML_OK)
        st = ml_read_body(&json, c, arena, false, &err);
    if (st == ML_OK)
        st = ml_fields_read(b, rows, json, "request body", &err);
    if (st == ML_OK && (!b->name.len || memchr(b->name.ptr, 0, b->name.len)))
        st = ml_fail(&err, ML_EUSAGE,
                     "expected \"lora_name\", the adapter's name without NUL bytes");
    if (st != ML_OK)
        refuse(c, s->adapters, &err);
    return st == ML_OK;
}

static void was_loaded(void *ud, const ml_err *err) {
    ml_adapter *e = ud;

    e->known = e->in || !err;
    answer(e->all, &e->load_call, err);
    ml_adapters_release(e->all, &e->loading);
}

static void load_gone(void *ud) {
    ((ml_adapter *)ud)->load_call = NULL;
}

static void unload_gone(void *ud) {
    ((ml_adapter *)ud)->unload_call = NULL;
}

static void set_text(char **at, ml_str text) {
    free(*at);
    *at = text.len ? copy_of(text) : NULL;
}

/* A new adapter, or a new version of one that no other request is loading. */
static ml_status find_entry(ml_adapter **out, ml_server *s, const lora_body *b,
                            ml_str where, ml_err *err) {
    ml_adapter *e = ml_adapters_find(s->adapters, b->name);
    uint64_t version = 0;
    ml_status st = ml_weight_version_read(&version, b->version, err);

    if (st != ML_OK)
        return st;
    if (e && (!b->upsert || e->load_call || e->loading.queued))
        return ml_fail(err, ML_EUSAGE,
                       "an adapter named %s is loaded already: unload it first, set "
                       "\"upsert\", or choose another name",
                       e->name);
    if (!e)
        e = add_entry(s->adapters, b->name, where, b->pinned);
    set_text(&e->dir, where);
    set_text(&e->crc64, b->crc64);
    e->version = version;
    e->stale = e->in;
    *out = e;
    return ML_OK;
}

static void begin_load(ml_adapters *a, ml_adapter *e, ml_http_call *c) {
    e->asked = true;
    e->self = e;
    e->load_call = c;
    e->loading =
        (ml_adapter_wait){ .need = &e->self, .n_need = 1, .ready = was_loaded, .ud = e };
    ml_http_on_gone(c, load_gone, e);
    if (ml_adapters_hold(a, &e->loading))
        was_loaded(e, NULL);
}

void ml_serve_load_lora(ml_server *s, ml_http_call *c) {
    lora_body b = { 0 };
    ml_adapter *e = NULL;
    const char *dir;
    ml_err err = { 0 };
    ml_arena arena;
    ml_status st = ML_OK;

    ml_arena_init(&arena, "a request for an adapter");
    if (read_body(s, c, load_rows, &b, &arena)) {
        if (!b.path.len)
            st =
                ml_fail(&err, ML_EUSAGE, "expected \"lora_path\", the adapter's directory");
        if (st == ML_OK)
            st = ml_weight_path_of(&dir, &arena, b.path, "lora_path", &err);
        if (st == ML_OK)
            st = find_entry(&e, s, &b, b.path, &err);
        if (st == ML_OK) {
            set_text(&e->json, (ml_str){ 0 });
            begin_load(s->adapters, e, c);
        } else {
            refuse(c, s->adapters, &err);
        }
    }
    ml_arena_release(&arena);
}

/* The trainer keeps the tensors of its newest version alone: they are not evicted. */
void ml_serve_receive_lora(ml_server *s, ml_http_call *c) {
    lora_body b = { 0 };
    ml_adapter *e = NULL;
    ml_err err = { 0 };
    ml_arena arena;

    ml_arena_init(&arena, "a request for an adapter");
    if (read_body(s, c, receive_rows, &b, &arena)) {
        b.pinned = true;
        if (find_entry(&e, s, &b, ml_str_of("over TCP"), &err) == ML_OK) {
            set_text(&e->json, ml_http_body(c));
            begin_load(s->adapters, e, c);
        } else {
            refuse(c, s->adapters, &err);
        }
    }
    ml_arena_release(&arena);
}

void ml_serve_unload_lora(ml_server *s, ml_http_call *c) {
    lora_body b = { 0 };
    ml_err err = { 0 };
    ml_arena arena;
    ml_adapter *e;

    ml_arena_init(&arena, "a request for an adapter");
    if (read_body(s, c, unload_rows, &b, &arena)) {
        e = ml_adapters_find(s->adapters, b.name);
        if (!e) {
            ml_fail(&err, ML_EUSAGE, "no adapter is named %.*s",
                    (int)(b.name.len < 200 ? b.name.len : 200), b.name.ptr);
            refuse(c, s->adapters, &err);
        } else {
            e->known = false;
            e->unload_call = c;
            ml_http_on_gone(c, unload_gone, e);
            pump(s->adapters);
        }
    }
    ml_arena_release(&arena);
}

/* --- open and close ------------------------------------------------------------- */

static ml_status load_first(ml_adapters *a, const ml_server_adapter *x, ml_err *err) {
    const ml_server_opts *o = &a->server->opts;
    ml_adapter *e;
    int32_t slot = free_slot(a);
    ml_status st;

    if (ml_adapters_find(a, ml_str_of(x->name)))
        return ml_fail(err, ML_EUSAGE, "--lora-paths: two adapters are called %s", x->name);
    if (slot < 0)
        return ml_fail(err, ML_EUSAGE,
                       "--lora-paths names more adapters than --max-loaded-loras %d allows",
                       a->max_loaded);
    st = o->lora.set(o->gen, slot, &(ml_adapter_source){ .dir = x->dir }, err);
    if (st != ML_OK)
        return st;
    e = add_entry(a, ml_str_of(x->name), ml_str_of(x->dir), x->pinned);
    set_in(a, e, slot);
    return ML_OK;
}

ml_status ml_adapters_open(ml_adapters **out, ml_server *s, ml_err *err) {
    ml_adapters *a = ML_NEW(&s->arena, ml_adapters, 1);
    ml_status st = ML_OK;

    a->server = s;
    a->last = &a->first;
    a->max_loaded = s->opts.lora.max_loaded;
    *out = a;
    for (int i = 0; i < s->opts.lora.n && st == ML_OK; i++)
        st = load_first(a, &s->opts.lora.adapter[i], err);
    return st;
}

void ml_adapters_close(ml_adapters *a) {
    while (a && a->list)
        free_entry(a, a->list);
}
