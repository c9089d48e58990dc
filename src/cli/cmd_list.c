/* miles list: all extensions, by kind. */
#include <stdio.h>

#include "cli/cli.h"
#include "plugin/edge.h"
#include "plugin/kinds.h"
#include "rl/builtins.h"

static void print_rows(const miles_extension *const *row, const ml_kind *kind,
                       const char *object) {
    for (; *row; row++) {
        if ((*row)->kind != (int32_t)kind->kind)
            continue;
        printf("    %s%s%s: %s\n", object ? object : "", object ? ":" : "", (*row)->name,
               (*row)->help ? (*row)->help : "");
        if ((*row)->alias)
            printf("        alias %s\n", (*row)->alias);
    }
}

/* Extensions of a kind that this program does not know. */
static void print_strangers(const miles_plugin *plugin, const char *object) {
    for (const miles_extension *const *row = plugin->row; *row; row++)
        if (!ml_kind_of((*row)->kind))
            printf("%s:%s has kind %d, which this version of miles does not know\n", object,
                   (*row)->name, (*row)->kind);
}

ml_status ml_cmd_list(const ml_config *c, ml_err *err) {
    const miles_plugin *plugin = NULL;
    const char *object = c->edges.plugin;
    ml_status st = object ? ml_plugin_open(&plugin, object, err) : ML_OK;

    if (st != ML_OK)
        return st;
    for (const ml_kind *k = ml_kinds; k->name; k++) {
        printf("%s (--%s)\n", k->name, k->flag);
        print_rows(ml_builtins, k, NULL);
        if (plugin)
            print_rows(plugin->row, k, object);
    }
    if (plugin)
        print_strangers(plugin, object);
    return ML_OK;
}
