/* snapshot_priv.h - names that writing and reading a snapshot share. */
#ifndef ML_TRAIN_SNAPSHOT_PRIV_H
#define ML_TRAIN_SNAPSHOT_PRIV_H

#include "train/snapshot.h"

#define ML_SNAPSHOT_TRACKER "latest_checkpointed_iteration.txt"
#define ML_SNAPSHOT_TENSORS "trainer.safetensors"
#define ML_SNAPSHOT_STATE "state.json"
#define ML_SNAPSHOT_SUMS "checksums.crc64"

/* The sets of trainer.safetensors: "master.NAME" and so on. */
enum { ML_STATE_MASTER, ML_STATE_MOMENT1, ML_STATE_MOMENT2, ML_STATE_SETS };
extern const char *const ml_snapshot_prefix[ML_STATE_SETS];

/* The tensor of set k for member e of a parameter, in buf. */
const char *ml_snapshot_tensor(char *buf, size_t cap, int k, const ml_param *p, int32_t e);

/* "CHECKSUM BYTES NAME" of a file, appended. */
ml_status ml_snapshot_sum(ml_text *out, const char *path, const char *name, ml_err *err);

#endif
