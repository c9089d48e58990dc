/* miles doctor: reports on this machine, and checks a command line against it. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/commands/doctor_checks.h"
#include "cli/machine.h"

/* Sets --dry-run, if the command has it. */
static bool make_dry(ml_config *c, ml_cmd cmd) {
    ml_flag_list l;
    int at;

    ml_flag_list_init(&l, cmd);
    at = ml_flag_list_find(&l, ml_str_of("dry-run"));
    return at >= 0 && ml_flag_set(c, l.row[at], "on");
}

/* Prints a line for each error in the flags; returns their number. */
static int print_flags(ml_text *wrong) {
    int n = 0;

    for (char *save = NULL, *line = wrong->len ? strtok_r(wrong->ptr, "\n", &save) : NULL;
         line; line = strtok_r(NULL, "\n", &save), n++)
        printf("flags      ERROR: %s\n", line);
    return n;
}

static ml_status examine(const ml_command *cmd, int argc, const char *const *argv,
                         ml_err *err) {
    char **words = (char **)(uintptr_t)argv; /* of main's argv, which is not const */
    ml_help_asked help;                      /* --help shows that of doctor itself */
    ml_text wrong = { 0 };
    ml_config config;
    ml_status st = ml_flags_parse(&config, &help, cmd->bit, argc, words, &wrong), first;
    int n_wrong;

    printf("\nmiles %s\n", cmd->name);
    n_wrong = print_flags(&wrong);
    n_wrong += ml_doctor_checks(&config, cmd->bit, &first);
    fflush(stdout);
    if (n_wrong)
        st = ml_fail(err, st == ML_OK ? first : st, "miles %s would not start: %d error%s",
                     cmd->name, n_wrong, n_wrong == 1 ? "" : "s");
    else if (make_dry(&config, cmd->bit))
        st = cmd->run(&config, err);
    else
        printf("no errors; the memory of this command is not known in advance\n");
    ml_config_release(&config);
    ml_text_release(&wrong);
    return st;
}

ml_status ml_cmd_doctor(const ml_config *c, ml_err *err) {
    const ml_string_list *w = &c->doctor.command;
    const ml_command *cmd = w->n ? ml_command_find(w->word[0]) : NULL;
    int n_word = 1;
    ml_status st = ml_machine_print(err);

    if (st != ML_OK)
        return st;
    ml_machine_print_gpu();
    if (!w->n)
        return ML_OK;
    if (!cmd && w->n > 1) {
        char two[100];
        snprintf(two, sizeof two, "%s %s", w->word[0], w->word[1]);
        cmd = ml_command_find(two);
        n_word = 2;
    }
    if (!cmd)
        return ml_fail(err, ML_EUSAGE,
                       "unknown command '%s'; miles --help lists all commands", w->word[0]);
    fflush(stdout);
    cmd = ml_command_of(cmd, w->n - n_word, (char *const *)(uintptr_t)(w->word + n_word));
    return examine(cmd, w->n - n_word, w->word + n_word, err);
}
