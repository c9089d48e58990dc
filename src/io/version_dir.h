/* version_dir.h - published weights, one directory per version.
 *
 *     SOURCE/weight_v000007/    a full Hugging Face checkpoint, or a delta from version 6
 *
 * A delta has an index whose metadata marks it as one.  Its safetensors files contain,
 * for each tensor that changed, a delta (io/delta.h) as bytes, and in their metadata the
 * checksums of the tensors after it is applied.  Version 0 is never published: it is the
 * checkpoint that an engine was started with.  Miles uses the same format.
 *
 * thread: any. */
#ifndef ML_IO_VERSION_DIR_H
#define ML_IO_VERSION_DIR_H

#include "base/arena.h"
#include "base/checksum.h"
#include "base/json.h"
#include "io/delta.h"

typedef struct ml_version {
    const char *dir;
    int64_t version;
    bool is_delta; /* false: a full checkpoint, and the following fields are zero */
    int64_t base;  /* the version that the delta applies to */
    ml_delta_encoding encoding;
    ml_checksum checksum;
    const ml_json *weight_map; /* tensor: file */
} ml_version;

const char *ml_version_dir(ml_arena *a, const char *source, int64_t version);

/* True for the name of such a directory, including one that was never finished (suffix
 * ".new"); *version is its number. */
bool ml_version_of_name(const char *name, int64_t *version);

/* Reads a version, in the arena. */
ml_status ml_version_read(ml_version *out, const char *source, int64_t version, ml_arena *a,
                          ml_err *err);

/* Writes the index of a delta into v->dir, after its files; weight_map is JSON here. */
ml_status ml_version_write_index(const ml_version *v, ml_str weight_map, ml_err *err);

#endif
