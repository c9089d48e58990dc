/* sample_browser.h - the samples of a run on a terminal: a list, and one sample at a time.
 *
 * thread: one; it owns the terminal while it runs. */
#ifndef ML_CLI_COMMANDS_SAMPLE_BROWSER_H
#define ML_CLI_COMMANDS_SAMPLE_BROWSER_H

#include "rl/record/run_store.h"
#include "text/tokenizer/tokenizer.h"

/* Shows the samples that match until the user quits; the store may still be written to.
 * tokenizer NULL: tokens are shown as ids. */
ml_status ml_sample_browser(const char *path, const ml_sample_query *query,
                            ml_tokenizer *tokenizer, ml_err *err);

#endif
