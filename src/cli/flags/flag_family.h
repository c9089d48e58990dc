/* flag_family.h - flags of other programs that need no row of their own.
 *
 * Miles passes every server argument of SGLang and every argument of its router through,
 * as --sglang-NAME, --eval-sglang-NAME and --router-NAME.  Those without an effect here
 * are grouped by the reason.  A flag of a family takes all words up to the next flag.
 *
 * thread: tables are immutable. */
#ifndef ML_CLI_FLAGS_FLAG_FAMILY_H
#define ML_CLI_FLAGS_FLAG_FAMILY_H

#include "cli/flags/flag.h"

typedef struct ml_flag_family {
    const char *prefix; /* of each name: "sglang-" */
    ml_flag_state state;
    const char *why;   /* a sentence without its period */
    const char *names; /* separated by blanks, without the prefix */
} ml_flag_family;

/* The families of miles train and sft, which end with an entry without a prefix. */
extern const ml_flag_family ml_flag_families[];
#define ML_CMD_FAMILIES (ML_CMD_SFT | ML_CMD_TRAIN)

/* Finds the family of a name; NULL: none.  --eval-sglang-NAME has the effect of
 * --sglang-NAME on evaluation engines: where that is live, it is not supported. */
const ml_flag_family *ml_family_find(unsigned cmds, ml_str name);

/* Splits the first name off the rest of a list; false at its end. */
bool ml_family_next(const char **rest, ml_str *name);

#endif
