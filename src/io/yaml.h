/* yaml.h - YAML files as JSON values.
 *
 * Unquoted scalars that are valid JSON (null, true, numbers) have that value; ~ and an
 * empty value are null; all others are strings.  Keys are strings.  Aliases are copied,
 * up to a limit; tags are ignored, and only the first document is read.  JSON is valid
 * YAML.
 *
 * thread: any. */
#ifndef ML_IO_YAML_H
#define ML_IO_YAML_H

#include "base/json.h"

/* The document is allocated in `a`. Messages begin with `name` (a path): "name:line:col:
 * ...". */
ml_status ml_yaml_parse(const ml_json **out, ml_arena *a, ml_str src, const char *name,
                        ml_err *err);

#endif
