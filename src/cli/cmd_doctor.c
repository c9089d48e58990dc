/* miles doctor: what this machine has, and what a command line would do to it. */
#include <stdio.h>

#include "cli/cli.h"
#include "cli/machine.h"

/* Turns on --dry-run, where the command has one. */
static bool make_dry(ml_config *c, ml_cmd cmd) {
    ml_flag_list l;
    int at;

    ml_flag_list_init(&l, cmd);
    at = ml_flag_list_find(&l, ml_str_of("dry-run"));
    return at >= 0 && ml_flag_set(c, l.row[at], "on");
}

static ml_status examine(const ml_command *cmd, int argc, const char *const *argv,
                         ml_err *err) {
    char **words = (char **)(uintptr_t)argv; /* of main's argv, which is not const */
    ml_help_asked help;
    ml_text wrong = { 0 };
    ml_config config;
    ml_status st = ml_flags_parse(&config, &help, cmd->bit, argc, words, &wrong);

    printf("\nmiles %s\n", cmd->name);
    if (st != ML_OK) {
        printf("%s", wrong.ptr);
        st = ml_fail(err, ML_EUSAGE, "miles %s would not start", cmd->name);
    } else if (!make_dry(&config, cmd->bit)) {
        printf("the flags are right; what it allocates is not known beforehand\n");
    } else {
        st = cmd->run(&config, err);
    }
    ml_config_release(&config);
    ml_text_release(&wrong);
    return st;
}

ml_status ml_cmd_doctor(const ml_config *c, ml_err *err) {
    const ml_words *w = &c->doctor.command;
    const ml_command *cmd = w->n ? ml_command_find(w->word[0]) : NULL;
    ml_status st = ml_machine_print(err);

    if (st != ML_OK || !w->n)
        return st;
    if (!cmd)
        return ml_fail(err, ML_EUSAGE, "there is no command '%s'; miles --help lists them",
                       w->word[0]);
    fflush(stdout);
    return examine(cmd, w->n - 1, w->word + 1, err);
}
