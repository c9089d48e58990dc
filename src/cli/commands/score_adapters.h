/* score_adapters.h - the LoRA adapters of `miles score`: which sequence uses which, and the
 * gradients of each.
 *
 * thread: the command's. */
#ifndef ML_CLI_COMMANDS_SCORE_ADAPTERS_H
#define ML_CLI_COMMANDS_SCORE_ADAPTERS_H

#include "cli/cli.h"
#include "cli/commands/sequences.h"
#include "model/lora.h"

typedef struct ml_score_adapters {
    int32_t n;
    ml_lora *lora;     /* [n] */
    const char **name; /* [n] of --lora-paths; NULL: the one of --lora-adapter-path */
    int32_t *of;       /* [sequences] the adapter of each, or -1 */
    int64_t *n_next;   /* [n] positions with a next token */
    ml_lora_table table;
    const ml_named **named; /* [n] tensors with a gradient */
    int32_t *n_named;       /* [n] */
} ml_score_adapters;

/* Loads the adapters that the flags name and inserts LORA ops into the spec; without such
 * flags n is 0.  Reads the scalars adapter.N of the input with --lora-paths. */
ml_status ml_score_adapters_open(ml_score_adapters *out, ml_arena *a, const ml_config *c,
                                 ml_spec *s, const ml_sequences *seq, ml_backend *be,
                                 ml_err *err);
void ml_score_adapters_close(ml_score_adapters *x);

/* With --grads: the list of tensors, and memory for gradients, unless a trainer has it. */
ml_status ml_score_adapters_take(ml_score_adapters *x, bool memory, ml_arena *a,
                                 ml_err *err);
size_t ml_score_adapters_bytes(const ml_score_adapters *x, bool grads);

/* The name of gradient k of adapter i in the output. */
const char *ml_score_adapters_grad(const ml_score_adapters *x, ml_arena *a, int32_t i,
                                   int32_t k);

#endif
