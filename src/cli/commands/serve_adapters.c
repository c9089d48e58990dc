#include "cli/commands/serve_adapters.h"

#include <string.h>

#include "base/json.h"

#define DEFAULT_RANK 64

/* {"lora_name": ..., "lora_path": ..., "pinned": ...} */
static ml_status read_object(ml_server_adapter *out, ml_arena *a, const char *word,
                             ml_err *err) {
    const ml_json *root, *name, *path, *pinned;
    ml_status st = ml_json_parse(&root, a, ml_str_of(word), "--lora-paths", err);

    if (st != ML_OK)
        return st;
    name = ml_json_get(root, "lora_name");
    path = ml_json_get(root, "lora_path");
    pinned = ml_json_get(root, "pinned");
    if (!name || name->type != ML_JSON_STRING || !path || path->type != ML_JSON_STRING ||
        (pinned && pinned->type != ML_JSON_TRUE && pinned->type != ML_JSON_FALSE))
        return ml_fail(err, ML_EUSAGE,
                       "--lora-paths: %s must have the strings \"lora_name\" and "
                       "\"lora_path\", and may have \"pinned\", true or false",
                       word);
    *out = (ml_server_adapter){ .name = ml_arena_str(a, name->text.ptr, name->text.len),
                                .dir = ml_arena_str(a, path->text.ptr, path->text.len),
                                .pinned = pinned && pinned->type == ML_JSON_TRUE };
    return ML_OK;
}

static ml_status read_path(ml_server_adapter *out, ml_arena *a, const char *word,
                           ml_err *err) {
    const char *sep = strchr(word, '=');

    if (word[0] == '{')
        return read_object(out, a, word, err);
    *out = (ml_server_adapter){ .name = word, .dir = word };
    if (sep) {
        out->name = ml_arena_str(a, word, (size_t)(sep - word));
        out->dir = sep + 1;
    }
    if (!*out->name || !*out->dir)
        return ml_fail(err, ML_EUSAGE, "--lora-paths: \"%s\" must be NAME=DIR", word);
    return ML_OK;
}

/* The largest rank of the adapters to load at the start. */
static ml_status find_rank(const ml_serve_adapters *x, const ml_spec *s, ml_backend *be,
                           int32_t *out, ml_err *err) {
    *out = x->n ? 0 : DEFAULT_RANK;
    for (int i = 0; i < x->n; i++) {
        ml_lora l;
        ml_status st = ml_lora_load(&l, s, x->list[i].dir, be, err);
        if (st != ML_OK)
            return st;
        *out = l.max_rank > *out ? l.max_rank : *out;
        ml_lora_close(&l);
    }
    return ML_OK;
}

static bool is_all(const ml_string_list *names) {
    return !names->n || (names->n == 1 && strcmp(names->word[0], "all") == 0);
}

static ml_status find_sites(ml_serve_adapters *x, ml_arena *a, const ml_config *c,
                            const ml_spec *s, ml_err *err) {
    const ml_string_list *names = &c->serve.lora.targets;
    const char *list = "";
    int32_t n_site;
    bool *wanted;

    if (is_all(names))
        return ML_OK;
    ml_spec_lora_layers(s, a, &n_site);
    x->limits.wanted = wanted = ML_NEW(a, bool, n_site);
    for (int i = 0; i < names->n; i++)
        list = ml_arena_printf(a, "%s%s%s", list, i ? "," : "", names->word[i]);
    return ml_lora_targets(s, list, "lora-target-modules", wanted, err);
}

static ml_status check_machine(const ml_backend *be, ml_err *err) {
    if (be->ops->forward[ML_OP_LORA])
        return ML_OK;
    return ml_fail(err, ML_EUNSUP,
                   "--enable-lora: the backend %s does not compute adapters yet; use "
                   "--device cpu",
                   be->name);
}

ml_status ml_serve_adapters_open(ml_serve_adapters *out, ml_arena *a, const ml_config *c,
                                 ml_spec *s, ml_backend *be, ml_err *err) {
    const ml_string_list *paths = &c->serve.lora.paths;
    ml_status st;

    *out = (ml_serve_adapters){ .on = c->serve.lora.enable || paths->n,
                                .n = paths->n,
                                .limits.max_rank = (int32_t)c->serve.lora.max_rank };
    if (!out->on)
        return ML_OK;
    st = check_machine(be, err);
    out->list = ML_NEW(a, ml_server_adapter, paths->n + 1);
    for (int i = 0; i < paths->n && st == ML_OK; i++)
        st = read_path(&out->list[i], a, paths->word[i], err);
    if (st == ML_OK)
        st = find_sites(out, a, c, s, err);
    if (st == ML_OK && !out->limits.max_rank)
        st = find_rank(out, s, be, &out->limits.max_rank, err);
    if (st == ML_OK)
        ml_spec_lora_insert(s, out->limits.wanted, out->limits.max_rank);
    return st;
}
