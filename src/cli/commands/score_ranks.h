/* score_ranks.h - miles score on several ranks, which divide sequences, weights and layers as
 * those of miles train do.  Rank 0 writes what one rank writes.
 *
 * thread: the command's. */
#ifndef ML_CLI_COMMANDS_SCORE_RANKS_H
#define ML_CLI_COMMANDS_SCORE_RANKS_H

#include "cli/commands/score_output.h"
#include "backend/backend.h"

typedef struct ml_score_ranks_in {
    const ml_config *config;
    const ml_spec *spec;
    const ml_checkpoint *checkpoint;
    const ml_sequences *seq;
    ml_score_adapters *adapters; /* none, or one */
    ml_backend *be;
} ml_score_ranks_in;

/* ML_EUSAGE: the sizes of the flags do not fit the ranks, or a flag needs one rank. */
ml_status ml_score_ranks_open(ml_run_ranks *out, const ml_config *c, ml_err *err);

/* Scores all sequences; rank 0's output is written, not committed.  Collective. */
ml_status ml_score_ranks_run(const ml_score_ranks_in *in, const ml_run_ranks *ranks,
                             ml_score_output *out, ml_err *err);

#endif
