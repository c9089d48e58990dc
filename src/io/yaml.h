/* yaml.h - YAML files as JSON values.
 *
 * Scalars without quotes that JSON knows (null, true, numbers) are that, also ~ and
 * nothing for null; all others are strings.  Keys are strings.  Aliases are copied, with a
 * bound; tags count for nothing, and only the first document is read.  JSON itself is YAML.
 *
 * thread: any. */
#ifndef ML_IO_YAML_H
#define ML_IO_YAML_H

#include "base/json.h"

/* The document lives in `a`.  `name` (a path) opens messages: "name:line:col: ...". */
ml_status ml_yaml_parse(const ml_json **out, ml_arena *a, ml_str src, const char *name,
                        ml_err *err);

#endif
