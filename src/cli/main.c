#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/bus_error.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/rank_log.h"
#include "comm/share.h"
#include "comm/world.h"
#include "run/rank_messages.h"

/* ml_bug has printed the message; the status marks an internal error for scripts. */
static void on_abort(int sig) {
    (void)sig;
    _exit(ML_EXIT_BUG);
}

/* The log sink, for the lifetime of the process. */
typedef struct sink {
    int level;    /* the most detailed that is written */
    bool several; /* ranks, which write to their files, too */
    bool first;   /* rank 0 writes to the terminal */
} sink;

static void print_log(const char *line) {
    ml_progress_pause();
    fprintf(stderr, "miles: %s\n", line);
    ml_progress_resume();
}

static void log_line(void *ud, ml_log_level level, const char *line) {
    static const char *const names[] = { "warning: ", "info: ", "debug: ", "" };
    const sink *to = ud;
    ml_text t = { 0 };

    if ((int)level > to->level && level != ML_LOG_OUTPUT)
        return;
    ml_text_printf(&t, "%s%s", names[level], line);
    if (to->several)
        ml_rank_log_line(t.ptr);
    if (!(level == ML_LOG_WARN && ml_rank_messages_keep(t.ptr)) && to->first)
        print_log(t.ptr);
    ml_text_release(&t);
}

/* Checks that all output was written; otherwise the run has failed. */
static int finish_output(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    fprintf(stderr, "miles: standard output: %s\n", strerror(errno));
    return code ? code : ML_EXIT_FAILED;
}

static int print(ml_text *t, FILE *to, int code) {
    fputs(t->ptr, to);
    ml_text_release(t);
    return finish_output(code);
}

/* Prints one error on its own line, several as a list. */
static int wrong_usage(const ml_command *cmd, ml_text *wrong) {
    int n = 0;

    for (size_t i = 0; i < wrong->len; i++)
        n += wrong->ptr[i] == '\n';
    if (n == 1)
        fprintf(stderr, "miles %s: %s", cmd->name, wrong->ptr);
    else
        fprintf(stderr, "miles %s: %d errors:\n", cmd->name, n);
    for (char *save = NULL, *line = n > 1 ? strtok_r(wrong->ptr, "\n", &save) : NULL; line;
         line = strtok_r(NULL, "\n", &save))
        fprintf(stderr, "  %s\n", line);
    return ML_EXIT_USAGE;
}

/* Python functions get all flags. */
static void give_args(ml_config *c, ml_cmd cmd) {
    ml_text text = { 0 };
    ml_str args;

    ml_flags_args(&text, cmd, c);
    args = (ml_str){ ml_arena_str(&c->arena, text.ptr, text.len), text.len };
    ml_text_release(&text);
    c->run.reward.args = c->run.extensions.path.args = c->run.algo.args = args;
}

/* Rank 0 reports for all of them, unless it is the one that does not answer. */
static void report(const ml_command *cmd, const ml_comm *world, const sink *log,
                   const ml_err *err) {
    ml_text line = { 0 };

    ml_text_printf(&line, "miles %s: %s", cmd->name, err->msg);
    if (log->several)
        ml_rank_log_line(line.ptr);
    if (log->first || ml_comm_first_silent(world))
        fprintf(stderr, "%s\n", line.ptr);
    ml_text_release(&line);
}

/* Parses the flags and runs the command.  All ranks of a job have the same flags: rank 0
 * prints what is wrong with them. */
static int run_parsed(const ml_command *cmd, int argc, char **argv, ml_comm *world,
                      sink *log) {
    ml_config config;
    ml_err err = { 0 };
    ml_text text = { 0 };
    ml_help_asked help;
    ml_status st;

    if (ml_flags_parse(&config, &help, cmd->bit, argc, argv, &text) != ML_OK) {
        int code = log->first ? wrong_usage(cmd, &text) : ML_EXIT_USAGE;
        ml_config_release(&config);
        ml_text_release(&text);
        return code;
    }
    if (help) {
        ml_help_command(&text, cmd, help == ML_HELP_ALL);
        return print(&text, stdout, ML_EXIT_OK);
    }
    log->level = config.log_level;
    config.run.ranks.world = world;
    if (cmd->bit & (ML_CMD_TRAIN | ML_CMD_EVAL | ML_CMD_REWARD))
        give_args(&config, cmd->bit);
    st = cmd->run(&config, &err);
    ml_rank_messages_flush();
    if (st)
        report(cmd, world, log, &err);
    ml_config_release(&config);
    return finish_output(ml_exit_code(st));
}

/* Commands that several ranks run together. */
#define RANKED                                                                             \
    (ML_CMD_TRAIN | ML_CMD_SFT | ML_CMD_EVAL | ML_CMD_SCORE | ML_CMD_BENCH_ENGINE)

static int run_command(const ml_command *cmd, int argc, char **argv) {
    static sink log = { ML_LOG_WARN, false, true };
    ml_comm *world = NULL;
    ml_err err = { 0 };
    ml_status st;
    int code;

    ml_log_to(log_line, &log);
    st = cmd->bit & RANKED ? ml_comm_world(&world, &err) : ML_OK;
    if (st != ML_OK) {
        fprintf(stderr, "miles %s: %s\n", cmd->name, err.msg);
        return ml_exit_code(st);
    }
    log.first = ml_comm_is_first(world);
    log.several = ml_comm_size(world) > 1;
    if (log.several)
        ml_rank_messages_open(log.first, print_log);
    code = run_parsed(cmd, argc, argv, ml_comm_size(world) > 1 ? world : NULL, &log);
    if (world)
        world->close(world); /* after the message: then mpirun may end the others */
    return code;
}

/* The command of the first words, and the number of words of its name. */
static const ml_command *command_of(int argc, char **argv, int *n_word) {
    char two[100];
    const ml_command *cmd = NULL;

    *n_word = 2;
    if (argc > 2 && snprintf(two, sizeof two, "%s %s", argv[1], argv[2]) < (int)sizeof two)
        cmd = ml_command_find(two);
    if (cmd || argc < 2)
        return cmd;
    *n_word = 1;
    return ml_command_find(argv[1]);
}

/* The second word of a command is missing or wrong: lists the commands with this first
 * word. */
static bool half_command(const char *name) {
    size_t n = strlen(name);
    bool any = false;

    for (const ml_command *c = ml_commands; c->name; c++)
        if (strncmp(c->name, name, n) == 0 && c->name[n] == ' ') {
            fprintf(stderr, any ? " or '%s'" : "miles: expected 'miles %s'", c->name);
            any = true;
        }
    if (any)
        fprintf(stderr, "\n");
    return any;
}

static int unknown_command(const char *name) {
    const ml_command *near = ml_command_near(name);

    if (half_command(name))
        return ML_EXIT_USAGE;
    if (near)
        fprintf(stderr, "miles: unknown command '%s'; did you mean '%s'?\n", name,
                near->name);
    else
        fprintf(stderr, "miles: unknown command '%s'; miles --help lists all commands\n",
                name);
    return ML_EXIT_USAGE;
}

/* miles help [command] and miles --print-man [command] */
static int print_page(int argc, char **argv, bool man) {
    const ml_command *cmd = NULL;
    ml_text text = { 0 };
    int n_word;

    if (argc > 2) {
        cmd = command_of(argc - 1, argv + 1, &n_word);
        if (!cmd)
            return unknown_command(argv[2]);
    }
    if (man)
        ml_help_man(&text, cmd);
    else if (cmd)
        ml_help_command(&text, cmd, false);
    else
        ml_help_all(&text);
    return print(&text, stdout, ML_EXIT_OK);
}

static int print_completion(const char *shell) {
    ml_text text = { 0 };

    if (ml_help_complete(&text, shell))
        return print(&text, stdout, ML_EXIT_OK);
    fprintf(stderr, "miles: --print-completion: expected bash, zsh or fish\n");
    return ML_EXIT_USAGE;
}

int main(int argc, char **argv) {
    const char *first = argc > 1 ? argv[1] : "";
    int n_word;
    const ml_command *cmd = command_of(argc, argv, &n_word);
    ml_text text = { 0 };

    signal(SIGABRT, on_abort);
    signal(SIGXFSZ, SIG_IGN); /* makes a file-size limit an error of write */
    ml_bus_error_catch();
    if (cmd) {
        argc -= 1 + n_word;
        argv += 1 + n_word;
        return run_command(ml_command_of(cmd, argc, argv), argc, argv);
    }
    if (argc < 2) {
        ml_help_all(&text);
        return print(&text, stderr, ML_EXIT_USAGE);
    }
    if (strcmp(first, "help") == 0)
        return print_page(argc, argv, false);
    if (strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0)
        ml_help_all(&text);
    else if (strcmp(first, "--version") == 0 || strcmp(first, "-V") == 0)
        ml_version_text(&text);
    else if (strcmp(first, "--print-docs") == 0)
        ml_help_docs(&text);
    else if (strcmp(first, "--print-man") == 0)
        return print_page(argc, argv, true);
    else if (strcmp(first, "--print-completion") == 0)
        return print_completion(argc > 2 ? argv[2] : "");
    else
        return unknown_command(first);
    return print(&text, stdout, ML_EXIT_OK);
}
