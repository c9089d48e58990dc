/* event_file.h - figures over steps, as TensorBoard reads them.
 *
 * A file of records; a record is the length of its bytes, a checksum of that, the bytes, a
 * checksum of them.  The bytes are a protobuf message of which three members are used: the
 * time, the step, and one named value.
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

/* Goes on with the file that is there: events for which keep is false are dropped, and what
 * was cut off with them.  keep NULL: begins anew. */
ml_status ml_event_file_open(ml_event_file *out, const char *path,
                             bool (*keep)(void *ud, const ml_event *e), void *ud,
                             ml_err *err);
void ml_event_file_close(ml_event_file *f); /* zeros are fine */

void ml_event_file_add(ml_event_file *f, const ml_event *e);
/* What was added is in the file, or the disk is full. */
ml_status ml_event_file_flush(ml_event_file *f, ml_err *err);

/* Every event in order, up to the first record that is damaged or cut off. */
ml_status ml_event_file_read(const char *path, void (*each)(void *ud, const ml_event *e),
                             void *ud, ml_err *err);

#endif
