/* event_file.h - metrics over steps, as TensorBoard event files.
 *
 * A file of records; a record is the length of its data, a checksum of the length, the
 * data, a checksum of the data.  The data is a protobuf message of which three fields are
 * used: the time, the step, and one named value.
 *
 * thread: one owner. */
#ifndef ML_IO_EVENT_FILE_H
#define ML_IO_EVENT_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "base/str.h"

typedef struct ml_event {
    double time_s; /* since 1970 */
    int64_t step;
    ml_str tag; /* empty: the record has no value */
    float value;
} ml_event;

typedef struct ml_event_file {
    char *path;
    FILE *f; /* NULL: nothing is written */
} ml_event_file;

/* Continues an existing file: events for which keep returns false are dropped, and so is
 * a truncated record at the end.  keep NULL: starts an empty file. */
ml_status ml_event_file_open(ml_event_file *out, const char *path,
                             bool (*keep)(void *ud, const ml_event *e), void *ud,
                             ml_err *err);
void ml_event_file_close(ml_event_file *f); /* zero-initialized is allowed */

void ml_event_file_add(ml_event_file *f, const ml_event *e);
/* Flushes the added events to the file; an error if the disk is full. */
ml_status ml_event_file_flush(ml_event_file *f, ml_err *err);

/* Calls each() for every event in order, up to the first damaged or truncated record. */
ml_status ml_event_file_read(const char *path, void (*each)(void *ud, const ml_event *e),
                             void *ud, ml_err *err);

#endif
