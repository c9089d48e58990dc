/* sequences.h - the token sequences of a file: int32 tensors tokens.0, tokens.1, ... */
#ifndef ML_CLI_COMMANDS_SEQUENCES_H
#define ML_CLI_COMMANDS_SEQUENCES_H

#include "base/arena.h"
#include "io/safetensors.h"

typedef struct ml_sequences {
    int32_t n;
    const int32_t **id; /* [n] */
    int32_t *len;       /* [n] at least 1 each */
    int32_t max_len;
    int64_t n_next; /* positions with a next token, over all sequences */
} ml_sequences;

/* Copies them into `a`. Every id must be below n_vocab.  Other tensors are ignored. */
ml_status ml_sequences_read(ml_sequences *out, ml_arena *a, const char *path,
                            int64_t n_vocab, ml_err *err);

#endif
