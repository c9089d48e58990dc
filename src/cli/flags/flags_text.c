#include "cli/flags/flag.h"

const ml_flag ml_flags_text[] = {
    { .name = "add-special-tokens",
      .type = ML_FLAG_BOOL,
      ML_AT(text.add_special),
      .group = "text",
      .cmds = ML_CMD_TOKENIZE,
      .help = "Also put the tokens around a text that the tokenizer's post-processor "
              "knows, such as the beginning of a sequence." },
    { .name = "decode",
      .type = ML_FLAG_BOOL,
      ML_AT(text.decode),
      .group = "text",
      .cmds = ML_CMD_TOKENIZE,
      .help = "From {\"ids\": [...]} to {\"text\": ...}." },
    { .name = "skip-special-tokens",
      .type = ML_FLAG_BOOL,
      ML_AT(text.skip_special),
      .group = "text",
      .cmds = ML_CMD_TOKENIZE,
      .help = "Leave special tokens out of decoded text." },
    { .name = "check",
      .type = ML_FLAG_BOOL,
      ML_AT(chat.check),
      .group = "text",
      .cmds = ML_CMD_CHAT_TEMPLATE,
      .help = "Instead of the text, tell whether rendering turn by turn extends, never "
              "rewrites, what came before, and where it does not." },
    { 0 },
};
