#include <string.h>

#include "base/bug.h"
#include "cli/cli.h"
#include "cli/flags/flag_family.h"

static const char *const origins[] = {
    [ML_FROM_OURS] = "",
    [ML_FROM_MILES] = "Miles",
    [ML_FROM_MEGATRON] = "Megatron",
    [ML_FROM_SGLANG] = "SGLang",
};

/* Escapes text for a table cell: a bar would end the cell. */
static void cell(ml_text *out, const char *s) {
    for (; *s; s++)
        ml_text_printf(out, *s == '|' ? "\\|" : "%c", *s);
}

static void flag_row(ml_text *out, const ml_flag *f, ml_flag_origin from) {
    ml_text value = { 0 };

    ml_text_printf(out, "| `--%s", f->name);
    ml_flag_value(f, &value);
    if (value.len) {
        ml_text_printf(out, " ");
        cell(out, value.ptr);
    }
    ml_text_printf(out, "` | ");
    if (f->required)
        ml_text_printf(out, "required");
    else
        cell(out, f->def ? f->def : f->def_note ? f->def_note : "");
    ml_text_printf(out, " | %s | ", origins[from]);
    if (f->state == ML_FLAG_LIVE)
        cell(out, f->help);
    else
        ml_text_printf(out, "*%s*: %s.",
                       f->state == ML_FLAG_NOOP ? "ignored" : "not supported", f->why);
    if (f->min < f->max && f->type != ML_FLAG_BYTES)
        ml_text_printf(out, " From %.15g to %.15g.", f->min, f->max);
    if (f->env)
        ml_text_printf(out, " Environment variable: `%s`.", f->env);
    ml_text_printf(out, " |\n");
    ml_text_release(&value);
}

static void rules_of(ml_text *out, const ml_command *cmd) {
    bool any = false;

    for (const ml_rule *const *t = ml_rule_tables; *t; t++)
        for (const ml_rule *r = *t; r->id; r++) {
            if (!(r->cmds & cmd->bit) || cmd->bit == ML_CMD_PLAN)
                continue;
            if (!any)
                ml_text_printf(out, "\nRules between flags:\n\n");
            any = true;
            ml_text_printf(out, "- `%s`: %s.\n", r->id, r->sentence);
        }
}

/* The flags that are grouped by the reason why they have no effect. */
static void families_of(ml_text *out, const ml_command *cmd) {
    if (!(cmd->bit & ML_CMD_FAMILIES) || cmd->bit == ML_CMD_PLAN)
        return;
    ml_text_printf(out,
                   "\n### %s: flags of other programs\n\n`--eval-sglang-NAME` stands "
                   "for `--sglang-NAME` in evaluations; those with an effect are not "
                   "supported.\n\n| flags | |\n|---|---|\n",
                   cmd->name);
    for (const ml_flag_family *f = ml_flag_families; f->prefix; f++) {
        const char *rest = f->names, *comma = "";
        ml_str name;

        ml_text_printf(out, "| ");
        for (; ml_family_next(&rest, &name); comma = ", ")
            ml_text_printf(out, "%s`--%s%.*s`", comma, f->prefix, (int)name.len, name.ptr);
        ml_text_printf(out, " | *%s*: %s. |\n",
                       f->state == ML_FLAG_NOOP ? "ignored" : "not supported", f->why);
    }
}

static void command_section(ml_text *out, const ml_command *cmd) {
    ml_flag_list l;
    const char *group = "";

    ml_flag_list_init(&l, cmd->bit == ML_CMD_PLAN ? ML_CMD_PLAN_ONLY : cmd->bit);
    ml_text_printf(out, "\n## miles %s\n\n`miles %s`: %s.\n", cmd->name, cmd->name,
                   cmd->help);
    if (cmd->bit == ML_CMD_PLAN)
        ml_text_printf(out, "\nIt also has all flags of `miles train`; of these, only "
                            "`--hf-checkpoint` is required, and it reads nothing but "
                            "`config.json`.\n");
    for (int i = 0; i < l.n; i++) {
        if (strcmp(group, l.row[i]->group) != 0)
            ml_text_printf(out,
                           "\n### %s: %s\n\n| flag | default | origin | meaning "
                           "|\n|---|---|---|---|\n",
                           cmd->name, l.row[i]->group);
        group = l.row[i]->group;
        flag_row(out, l.row[i], ml_flag_from(&l, i));
    }
    families_of(out, cmd);
    rules_of(out, cmd);
}

/* The flags that `miles train --help` shows. */
static void first_section(ml_text *out, const ml_command *cmd) {
    ml_flag_list l;

    ml_flag_list_init(&l, cmd->bit);
    ml_text_printf(out,
                   "\n## The 25 flags that matter\n\nA first run of `miles %s` needs "
                   "few of its flags.  `miles %s --help` shows the same list, and "
                   "`miles doctor %s ARGS...` checks a command line.\n\n"
                   "| flag | default | origin | meaning |\n|---|---|---|---|\n",
                   cmd->name, cmd->name, cmd->name);
    for (const char *at = cmd->first; *at; at += strspn(at, " ")) {
        ml_str name = { at, strcspn(at, " ") };
        int row = ml_flag_list_find(&l, name);
        ML_BUG_IF(row < 0);
        if (row >= 0) /* cppcheck does not know that ML_BUG_IF ends the program */
            flag_row(out, l.row[row], ml_flag_from(&l, row));
        at += name.len;
    }
}

void ml_help_docs(ml_text *out) {
    ml_text_printf(
        out, "<!-- Generated from the flag tables by `make docs`; edit src/cli/flags/*.c "
             "instead. -->\n# Command line\n\nValues are written `--name VALUE` or "
             "`--name=VALUE`; `--no-name` turns off a flag without a value.  Names cannot "
             "be abbreviated.  If a flag is repeated, the last one wins.  The command line "
             "takes precedence over the YAML file of `--custom-config-path`, the file over "
             "environment variables, and these over the default; overridden values are "
             "logged on standard error.\n\nExit status: 0 success, 1 failure, 2 usage "
             "error, 3 another process failed, 70 bug in miles.\n");
    first_section(out, ml_command_find("train"));
    for (const ml_command *c = ml_commands; c->name; c++)
        command_section(out, c);
}
