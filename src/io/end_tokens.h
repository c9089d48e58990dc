/* end_tokens.h - the end tokens of a checkpoint.
 *
 * eos_token_id of generation_config.json, if that exists, and of config.json; each is an
 * id or a list of ids. */
#ifndef ML_IO_END_TOKENS_H
#define ML_IO_END_TOKENS_H

#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

#define ML_END_TOKENS 16

typedef struct ml_end_tokens {
    int32_t id[ML_END_TOKENS];
    int32_t n;
} ml_end_tokens;

ml_status ml_end_tokens_read(ml_end_tokens *out, const char *dir, ml_err *err);
/* Does nothing if id is negative or already in the list. */
void ml_end_tokens_add(ml_end_tokens *t, int64_t id);

#endif
