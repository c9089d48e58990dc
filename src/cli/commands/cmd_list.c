/* miles list: all extensions, by kind. */
#include <stdio.h>

#include "cli/cli.h"
#include "plugin/extension.h"
#include "plugin/kinds.h"
#include "rl/builtins.h"

static void print_extensions(const miles_extension *const *ext, const ml_kind *kind,
                             const char *object) {
    for (; *ext; ext++) {
        if ((*ext)->kind != (int32_t)kind->kind)
            continue;
        printf("    %s%s%s: %s\n", object ? object : "", object ? ":" : "", (*ext)->name,
               (*ext)->help ? (*ext)->help : "");
        if ((*ext)->alias)
            printf("        alias %s\n", (*ext)->alias);
    }
}

/* Extensions of a kind that this program does not know. */
static void print_strangers(const miles_plugin *plugin, const char *object) {
    for (const miles_extension *const *ext = plugin->extensions; *ext; ext++)
        if (!ml_kind_of((*ext)->kind))
            printf("%s:%s has kind %d, which this version of miles does not know\n", object,
                   (*ext)->name, (*ext)->kind);
}

ml_status ml_cmd_list(const ml_config *c, ml_err *err) {
    const miles_plugin *plugin = NULL;
    const char *object = c->extensions.plugin;
    ml_status st = object ? ml_plugin_open(&plugin, object, err) : ML_OK;

    if (st != ML_OK)
        return st;
    for (const ml_kind *k = ml_kinds; k->name; k++) {
        printf("%s (--%s)\n", k->name, k->flag);
        print_extensions(ml_builtins, k, NULL);
        if (plugin)
            print_extensions(plugin->extensions, k, object);
    }
    if (plugin)
        print_strangers(plugin, object);
    return ML_OK;
}
