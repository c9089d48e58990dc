/* model_path.h - diagnoses values that are not the directory of a checkpoint.
 *
 * thread: any. */
#ifndef ML_CLI_MODEL_PATH_H
#define ML_CLI_MODEL_PATH_H

#include <stdbool.h>

#include "base/str.h"

/* Whether `path` is the id of a model on the Hugging Face Hub, a GGUF file or another
 * file, instead of a directory.  Then appends a sentence, without its period, with the
 * commands that help; `flag` is the flag's name with its dashes. */
bool ml_model_path_wrong(ml_text *out, const char *flag, const char *path);

#endif
