/* torch_write.h - files that torch.load reads: values without tensors.
 *
 * Values are appended to a pickle of protocol 2 in the order in which they occur; a dict or
 * list is closed by the matching end.  Python's types only: numbers, text, lists, dicts, and
 * arrays of numpy.
 *
 * thread: each pickle belongs to one thread. */
#ifndef ML_IO_TORCH_WRITE_H
#define ML_IO_TORCH_WRITE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

void ml_pickle_begin(ml_text *to); /* the first call for a document */
void ml_pickle_end(ml_text *to);   /* the last one */

void ml_pickle_put_none(ml_text *to);
void ml_pickle_put_bool(ml_text *to, bool x);
void ml_pickle_put_int(ml_text *to, int64_t x);
void ml_pickle_put_float(ml_text *to, double x);
void ml_pickle_put_str(ml_text *to, ml_str s); /* UTF-8 */
void ml_pickle_put_json(ml_text *to, const ml_json *v);
/* An array of int32 with a row for each of n. */
void ml_pickle_put_rows(ml_text *to, const int32_t *row, int64_t n, int64_t width);

/* Between these: keys and values in turn, or elements. */
void ml_pickle_dict(ml_text *to);
void ml_pickle_dict_end(ml_text *to);
void ml_pickle_list(ml_text *to);
void ml_pickle_list_end(ml_text *to);
static inline void ml_pickle_key(ml_text *to, const char *name) {
    ml_pickle_put_str(to, ml_str_of(name));
}

/* Writes the pickle to a zip file as torch.save does; replaces the file at once. */
ml_status ml_torch_write(const char *path, ml_str pickle, ml_err *err);

#endif
