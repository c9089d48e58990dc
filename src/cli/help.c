#include <string.h>

#include "base/bug.h"
#include "cli/cli.h"
#include "cli/flags/flag_family.h"

#define HELP_COLUMN 30
#define HELP_WIDTH 80

void ml_flag_value(const ml_flag *f, ml_text *out) {
    static const char *const by_type[] = {
        [ML_FLAG_BOOL] = "",      [ML_FLAG_I64] = "N",        [ML_FLAG_F64] = "X",
        [ML_FLAG_BYTES] = "SIZE", [ML_FLAG_TEXT] = "TEXT",    [ML_FLAG_PATH] = "PATH",
        [ML_FLAG_WORD] = "WORD",  [ML_FLAG_LIST] = "WORD...",
    };
    if (!f->words || f->value) {
        ml_text_printf(out, "%s", f->value ? f->value : by_type[f->type]);
        return;
    }
    for (int i = 0; f->words[i]; i++)
        ml_text_printf(out, "%s%s", i ? "|" : "", f->words[i]);
}

/* The help sentence with default and environment variable, or the reason of a NOOP. */
static void describe(const ml_flag *f, ml_text *out) {
    if (f->state == ML_FLAG_NOOP)
        ml_text_printf(out, "Accepted but ignored: %s.", f->why);
    else if (f->state == ML_FLAG_REFUSED)
        ml_text_printf(out, "Not supported: %s.", f->why);
    else
        ml_text_printf(out, "%s", f->help);
    if (f->required)
        ml_text_printf(out, "  Required.");
    if (f->def || f->def_note)
        ml_text_printf(out, "  Default: %s.", f->def ? f->def : f->def_note);
    if (f->env)
        ml_text_printf(out, "  Environment variable: %s.", f->env);
}

/* Wraps the words of s to lines of HELP_WIDTH, starting at HELP_COLUMN. */
static void wrap(ml_text *out, const char *s) {
    size_t column = HELP_COLUMN;

    while (*s) {
        size_t blanks = strspn(s, " "), n = strcspn(s + blanks, " ");
        if (column + blanks + n > HELP_WIDTH) {
            ml_text_printf(out, "\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
            blanks = 0;
        }
        ml_text_printf(out, "%*s%.*s", (int)blanks, "", (int)n, s + strspn(s, " "));
        column += blanks + n;
        s += strspn(s, " ") + n;
    }
    ml_text_printf(out, "\n");
}

static void flag_lines(ml_text *out, const ml_flag *f) {
    ml_text left = { 0 }, right = { 0 };

    ml_text_printf(&left, "  --%s ", f->name);
    ml_flag_value(f, &left);
    describe(f, &right);
    if (left.len + 1 >= HELP_COLUMN)
        ml_text_printf(out, "%s\n%*s", left.ptr, HELP_COLUMN, "");
    else
        ml_text_printf(out, "%-*s", HELP_COLUMN, left.ptr);
    wrap(out, right.ptr);
    ml_text_release(&left);
    ml_text_release(&right);
}

static void usage(ml_text *out, const ml_command *cmd, const ml_flag_list *l) {
    ml_text_printf(out, "miles %s: %s\n\nusage: miles %s", cmd->name, cmd->help, cmd->name);
    for (int i = 0; i < l->n; i++)
        if (l->row[i]->operand)
            ml_text_printf(out, l->row[i]->required ? " %s" : " [%s]", l->row[i]->value);
        else if (l->row[i]->required)
            ml_text_printf(out, " --%s %s", l->row[i]->name, l->row[i]->value);
    ml_text_printf(out, " [flags]\n");
    if (cmd->example)
        ml_text_printf(out, "\nexample\n  %s\n", cmd->example);
}

/* Prints the flags with an effect, or those without; returns the number of the others. */
static int rows(ml_text *out, const ml_flag_list *l, bool live) {
    const char *group = "";
    int n_left = 0;

    for (int i = 0; i < l->n; i++) {
        if ((l->row[i]->state == ML_FLAG_LIVE) != live) {
            n_left++;
            continue;
        }
        if (strcmp(group, l->row[i]->group) != 0)
            ml_text_printf(out, "\n%s\n", l->row[i]->group);
        group = l->row[i]->group;
        flag_lines(out, l->row[i]);
    }
    return n_left;
}

/* Prints the most needed flags; returns the number of the others. */
static int first_rows(ml_text *out, const ml_command *cmd, const ml_flag_list *l) {
    const char *at = cmd->first;
    int n = 0;

    ml_text_printf(out, "\nmain flags\n");
    for (; *at; n++) {
        ml_str name = { at, strcspn(at, " ") };
        int row = ml_flag_list_find(l, name);
        if (row >= 0)
            flag_lines(out, l->row[row]);
        at += name.len;
        at += *at == ' ';
    }
    return l->n - n;
}

/* Prints the families of flags, or counts their names. */
static int families(ml_text *out, unsigned cmds, bool print) {
    int n = 0;

    for (const ml_flag_family *f = ml_flag_families; f->prefix; f++) {
        const char *rest = f->names;
        ml_text text = { 0 };
        ml_str name;

        if (!(cmds & ML_CMD_FAMILIES))
            break;
        ml_text_printf(&text,
                       "%s: %s:", f->state == ML_FLAG_NOOP ? "ignored" : "not supported",
                       f->why);
        for (; ml_family_next(&rest, &name); n++)
            ml_text_printf(&text, " --%s%.*s", f->prefix, (int)name.len, name.ptr);
        if (print) {
            ml_text_printf(out, "\n%*s", HELP_COLUMN, "");
            wrap(out, text.ptr);
        }
        ml_text_release(&text);
    }
    return n;
}

void ml_help_command(ml_text *out, const ml_command *cmd, bool all) {
    bool few = cmd->first && !all;
    ml_flag_list l;
    int n_left;

    ml_flag_list_init(&l, cmd->bit);
    usage(out, cmd, &l);
    n_left = few ? first_rows(out, cmd, &l) : rows(out, &l, true);
    if (all)
        rows(out, &l, false);
    n_left += families(out, cmd->bit, all);
    ml_text_printf(out,
                   "\nValues are written --name VALUE or --name=VALUE; --no-name turns off "
                   "a flag without\na value.  If a flag is repeated, the last one wins.\n");
    if (n_left && !all)
        ml_text_printf(out,
                       few ? "miles %s --help-all lists %d more.\n"
                           : "miles %s --help-all lists %d more: flags of other programs "
                             "that are ignored or\nnot supported.\n",
                       cmd->name, n_left);
}

void ml_help_all(ml_text *out) {
    ml_text_printf(out, "miles: reinforcement-learning post-training of language models\n\n"
                        "usage: miles <command> [flags]\n\n");
    for (const ml_command *c = ml_commands; c->name; c++)
        ml_text_printf(out, "  %-13s %s\n", c->name, c->help);
    ml_text_printf(
        out,
        "\nmiles <command> --help, or miles help <command>, shows the main "
        "flags;\n--help-all shows every flag, including ignored flags of other "
        "programs.\nmiles --version, or -V, prints the version.\nmiles --print-completion "
        "bash|zsh|fish prints a completion script.\nmiles --print-man [<command>] prints "
        "a manual page.\n\nexit status: 0 success, 1 failure, 2 "
        "usage error, 3 another process failed,\n70 bug in miles\n");
}
