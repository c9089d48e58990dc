/* torch_file.h - files written by torch.save.
 *
 *     zip (torch 1.6 on):   PREFIX/data.pkl, PREFIX/data/KEY with the bytes of storages
 *     legacy:               pickles of a magic number, a version and the system, the
 *                           object's pickle, the pickle of storage keys, then for each key
 *                           a u64 count and its bytes
 *
 * The file is mapped, its pickle parsed (io/pickle.h, which executes nothing), and storages
 * are ranges of the mapping: opening costs memory for the pickle's values alone.  A tensor is
 * a view of a storage with an offset and strides, all of which are checked against the
 * storage before its bytes can be read.
 *
 * thread: immutable after open. */
#ifndef ML_IO_TORCH_FILE_H
#define ML_IO_TORCH_FILE_H

#include "io/pickle.h"
#include "io/safetensors.h"

typedef struct ml_torch_storage {
    ml_str key;
    ml_str bytes;
    bool known; /* its bytes were found */
} ml_torch_storage;

typedef struct ml_torch_file {
    const char *path;
    const ml_pickle *root;
    ml_file file; /* zeros: the caller owns the bytes */
    ml_str image;
    ml_torch_storage *storage;
    int32_t n_storage;
    ml_map by_key; /* index into storage */
    ml_arena arena;
} ml_torch_file;

ml_status ml_torch_open(ml_torch_file **out, const char *path, ml_err *err);
/* The same for bytes in memory that the caller owns, such as an item of a .distcp file. */
ml_status ml_torch_open_image(ml_torch_file **out, ml_str image, const char *name,
                              ml_err *err);
void ml_torch_close(ml_torch_file *f); /* NULL is allowed */

/* Element (i, j, ...) is the one at data + (i * stride[0] + j * stride[1] + ...) * size. */
typedef struct ml_torch_tensor {
    ml_st_dtype dtype;
    int32_t n_dim;
    int64_t shape[ML_ST_DIMS], stride[ML_ST_DIMS]; /* strides in elements */
    const unsigned char *data;                     /* may be unaligned */
    size_t bytes;                                  /* of all elements, contiguous */
    bool contiguous;
} ml_torch_tensor;

/* Whether the value is a tensor or a parameter. */
bool ml_torch_is_tensor(const ml_pickle *v);
ml_status ml_torch_tensor_of(ml_torch_tensor *out, const ml_torch_file *f,
                             const ml_pickle *v, ml_err *err);
/* n elements from the one with row-major index `at`, contiguous. */
void ml_torch_read(const ml_torch_tensor *t, int64_t at, int64_t n, void *out);

/* The dtype of "torch.float32" etc.; false: another name. */
bool ml_torch_dtype(ml_str name, ml_st_dtype *out);

#endif
