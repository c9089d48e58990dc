/* gguf.h - reads the GGUF format of llama.cpp, versions 2 and 3.
 *
 *     magic, version, counts | key-value pairs | tensor infos | padding | tensor data
 *
 * The file is mapped by the caller; keys and tensors are views of it.  Everything is checked
 * before it is accessible: lengths, types, shapes, and that every tensor's bytes are inside
 * the file.
 *
 * thread: immutable after ml_gguf_parse. */
#ifndef ML_BASE_GGUF_H
#define ML_BASE_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/file.h"
#include "base/map.h"
#include "base/str.h"

/* The format's numbers. */
typedef enum ml_gguf_value {
    ML_GGUF_U8,
    ML_GGUF_I8,
    ML_GGUF_U16,
    ML_GGUF_I16,
    ML_GGUF_U32,
    ML_GGUF_I32,
    ML_GGUF_F32,
    ML_GGUF_BOOL,
    ML_GGUF_STRING,
    ML_GGUF_ARRAY,
    ML_GGUF_U64,
    ML_GGUF_I64,
    ML_GGUF_F64,
    ML_GGUF_VALUES
} ml_gguf_value;

typedef enum ml_ggml_type {
    ML_GGML_F32 = 0,
    ML_GGML_F16 = 1,
    ML_GGML_Q4_0 = 2,
    ML_GGML_Q4_1 = 3,
    ML_GGML_Q5_0 = 6,
    ML_GGML_Q5_1 = 7,
    ML_GGML_Q8_0 = 8,
    ML_GGML_Q2_K = 10,
    ML_GGML_Q3_K = 11,
    ML_GGML_Q4_K = 12,
    ML_GGML_Q5_K = 13,
    ML_GGML_Q6_K = 14,
    ML_GGML_BF16 = 30,
} ml_ggml_type;

/* Elements and bytes of a block; false: a type that is not read. */
bool ml_ggml_block(uint32_t type, int64_t *elements, size_t *bytes);
const char *ml_ggml_name(uint32_t type); /* "Q4_K"; NULL: unknown */

typedef struct ml_gguf_key {
    ml_str name;
    ml_gguf_value type; /* of an array: of its elements */
    bool array;
    uint64_t n;   /* elements of an array */
    ml_str bytes; /* the value: of a string its text, of an array its elements */
} ml_gguf_key;

typedef struct ml_gguf_tensor {
    ml_str name;
    uint32_t type; /* ml_ggml_type */
    int32_t n_dim;
    int64_t shape[4]; /* row-major: the columns last */
    size_t offset, bytes;
} ml_gguf_tensor;

typedef struct ml_gguf {
    const char *path;
    ml_str image;
    ml_file file;         /* of ml_gguf_open */
    struct ml_gguf *next; /* the next file of a split model, which has tensors only */
    int64_t n_key, n_tensor;
    ml_gguf_key *key;
    ml_gguf_tensor *tensor; /* in the file's order */
    ml_map keys, tensors;   /* indices by name */
    ml_arena arena;
} ml_gguf;

ml_status ml_gguf_parse(ml_gguf **out, ml_str image, const char *path, ml_err *err);
/* Maps the file and, if it is the first of a split model, all of its files. */
ml_status ml_gguf_open(ml_gguf **out, const char *path, ml_err *err);
void ml_gguf_free(ml_gguf *g); /* with those after it; NULL is allowed */

/* The files of a split model are MODEL-00001-of-00003.gguf etc., as llama-gguf-split names
 * them: their number by the name of the first; 1: another name.  Appends the path of file
 * i, from 0. */
int32_t ml_gguf_n_split(const char *path);
void ml_gguf_split_path(ml_text *out, const char *first, int32_t i);

/* NULL: there is none. */
const ml_gguf_key *ml_gguf_get(const ml_gguf *g, const char *name);
/* In all files of a split model. */
const ml_gguf_tensor *ml_gguf_find(const ml_gguf *g, const char *name);
/* The bytes of a tensor that ml_gguf_find gave. */
ml_str ml_gguf_bytes(const ml_gguf *g, const ml_gguf_tensor *t);
/* The value of a key, or `absent` if it is missing or of another kind.  `arch.NAME` with
 * general.architecture is spelled "%.NAME". */
int64_t ml_gguf_int(const ml_gguf *g, const char *name, int64_t absent);
double ml_gguf_num(const ml_gguf *g, const char *name, double absent);
ml_str ml_gguf_text(const ml_gguf *g, const char *name);
/* Element i of an array of numbers. */
double ml_gguf_item(const ml_gguf_key *k, uint64_t i);
/* The next string of an array; *at begins with 0. */
ml_str ml_gguf_next(const ml_gguf_key *k, size_t *at);

#endif
