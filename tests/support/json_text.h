/* json_text.h - a JSON value as text, for comparisons. */
#ifndef ML_TESTS_SUPPORT_JSON_TEXT_H
#define ML_TESTS_SUPPORT_JSON_TEXT_H

#include "base/json.h"

/* Appends v without spaces, in source order. */
void ml_json_text(ml_text *t, const ml_json *v);

#endif
