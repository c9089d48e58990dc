/* safetensors.h - reads and writes the safetensors format.
 *
 *     u64 little-endian: header bytes | JSON header, padded with spaces | data
 *
 * A file is validated completely before its tensors are accessible: every length, name,
 * dtype, shape and offset, no overlap, no hole, nothing after the last tensor.  The bytes
 * of an ml_st_tensor can therefore be read without further checks (except for alignment:
 * a file may put data at odd addresses).
 *
 * A writer streams: tensors are declared, then their bytes are written in pieces of any
 * size and order, and the file gets its final name only when it is complete.  Headers are
 * byte-identical to those of Hugging Face's library.
 *
 * thread: an open file is immutable; a writer has one owner. */
#ifndef ML_IO_SAFETENSORS_H
#define ML_IO_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/file.h"
#include "base/map.h"
#include "base/str.h"
#include "tensor/tensor.h"

#define ML_ST_DIMS 8
#define ML_ST_HEADER_MAX ((size_t)100000000) /* the format's own limit */

/* In the format's order, by increasing alignment: name and bits per element. */
#define ML_ST_DTYPES(X)                                                                    \
    X(BOOL, 8)                                                                             \
    X(F4, 4)                                                                               \
    X(F6_E2M3, 6)                                                                          \
    X(F6_E3M2, 6)                                                                          \
    X(U8, 8)                                                                               \
    X(I8, 8)                                                                               \
    X(F8_E5M2, 8)                                                                          \
    X(F8_E4M3, 8)                                                                          \
    X(F8_E8M0, 8)                                                                          \
    X(F8_E4M3FNUZ, 8)                                                                      \
    X(F8_E5M2FNUZ, 8)                                                                      \
    X(I16, 16)                                                                             \
    X(U16, 16)                                                                             \
    X(F16, 16)                                                                             \
    X(BF16, 16)                                                                            \
    X(I32, 32)                                                                             \
    X(U32, 32)                                                                             \
    X(F32, 32)                                                                             \
    X(C64, 64)                                                                             \
    X(F64, 64)                                                                             \
    X(I64, 64)                                                                             \
    X(U64, 64)

#define ML_ST_ENUM(name, bits) ML_ST_##name,
typedef enum ml_st_dtype { ML_ST_DTYPES(ML_ST_ENUM) ML_ST_DTYPE_COUNT } ml_st_dtype;
#undef ML_ST_ENUM

const char *ml_st_dtype_name(ml_st_dtype t); /* "F32", as in the header */
/* True if the kernels support the type (f32, bf16, f16, i32). */
bool ml_st_to_dtype(ml_st_dtype t, ml_dtype *out);
ml_st_dtype ml_st_from_dtype(ml_dtype t);

typedef struct ml_quant ml_quant;

typedef struct ml_st_tensor {
    ml_str name; /* NUL-terminated */
    ml_st_dtype dtype;
    int32_t n_dim; /* 0: a scalar, one element */
    int64_t shape[ML_ST_DIMS];
    const void *data; /* NULL in declarations; may be unaligned */
    size_t bytes;
    size_t offset; /* of data, from the start of the file */
    /* NULL, or how the elements are computed: `data` has codes then (io/quant.h), while
     * dtype and shape are those of the weight. */
    const ml_quant *quant;
} ml_st_tensor;

typedef struct ml_st_meta {
    ml_str key, value;
} ml_st_meta;

/* --- reading ---------------------------------------------------------------- */

typedef struct ml_st_file {
    const char *path;
    int32_t n;
    const ml_st_tensor *tensor; /* [n], in the order of their bytes */
    int32_t n_meta;
    const ml_st_meta *meta; /* [n_meta], "__metadata__" in its order */
    ml_str header;          /* raw JSON, padding included */
    ml_file file;
    ml_map by_name;
    ml_arena arena;
    /* Of a file in another format, whose header is empty: what its tensors refer to. */
    void *held;
    void (*release)(void *held);
} ml_st_file;

/* An empty list of up to n tensors, for readers of other formats; they fill `tensor`. */
ml_st_file *ml_st_new(const char *path, int64_t n, ml_st_tensor **tensor);

ml_status ml_st_open(ml_st_file **out, const char *path, ml_err *err);
/* The same for the bytes of a file in memory; the caller owns them. */
ml_status ml_st_open_image(ml_st_file **out, ml_str image, const char *name, ml_err *err);
void ml_st_close(ml_st_file *f); /* NULL is allowed */

/* NULL if no tensor has that name. */
const ml_st_tensor *ml_st_find(const ml_st_file *f, ml_str name);

/* Drops the tensor's pages from resident memory; see ml_file_forget. */
void ml_st_forget(const ml_st_file *f, const ml_st_tensor *t);

/* --- writing ---------------------------------------------------------------- */

/* Elements times bits, in bytes; false if it overflows or is not a whole number of
 * bytes. */
bool ml_st_size(ml_st_dtype t, const int64_t *shape, int32_t n_dim, size_t *bytes);

/* Hugging Face's order: dtype from the last of ML_ST_DTYPES to the first, then name. */
void ml_st_sort_like_hf(ml_st_tensor *tensor, int32_t n);

typedef struct ml_st_layout {
    int32_t n;
    const ml_st_tensor *tensor; /* [n] in the order of their data: name, dtype, shape */
    int32_t n_meta;
    const ml_st_meta *meta; /* [n_meta]; Hugging Face models have format = pt */
} ml_st_layout;

typedef struct ml_st_writer ml_st_writer;

/* Copies the needed parts of the layout and writes the header; all offsets are then
 * fixed. */
ml_status ml_st_create(ml_st_writer **out, const char *path, const ml_st_layout *layout,
                       ml_err *err);
/* With the tensors and the identical header of an open file: equal data gives an equal
 * file. */
ml_status ml_st_create_like(ml_st_writer **out, const char *path, const ml_st_file *f,
                            ml_err *err);
/* Writes bytes of tensor i at an offset inside it; each byte must be written once. */
ml_status ml_st_write(ml_st_writer *w, int32_t i, size_t offset, const void *bytes,
                      size_t n, ml_err *err);
/* Both free the writer.  Commit fails if bytes are missing, and names the tensor; the
 * target is then unchanged. */
ml_status ml_st_commit(ml_st_writer *w, ml_err *err);
void ml_st_abort(ml_st_writer *w); /* NULL is allowed */

#endif
