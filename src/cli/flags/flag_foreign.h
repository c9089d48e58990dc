/* flag_foreign.h - flags of TRL and vLLM, and the corresponding flags here.
 *
 * They are not accepted, because their semantics differ in details: a message names the
 * flag to read about.
 *
 * thread: tables are immutable. */
#ifndef ML_CLI_FLAGS_FLAG_FOREIGN_H
#define ML_CLI_FLAGS_FLAG_FOREIGN_H

#include "cli/flags/flag.h"

typedef struct ml_foreign_flag {
    const char *name;    /* without dashes in front, words joined by dashes */
    const char *ours[3]; /* by decreasing preference, of different subcommands;
                            NULL-terminated */
    const char *note;    /* additional advice; NULL: none */
} ml_foreign_flag;

extern const ml_foreign_flag ml_foreign_flags[]; /* ends with an entry without a name */

/* The entry of a name, in which an underscore counts as a dash; NULL: not found. */
const ml_foreign_flag *ml_foreign_find(ml_str name);

#endif
