/* complete.c - completion scripts for shells, generated from the flag tables. */
#include <string.h>

#include "cli/cli.h"

/* --- bash ---------------------------------------------------------------------------- */

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

static void complete_bash(ml_text *out) {
    ml_flag_list l;

    ml_text_printf(
        out, "# bash completion for miles\n"
             "_miles() {\n"
             "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
             "    local cmd=${COMP_WORDS[1]}\n"
             "    COMPREPLY=()\n"
             "    case $cmd:$COMP_CWORD in bench:[3-9]*|data:[3-9]*) cmd=\"$cmd "
             "${COMP_WORDS[2]}\" ;; esac\n"
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
                        "        bench) words='engine serve' ;;\n"
                        "        data) words='show' ;;\n");
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

/* --- zsh and fish -------------------------------------------------------------------- */

/* The first sentence of a help text, inside single quotes; characters of `special` get a
 * backslash. */
static void described(ml_text *out, const char *help, const char *special) {
    const char *end = strstr(help, ". ");
    size_t n = end ? (size_t)(end - help) : strlen(help);

    for (size_t i = 0; i < n; i++)
        if (help[i] == '\'')
            ml_text_printf(out, "'\\''");
        else
            ml_text_printf(out, strchr(special, help[i]) ? "\\%c" : "%c", help[i]);
}

/* The first word of a command's name, if no earlier command begins with it. */
static ml_str new_first_word(const ml_command *c) {
    ml_str word = { c->name, strcspn(c->name, " ") };

    for (const ml_command *b = ml_commands; b < c; b++)
        if (strncmp(b->name, word.ptr, word.len) == 0 && b->name[word.len] == ' ')
            return (ml_str){ 0 };
    return word;
}

static void words_of(ml_text *out, const ml_flag *f) {
    for (int i = 0; f->words[i]; i++)
        ml_text_printf(out, "%s%s", i ? " " : "", f->words[i]);
}

#define ZSH_SPECIAL "[]:\\"

static void zsh_flag(ml_text *out, const ml_flag *f) {
    ml_text_printf(out, "        '--%s[", f->name);
    described(out, f->help, ZSH_SPECIAL);
    ml_text_printf(out, "]");
    if (f->words) {
        ml_text_printf(out, ":value:(");
        words_of(out, f);
        ml_text_printf(out, ")");
    } else if (f->type != ML_FLAG_BOOL) {
        ml_text_printf(out, f->type == ML_FLAG_PATH ? ":file:_files" : ":value: ");
    }
    ml_text_printf(out, "' \\\n");
}

static void zsh_command(ml_text *out, const ml_command *c) {
    ml_flag_list l;

    ml_flag_list_init(&l, c->bit);
    ml_text_printf(out, "    ('%s') _arguments \\\n", c->name);
    for (int i = 0; i < l.n; i++)
        if (l.row[i]->state == ML_FLAG_LIVE)
            zsh_flag(out, l.row[i]);
    ml_text_printf(out, "        '*:file:_files' ;;\n");
}

/* The second words of names like "bench serve". */
static void zsh_second_words(ml_text *out) {
    for (const ml_command *c = ml_commands; c->name; c++) {
        const char *blank = strchr(c->name, ' ');
        if (!blank)
            continue;
        ml_text_printf(out, "    (%.*s) commands+=('%s:", (int)(blank - c->name), c->name,
                       blank + 1);
        described(out, c->help, ZSH_SPECIAL);
        ml_text_printf(out, "') ;|\n");
    }
}

static void complete_zsh(ml_text *out) {
    ml_text_printf(out, "#compdef miles\n"
                        "_miles() {\n"
                        "    local -a commands\n"
                        "    local command=$words[2]\n"
                        "    if (( CURRENT == 2 )); then\n"
                        "        commands=(\n");
    for (const ml_command *c = ml_commands; c->name; c++) {
        ml_str word = new_first_word(c);
        if (!word.len)
            continue;
        ml_text_printf(out, "            '%.*s:", (int)word.len, word.ptr);
        described(out, c->help, ZSH_SPECIAL);
        ml_text_printf(out, "'\n");
    }
    ml_text_printf(out, "        )\n"
                        "        _describe command commands\n"
                        "        return\n"
                        "    fi\n"
                        "    commands=()\n"
                        "    case $command in\n");
    zsh_second_words(out);
    ml_text_printf(out, "    esac\n"
                        "    if (( $#commands )); then\n"
                        "        if (( CURRENT == 3 )); then\n"
                        "            _describe command commands\n"
                        "            return\n"
                        "        fi\n"
                        "        command=\"$command $words[3]\"\n"
                        "    fi\n"
                        "    case $command in\n");
    for (const ml_command *c = ml_commands; c->name; c++)
        zsh_command(out, c);
    ml_text_printf(out, "    esac\n"
                        "}\n"
                        "_miles \"$@\"\n");
}

/* The condition that the command line has this command. */
static void fish_when(ml_text *out, const ml_command *c) {
    const char *blank = strchr(c->name, ' ');

    if (blank)
        ml_text_printf(out,
                       "-n '__fish_seen_subcommand_from %.*s; and "
                       "__fish_seen_subcommand_from %s'",
                       (int)(blank - c->name), c->name, blank + 1);
    else
        ml_text_printf(out,
                       "-n '__fish_seen_subcommand_from %s; and not "
                       "__fish_seen_subcommand_from bench'",
                       c->name);
}

static void fish_flag(ml_text *out, const ml_command *c, const ml_flag *f) {
    ml_text_printf(out, "complete -c miles ");
    fish_when(out, c);
    ml_text_printf(out, " -l %s", f->name);
    if (f->words) {
        ml_text_printf(out, " -xa '");
        words_of(out, f);
        ml_text_printf(out, "'");
    } else if (f->type != ML_FLAG_BOOL) {
        ml_text_printf(out, f->type == ML_FLAG_PATH ? " -rF" : " -x");
    }
    ml_text_printf(out, " -d '");
    described(out, f->help, "\\");
    ml_text_printf(out, "'\n");
}

static void fish_name(ml_text *out, const ml_command *c) {
    const char *blank = strchr(c->name, ' ');
    ml_str word = new_first_word(c);

    if (word.len)
        ml_text_printf(out, "complete -c miles -f -n __fish_use_subcommand -a %.*s -d '",
                       (int)word.len, word.ptr);
    if (word.len) {
        described(out, c->help, "\\");
        ml_text_printf(out, "'\n");
    }
    if (blank)
        ml_text_printf(out,
                       "complete -c miles -f -n '__fish_seen_subcommand_from %.*s' -a %s\n",
                       (int)(blank - c->name), c->name, blank + 1);
}

static void complete_fish(ml_text *out) {
    ml_flag_list l;

    for (const ml_command *c = ml_commands; c->name; c++) {
        fish_name(out, c);
        ml_flag_list_init(&l, c->bit);
        for (int i = 0; i < l.n; i++)
            if (l.row[i]->state == ML_FLAG_LIVE)
                fish_flag(out, c, l.row[i]);
    }
}

bool ml_help_complete(ml_text *out, const char *shell) {
    if (strcmp(shell, "bash") == 0)
        complete_bash(out);
    else if (strcmp(shell, "zsh") == 0)
        complete_zsh(out);
    else if (strcmp(shell, "fish") == 0)
        complete_fish(out);
    else
        return false;
    return true;
}
