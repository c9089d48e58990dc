#include <string.h>

#include "cli/flag.h"

static bool is(const char *a, const char *b) {
    return a && b && strcmp(a, b) == 0;
}

static bool no_input(const ml_config *c) {
    return !c->score.input && !c->score.dry_run;
}

static bool same_output(const ml_config *c) {
    return is(c->score.output, c->score.logits) || is(c->score.output, c->score.grads) ||
           is(c->score.logits, c->score.grads);
}

static bool binary_to_stdout(const ml_config *c) {
    return is(c->score.logits, "-") || is(c->score.grads, "-");
}

/* A backward pass needs the activations of a whole sequence in one batch. */
static bool grads_tokenwise(const ml_config *c) {
    return c->score.grads && c->score.batching == ML_BATCH_TOKENWISE;
}

static bool convert_onto_itself(const ml_config *c) {
    return is(c->hf_checkpoint, c->convert.save_hf);
}

const ml_rule ml_rules[] = {
    { "score-input", ML_CMD_SCORE, no_input,
      "there is nothing to score: give --input FILE (or --input - for standard input), or "
      "--dry-run to check the model alone" },
    { "score-outputs-differ", ML_CMD_SCORE, same_output,
      "--output, --logits and --grads must name different files" },
    { "score-binary", ML_CMD_SCORE, binary_to_stdout,
      "--logits and --grads are written as safetensors files and cannot go to standard "
      "output: name a file" },
    { "score-grads-batching", ML_CMD_SCORE, grads_tokenwise,
      "--grads needs whole sequences in a batch: use --batching packed or single" },
    { "convert-in-place", ML_CMD_CONVERT, convert_onto_itself,
      "--save-hf is the checkpoint that is being read: name another directory" },
    { 0 },
};
