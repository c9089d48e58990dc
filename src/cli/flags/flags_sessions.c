/* Sessions of agents. */
#include "cli/flags/flag_rows.h"

#define GENERATES (ML_CMD_TRAIN | ML_CMD_EVAL)
#define SERVES (ML_CMD_TRAIN | ML_CMD_SERVE)

static const char *const kinds[] = { "none", "v1", "v2", NULL }; /* 1 + ml_session_kind */
static const char *const families[] = { "default",     "qwen3",       "qwen35",
                                        "qwennext",    "glm47",       "nemotron3",
                                        "kimi25",      "kimi26",      "minimax_m25",
                                        "minimax_m27", "deepseekv32", "deepseekv4",
                                        "inkling",     NULL };

const ml_flag ml_flags_sessions[] = {
    { .name = "use-session-server",
      .type = ML_FLAG_WORD,
      ML_AT(run.sessions.kind),
      .words = kinds,
      .alone = "v1",
      .def = "none",
      .group = "sessions",
      .cmds = SERVES,
      .help = "Serve /sessions, where the conversations of agents are recorded as drawn "
              "tokens: v1, one path; v2, a tree, in which a request that rewrites the "
              "history begins a branch.  Without a value: v1." },
    { .name = "session-server-ip",
      .type = ML_FLAG_TEXT,
      ML_AT(run.sessions.ip),
      .value = "NAME",
      .def_note = "127.0.0.1",
      .group = "sessions",
      .cmds = ML_CMD_TRAIN,
      .help = "Address that the session server of the run listens on." },
    { .name = "session-server-port",
      .type = ML_FLAG_LIST,
      ML_AT(run.sessions.ports),
      .value = "PORT...",
      .def_note = "any free port",
      .group = "sessions",
      .cmds = ML_CMD_TRAIN,
      .help = "Port of the session server of the run.  Of a range, two numbers, the first "
              "is used: one server suffices." },
    { .name = "tito-model",
      .type = ML_FLAG_TEXT,
      ML_AT(run.sessions.tito),
      .words = families,
      .def = "default",
      .group = "sessions",
      .cmds = SERVES,
      .help = "Family of the chat template: sets the options with which it keeps the "
              "reasoning of earlier answers, and the roles that may follow an answer.  "
              "Tokens between answers are found from the template for every family." },
    { .name = "session-message-matcher",
      .type = ML_FLAG_TEXT,
      ML_AT(run.sessions.matcher),
      .value = "NAME",
      .def = "strict",
      .group = "sessions",
      .cmds = SERVES,
      .help = "When a message of a request is the recorded one: strict; loose_tool_call, "
              "also if arguments of tool calls are equal as JSON; role_content_only, by "
              "role and content alone; or a Python function (stored, new) that returns a "
              "bool: package.module.function or ./file.py:function." },
    { .name = "session-sample-picker-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.sessions.picker),
      .value = "PATH",
      .def_note = "miles.rollout.session.v2.picker_hub.drop_retries",
      .group = "sessions",
      .cmds = GENERATES,
      .help = "v2: Python function (samples, session_metadata) that returns the samples "
              "to train on, of one for each leaf." },
    { .name = "session-sample-postprocessor-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.sessions.postprocessor),
      .value = "PATH",
      .def_note = "miles.rollout.session.v2.postprocessor_hub.default_postprocess",
      .group = "sessions",
      .cmds = GENERATES,
      .help = "v2: Python function (samples, session_metadata) that completes them, for "
              "example with rewards." },
    { .name = "custom-agent-function-path",
      .type = ML_FLAG_TEXT,
      ML_AT(run.sessions.agent),
      .value = "PATH",
      .group = "sessions",
      .cmds = GENERATES,
      .help = "Python function (base_url, prompt, request_kwargs, metadata), async or "
              "not, that holds a conversation with the session server at base_url and "
              "returns metadata.  Needs --custom-generate-function-path "
              "miles.rollout.generate_hub.agentic_tool_call.generate." },
    { .name = "max-seq-len",
      .type = ML_FLAG_I64,
      ML_AT(run.sessions.max_tokens),
      .min = 1,
      .max = 2147483647,
      .def_note = "no limit",
      .group = "sessions",
      .cmds = GENERATES,
      .help = "Tokens of a conversation, after which its sample is cut off." },
    { 0 },
};
