#include "plugin/extension.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "plugin/kinds.h"
#include "plugin/object.h"
#include "rl/builtins.h"

static bool is_named(const miles_extension *ext, const char *name) {
    return strcmp(ext->name, name) == 0 || (ext->alias && strcmp(ext->alias, name) == 0);
}

static ml_status unknown(const miles_extension *const *ext, miles_kind kind,
                         const char *name, const char *where, ml_err *err) {
    ml_text known = { 0 };
    ml_status st;

    for (; *ext; ext++)
        if ((*ext)->kind == (int32_t)kind)
            ml_text_printf(&known, "%s%s", known.len ? ", " : "", (*ext)->name);
    st = ml_fail(err, ML_EUSAGE, "unknown name '%s' in %s: expected one of: %s", name,
                 where, known.len ? known.ptr : "(none)");
    ml_text_release(&known);
    return st;
}

static ml_status find_among(const miles_extension **out, const miles_extension *const *ext,
                            miles_kind kind, const char *name, const char *where,
                            ml_err *err) {
    for (const miles_extension *const *r = ext; *r; r++)
        if ((*r)->kind == (int32_t)kind && is_named(*r, name)) {
            *out = *r;
            return ML_OK;
        }
    return unknown(ext, kind, name, where, err);
}

static bool has_functions(const miles_extension *ext, const ml_kind *kind) {
    void (*fn)(void);

    for (int i = 0; i < 2 && kind->fn[i]; i++) {
        memcpy(&fn, (const char *)ext + kind->fn[i], sizeof fn);
        if (!fn)
            return false;
    }
    return true;
}

/* Refuses an extension that could not be called, even if it is not selected. */
static ml_status check_extension(const miles_extension *ext, int number, const char *path,
                                 ml_err *err) {
    const ml_kind *kind;

    if (ext->size < sizeof *ext)
        return ml_fail(err, ML_EFORMAT,
                       "extension %d of %s has size %zu, less than "
                       "sizeof(miles_extension): set .size to the sizeof of its struct",
                       number, path, ext->size);
    if (!ext->name || !ext->name[0])
        return ml_fail(err, ML_EFORMAT, "extension %d of %s has no name: set .name", number,
                       path);
    kind = ml_kind_of(ext->kind);
    if (!kind) /* from a newer version of the program */
        return ML_OK;
    if (ext->size < kind->size)
        return ml_fail(err, ML_EFORMAT,
                       "extension %d of %s, '%s', has size %zu, but a %s has %zu: set "
                       ".size to the sizeof of its struct",
                       number, path, ext->name, ext->size, kind->name, kind->size);
    if (!has_functions(ext, kind))
        return ml_fail(err, ML_EFORMAT,
                       "extension %d of %s, '%s', a %s, lacks a function: set all function "
                       "pointers of its struct",
                       number, path, ext->name, kind->name);
    return ML_OK;
}

static ml_status check_extensions(const miles_plugin *plugin, const char *path,
                                  ml_err *err) {
    ml_status st = ML_OK;

    if (!plugin->extensions)
        return ml_fail(err, ML_EFORMAT,
                       "%s lists no extensions: set .extensions of its miles_plugin to an "
                       "array that ends with NULL",
                       path);
    for (int i = 0; plugin->extensions[i] && st == ML_OK; i++)
        st = check_extension(plugin->extensions[i], i + 1, path, err);
    return st;
}

ml_status ml_plugin_open(const miles_plugin **out, const char *path, ml_err *err) {
    ml_object_fn *entry = NULL;
    ml_status st =
        ml_object_open(&entry, path, "miles_plugin_entry", "miles/plugin.h", err);

    if (st != ML_OK)
        return st;
    *out = ((miles_plugin_fn *)entry)();
    if (!*out || (*out)->abi_version != MILES_ABI_VERSION)
        return ml_fail(err, ML_EUNSUP,
                       "%s was compiled for plugin ABI version %u; this miles has version "
                       "%u: compile it "
                       "against the miles/plugin.h of this miles",
                       path, *out ? (*out)->abi_version : 0U, (unsigned)MILES_ABI_VERSION);
    return check_extensions(*out, path, err);
}

static ml_status find_in_object(const miles_extension **out, miles_kind kind,
                                const char *spec, const char *colon, ml_err *err) {
    char path[1024];
    const miles_plugin *plugin = NULL;
    ml_status st;

    if ((size_t)(colon - spec) >= sizeof path)
        return ml_fail(err, ML_EUSAGE, "the path of the shared object is too long");
    snprintf(path, sizeof path, "%.*s", (int)(colon - spec), spec);
    st = ml_plugin_open(&plugin, path, err);
    if (st == ML_OK)
        st = find_among(out, plugin->extensions, kind, colon + 1, path, err);
    return st;
}

const miles_extension *ml_extension_builtin(miles_kind kind, const char *name) {
    const miles_extension *found = NULL;

    return find_among(&found, ml_builtins, kind, name, "", &(ml_err){ 0 }) == ML_OK ? found
                                                                                    : NULL;
}

ml_status ml_extension_find(const miles_extension **out, miles_kind kind, const char *spec,
                            const char *flag, ml_err *err) {
    const char *colon = strrchr(spec, ':');
    ml_status st =
        colon ? find_in_object(out, kind, spec, colon, err)
              : find_among(out, ml_builtins, kind, spec, "the built-in extensions", err);

    if (st != ML_OK)
        ml_err_prefix(err, "--%s", flag);
    return st;
}
