#include "cli/cli.h"

/* Values of a flag: its words, or files for a path. */
static void value_case(ml_text *out, const ml_command *cmd, const ml_flag *f) {
    if (f->words) {
        ml_text_printf(out, "    '%s':--%s) COMPREPLY=($(compgen -W '", cmd->name, f->name);
        for (int i = 0; f->words[i]; i++)
            ml_text_printf(out, "%s%s", i ? " " : "", f->words[i]);
        ml_text_printf(out, "' -- \"$cur\")); return ;;\n");
    } else if (f->type == ML_FLAG_PATH) {
        ml_text_printf(out,
                       "    '%s':--%s) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n",
                       cmd->name, f->name);
    } else if (f->type != ML_FLAG_BOOL) {
        ml_text_printf(out, "    '%s':--%s) return ;;\n", cmd->name, f->name);
    }
}

void ml_help_complete_bash(ml_text *out) {
    ml_flag_list l;

    ml_text_printf(
        out,
        "# bash completion for miles\n"
        "_miles() {\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
        "    local cmd=${COMP_WORDS[1]}\n"
        "    COMPREPLY=()\n"
        "    case $cmd:$COMP_CWORD in bench:[3-9]*) cmd=\"$cmd ${COMP_WORDS[2]}\" ;; esac\n"
        "    case $cmd:$prev in\n");
    for (const ml_command *c = ml_commands; c->name; c++) {
        ml_flag_list_init(&l, c->bit);
        for (int i = 0; i < l.n; i++)
            if (l.row[i]->state == ML_FLAG_LIVE)
                value_case(out, c, l.row[i]);
    }
    ml_text_printf(out, "    esac\n"
                        "    local words='--help --version");
    for (const ml_command *c = ml_commands; c->name; c++)
        ml_text_printf(out, " %s", c->name);
    ml_text_printf(out, "'\n    if [ \"$COMP_CWORD\" -gt 1 ]; then\n"
                        "        case $cmd in\n"
                        "        bench) words='engine serve' ;;\n");
    for (const ml_command *c = ml_commands; c->name; c++) {
        ml_flag_list_init(&l, c->bit);
        ml_text_printf(out, "        '%s') words='--help --help-all", c->name);
        for (int i = 0; i < l.n; i++)
            if (l.row[i]->state == ML_FLAG_LIVE)
                ml_text_printf(out, " --%s", l.row[i]->name);
        ml_text_printf(out, "' ;;\n");
    }
    ml_text_printf(out, "        esac\n"
                        "    fi\n"
                        "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                        "}\n"
                        "complete -F _miles miles\n");
}
