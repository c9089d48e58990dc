/* unpacked.h - compressed files, mapped as what they contain.
 *
 * The content is written once to a file in $TMPDIR (otherwise /tmp), which is unlinked at
 * once and mapped: it needs room on that disk, not in memory, and nothing is left behind.
 *
 * thread: any. */
#ifndef ML_IO_UNPACKED_H
#define ML_IO_UNPACKED_H

#include "base/file.h"

/* Maps the content of a file whose name ends in .gz or .zst, and any other file as it is.
 * The mapped file has the compressed file's path. */
ml_status ml_file_map_unpacked(ml_file *out, const char *path, ml_err *err);

#endif
