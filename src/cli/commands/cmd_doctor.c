/* miles doctor: reports on this machine, and checks a command line against it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/oom.h"
#include "cli/cli.h"
#include "cli/commands/doctor_checks.h"
#include "cli/commands/doctor_ranks.h"
#include "cli/machine.h"
#include "comm/world.h"

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

static ml_status examine_ranks(ml_comm *c, ml_err *err) {
    size_t n = (size_t)c->size;
    ml_rank_report *all = ml_memory_grow(NULL, n * sizeof *all, "reports of ranks");
    ml_text text = { 0 };
    int32_t n_wrong = 0;
    ml_status st = ml_doctor_measure(all, c, err);

    if (st == ML_OK && c->rank == 0) {
        n_wrong = ml_doctor_table(&text, all, c->size);
        printf("%s", text.ptr);
        fflush(stdout);
    }
    if (n_wrong)
        st = ml_fail(err, ML_EUNSUP, "%d of %d ranks cannot be in one job with the others",
                     (int)n_wrong, (int)c->size);
    ml_text_release(&text);
    free(all);
    return st;
}

static ml_status print_machine(ml_err *err) {
    ml_status st = ml_machine_print(err);

    if (st == ML_OK)
        ml_machine_print_gpu();
    fflush(stdout);
    return st;
}

static ml_status examine_command(const ml_string_list *w, ml_err *err) {
    const ml_command *cmd = ml_command_find(w->word[0]);
    int n_word = 1;

    if (!cmd && w->n > 1) {
        char two[100];
        snprintf(two, sizeof two, "%s %s", w->word[0], w->word[1]);
        cmd = ml_command_find(two);
        n_word = 2;
    }
    if (!cmd)
        return ml_fail(err, ML_EUSAGE,
                       "unknown command '%s'; miles --help lists all commands", w->word[0]);
    return examine(cmd, w->n - n_word, w->word + n_word, err);
}

/* Rank 0 prints, and examines the command line that all ranks were given. */
ml_status ml_cmd_doctor(const ml_config *c, ml_err *err) {
    const ml_string_list *w = &c->doctor.command;
    ml_comm *world;
    ml_status st = ml_comm_world(&world, err);
    bool first;

    if (st != ML_OK)
        return st;
    first = world->rank == 0;
    st = world->agree(world, first ? print_machine(err) : ML_OK, err);
    if (st == ML_OK && world->size > 1)
        st = examine_ranks(world, err);
    if (st == ML_OK && first && w->n)
        st = examine_command(w, err);
    world->close(world);
    return st == ML_EPEER && !first ? ML_OK : st; /* rank 0 says why */
}
