/* flag.h - a flag of the command line is a row.
 *
 * Parser, bounds, --help, docs/cli.md and completion are read off the rows; so is what
 * happens to flags that users of Miles, Megatron or SGLang know and that mean nothing
 * here (NOOP) or are not offered (REFUSED).  Rules between flags are a second table.
 *
 * thread: tables are immutable; parsing happens before there are threads. */
#ifndef ML_CLI_FLAG_H
#define ML_CLI_FLAG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/str.h"
#include "cli/config.h"

/* One bit per subcommand. */
typedef enum ml_cmd {
    ML_CMD_SCORE = 1,
    ML_CMD_CONVERT = 2,
    ML_CMD_TOKENIZE = 4,
    ML_CMD_CHAT_TEMPLATE = 8,
    ML_CMD_BENCH_ENGINE = 16,
    ML_CMD_BENCH_SERVE = 32,
    ML_CMD_LOSS = 64,
    ML_CMD_SERVE = 128,
    ML_CMD_ROUTER = 256,
    ML_CMD_SFT = 512,
    ML_CMD_REWARD = 1024,
    ML_CMD_TRAIN = 2048,
    ML_CMD_EVAL = 4096,
    ML_CMD_INSPECT = 8192,
    ML_CMD_DOCTOR = 16384,
    ML_CMD_LIST = 32768,
    ML_CMD_ALL = 65535,
    ML_CMD_TRAIN_ASYNC = 65536 | ML_CMD_TRAIN /* the flags of train */
} ml_cmd;

typedef enum ml_flag_type {
    ML_FLAG_BOOL,  /* bool; --name or --no-name */
    ML_FLAG_I64,   /* int64_t */
    ML_FLAG_F64,   /* double */
    ML_FLAG_BYTES, /* int64_t; 500MB, 2GiB or a number of bytes */
    ML_FLAG_TEXT,  /* const char *; one of `words` when there are any */
    ML_FLAG_PATH,  /* const char *; a file or directory */
    ML_FLAG_WORD,  /* an enum (int): the index in `words` */
    ML_FLAG_LIST,  /* ml_string_list; --name A B C */
} ml_flag_type;

typedef enum ml_flag_state { ML_FLAG_LIVE, ML_FLAG_NOOP, ML_FLAG_REFUSED } ml_flag_state;
typedef enum ml_flag_origin {
    ML_FROM_OURS,
    ML_FROM_MILES,
    ML_FROM_MEGATRON,
    ML_FROM_SGLANG
} ml_flag_origin;

typedef struct ml_flag {
    const char *name;    /* without dashes; unique within a subcommand */
    const char *same_as; /* another name of this row of the same subcommand; NULL: none */
    ml_flag_type type;
    size_t at;            /* ML_AT(field) of ml_config */
    const char *def;      /* as a user would write it; NULL: zero */
    const char *def_note; /* how help describes a default that is not a constant */
    bool unset;           /* F64 without a default: NaN until it is given */
    double min, max;      /* bounds, when min < max */
    bool required;        /* no default: the command cannot run without it */
    bool model;           /* PATH: a Hugging Face checkpoint */
    bool
        operand; /* the first word that is no flag gives it; of a list, all words from there */
    const char *const *words; /* NULL at the end */
    const char *value;        /* name of the value in help: DIR, FILE, N */
    const char *env;          /* environment variable that sets it, below the flag */
    bool secret;              /* a key: never written down */
    const char *group;        /* heading in help */
    unsigned cmds;            /* bits of ml_cmd */
    ml_flag_origin from;
    ml_flag_state state;
    const char *why; /* NOOP and REFUSED: the reason, a sentence without its period */
    const char *help;
} ml_flag;

#define ML_AT(field) .at = offsetof(ml_config, field)

/* Tables end in a row without a name; the list of tables ends in NULL. */
extern const ml_flag ml_flags_model[], ml_flags_serve[], ml_flags_serve_compat[],
    ml_flags_router[], ml_flags_router_compat[], ml_flags_access[], ml_flags_score[],
    ml_flags_convert[], ml_flags_text[], ml_flags_bench[], ml_flags_run[],
    ml_flags_compat[], ml_flags_algo[], ml_flags_train[], ml_flags_optimizer[],
    ml_flags_models[], ml_flags_checkpoint[], ml_flags_arch[], ml_flags_parallel[],
    ml_flags_numerics[], ml_flags_logging[], ml_flags_sglang[], ml_flags_steps[],
    ml_flags_debug[], ml_flags_inspect[], ml_flags_rollout[], ml_flags_async[],
    ml_flags_edges[], ml_flags_reward[], ml_flags_record[], ml_flags_async_eval[];
extern const ml_flag *const ml_flag_tables[];

/* What must hold between flags; all are checked after every flag is known. */
typedef struct ml_rule {
    const char *id;
    unsigned cmds;
    bool (*broken)(const ml_config *c);
    const char *sentence; /* what is wrong, and what to do */
} ml_rule;

/* Tables end in a row without an id; the list of tables ends in NULL. */
extern const ml_rule ml_rules[], ml_rules_train[];
extern const ml_rule *const ml_rule_tables[];

/* The rows of the subcommands in `cmds`, in the order of the tables. */
#define ML_FLAG_MAX 1024
typedef struct ml_flag_list {
    int n;
    const ml_flag *row[ML_FLAG_MAX];
} ml_flag_list;

void ml_flag_list_init(ml_flag_list *l, unsigned cmds);
/* The index of the row with this name, or -1. */
int ml_flag_list_find(const ml_flag_list *l, ml_str name);

/* What a value of this flag looks like, for messages and docs: "a whole number from 1 to 256". */
void ml_flag_expect(const ml_flag *f, ml_text *out);

/* Writes the row's field; false when the text is not a value of this flag.  A bool is set by
 * any text and cleared by NULL. */
bool ml_flag_set(ml_config *c, const ml_flag *f, const char *s);

typedef enum ml_help_asked {
    ML_HELP_NONE,
    ML_HELP_LIVE, /* --help: what does something */
    ML_HELP_ALL,  /* --help-all: what changes nothing and what is not offered, too */
} ml_help_asked;

/* Fills c from, in rising order, defaults, environment, --custom-config-path and
 * argv[0 .. argc), the words after the subcommand.  Of a flag that is given several times the
 * last one counts, and a line of the log says what it overrides.
 * ML_EUSAGE: `wrong` got a line, a sentence without its period, for each thing that is wrong.
 * When help is asked for, nothing else is looked at. */
ml_status ml_flags_parse(ml_config *c, ml_help_asked *help, ml_cmd cmd, int argc,
                         char **argv, ml_text *wrong);

/* Releases the texts that the parser made; after a failed parse, too. */
void ml_config_release(ml_config *c);

/* Appends {"name": value, ...}: every live flag of the command, as it counts now. */
void ml_flags_dump(ml_text *out, ml_cmd cmd, const ml_config *c);

#endif
