#include "rl/sample_torch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "io/pickle_json.h"
#include "io/torch_write.h"

bool ml_samples_are_torch(const char *path) {
    size_t n = strlen(path);
    return n > 3 && strcmp(path + n - 3, ".pt") == 0;
}

static const char *const route_keys[ML_N_ROUTING] = { "rollout_routed_experts",
                                                      "rollout_indexer_topk" };

/* --- writing ---------------------------------------------------------------------- */

static void put_routed(ml_text *to, const ml_sample *s, const ml_routing *r) {
    int64_t n = s->n_token - 1;
    ml_text rows = { 0 };

    for (int64_t t = 0; t < n; t++)
        for (int64_t i = 0; i < r->width; i++) {
            int32_t x = t < r->n ? r->row[t * r->width + i] : -1;
            ml_text_add(&rows, (const char *)&x, sizeof x);
        }
    ml_pickle_put_rows(to, (const int32_t *)(const void *)rows.ptr, n, r->width);
    ml_text_release(&rows);
}

/* Rewards and log-probs are floats even where JSON has whole numbers. */
static void put_member(ml_text *to, const ml_json *v) {
    size_t n = v->key.len;
    bool floats = n > 10 && memcmp(v->key.ptr + n - 10, "_log_probs", 10) == 0;
    double x;

    ml_pickle_put_str(to, v->key);
    if (ml_str_is(v->key, "reward") && ml_json_f64(v, &x)) {
        ml_pickle_put_float(to, x);
    } else if (floats && v->type == ML_JSON_ARRAY) {
        ml_pickle_list(to);
        for (const ml_json *e = v->child; e; e = e->next)
            ml_pickle_put_float(to, ml_json_f64(e, &x) ? x : (double)NAN);
        ml_pickle_list_end(to);
    } else {
        ml_pickle_put_json(to, v);
    }
}

/* The sample is written as its line of JSON is, member by member: only routing records are
 * not text. */
static ml_status put_sample(ml_text *to, ml_arena *a, const ml_sample *s, ml_err *err) {
    ml_text line = { 0 };
    ml_sample plain = *s;
    const ml_json *doc;
    ml_status st;

    memset(plain.routed, 0, sizeof plain.routed);
    ml_sample_write(&line, &plain);
    st = ml_json_parse(&doc, a, (ml_str){ line.ptr, line.len }, "a sample", err);
    if (st == ML_OK) {
        ml_pickle_dict(to);
        for (const ml_json *e = doc->child; e; e = e->next)
            put_member(to, e);
        for (int i = 0; i < ML_N_ROUTING; i++)
            if (s->routed[i].n) {
                ml_pickle_key(to, route_keys[i]);
                put_routed(to, s, &s->routed[i]);
            }
        ml_pickle_dict_end(to);
    }
    ml_text_release(&line);
    return st;
}

ml_status ml_samples_save_torch(const char *path, int64_t rollout,
                                const ml_sample *const *s, int64_t n, ml_err *err) {
    ml_text pickle = { 0 };
    ml_status st = ML_OK;

    ml_pickle_begin(&pickle);
    ml_pickle_dict(&pickle);
    ml_pickle_key(&pickle, "rollout_id");
    ml_pickle_put_int(&pickle, rollout);
    ml_pickle_key(&pickle, "metadata");
    ml_pickle_dict(&pickle);
    ml_pickle_dict_end(&pickle);
    ml_pickle_key(&pickle, "samples");
    ml_pickle_list(&pickle);
    for (int64_t i = 0; i < n && st == ML_OK; i++) {
        ml_arena a;
        ml_arena_init(&a, "a sample");
        st = put_sample(&pickle, &a, s[i], err);
        ml_arena_release(&a);
    }
    ml_pickle_list_end(&pickle);
    ml_pickle_dict_end(&pickle);
    ml_pickle_end(&pickle);
    if (st == ML_OK)
        st = ml_torch_write(path, (ml_str){ pickle.ptr, pickle.len }, err);
    ml_text_release(&pickle);
    return st;
}

/* --- reading ---------------------------------------------------------------------- */

/* Fields that can be read as JSON; others of Miles' samples are not used here. */
static const char *const fields[] = {
    "group_index",
    "index",
    "rollout_id",
    "row",
    "prompt",
    "tokens",
    "response",
    "response_length",
    "label",
    "metadata",
    "reward",
    "reward_parts",
    "loss_mask",
    "weight_versions",
    "rollout_log_probs",
    "teacher_log_probs",
    "opd_reverse_kl",
    "remove_sample",
    "status",
    "n_turn",
    "weight_version_tokens",
    "rollout_sampling_mask",
    "rollout_sampling_mask_ids",
    "rollout_sampling_mask_offsets",
};

/* The elements of an array of numpy of type int32: its state is (version, shape, dtype,
 * order, bytes), and the bytes are stored as text. */
static bool array_bytes(ml_text *b64, const ml_pickle *v) {
    const ml_pickle *state = v->type == ML_PICKLE_CALL ? v->call->state : NULL;
    const ml_pickle *type = state && state->n == 5 ? state->item[2] : NULL;
    ml_text json = { 0 };
    ml_err err = { 0 };
    bool read;

    if (!type || state->type != ML_PICKLE_TUPLE ||
        !ml_pickle_is_call(type, "numpy.dtype") ||
        !ml_pickle_is_str(ml_pickle_arg(type, 0), "i4") ||
        (state->item[3]->type == ML_PICKLE_BOOL && state->item[3]->i))
        return false;
    read = ml_pickle_json(&json, state->item[4], "", &err) == ML_OK && json.len > 10 &&
           memcmp(json.ptr, "{\"b64\": ", 8) == 0;
    if (read)
        ml_text_add(b64, json.ptr + 8, json.len - 9); /* with its quotes */
    ml_text_release(&json);
    return read;
}

/* A sample as the JSON that ml_sample_read reads. */
static ml_status to_json(ml_text *out, const ml_pickle *v, const char *name, ml_err *err) {
    ml_status st = ML_OK;
    const char *comma = "";

    ml_text_printf(out, "{");
    for (size_t i = 0; i < sizeof fields / sizeof *fields && st == ML_OK; i++) {
        const ml_pickle *value = ml_pickle_get(v, fields[i]);
        if (!value || value->type == ML_PICKLE_NONE)
            continue;
        ml_text_printf(out, "%s\"%s\": ", comma, fields[i]);
        st = ml_pickle_json(out, value, name, err);
        comma = ", ";
    }
    for (int i = 0; i < ML_N_ROUTING && st == ML_OK; i++) {
        const ml_pickle *value = ml_pickle_get(v, route_keys[i]);
        if (!value || value->type == ML_PICKLE_NONE)
            continue;
        ml_text_printf(out, "%s\"%s\": ", comma, route_keys[i]);
        if (!array_bytes(out, value))
            st = ml_fail(err, ML_EFORMAT, "%s: \"%s\" is %s; expected an array of int32",
                         name, route_keys[i], ml_pickle_what(value));
        comma = ", ";
    }
    ml_text_printf(out, "}");
    return st;
}

static ml_status read_sample(ml_sample *out, ml_arena *a, const ml_pickle *v,
                             const char *name, ml_err *err) {
    ml_text line = { 0 };
    const ml_json *doc;
    ml_str source;
    ml_status st;

    if (!ml_pickle_items(v) || ml_pickle_items(v)->type != ML_PICKLE_DICT)
        return ml_fail(err, ML_EFORMAT, "%s is %s; expected a dict, the fields of a sample",
                       name, ml_pickle_what(v));
    st = to_json(&line, v, name, err);
    source = (ml_str){ ml_arena_str(a, line.ptr, line.len), line.len };
    ml_text_release(&line);
    if (st == ML_OK)
        st = ml_json_parse_python(&doc, a, source, name, err);
    return st == ML_OK ? ml_sample_read(out, a, doc, source, name, err) : st;
}

/* Values of a file, counted as often as they occur. */
#define MAX_NODES (1u << 27)

ml_status ml_samples_of_torch(ml_sample **out, int64_t *n, ml_arena *a,
                              const ml_torch_file *f, const char *path, ml_err *err) {
    const ml_pickle *all = ml_pickle_get(f->root, "samples");
    ml_status st = ML_OK;

    all = all ? ml_pickle_items(all) : NULL;
    if (!all || all->type != ML_PICKLE_LIST)
        return ml_fail(err, ML_EFORMAT,
                       "%s: expected a dict with a list \"samples\", a recorded rollout",
                       path);
    if (all->n_node > MAX_NODES)
        return ml_fail(err, ML_EFORMAT, "%s: the samples have more than %u values", path,
                       MAX_NODES);
    *n = all->n;
    *out = ML_NEW(a, ml_sample, *n + 1);
    for (int64_t i = 0; i < *n && st == ML_OK; i++) {
        char name[600];
        snprintf(name, sizeof name, "%.500s, record %lld", path, (long long)i + 1);
        st = read_sample(&(*out)[i], a, all->item[i], name, err);
    }
    return st;
}

ml_status ml_samples_load_torch(ml_sample **out, int64_t *n, ml_arena *a, const char *path,
                                ml_err *err) {
    ml_torch_file *f = NULL;
    ml_status st = ml_torch_open(&f, path, err);

    if (st == ML_OK)
        st = ml_samples_of_torch(out, n, a, f, path, err);
    ml_torch_close(f);
    return st;
}
