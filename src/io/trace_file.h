/* trace_file.h - time spans as a trace file for Chrome's trace viewer and Perfetto.
 *
 * A JSON array of spans.  Each write closes the array, and the next one overwrites the
 * closing bracket, so that the file is valid whenever the process dies.
 *
 * thread: one owner. */
#ifndef ML_IO_TRACE_FILE_H
#define ML_IO_TRACE_FILE_H

#include <stdint.h>

#include "base/err.h"

typedef struct ml_trace_file {
    int fd; /* valid if at is not 0 */
    int64_t at;
    double origin_s; /* by ml_clock_s */
} ml_trace_file;

ml_status ml_trace_file_open(ml_trace_file *out, const char *path, ml_err *err);
void ml_trace_file_close(ml_trace_file *t); /* zero-initialized is allowed */

/* A row of lanes: a process of the viewer, numbered from 0. */
ml_status ml_trace_file_row(ml_trace_file *t, int row, const char *name,
                            const char *const *lane, int n_lane, ml_err *err);

/* A span in ml_clock_s time.  Spans of one lane may nest, but not overlap. */
typedef struct ml_trace_span {
    const char *name;
    int row, lane; /* lanes are numbered from 0 */
    double begin_s, end_s;
    const char *key; /* name of a number shown with the span; NULL: none */
    int64_t value;
    const char *group; /* of ranks, shown likewise; NULL: none */
} ml_trace_span;

ml_status ml_trace_file_spans(ml_trace_file *t, const ml_trace_span *span, int64_t n,
                              ml_err *err);

#endif
