/* passes.h - divides micro-batches into passes, so that their activations take less memory.
 *
 * A pass is a run of consecutive samples of a micro-batch.  Gradients are sums over tokens in
 * the order of the samples, so passes change no bit.  Samples that share a prefix stay in one.
 *
 * thread: any; no state. */
#ifndef ML_TRAIN_PASSES_H
#define ML_TRAIN_PASSES_H

#include "backend/backend.h"
#include "comm/mesh.h"
#include "model/spec.h"
#include "train/micro.h"

/* Rows of a pass: as many as the backend needs to be fast, more for a model whose rows are
 * divided among experts.  0: any number, as where ranks run together. */
int64_t ml_passes_rows(const ml_spec *s, const ml_backend *be, const ml_mesh *mesh);

/* Passes of at most n_row rows, or of what cannot be divided, in place of each micro-batch. */
ml_bins ml_passes_split(ml_arena *a, const ml_bins *micro, const ml_train_sample *s,
                        const ml_context_opts *context, int64_t n_row);

#endif
