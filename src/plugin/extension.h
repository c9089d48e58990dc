/* extension.h - finds extensions (miles/plugin.h) by name: built-in, or from a shared object.
 *
 * thread: before other threads start; results are immutable and valid until the process
 * ends. */
#ifndef ML_PLUGIN_EXTENSION_H
#define ML_PLUGIN_EXTENSION_H

#include "base/err.h"
#include "miles/plugin.h"

/* Loads a shared object; it stays loaded. */
ml_status ml_plugin_open(const miles_plugin **out, const char *path, ml_err *err);

/* The built-in extension with this name or alias; NULL: there is none. */
const miles_extension *ml_extension_builtin(miles_kind kind, const char *name);

/* `spec` is the name or alias of a built-in extension, or "path/to/object.so:name".
 * `flag` is the flag that named it, for messages.  If the name is unknown, the error
 * lists the available names. */
ml_status ml_extension_find(const miles_extension **out, miles_kind kind, const char *spec,
                            const char *flag, ml_err *err);

#endif
