/* kinds.h - names, flags and sizes of the kinds of extensions (miles/plugin.h).
 *
 * thread: any; immutable. */
#ifndef ML_PLUGIN_KINDS_H
#define ML_PLUGIN_KINDS_H

#include "miles/plugin.h"

typedef struct ml_kind {
    miles_kind kind;
    const char *name; /* of the kind */
    const char *flag; /* that selects such an extension, without dashes */
    size_t size;      /* of the extension's struct */
    size_t fn[2];     /* offsets of its functions; 0: no more */
} ml_kind;

extern const ml_kind ml_kinds[]; /* ends with an entry without a name */

const ml_kind *ml_kind_of(int32_t kind); /* NULL: unknown kind */

#endif
