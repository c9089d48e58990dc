/* cli.h - the subcommands, and the texts generated from their tables.
 *
 * Only main.c and cmd_*.c print.  A command returns a status and a message; main turns
 * them into "miles <command>: <message>" and an exit code. */
#ifndef ML_CLI_CLI_H
#define ML_CLI_CLI_H

#include <stdio.h>

#include "base/err.h"
#include "base/str.h"
#include "cli/config.h"
#include "cli/flags/flag.h"

#define ML_VERSION "0.1.0"

enum {
    ML_EXIT_OK = 0,
    ML_EXIT_FAILED = 1,
    ML_EXIT_USAGE = 2,
    ML_EXIT_PEER = 3,
    ML_EXIT_BUG = 70
};

typedef ml_status ml_cmd_fn(const ml_config *c, ml_err *err);

ml_cmd_fn ml_cmd_score;         /* cmd_score.c */
ml_cmd_fn ml_cmd_serve;         /* cmd_serve.c */
ml_cmd_fn ml_cmd_router;        /* cmd_router.c */
ml_cmd_fn ml_cmd_tinker;        /* cmd_tinker.c */
ml_cmd_fn ml_cmd_reward;        /* cmd_reward.c */
ml_cmd_fn ml_cmd_loss;          /* cmd_loss.c */
ml_cmd_fn ml_cmd_sft;           /* cmd_train.c */
ml_cmd_fn ml_cmd_dpo;           /* cmd_train.c */
ml_cmd_fn ml_cmd_reward_model;  /* cmd_train.c */
ml_cmd_fn ml_cmd_train;         /* cmd_train.c */
ml_cmd_fn ml_cmd_eval;          /* cmd_eval.c */
ml_cmd_fn ml_cmd_inspect;       /* cmd_inspect.c */
ml_cmd_fn ml_cmd_dashboard;     /* cmd_dashboard.c */
ml_cmd_fn ml_cmd_data_show;     /* cmd_data_show.c */
ml_cmd_fn ml_cmd_doctor;        /* cmd_doctor.c */
ml_cmd_fn ml_cmd_plan;          /* cmd_plan.c */
ml_cmd_fn ml_cmd_list;          /* cmd_list.c */
ml_cmd_fn ml_cmd_convert;       /* cmd_convert.c */
ml_cmd_fn ml_cmd_sandbox;       /* cmd_sandbox.c */
ml_cmd_fn ml_cmd_tokenize;      /* cmd_tokenize.c */
ml_cmd_fn ml_cmd_chat_template; /* cmd_chat_template.c */
ml_cmd_fn ml_cmd_bench_engine;  /* cmd_bench_engine.c */
ml_cmd_fn ml_cmd_bench_serve;   /* cmd_bench_serve.c */

typedef struct ml_command {
    const char *name; /* one word, or two: "bench engine" */
    ml_cmd bit;
    ml_cmd_fn *run;
    const char *help;    /* one line */
    const char *first;   /* flags that --help shows; NULL: every live flag */
    const char *example; /* a whole command line, wrapped for a shell; NULL: none */
} ml_command;

extern const ml_command ml_commands[]; /* ends with an entry without a name */

const ml_command *ml_command_find(const char *name);
/* The command that a command line means: miles sft, if Miles spells it as a rollout
 * function of train. */
const ml_command *ml_command_of(const ml_command *cmd, int argc, char *const *argv);
/* The command with the most similar name, or NULL if none is similar. */
const ml_command *ml_command_near(const char *name);

void ml_help_all(ml_text *out); /* miles --help */
/* miles score --help; all: every flag, including those without effect here. */
void ml_help_command(ml_text *out, const ml_command *cmd, bool all);
void ml_help_docs(ml_text *out); /* docs/cli.md */
/* Manual pages in roff, section 1; cmd NULL: miles(1), which lists the commands. */
void ml_help_man(ml_text *out, const ml_command *cmd);
/* A completion script for this shell; false: there is none. */
bool ml_help_complete(ml_text *out, const char *shell);

/* miles --version; the first line is "miles VERSION COMMIT". */
void ml_version_text(ml_text *out);

/* "auto|f32", "DIR", "N": the placeholder after the flag's name; nothing for a bool. */
void ml_flag_value(const ml_flag *f, ml_text *out);

int ml_exit_code(ml_status st);

static inline void ml_print_line(const char *line) {
    puts(line);
}

#endif
