/* model_path.h - what stands where a checkpoint's directory should stand.
 *
 * thread: any. */
#ifndef ML_CLI_MODEL_PATH_H
#define ML_CLI_MODEL_PATH_H

#include <stdbool.h>

#include "base/str.h"

/* Is `path` the id of a model of the Hugging Face Hub, a GGUF file or another file, and no
 * directory?  Then appends a sentence, without its period, with the commands that help; `flag`
 * is the flag's name with its dashes. */
bool ml_model_path_wrong(ml_text *out, const char *flag, const char *path);

#endif
