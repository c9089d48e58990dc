/* flag.h - command-line flags as tables.
 *
 * Parser, bounds, --help, docs/cli.md and completion are generated from the tables.  They
 * also cover flags of Miles, Megatron or SGLang that have no effect here (NOOP) or are
 * not supported (REFUSED).  Rules between flags are a second table.
 *
 * thread: tables are immutable; parsing happens before other threads start. */
#ifndef ML_CLI_FLAGS_FLAG_H
#define ML_CLI_FLAGS_FLAG_H

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
    ML_CMD_DATA_SHOW = 131072,
    ML_CMD_PLAN_ONLY = 262144,
    ML_CMD_SANDBOX = 524288,
    ML_CMD_DASHBOARD = 1048576,
    ML_CMD_DPO_ONLY = 2097152,
    ML_CMD_REWARD_MODEL_ONLY = 4194304,
    ML_CMD_TINKER = 8388608,
    ML_CMD_ALL = 65535 | ML_CMD_DATA_SHOW | ML_CMD_PLAN_ONLY | ML_CMD_DASHBOARD |
                 ML_CMD_DPO_ONLY | ML_CMD_REWARD_MODEL_ONLY | ML_CMD_TINKER,
    ML_CMD_DPO = ML_CMD_DPO_ONLY | ML_CMD_SFT, /* has the flags of sft, too */
    ML_CMD_REWARD_MODEL = ML_CMD_REWARD_MODEL_ONLY | ML_CMD_SFT, /* so does this */
    ML_CMD_TRAIN_ASYNC = 65536 | ML_CMD_TRAIN,     /* has the flags of train */
    ML_CMD_PLAN = ML_CMD_PLAN_ONLY | ML_CMD_TRAIN, /* too, but not its rules */
} ml_cmd;

typedef enum ml_flag_type {
    ML_FLAG_BOOL,  /* bool; --name or --no-name */
    ML_FLAG_I64,   /* int64_t or int32_t */
    ML_FLAG_F64,   /* double */
    ML_FLAG_BYTES, /* int64_t; 500MB, 2GiB or a number of bytes */
    ML_FLAG_TEXT,  /* const char *; one of `words`, if there are any */
    ML_FLAG_PATH,  /* const char *; a file or directory */
    ML_FLAG_WORD,  /* an enum (int), or a bool: the index in `words` */
    ML_FLAG_LIST,  /* ml_string_list; --name A B C, each one of `words`, if there are any */
} ml_flag_type;

typedef enum ml_flag_state { ML_FLAG_LIVE, ML_FLAG_NOOP, ML_FLAG_REFUSED } ml_flag_state;
typedef enum ml_flag_origin {
    ML_FROM_TABLE, /* the origin of the table */
    ML_FROM_OURS,
    ML_FROM_MILES,
    ML_FROM_MEGATRON,
    ML_FROM_SGLANG
} ml_flag_origin;

typedef struct ml_flag {
    const char *name;    /* without dashes; unique within a subcommand */
    const char *same_as; /* this flag is an alias of that one, in the same subcommand;
                            NULL: not an alias */
    ml_flag_type type;
    size_t at, size;      /* ML_AT(field) of ml_config */
    const char *def;      /* as a user would write it; NULL: zero */
    const char *def_note; /* help text for a default that is not a constant */
    const char *alone; /* the value of a flag that is given without one; NULL: required */
    bool append;       /* LIST: a flag that is given again adds to the earlier words */
    bool unset;        /* F64 without a default: NaN if not given */
    double min, max;   /* bounds, when min < max */
    bool required;     /* no default: the command cannot run without it */
    bool model;        /* PATH: a Hugging Face checkpoint */
    bool
        operand; /* set by the first non-flag word; for a list, by those that follow, too */
    bool rest;   /* ... and by all words from there, flags as well: a command line */
    const char *const *words; /* NULL-terminated */
    const char *value;        /* name of the value in help: DIR, FILE; NULL: by type */
    const char *env;          /* environment variable that sets it, with lower priority
                                 than the flag */
    bool secret;              /* a key: never logged or saved */
    const char *group;        /* heading in help */
    unsigned cmds;            /* bits of ml_cmd; 0: the commands of the table */
    ml_flag_origin from;
    ml_flag_state state;
    const char *why; /* NOOP and REFUSED: the reason, a sentence without its period */
    const char *help;
} ml_flag;

#define ML_AT(field)                                                                       \
    .at = offsetof(ml_config, field), .size = sizeof(((ml_config *)0)->field)

/* Tables end with an entry without a name. */
extern const ml_flag ml_flags_model[], ml_flags_tinker[], ml_flags_serve[],
    ml_flags_serve_compat[], ml_flags_router[], ml_flags_router_compat[], ml_flags_access[],
    ml_flags_score[], ml_flags_convert[], ml_flags_text[], ml_flags_sandbox[],
    ml_flags_bench[], ml_flags_run[], ml_flags_compat[], ml_flags_algo[], ml_flags_train[],
    ml_flags_optimizer[], ml_flags_models[], ml_flags_checkpoint[], ml_flags_arch[],
    ml_flags_parallel[], ml_flags_numerics[], ml_flags_logging[], ml_flags_sglang[],
    ml_flags_speculative[], ml_flags_run_router[], ml_flags_steps[], ml_flags_debug[],
    ml_flags_inspect[], ml_flags_rollout[], ml_flags_async[], ml_flags_extensions[],
    ml_flags_reward[], ml_flags_record[], ml_flags_async_eval[], ml_flags_plan[],
    ml_flags_sessions[], ml_flags_lora[];

/* A table, with what its rows have unless they say otherwise. */
typedef struct ml_flag_table {
    const ml_flag *row;
    unsigned cmds;
    ml_flag_origin from;
} ml_flag_table;

extern const ml_flag_table ml_flag_tables[]; /* ends with an entry without rows */

/* A constraint between flags; all are checked after parsing. */
typedef struct ml_rule {
    const char *id;
    unsigned cmds;
    bool (*broken)(const ml_config *c);
    const char *sentence; /* the error and the remedy */
} ml_rule;

/* Tables end with an entry without an id; the list of tables ends with NULL. */
extern const ml_rule ml_rules[], ml_rules_train[];
extern const ml_rule *const ml_rule_tables[];

/* The flags of the subcommands in `cmds`, in the order of the tables. */
#define ML_FLAG_MAX 1024
typedef struct ml_flag_list {
    int n;
    const ml_flag *row[ML_FLAG_MAX];
    const ml_flag_table *table[ML_FLAG_MAX]; /* of each row */
} ml_flag_list;

void ml_flag_list_init(ml_flag_list *l, unsigned cmds);
/* The commands and the origin of row i: its own or those of its table. */
unsigned ml_flag_cmds(const ml_flag_list *l, int i);
ml_flag_origin ml_flag_from(const ml_flag_list *l, int i);
/* The index of the flag with this name, or -1. */
int ml_flag_list_find(const ml_flag_list *l, ml_str name);

/* Describes a valid value of this flag, for messages and docs: "a whole number from 1 to
 * 256". */
void ml_flag_expect(const ml_flag *f, ml_text *out);

/* Writes the flag's field; false if the text is not a valid value.  A bool is set by any
 * text and cleared by NULL. */
bool ml_flag_set(ml_config *c, const ml_flag *f, const char *s);

typedef enum ml_help_asked {
    ML_HELP_NONE,
    ML_HELP_LIVE, /* --help: flags with an effect */
    ML_HELP_ALL,  /* --help-all: also flags without effect and unsupported ones */
} ml_help_asked;

/* Fills c from, in increasing priority, defaults, environment, --custom-config-path and
 * argv[0 .. argc), the words after the subcommand.  If a flag is given several times, the
 * last one wins (unless it appends), and the log shows what it overrides.  ML_EUSAGE: `wrong` has a line for
 * each error, a sentence without its period.  If help is requested, nothing else is
 * checked. */
ml_status ml_flags_parse(ml_config *c, ml_help_asked *help, ml_cmd cmd, int argc,
                         char **argv, ml_text *wrong);

/* Releases the strings created by the parser; also after a failed parse. */
void ml_config_release(ml_config *c);

/* Appends {"name": value, ...}: every live flag of the command with its current value. */
void ml_flags_dump(ml_text *out, ml_cmd cmd, const ml_config *c);

/* Appends {"name": value, ...}: every flag of the command, those without effect, too, as
 * Python functions see them; keys are left out. */
void ml_flags_args(ml_text *out, ml_cmd cmd, const ml_config *c);

/* Writes the dump to flags.json in the directory `save`; warns of flags that differ from
 * those in the directory `load` that the run continues from.  NULL: neither. */
ml_status ml_flags_save(ml_cmd cmd, const ml_config *c, const char *save, const char *load,
                        ml_err *err);

#endif
