/* pickle_json.h - a pickle's values as JSON. */
#ifndef ML_IO_PICKLE_JSON_H
#define ML_IO_PICKLE_JSON_H

#include "io/pickle.h"

/* Appends the value as JSON, in its own order.  Tuples, sets and torch.Size are arrays,
 * bytes {"b64": ...}, integers exact whatever their size, floats that are not finite NaN and
 * Infinity as Python writes them, dtypes and other names text, dict keys text.  Derived
 * lists and dicts are written as what they derive from, objects as their state.  A tensor or
 * another call is an error. */
ml_status ml_pickle_json(ml_text *out, const ml_pickle *v, const char *name, ml_err *err);

#endif
