/* toy_model.h - a checkpoint with a tokenizer and a chat template, for tests.
 *
 * The model is tests/golden/data/qwen3, 83 tokens; in the tokenizer each letter, digit and
 * mark is a token. */
#ifndef ML_TESTS_SUPPORT_TOY_MODEL_H
#define ML_TESTS_SUPPORT_TOY_MODEL_H

extern const char ml_toy_chatml[]; /* a template: <|im_start|>role, content<|im_end|> */

/* Writes it to "model" in the test's directory.  Failures end the test. */
void ml_toy_model(const char *template);

/* Writes text to a file of the test's directory. */
void ml_toy_file(const char *name, const char *text);

#endif
