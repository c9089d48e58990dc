/* Weights over the network: SGLang's requests for update groups.  The bytes travel over TCP
 * (gen/weight_link.h); NCCL would need a GPU on both sides. */
#include <stdio.h>
#include <string.h>

#include "gen/weight_link.h"
#include "serve/admin_priv.h"

typedef ml_admin_task task;

typedef struct group_body {
    ml_str address, name, key, backend, version, load_format, dtype, selector, crc;
    int32_t port, rank_offset, world_size, timeout_s;
    const ml_json *names, *dtypes, *shapes;
    bool abort_all, flush;
} group_body;

static void run_group(ml_admin *a, task *t) {
    const ml_server_opts *o = &a->server->opts;
    ml_gen_stats stats;

    t->st = o->group(o->gen, t->op, t->dir, t->version, ml_admin_switch(a, t), &t->err);
    t->again = t->st == ML_EPEER; /* the trainer: it may be back soon */
    o->gen->stats(o->gen, &stats);
    t->version = stats.version;
}

/* The label is set when the weights are in use. */
static void reply_group(task *t, ml_http_call *c) {
    if (!t->st && t->label.len && t->version)
        ml_server_set_label(t->server, t->version, t->label);
    ml_admin_reply(t, c, "Succeeded.", NULL);
}

/* Passes on the body, which `st` says is valid. */
static void hand_over(task *t, ml_group_op op, ml_status st, ml_err *err) {
    ml_str body = ml_http_body(t->call);

    if (!st && !t->server->opts.group)
        st = ml_fail(err, ML_EUNSUP, "this engine gets its weights from its own process");
    if (st) {
        ml_admin_refuse(t, err);
        return;
    }
    t->op = op;
    t->dir = body.len ? ml_arena_str(&t->arena, body.ptr, body.len) : "{}";
    t->run = run_group;
    t->reply = reply_group;
    ml_admin_hand_over(t);
}

static ml_status check_name(ml_str name, ml_err *err) {
    if (!name.len || name.len > ML_WEIGHT_MAX_GROUP || memchr(name.ptr, 0, name.len))
        return ml_fail(err, ML_EUSAGE, "expected \"group_name\", of 1 to %d bytes",
                       ML_WEIGHT_MAX_GROUP);
    return ML_OK;
}

/* --- groups ------------------------------------------------------------------- */

static const ml_field init_rows[] = {
    { "master_address", ML_FIELD_STR, offsetof(group_body, address) },
    { "master_port", ML_FIELD_I32, offsetof(group_body, port), 1, 65535 },
    { "rank_offset", ML_FIELD_I32, offsetof(group_body, rank_offset), 0, 65535 },
    { "world_size", ML_FIELD_I32, offsetof(group_body, world_size), 1, 65536 },
    { "group_name", ML_FIELD_STR, offsetof(group_body, name) },
    { "backend", ML_FIELD_STR, offsetof(group_body, backend) },
    /* miles only: what both sides prove to know; seconds of a wait for the trainer */
    { "group_key", ML_FIELD_STR, offsetof(group_body, key) },
    { "timeout_s", ML_FIELD_I32, offsetof(group_body, timeout_s), 1, 1e9 },
    { 0 },
};

void ml_serve_init_group(ml_server *s, ml_http_call *c) {
    task *t = ml_admin_new_task(s, c);
    group_body b = { .backend = ml_str_of("nccl"),
                     .name = ml_str_of("weight_update_group") };
    ml_err err = { 0 };
    ml_status st = ml_admin_read(t, &b, init_rows, false, &err);

    if (!st && !ml_str_is(b.backend, "tcp"))
        st = ml_fail(&err, ML_EUNSUP,
                     "\"backend\": this server receives weights over TCP: use \"tcp\"; %s",
                     ml_str_is(b.backend, "nccl") || !b.backend.len
                         ? "an NCCL group needs a GPU of the trainer and one of the engine "
                           "in one communicator, which this server does not join"
                         : "expected \"tcp\"");
    if (!st)
        st = check_name(b.name, &err);
    if (!st && (!b.address.len || !b.port || !b.key.len ||
                memchr(b.address.ptr, 0, b.address.len) || memchr(b.key.ptr, 0, b.key.len)))
        st =
            ml_fail(&err, ML_EUSAGE,
                    "expected \"master_address\", \"master_port\" and \"group_key\" of the "
                    "process that has the weights");
    hand_over(t, ML_GROUP_INIT, st, &err);
}

static const ml_field destroy_rows[] = {
    { "group_name", ML_FIELD_STR, offsetof(group_body, name) },
    { 0 },
};

void ml_serve_destroy_group(ml_server *s, ml_http_call *c) {
    task *t = ml_admin_new_task(s, c);
    group_body b = { .name = ml_str_of("weight_update_group") };
    ml_err err = { 0 };
    ml_status st = ml_admin_read(t, &b, destroy_rows, false, &err);

    if (!st)
        st = check_name(b.name, &err);
    hand_over(t, ML_GROUP_DESTROY, st, &err);
}

/* --- updates ------------------------------------------------------------------ */

static ml_status check_selector(const group_body *b, ml_err *err) {
    if (b->selector.len && !ml_str_is(b->selector, "all") &&
        !ml_str_is(b->selector, "target"))
        return ml_fail(err, ML_EUSAGE, "\"selector\": expected \"all\" or \"target\"");
    return ML_OK;
}

static const ml_field begin_rows[] = {
    { "selector", ML_FIELD_STR, offsetof(group_body, selector) },
    { "weight_version", ML_FIELD_STR, offsetof(group_body, version) },
    /* miles only: "float32": all weights come in f32, and are kept so with --dtype auto */
    { "dtype", ML_FIELD_STR, offsetof(group_body, dtype) },
    { 0 },
};

void ml_serve_begin_update(ml_server *s, ml_http_call *c) {
    task *t = ml_admin_new_task(s, c);
    group_body b = { 0 };
    ml_err err = { 0 };
    ml_status st = ml_admin_read(t, &b, begin_rows, true, &err);

    if (!st)
        st = check_selector(&b, &err);
    if (!st && b.dtype.len && !ml_str_is(b.dtype, "float32"))
        st = ml_fail(&err, ML_EUSAGE, "\"dtype\": expected \"float32\"");
    hand_over(t, ML_GROUP_BEGIN, st, &err);
}

static const ml_field update_rows[] = {
    { "names", ML_FIELD_JSON, offsetof(group_body, names) },
    { "dtypes", ML_FIELD_JSON, offsetof(group_body, dtypes) },
    { "shapes", ML_FIELD_JSON, offsetof(group_body, shapes) },
    { "group_name", ML_FIELD_STR, offsetof(group_body, name) },
    { "weight_version", ML_FIELD_STR, offsetof(group_body, version) },
    { "abort_all_requests", ML_FIELD_BOOL, offsetof(group_body, abort_all) },
    { "flush_cache", ML_FIELD_BOOL, offsetof(group_body, flush) },
    { "selector", ML_FIELD_STR, offsetof(group_body, selector) },
    { "load_format", ML_FIELD_STR, offsetof(group_body, load_format) },
    { "torch_empty_cache", ML_FIELD_IGNORE },
    { 0 },
};

static ml_status check_update(const group_body *b, ml_err *err) {
    const ml_json *list[] = { b->names, b->dtypes, b->shapes };
    ml_status st = check_name(b->name, err);

    if (!st)
        st = check_selector(b, err);
    for (int i = 0; i < 3 && !st; i++)
        if (!list[i] || list[i]->type != ML_JSON_ARRAY || list[i]->n != list[0]->n)
            st = ml_fail(err, ML_EUSAGE,
                         "expected \"names\", \"dtypes\" and \"shapes\", lists of the same "
                         "length");
    if (!st && b->load_format.len && !ml_str_is(b->load_format, "auto"))
        st = ml_fail(err, ML_EUSAGE,
                     "\"load_format\": expected \"auto\": tensors travel one by one");
    return st;
}

/* The prefix cache is always flushed when weights are switched. */
void ml_serve_update_from_group(ml_server *s, ml_http_call *c) {
    task *t = ml_admin_new_task(s, c);
    group_body b = { .name = ml_str_of("weight_update_group") };
    ml_err err = { 0 };
    ml_status st = ml_admin_read(t, &b, update_rows, false, &err);

    if (!st)
        st = check_update(&b, &err);
    if (!st)
        st = ml_weight_version_read(&t->version, b.version, &err);
    t->label = b.version;
    t->abort_all = b.abort_all;
    hand_over(t, ML_GROUP_UPDATE, st, &err);
}

static const ml_field end_rows[] = {
    { "selector", ML_FIELD_STR, offsetof(group_body, selector) },
    { "weight_version", ML_FIELD_STR, offsetof(group_body, version) },
    { "abort_all_requests", ML_FIELD_BOOL, offsetof(group_body, abort_all) },
    /* miles only: the weights must have this checksum (model/weights_checksum.h) */
    { "weights_crc64", ML_FIELD_STR, offsetof(group_body, crc) },
    { 0 },
};

void ml_serve_end_update(ml_server *s, ml_http_call *c) {
    task *t = ml_admin_new_task(s, c);
    group_body b = { 0 };
    ml_err err = { 0 };
    ml_status st = ml_admin_read(t, &b, end_rows, true, &err);

    if (!st)
        st = check_selector(&b, &err);
    if (!st)
        st = ml_weight_version_read(&t->version, b.version, &err);
    t->label = b.version;
    t->abort_all = b.abort_all;
    hand_over(t, ML_GROUP_END, st, &err);
}
