/* pq_value.h - the JSON of a parquet value.
 *
 * Integers are exact; float16 and float32 are the same number as a double, spelled as in
 * Python; "nan", "inf" and "-inf" are strings.  Dates are "YYYY-MM-DD", decimals text, UUIDs
 * text, timestamps and times the stored integer, binary {"b64": ...}.  INT96 timestamps are
 * nanoseconds since 1970.
 *
 * thread: any; no state. */
#ifndef ML_IO_PARQUET_PQ_VALUE_H
#define ML_IO_PARQUET_PQ_VALUE_H

#include "io/parquet/pq_meta.h"

/* Appends the value; false: text that is not valid UTF-8. */
bool ml_pq_value_put(ml_text *out, const ml_pq_node *leaf, ml_str value);

#endif
