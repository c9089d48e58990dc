#include "plugin/model_family.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "miles/model.h"
#include "plugin/object.h"

/* Miles' modules of layers, and how the model_type of models with these layers begins. */
static const char *const modules[][2] = {
    { "miles_plugins.models.qwen3_5", "qwen3_5" },
    { "miles_plugins.models.qwen3_next", "qwen3_next" },
    { "miles_plugins.models.glm4", "glm4" },
    { "miles_plugins.models.glm5.glm5", "glm_moe_dsa" },
    { "miles_plugins.models.deepseek_v4.deepseek_v4", "deepseek_v4" },
};

/* The family's name comes before all that may be missing in its struct. */
static ml_status check_family(const miles_family *f, int number, const char *path,
                              ml_err *err) {
    if (f->size < sizeof *f)
        return ml_fail(err, ML_EFORMAT,
                       "family %d of %s has size %zu: set .size to sizeof(miles_family), "
                       "which is %zu",
                       number, path, f->size, sizeof *f);
    if (!f->name || !f->name[0] || !f->model_type || !f->model_type[0] || !f->build)
        return ml_fail(err, ML_EFORMAT,
                       "family %d of %s lacks a field: set .name, .model_type and .build",
                       number, path);
    return ML_OK;
}

static ml_status open_plugin(const miles_model_plugin **out, const char *path,
                             ml_err *err) {
    ml_object_fn *found = NULL;
    miles_model_fn *entry;
    ml_status st = ml_object_open(&found, path, "miles_model_entry", "miles/model.h", err);

    if (st != ML_OK)
        return st;
    entry = (miles_model_fn *)found;
    *out = entry();
    if (!*out || (*out)->abi_version != MILES_MODEL_ABI_VERSION)
        return ml_fail(err, ML_EUNSUP,
                       "%s was compiled for version %u of the model interface; this miles "
                       "has version %d: compile it against the miles/model.h of this miles",
                       path, *out ? (*out)->abi_version : 0U, MILES_MODEL_ABI_VERSION);
    if ((*out)->size < sizeof **out || !(*out)->families)
        return ml_fail(err, ML_EFORMAT,
                       "%s lists no families: set .size to sizeof(miles_model_plugin) and "
                       ".families to an array that ends with NULL",
                       path);
    for (int i = 0; (*out)->families[i] && st == ML_OK; i++)
        st = check_family((*out)->families[i], i + 1, path, err);
    return st;
}

/* `name` NULL: none was given. */
static ml_status find_in(const miles_family **out, const miles_model_plugin *plugin,
                         const char *path, const char *name, ml_err *err) {
    ml_text known = { 0 };
    ml_status st;

    for (const miles_family *const *f = plugin->families; *f; f++) {
        if (name && !strcmp((*f)->name, name)) {
            *out = *f;
            ml_text_release(&known);
            return ML_OK;
        }
        ml_text_printf(&known, "%s%s", known.len ? ", " : "", (*f)->name);
    }
    st = ml_fail(err, ML_EUSAGE, "%s has no family '%s': write %s:NAME with one of: %s",
                 path, name ? name : "", path, known.len ? known.ptr : "(none)");
    ml_text_release(&known);
    return st;
}

static ml_status find_plugin(const miles_family **out, const char *word, ml_err *err) {
    const char *colon = strrchr(word, ':');
    const miles_model_plugin *plugin = NULL;
    char path[1024];
    ml_status st;

    if (snprintf(path, sizeof path, "%.*s", (int)(colon ? colon - word : INT32_MAX),
                 word) >= (int)sizeof path)
        return ml_fail(err, ML_EUSAGE, "the path of the shared object is too long");
    st = open_plugin(&plugin, path, err);
    return st == ML_OK ? find_in(out, plugin, path, colon ? colon + 1 : NULL, err) : st;
}

static ml_status find_module(ml_spec_opts *out, const char *word, ml_err *err) {
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        if (!strcmp(word, modules[i][0])) {
            out->layers_name = modules[i][0];
            out->layers_of = modules[i][1];
            return ML_OK;
        }
    return ml_fail(err, ML_EUSAGE,
                   "%s is neither a family of a shared object, ./family.so:NAME, nor one "
                   "of Miles' modules with layers that this miles has; without the flag "
                   "layers are built from config.json",
                   word);
}

ml_status ml_model_family_find(ml_spec_opts *out, const char *const *word, int n,
                               ml_err *err) {
    ml_status st = ML_OK;

    *out = (ml_spec_opts){ 0 };
    if (n && (strchr(word[0], '/') || strstr(word[0], ".so")))
        st = n == 1 ? find_plugin(&out->plugin, word[0], err)
                    : ml_fail(err, ML_EUSAGE, "'%s' after %s: a family has one name",
                              word[1], word[0]);
    else if (n)
        st = find_module(out, word[0], err);
    if (st != ML_OK)
        ml_err_prefix(err, "--spec");
    return st;
}

ml_status ml_model_open(ml_spec *out, const char *dir, const char *const *word, int n,
                        ml_err *err) {
    ml_spec_opts o;
    ml_status st = ml_model_family_find(&o, word, n, err);

    return st == ML_OK ? ml_spec_open_with(out, dir, &o, err) : st;
}
