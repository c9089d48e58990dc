/* bench_load.h - the requests of a benchmark: generated from a seed, or read from a
 * file. */
#ifndef ML_CLI_COMMANDS_BENCH_LOAD_H
#define ML_CLI_COMMANDS_BENCH_LOAD_H

#include "base/arena.h"
#include "cli/config.h"
#include "text/tokenizer/tokenizer.h"

typedef struct ml_bench_item {
    const int32_t *id; /* [n], or NULL: the prompt is text */
    int32_t n;
    ml_str text;
    int32_t n_out; /* tokens to generate */
} ml_bench_item;

typedef struct ml_bench_load {
    ml_bench_item *item; /* [n] */
    int32_t n;
    int32_t longest; /* prompt and answer together; text counts as 0 */
    int64_t n_out;   /* over all */
} ml_bench_load;

/* n_vocab limits generated ids and validates those of a file.  With a tokenizer, text is
 * encoded. */
ml_status ml_bench_load_make(ml_bench_load *out, ml_arena *a, const ml_config *c,
                             int64_t n_vocab, const ml_tokenizer *t, ml_err *err);

/* A generated prompt of n tokens that shares no prefix with a load from this seed. */
const int32_t *ml_bench_warmup(ml_arena *a, const ml_config *c, int64_t n_vocab, int32_t n,
                               int64_t i);

#endif
