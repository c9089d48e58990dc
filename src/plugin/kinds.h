/* kinds.h - the kinds of rows of miles/plugin.h, as people call them.
 *
 * thread: any; immutable. */
#ifndef ML_PLUGIN_KINDS_H
#define ML_PLUGIN_KINDS_H

#include "miles/plugin.h"

typedef struct ml_kind {
    miles_kind kind;
    const char *name; /* of the kind */
    const char *flag; /* that names such a row, without dashes */
    size_t size;      /* of a row */
    size_t fn[2];     /* where its functions are; 0: no more */
} ml_kind;

extern const ml_kind ml_kinds[]; /* ends in a row without a name */

const ml_kind *ml_kind_of(int32_t kind); /* NULL: there is none of that number */

#endif
