/* object.h - shared objects of plug-ins.
 *
 * thread: before other threads start. */
#ifndef ML_PLUGIN_OBJECT_H
#define ML_PLUGIN_OBJECT_H

#include "base/arena.h"
#include "base/err.h"

/* Loads a shared object and finds the function that every plug-in has; `header` declares
 * it.  The object stays loaded: it contains the plug-in and any threads this started. */
typedef void ml_object_fn(void);
ml_status ml_object_open(ml_object_fn **entry, const char *path, const char *name,
                         const char *header, ml_err *err);

#endif
