/* flag_foreign.h - names of flags in TRL and vLLM, and what they are called here.
 *
 * They are not accepted, because what they mean differs in details: a message says which flag
 * to read about.
 *
 * thread: tables are immutable. */
#ifndef ML_CLI_FLAG_FOREIGN_H
#define ML_CLI_FLAG_FOREIGN_H

#include "cli/flag.h"

typedef struct ml_foreign_flag {
    const char *name; /* without dashes, words joined by dashes */
    const char
        *ours[3];     /* by falling preference, of different subcommands; NULL at the end */
    const char *note; /* what else to know; NULL: nothing */
} ml_foreign_flag;

extern const ml_foreign_flag ml_foreign_flags[]; /* ends in a row without a name */

/* The row of a name, in which an underscore counts as a dash; NULL: there is none. */
const ml_foreign_flag *ml_foreign_find(ml_str name);

#endif
