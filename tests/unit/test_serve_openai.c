/* OpenAI's and Anthropic's endpoints over a generator with a script, and calls of tools. */
#include <stdio.h>
#include <string.h>

#include "tests/support/serve_fixture.h"
#include "tests/support/test.h"

#define HI "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]"
#define TOOLS                                                                              \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"get\", "              \
    "\"parameters\": {}}}]"

static ml_serve_fixture f;
static const char *body;

static void start_with(const char *script, ml_tool_format tools, bool slow) {
    ml_serve_fixture_init(&f);
    f.script = script;
    f.opts.tools = tools;
    f.slow = slow;
    ml_serve_fixture_start(&f);
}

static void start(const char *script) {
    start_with(script, ML_TOOLS_QWEN, false);
}

static void stop(void) {
    ml_serve_fixture_stop(&f);
}

static void post(const char *path, const char *json) {
    int got = ml_serve_ask(&f, "POST", path, NULL, json, &body);
    if (got != 200)
        ml_test_fail(__FILE__, __LINE__, "%s %s: status %d: %s", path, json, got, body);
}

static void chat(const char *json) {
    post("/v1/chat/completions", json);
}

static void complete(const char *json) {
    post("/v1/completions", json);
}

static bool lacks(const char *words) {
    return !strstr(body, words);
}

/* --- completions ------------------------------------------------------------ */

static void completions(void) {
    start("hello world, this is long");
    complete("{\"model\": \"fake\", \"prompt\": \"ab\"}");
    CHECK_HAS(body, "\"object\": \"text_completion\"");
    CHECK_HAS(body, "{\"id\": \"cmpl-");
    CHECK_HAS(body,
              "\"choices\": [{\"index\": 0, \"text\": \"hello world, thi\", \"logprobs\": "
              "null, \"finish_reason\": \"length\", \"matched_stop\": null}]");
    CHECK_HAS(body,
              "\"usage\": {\"prompt_tokens\": 2, \"completion_tokens\": 16, "
              "\"total_tokens\": 18, \"prompt_tokens_details\": {\"cached_tokens\": 2}}");
    complete("{\"prompt\": [\"a\", \"b\"], \"n\": 2, \"stop\": \"l\", \"user\": \"me\"}");
    CHECK_HAS(body, "\"index\": 3, \"text\": \"he\"");
    CHECK_HAS(body, "\"matched_stop\": \"l\"");
    CHECK_HAS(body, "\"prompt_tokens\": 2, ");
    complete("{\"prompt\": [97, 98], \"echo\": true, \"max_tokens\": 2}");
    CHECK_HAS(body, "\"text\": \"abhe\"");
    complete("{\"prompt\": [[97], [98, 99]], \"max_tokens\": 1}");
    CHECK_HAS(body, "\"index\": 1, \"text\": \"h\"");
    stop();
}

static void completion_logprobs(void) {
    start("@ ");
    complete("{\"prompt\": \"ab\", \"logprobs\": 1, \"max_tokens\": 2}");
    CHECK_HAS(body,
              "\"logprobs\": {\"tokens\": [\"@\", \" \"], \"token_logprobs\": [-1, -0.5], "
              "\"top_logprobs\": [{\"@\": -1}, {\" \": -0.5}], \"text_offset\": [0, 1]}");
    complete("{\"prompt\": \"@@\", \"logprobs\": 0, \"max_tokens\": 1, \"echo\": true, "
             "\"return_token_ids\": true}");
    CHECK_HAS(body,
              "\"tokens\": [\"@\", \"@\", \"@\"], \"token_logprobs\": [null, -1, -1], "
              "\"top_logprobs\": [], \"text_offset\": [0, 1, 2]}");
    CHECK_HAS(body, "\"token_ids\": [64], \"prompt_token_ids\": [64, 64]");
    complete("{\"prompt\": \"@@\", \"logprobs\": 0, \"max_tokens\": 0, \"echo\": true}");
    CHECK_HAS(body, "\"token_logprobs\": [null, -1]");
    stop();
}

static void completion_streams(void) {
    start_with("hey", ML_TOOLS_NONE, true);
    complete("{\"prompt\": \"a\", \"stream\": true, \"echo\": true, \"stream_options\": "
             "{\"include_usage\": true}}");
    CHECK_HAS(body, "\"choices\": [{\"index\": 0, \"text\": \"ah\", ");
    CHECK_HAS(body, "\"choices\": [{\"index\": 0, \"text\": \"y\", \"logprobs\": null, "
                    "\"finish_reason\": null, ");
    CHECK_HAS(body, "\"text\": \"\", \"logprobs\": null, \"finish_reason\": \"stop\", "
                    "\"matched_stop\": 200}], \"usage\": null}");
    CHECK_HAS(body,
              "\"choices\": [], \"usage\": {\"prompt_tokens\": 1, \"completion_tokens\": "
              "4, ");
    CHECK_HAS(body, "data: [DONE]\n\n");
    stop();
}

/* --- chat ------------------------------------------------------------------- */

static void chats(void) {
    start("hello");
    chat(HI "}");
    CHECK_HAS(body, "{\"id\": \"chatcmpl-");
    CHECK_HAS(body, "\"object\": \"chat.completion\"");
    CHECK_HAS(body,
              "\"choices\": [{\"index\": 0, \"message\": {\"role\": \"assistant\", "
              "\"content\": \"hello\"}, \"logprobs\": null, \"finish_reason\": \"stop\", "
              "\"matched_stop\": 200}]");
    CHECK(f.n_prompt == (int)strlen("[user]hi[assistant]"));
    CHECK(f.max_new == 400 - f.n_prompt);
    chat(HI ", \"max_completion_tokens\": 2, \"max_tokens\": 3, \"n\": 2}");
    CHECK_HAS(body,
              "\"index\": 1, \"message\": {\"role\": \"assistant\", \"content\": \"he\"}, "
              "\"logprobs\": null, \"finish_reason\": \"length\"");
    chat(HI ", \"chat_template_kwargs\": {\"mood\": \"glad\"}}");
    CHECK(f.n_prompt == (int)strlen("[user]hi~glad[assistant]"));
    chat("{\"input_ids\": [97, 98], \"messages\": [], \"max_tokens\": 1, "
         "\"return_token_ids\": "
         "true, \"return_meta_info\": true}");
    CHECK(f.n_prompt == 2);
    CHECK_HAS(body, "\"response_token_ids\": [104], \"prompt_token_ids\": [97, 98], "
                    "\"meta_info\": {\"id\": ");
    /* What Miles' session server sends. */
    chat(HI ", \"input_ids\": [97], \"logprobs\": true, \"return_meta_info\": true, "
            "\"no_stop_trim\": false, \"return_routed_experts\": false, "
            "\"return_indexer_topk\": false, \"routed_experts_start_len\": 0, "
            "\"return_prompt_token_ids\": true, \"min_tokens\": 1, \"seed\": 3}");
    CHECK_HAS(body, "\"prompt_token_ids\": [97], \"meta_info\": {");
    CHECK_HAS(body, "\"output_token_logprobs_length\": 6");
    chat(HI ", \"logprobs\": true, \"top_logprobs\": 1, \"max_tokens\": 1}");
    CHECK_HAS(body, "\"logprobs\": {\"content\": [{\"token\": \"h\", \"bytes\": [104], "
                    "\"logprob\": -1.625, \"top_logprobs\": [{\"token\": \"h\", \"bytes\": "
                    "[104], \"logprob\": -1.625}]}]}");
    stop();
}

static void messages(void) {
    start("hello");
    chat(
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
        "\"ab\"}, {\"type\": \"text\", \"text\": \"c\"}]}]}");
    CHECK(f.n_prompt == (int)strlen("[user]ab c[assistant]"));
    chat("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": "
         "\"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"x\", \"type\": "
         "\"function\", \"function\": {\"name\": \"get\", \"arguments\": \"{\\\"q\\\": "
         "123}\"}}]}], " TOOLS "}");
    CHECK(f.n_prompt == (int)strlen("[user]hi[assistant](get 123)#1[assistant]"));
    chat("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": "
         "\"assistant\", \"content\": \"well,\"}], \"continue_final_message\": true}");
    CHECK(f.n_prompt == (int)strlen("[user]hi[assistant]well,"));
    chat(HI ", " TOOLS ", \"tool_choice\": \"none\"}");
    CHECK(f.n_prompt == (int)strlen("[user]hi[assistant]"));
    stop();
}

static void chat_streams(void) {
    start_with("hey", ML_TOOLS_NONE, true);
    chat(HI ", \"stream\": true, \"stream_options\": {\"include_usage\": true}}");
    CHECK_HAS(body, "\"object\": \"chat.completion.chunk\"");
    CHECK_HAS(body, "\"delta\": {\"role\": \"assistant\", \"content\": \"h\"}");
    CHECK_HAS(body,
              "\"delta\": {\"content\": \"y\"}, \"logprobs\": null, \"finish_reason\": "
              "null");
    CHECK_HAS(body, "\"delta\": {}, \"logprobs\": null, \"finish_reason\": \"stop\"");
    CHECK_HAS(body, "\"choices\": [], \"usage\": {");
    CHECK_HAS(body, "data: [DONE]\n\n");
    stop();
}

static void chat_tools(void) {
    start("ok\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"q\":  1}}\n</tool_call>");
    chat(HI ", " TOOLS "}");
    CHECK_HAS(body, "\"message\": {\"role\": \"assistant\", \"content\": \"ok\\n\", "
                    "\"tool_calls\": [{\"index\": 0, \"id\": \"call_");
    CHECK_HAS(body,
              "\"type\": \"function\", \"function\": {\"name\": \"get\", \"arguments\": "
              "\"{\\\"q\\\":  1}\"}}]}");
    CHECK_HAS(body, "\"finish_reason\": \"tool_calls\"");
    chat(HI "}"); /* no tools, no calls */
    CHECK_HAS(body, "\"content\": \"ok\\n<tool_call>");
    CHECK_HAS(body, "\"finish_reason\": \"stop\"");
    stop();
    start("<tool_call>{\"name\": \"get\", \"arguments\": {}}</tool_call>"); /* no text */
    chat(HI ", " TOOLS "}");
    CHECK_HAS(body, "\"message\": {\"role\": \"assistant\", \"content\": null, "
                    "\"tool_calls\": [{\"index\": 0, ");
    CHECK_HAS(body, "\"finish_reason\": \"tool_calls\"");
    stop();
    start_with("<tool_call>{\"name\": \"get\", \"arguments\": "
               "{}}</tool_call>\n<tool_call>{\"name\""
               ": \"get\", \"arguments\": {\"a\": 2}}</tool_call>",
               ML_TOOLS_QWEN, true);
    chat(HI ", " TOOLS ", \"stream\": true}");
    CHECK_HAS(body, "\"delta\": {\"tool_calls\": [{\"index\": 0, ");
    CHECK_HAS(body, "\"delta\": {\"tool_calls\": [{\"index\": 1, ");
    CHECK_HAS(body, "\"arguments\": \"{\\\"a\\\": 2}\"");
    CHECK_HAS(body, "\"finish_reason\": \"tool_calls\"");
    CHECK(lacks("\"content\": \"<"));
    CHECK(lacks("\"content\": \"\\n"));
    stop();
}

/* --- Anthropic's API ---------------------------------------------------------- */

#define ASK "{\"max_tokens\": 90, \"messages\": [{\"role\": \"user\", \"content\": "
#define GET "\"tools\": [{\"name\": \"get\", \"input_schema\": {\"type\": \"object\"}}]"

static void anthropic(void) {
    start("hello");
    post("/v1/messages", ASK "\"hi\"}], \"system\": \"be\"}");
    CHECK_HAS(body, "{\"id\": \"msg_");
    CHECK_HAS(body, "\"type\": \"message\", \"role\": \"assistant\", \"model\": \"fake\", "
                    "\"content\": [{\"type\": \"text\", \"text\": \"hello\"}], "
                    "\"stop_reason\": \"end_turn\", \"stop_sequence\": null, \"usage\": "
                    "{\"input_tokens\": 27, \"cache_creation_input_tokens\": 0, "
                    "\"cache_read_input_tokens\": 2, \"output_tokens\": 6}}");
    CHECK(f.n_prompt == (int)strlen("[system]be[user]hi[assistant]"));
    post("/v1/messages", ASK "\"hi\"}], \"stop_sequences\": [\"lo\"]}");
    CHECK_HAS(body, "\"stop_reason\": \"stop_sequence\", \"stop_sequence\": \"lo\"");
    post("/v1/messages/count_tokens",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}");
    CHECK(strcmp(body, "{\"input_tokens\": 19}") == 0);
    stop();
    start_with("hey", ML_TOOLS_NONE, true);
    post("/v1/messages", ASK "\"hi\"}], \"stream\": true}");
    CHECK_HAS(body,
              "event: message_start\ndata: {\"type\": \"message_start\", \"message\":");
    CHECK_HAS(body,
              "event: content_block_delta\ndata: {\"type\": \"content_block_delta\", "
              "\"index\": 0, \"delta\": {\"type\": \"text_delta\", \"text\": \"e\"}}");
    CHECK_HAS(body, "event: message_stop\ndata: {\"type\": \"message_stop\"}\n\n");
    CHECK(lacks("[DONE]"));
    stop();
}

static void anthropic_tools(void) {
    start("ok<tool_call>{\"name\": \"get\", \"arguments\": {\"q\":  1}}</tool_call>");
    post("/v1/messages", ASK "\"hi\"}], " GET "}");
    CHECK_HAS(body, "\"content\": [{\"type\": \"text\", \"text\": \"ok\"}, {\"type\": "
                    "\"tool_use\", \"id\": \"toolu_");
    CHECK_HAS(body, "\"name\": \"get\", \"input\": {\"q\":  1}}], \"stop_reason\": "
                    "\"tool_use\"");
    post("/v1/messages",
         ASK "\"hi\"}, {\"role\": \"assistant\", \"content\": [{\"type\": \"text\", "
             "\"text\": \"a\"}, {\"type\": \"tool_use\", \"id\": \"t\", \"name\": \"get\", "
             "\"input\": {\"q\": 123}}]}, {\"role\": \"user\", \"content\": [{\"type\": "
             "\"tool_result\", \"tool_use_id\": \"t\", \"content\": [{\"type\": \"text\", "
             "\"text\": \"7\"}]}, {\"type\": \"text\", \"text\": \"b\"}]}], " GET "}");
    CHECK(f.n_prompt ==
          (int)strlen("[user]hi[assistant]a(get 123)[tool]7[user]b#1[assistant]"));
    CHECK(ml_serve_ask(&f, "POST", "/v1/messages", NULL, ASK "{}}]}", &body) == 400);
    CHECK_HAS(body, "{\"type\": \"error\", \"error\": {\"type\": "
                    "\"invalid_request_error\", \"message\": ");
    stop();
}

/* --- calls in text ---------------------------------------------------------- */

typedef struct call_case {
    ml_tool_format format;
    const char *in, *text, *calls; /* calls: "name arguments;" each */
} call_case;

static void check_calls(const call_case *c, size_t step, const ml_json *tools,
                        ml_arena *a) {
    ml_tool_reader r;
    ml_text text = { 0 }, calls = { 0 };

    ml_text_add(&text, "", 0);
    ml_text_add(&calls, "", 0);
    ml_tool_reader_init(&r, c->format, tools, a);
    for (size_t i = 0; i < strlen(c->in); i += step) {
        size_t n = strlen(c->in) - i < step ? strlen(c->in) - i : step;
        ml_tool_reader_push(&r, (ml_str){ c->in + i, n }, &text);
    }
    ml_tool_reader_finish(&r, &text);
    for (int32_t i = 0; i < r.n; i++)
        ml_text_printf(&calls, "%.*s %.*s;", (int)r.call[i].name.len, r.call[i].name.ptr,
                       (int)r.call[i].arguments.len, r.call[i].arguments.ptr);
    if (strcmp(text.ptr, c->text) != 0 || strcmp(calls.ptr, c->calls) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s by %zu: text '%s', calls '%s'", c->in, step,
                     text.ptr, calls.ptr);
    ml_tool_reader_release(&r);
    ml_text_release(&text);
    ml_text_release(&calls);
}

static void tool_calls(void) {
    static const call_case cases[] = {
        { ML_TOOLS_QWEN, "plain < text <tool", "plain < text <tool", "" },
        { ML_TOOLS_QWEN,
          "a<tool_call>{\"name\": \"get\", \"arguments\": {\"x\": 1}}</tool_call>b", "ab",
          "get {\"x\": 1};" },
        { ML_TOOLS_QWEN,
          "<tool_call>\n{\"name\": \"get\"}\n</tool_call>\n<tool_call>{\"name\": \"put\", "
          "\"arguments\": \"{}\"}</tool_call>\n",
          "", "get {};put {};" },
        { ML_TOOLS_QWEN, "<tool_call>{bad}</tool_call> ok",
          "<tool_call>{bad}</tool_call> ok", "" },
        { ML_TOOLS_QWEN, "<tool_call>{\"name\": \"other\"}</tool_call>",
          "<tool_call>{\"name\": \"other\"}</tool_call>", "" },
        { ML_TOOLS_QWEN, "<tool_call>{\"name\": \"get\"}", "<tool_call>{\"name\": \"get\"}",
          "" },
        { ML_TOOLS_LLAMA3,
          "<|python_tag|>{\"name\": \"get\", \"parameters\": {\"s\": \"}\"}}", "",
          "get {\"s\": \"}\"};" },
        { ML_TOOLS_LLAMA3,
          "{\"name\": \"get\", \"parameters\": {}}; {\"name\": \"put\", \"parameters\": "
          "{}}",
          "", "get {};put {};" },
        { ML_TOOLS_LLAMA3, "{\"name\": \"get\"} and more", "{\"name\": \"get\"} and more",
          "" },
        { ML_TOOLS_LLAMA3, "<|python_tag|>", "<|python_tag|>", "" },
        { ML_TOOLS_LLAMA3, "<|python text {", "<|python text {", "" },
        { ML_TOOLS_LLAMA3, "no call", "no call", "" },
        { ML_TOOLS_NONE, "<tool_call>", "<tool_call>", "" },
    };
    const ml_json *tools;
    ml_arena a;

    ml_arena_init(&a, "test");
    CHECK(ml_json_parse(&tools, &a,
                        ml_str_of("[{\"function\": {\"name\": \"get\"}}, {\"function\": "
                                  "{\"name\": \"put\"}}, {}]"),
                        "tools", NULL) == ML_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t step = 1; step < 20; step++)
            check_calls(&cases[i], step, tools, &a);
    ml_arena_release(&a);
}

static const ml_test tests[] = {
    { "/v1/completions answers", completions },
    { "/v1/completions returns log-probs", completion_logprobs },
    { "/v1/completions streams", completion_streams },
    { "/v1/chat/completions answers", chats },
    { "chat messages with content parts are rendered", messages },
    { "/v1/chat/completions streams", chat_streams },
    { "chat completions return tool calls", chat_tools },
    { "/v1/messages answers and streams in Anthropic's form", anthropic },
    { "/v1/messages has tools in Anthropic's form", anthropic_tools },
    { "tool calls are parsed in every format", tool_calls },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
