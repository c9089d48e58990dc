#include "run/adapter_registry.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bug.h"
#include "base/file.h"
#include "base/secret.h"

enum { MOST_COMPLETED = 1024 }; /* records, as in Miles */

static const char *const state_words[] = { "PENDING", "ACTIVE", "RETIRING", "CLEANUP",
                                           "COMPLETED" };

const char *ml_adapter_state_word(ml_adapter_state s) {
    return state_words[s];
}

bool ml_adapter_live(const ml_adapter_record *x) {
    return x->state != ML_ADAPTER_COMPLETED;
}

/* --- records ------------------------------------------------------------------------ */

static const char *copy(ml_arena *a, const char *s) {
    return s ? ml_arena_str(a, s, strlen(s)) : NULL;
}

static ml_adapter_config copy_config(ml_arena *a, const ml_adapter_config *c) {
    ml_adapter_config out = *c;

    out.data = copy(a, c->data);
    out.save = copy(a, c->save);
    out.input_key = copy(a, c->input_key);
    out.label_key = copy(a, c->label_key);
    out.metadata_key = copy(a, c->metadata_key);
    out.rm_type = copy(a, c->rm_type);
    out.custom_rm_path = copy(a, c->custom_rm_path);
    return out;
}

static ml_adapter_record *add_record(ml_adapter_registry *r, const char *name,
                                     const ml_adapter_config *c, ml_err *err) {
    ml_adapter_record *x = calloc(1, sizeof *x), **at = &r->first;

    if (!x) {
        ml_fail(err, ML_ENOMEM, "out of memory for an adapter");
        return NULL;
    }
    ml_arena_init(&x->arena, "an adapter");
    x->name = copy(&x->arena, name);
    x->config = copy_config(&x->arena, c);
    while (*at)
        at = &(*at)->next;
    *at = x;
    return x;
}

static void remove_record(ml_adapter_registry *r, ml_adapter_record *x) {
    ml_adapter_record **at = &r->first;

    while (*at != x)
        at = &(*at)->next;
    *at = x->next;
    ml_arena_release(&x->arena);
    free(x);
}

ml_adapter_record *ml_adapter_find(const ml_adapter_registry *r, ml_str name) {
    ml_adapter_record *x = r->first;

    while (x && !ml_str_is(name, x->name))
        x = x->next;
    return x;
}

/* --- registration --------------------------------------------------------------------- */

static bool is_name(const char *s) {
    size_t n =
        strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    return n && !s[n] && strcmp(s, ".") != 0 && strcmp(s, "..") != 0;
}

/* The same directory, if both exist. */
static bool same_path(const char *a, const char *b) {
    char *x = realpath(a, NULL), *y = realpath(b, NULL);
    bool same = strcmp(x ? x : a, y ? y : b) == 0;

    free(x);
    free(y);
    return same;
}

static ml_status check_unused(const ml_adapter_registry *r, const char *name,
                              const ml_adapter_config *c, ml_err *err) {
    const ml_adapter_record *x = ml_adapter_find(r, ml_str_of(name));

    if (!is_name(name))
        return ml_fail(err, ML_EUSAGE,
                       "Adapter name '%s' is invalid: use only letters, digits, '.', '_' "
                       "and '-'",
                       name);
    if (x && x->state <= ML_ADAPTER_ACTIVE)
        return ml_fail(err, ML_EUSAGE, "Adapter '%s' already registered", name);
    if (x && ml_adapter_live(x))
        return ml_fail(err, ML_EUSAGE, "Adapter '%s' is still cleaning up; retry shortly",
                       name);
    for (x = r->first; x; x = x->next)
        if (ml_adapter_live(x) && same_path(x->config.save, c->save))
            return ml_fail(err, ML_EUSAGE,
                           "Adapter '%s' save dir '%s' is already used by adapter '%s'",
                           name, c->save, x->name);
    return ML_OK;
}

static int32_t free_slot(const ml_adapter_registry *r) {
    int32_t slot = 0;

    while (slot < r->n_slot && r->taken[slot])
        slot++;
    return slot < r->n_slot ? slot : -1;
}

ml_status ml_adapter_register(ml_adapter_registry *r, ml_adapter_record **out,
                              const char *name, const ml_adapter_config *c, ml_err *err) {
    ml_status st = check_unused(r, name, c, err);
    int32_t slot = free_slot(r);
    ml_adapter_record *old, *x;
    ml_secret id;

    if (st == ML_OK && slot < 0)
        st = ml_fail(err, ML_ENOMEM, "No free adapter slots (max %d)", r->n_slot);
    if (st == ML_OK)
        st = ml_secret_random(&id, err);
    if (st != ML_OK)
        return st;
    old = ml_adapter_find(r, ml_str_of(name));
    if (old)
        remove_record(r, old);
    x = add_record(r, name, c, err);
    if (!x)
        return ML_ENOMEM;
    x->id = ml_arena_printf(&x->arena, "%.32s", id.text);
    x->slot = slot;
    r->taken[slot] = true;
    *out = x;
    return ML_OK;
}

void ml_adapter_forget(ml_adapter_registry *r, ml_adapter_record *x) {
    if (ml_adapter_live(x))
        r->taken[x->slot] = false;
    remove_record(r, x);
}

void ml_adapter_complete(ml_adapter_registry *r, ml_adapter_record *x) {
    ml_adapter_record *oldest = NULL;
    int n = 0;

    ML_BUG_IF(!ml_adapter_live(x));
    r->taken[x->slot] = false;
    x->state = ML_ADAPTER_COMPLETED;
    for (ml_adapter_record *y = r->first; y; y = y->next)
        if (!ml_adapter_live(y)) {
            oldest = oldest ? oldest : y;
            n++;
        }
    if (n > MOST_COMPLETED && oldest != x)
        remove_record(r, oldest);
}

/* --- JSON ------------------------------------------------------------------------------- */

static void put_number(ml_json_out *o, const char *key, int64_t n) {
    ml_json_key(o, key);
    if (n)
        ml_json_int(o, n);
    else
        ml_json_null(o);
}

static void put_config(ml_json_out *o, const ml_adapter_config *c) {
    ml_json_put_word(o, "data", c->data);
    put_number(o, "rank", c->rank);
    ml_json_key(o, "alpha");
    ml_json_exact(o, c->alpha);
    put_number(o, "rollout_batch_size", c->rollout_batch_size);
    put_number(o, "n_samples_per_prompt", c->n_samples_per_prompt);
    ml_json_put_word(o, "save", c->save);
    ml_json_put_word(o, "input_key", c->input_key);
    ml_json_put_word(o, "label_key", c->label_key);
    ml_json_put_word(o, "metadata_key", c->metadata_key);
    ml_json_put_word(o, "rm_type", c->rm_type);
    ml_json_put_word(o, "custom_rm_path", c->custom_rm_path);
    put_number(o, "num_step", c->num_step);
    put_number(o, "num_epoch", c->num_epoch);
}

void ml_adapter_write(ml_json_out *o, const ml_adapter_registry *r,
                      const ml_adapter_record *x) {
    ml_json_begin(o, '{');
    ml_json_put_word(o, "name", x->name);
    ml_json_put_int(o, "slot", x->slot);
    ml_json_key(o, "version");
    if (ml_adapter_live(x))
        ml_json_int(o, r->version[x->slot]);
    else
        ml_json_null(o);
    ml_json_put_int(o, "step", x->step);
    ml_json_put_int(o, "accumulated_groups", 0); /* a step has whole batches */
    ml_json_put_word(o, "registration_id", x->id);
    put_config(o, &x->config);
    ml_json_key(o, "metadata");
    ml_json_raw(o, ml_str_of("{}"));
    ml_json_put_word(o, "state", ml_adapter_state_word(x->state));
    if (x->error)
        ml_json_put_word(o, "error", x->error);
    ml_json_end(o, '}');
}

/* --- the file ----------------------------------------------------------------------------- */

ml_status ml_adapter_registry_save(const ml_adapter_registry *r, ml_err *err) {
    ml_text t = { 0 };
    ml_json_out o = { .to = &t };
    ml_status st;

    if (!r->file)
        return ML_OK;
    ml_json_begin(&o, '{');
    ml_json_key(&o, "versions");
    ml_json_begin(&o, '[');
    for (int32_t i = 0; i < r->n_slot; i++)
        ml_json_int(&o, r->version[i]);
    ml_json_end(&o, ']');
    ml_json_key(&o, "adapters");
    ml_json_begin(&o, '[');
    for (const ml_adapter_record *x = r->first; x; x = x->next) {
        ml_json_begin(&o, '{');
        ml_json_put_word(&o, "name", x->name);
        ml_json_put_int(&o, "slot", x->slot);
        ml_json_put_int(&o, "step", x->step);
        ml_json_put_int(&o, "last_step", x->last_step);
        ml_json_put_word(&o, "registration_id", x->id);
        ml_json_put_word(&o, "state", ml_adapter_state_word(x->state));
        ml_json_put_word(&o, "error", x->error);
        ml_json_key(&o, "config");
        ml_json_begin(&o, '{');
        put_config(&o, &x->config);
        ml_json_end(&o, '}');
        ml_json_end(&o, '}');
    }
    ml_json_end(&o, ']');
    ml_json_end(&o, '}');
    ml_text_printf(&t, "\n");
    st = ml_file_replace(r->file, (ml_str){ t.ptr, t.len }, err);
    ml_text_release(&t);
    return st;
}

static const char *text_member(ml_arena *a, const ml_json *object, const char *key) {
    const ml_json *v = ml_json_get(object, key);
    return v && v->type == ML_JSON_STRING ? ml_arena_str(a, v->text.ptr, v->text.len)
                                          : NULL;
}

static int64_t number_member(const ml_json *object, const char *key) {
    int64_t n = 0;
    return ml_json_i64(ml_json_get(object, key), &n) ? n : 0;
}

/* An adapter that was PENDING or ACTIVE goes on from its newest snapshot; the others have been
 * removed, or were being so. */
static ml_status restore(ml_adapter_registry *r, const ml_json *v, ml_arena *a,
                         ml_err *err) {
    const char *name = text_member(a, v, "name"), *member = NULL,
               *state = text_member(a, v, "state"),
               *id = text_member(a, v, "registration_id");
    int64_t slot = number_member(v, "slot");
    ml_adapter_config c;
    ml_status st = ml_adapter_config_read(&c, ml_json_get(v, "config"), a, &member, err);
    ml_adapter_record *x;
    bool completed = state && strcmp(state, "PENDING") != 0 && strcmp(state, "ACTIVE") != 0;

    if (st == ML_OK && (!name || !state || !id || slot < 0))
        st = ml_fail(err, ML_EFORMAT, "%s: an adapter has no name, state or id", r->file);
    if (st == ML_OK && !completed && (slot >= r->n_slot || r->taken[slot]))
        st = ml_fail(err, ML_EUSAGE,
                     "%s: adapter '%s' is in slot %lld; set --multi-lora-n-adapters to at "
                     "least %lld",
                     r->file, name, (long long)slot, (long long)slot + 1);
    if (st != ML_OK)
        return st;
    x = add_record(r, name, &c, err);
    if (!x)
        return ML_ENOMEM;
    x->id = copy(&x->arena, id);
    x->slot = (int32_t)slot;
    x->step = number_member(v, "step");
    x->last_step = number_member(v, "last_step");
    x->error = copy(&x->arena, text_member(a, v, "error"));
    x->state = completed ? ML_ADAPTER_COMPLETED : ML_ADAPTER_PENDING;
    if (!completed)
        r->taken[slot] = true;
    return ML_OK;
}

static ml_status read_file(ml_adapter_registry *r, ml_str bytes, ml_arena *a, ml_err *err) {
    const ml_json *doc, *list, *versions;
    ml_status st = ml_json_parse(&doc, a, bytes, r->file, err);
    int32_t i = 0;

    if (st != ML_OK)
        return st;
    list = ml_json_get(doc, "adapters");
    versions = ml_json_get(doc, "versions");
    if (!list || list->type != ML_JSON_ARRAY)
        return ml_fail(err, ML_EFORMAT, "%s: expected a list \"adapters\"", r->file);
    for (const ml_json *v = versions ? versions->child : NULL; v && i < r->n_slot;
         v = v->next)
        (void)ml_json_i64(v, &r->version[i++]);
    for (const ml_json *v = list->child; v && st == ML_OK; v = v->next)
        st = restore(r, v, a, err);
    return st;
}

ml_status ml_adapter_registry_open(ml_adapter_registry *r, int32_t n_slot, const char *file,
                                   ml_err *err) {
    ml_file f = { 0 };
    ml_status st;
    ml_arena a;

    *r = (ml_adapter_registry){ .n_slot = n_slot,
                                .file = file,
                                .version = calloc((size_t)n_slot, sizeof *r->version),
                                .taken = calloc((size_t)n_slot, sizeof *r->taken) };
    if (!r->version || !r->taken)
        return ml_fail(err, ML_ENOMEM, "out of memory for adapters");
    if (!file || access(file, F_OK) != 0)
        return ML_OK;
    ml_arena_init(&a, "the registry of adapters");
    st = ml_file_map(&f, file, err);
    if (st == ML_OK)
        st = read_file(r, f.bytes, &a, err);
    ml_file_unmap(&f);
    ml_arena_release(&a);
    return st;
}

void ml_adapter_registry_close(ml_adapter_registry *r) {
    while (r->first)
        remove_record(r, r->first);
    free(r->version);
    free(r->taken);
    *r = (ml_adapter_registry){ 0 };
}
