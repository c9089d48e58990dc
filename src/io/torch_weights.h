/* torch_weights.h - the weights of a file of torch.save, as a list of tensors. */
#ifndef ML_IO_TORCH_WEIGHTS_H
#define ML_IO_TORCH_WEIGHTS_H

#include "io/safetensors.h"
#include "io/torch_file.h"

/* The tensors of the dictionary in the file, or of its "state_dict"; other values are left
 * out.  Their bytes stay in the mapped file. */
ml_status ml_torch_weights_open(ml_st_file **out, const char *path, ml_err *err);

/* Sets t's dtype, shape and elements to those of a tensor of torch.  Elements of a view that
 * is not contiguous are read one by one. */
ml_status ml_torch_weights_set(ml_st_tensor *t, const ml_torch_tensor *from, ml_arena *a,
                               const char *path, ml_err *err);

#endif
