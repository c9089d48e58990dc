/* man.c - manual pages, generated from the flag tables. */
#include <ctype.h>
#include <string.h>

#include "cli/cli.h"

/* Text for roff: a backslash and a minus are escaped; a period or an apostrophe at the
 * start of a line would be a request. */
static void put(ml_text *out, const char *s) {
    for (bool fresh = true; *s; fresh = *s == '\n', s++) {
        if (fresh && (*s == '.' || *s == '\''))
            ml_text_printf(out, "\\&");
        if (*s == '\\')
            ml_text_printf(out, "\\e");
        else
            ml_text_printf(out, *s == '-' ? "\\-" : "%c", *s);
    }
}

/* "MILES-BENCH-SERVE" or "miles-bench-serve". */
static void page_name(ml_text *out, const ml_command *cmd, bool upper) {
    ml_text_printf(out, upper ? "MILES" : "miles");
    if (!cmd)
        return;
    ml_text_printf(out, "-");
    for (const char *s = cmd->name; *s; s++)
        ml_text_printf(out, "%c", *s == ' ' ? '-' : upper ? toupper(*s) : *s);
}

static void head(ml_text *out, const ml_command *cmd, const char *what) {
    ml_text_printf(out, ".TH ");
    page_name(out, cmd, true);
    ml_text_printf(out, " 1 \"\" \"miles " ML_VERSION "\" \"User Commands\"\n.SH NAME\n");
    page_name(out, cmd, false);
    ml_text_printf(out, " \\- ");
    put(out, what);
    ml_text_printf(out, "\n.SH SYNOPSIS\n");
}

static void foot(ml_text *out, const char *others) {
    ml_text_printf(out,
                   ".SH EXIT STATUS\n0 success, 1 failure, 2 usage error, 3 another "
                   "process failed, 70 bug in miles.\n.SH SEE ALSO\n%s\n",
                   others);
}

static void flag_entry(ml_text *out, const ml_flag *f) {
    ml_text value = { 0 };

    ml_flag_value(f, &value);
    ml_text_printf(out, ".TP\n.B \\-\\-");
    put(out, f->name);
    if (value.len) {
        ml_text_printf(out, " \\fI");
        put(out, value.ptr);
        ml_text_printf(out, "\\fR");
    }
    ml_text_printf(out, "\n");
    put(out, f->help);
    if (f->required)
        ml_text_printf(out, " Required.");
    if (f->def || f->def_note) {
        ml_text_printf(out, " Default: ");
        put(out, f->def ? f->def : f->def_note);
        ml_text_printf(out, ".");
    }
    if (f->env)
        ml_text_printf(out, " Environment variable: %s.", f->env);
    ml_text_printf(out, "\n");
    ml_text_release(&value);
}

static void command_page(ml_text *out, const ml_command *cmd) {
    const char *group = "";
    ml_flag_list l;

    head(out, cmd, cmd->help);
    ml_text_printf(out, ".B miles %s\n[\\fIflags\\fR]\n.SH OPTIONS\n", cmd->name);
    ml_flag_list_init(&l, cmd->bit);
    for (int i = 0; i < l.n; i++) {
        const ml_flag *f = l.row[i];
        if (f->state != ML_FLAG_LIVE)
            continue;
        if (strcmp(group, f->group) != 0)
            ml_text_printf(out, ".SS %s\n", f->group);
        group = f->group;
        flag_entry(out, f);
    }
    if (cmd->example) {
        ml_text_printf(out, ".SH EXAMPLES\n.EX\n");
        put(out, cmd->example);
        ml_text_printf(out, "\n.EE\n");
    }
    foot(out, ".BR miles (1)");
}

static void overview(ml_text *out) {
    head(out, NULL, "reinforcement-learning post-training of language models");
    ml_text_printf(out, ".B miles\n\\fIcommand\\fR [\\fIflags\\fR]\n.SH COMMANDS\n");
    for (const ml_command *c = ml_commands; c->name; c++) {
        ml_text_printf(out, ".TP\n.BR ");
        page_name(out, c, false);
        ml_text_printf(out, " (1)\n");
        put(out, c->help);
        ml_text_printf(out, "\n");
    }
    foot(out, "The documentation is installed in share/doc/miles.");
}

void ml_help_man(ml_text *out, const ml_command *cmd) {
    if (cmd)
        command_page(out, cmd);
    else
        overview(out);
}
