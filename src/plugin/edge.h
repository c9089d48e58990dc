/* edge.h - rows of miles/plugin.h by name: built in, or from a shared object.
 *
 * thread: before there are others; what is found is immutable and stays for the life of
 * the process. */
#ifndef ML_PLUGIN_EDGE_H
#define ML_PLUGIN_EDGE_H

#include "base/err.h"
#include "miles/plugin.h"

/* Loads a shared object; it stays loaded. */
ml_status ml_plugin_open(const miles_plugin **out, const char *path, ml_err *err);

/* `spec` is the name or alias of a built-in row, or "path/to/object.so:name".  `flag`, for
 * messages, is the flag that asked.  The first error lists the names there are. */
ml_status ml_extension_find(const miles_extension **out, miles_kind kind, const char *spec,
                            const char *flag, ml_err *err);

#endif
