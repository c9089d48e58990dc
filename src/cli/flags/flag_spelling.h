/* flag_spelling.h - launch scripts of Miles that say by a name what is a flag here.
 *
 * thread: parsing happens before other threads start. */
#ifndef ML_CLI_FLAGS_FLAG_SPELLING_H
#define ML_CLI_FLAGS_FLAG_SPELLING_H

#include "cli/flags/flag.h"

/* Miles runs supervised fine-tuning as a rollout function of its training program.
 * Returns ML_CMD_SFT for such a command line of train or train-async, otherwise cmd. */
ml_cmd ml_flags_command(ml_cmd cmd, int argc, char *const *argv);

/* Sets the flags that follow from names: a rollout function, an estimator, or a format of
 * batches.  says_dynamic: --use-dynamic-batch-size or its negation is given. */
void ml_flags_respell(ml_config *c, bool says_dynamic);

/* Miles' environment variables: sets --fake-quantization, and warns of those that switch on
 * features of Miles, Transformer Engine or SGLang which do not exist here.  Returns what is
 * wrong with them, or NULL. */
const char *ml_flags_take_environment(ml_config *c);

#endif
