/* Edges of the loop that are somebody's own. */
#include "cli/flag_rows.h"

#define TRAIN ML_CMD_TRAIN
#define GENERATES (ML_CMD_TRAIN | ML_CMD_EVAL)
#define SESSION                                                                            \
    "agents behind a session server are not offered; an environment answers "              \
    "turn by turn: --custom-generate-function-path"

/* The order is that of ml_tool_format. */
static const char *const tool_formats[] = { "none", "qwen25", "llama3", NULL };

const ml_flag ml_flags_edges[] = {
    { .name = "custom-generate-function-path",
      .type = ML_FLAG_TEXT,
      ML_AT(edges.generate),
      .value = "PATH",
      .group = "edges",
      .cmds = GENERATES,
      .from = ML_FROM_MILES,
      .help = "What answers the model, turn by turn: ./env.py with a function "
              "turn(conversation), cmd:COMMAND for a program that answers JSON lines, "
              "./my.so:name for a shared object, calculator, or Miles' "
              "miles.rollout.generate_hub.multi_turn.generate." },
    { .name = "generate-max-turns",
      .type = ML_FLAG_I64,
      ML_AT(edges.max_turns),
      .value = "N",
      .def = "16",
      .min = 1,
      .max = 1e6,
      .group = "edges",
      .cmds = GENERATES,
      .from = ML_FROM_MILES,
      .help = "Turns of the model at most." },
    { .name = "generate-tool-call-parser",
      .type = ML_FLAG_WORD,
      ML_AT(edges.tool_parser),
      .words = tool_formats,
      .def = "qwen25",
      .group = "edges",
      .cmds = GENERATES,
      .from = ML_FROM_MILES,
      .help = "How calls of tools are written in answers." },
    { .name = "generate-execute-tool-function-path",
      .type = ML_FLAG_TEXT,
      ML_AT(edges.execute_tool),
      .value = "PATH",
      .group = "edges",
      .cmds = GENERATES,
      .from = ML_FROM_MILES,
      .help = "What runs the tools that an answer calls: ./tools.py with a function "
              "execute_tool(name, arguments), or calculator." },
    ML_REFUSED("generate-tool-specs-path", TEXT, MILES, GENERATES,
               "tools are described in the rows of the data, under --tool-key"),
    ML_REFUSED("custom-agent-function-path", TEXT, MILES, GENERATES, SESSION),
    ML_REFUSED("max-seq-len", TEXT, MILES, GENERATES, SESSION),
    ML_NOOP("log-multi-turn", BOOL, MILES, TRAIN,
            "turns are reported whenever there is an environment"),
    { 0 },
};
