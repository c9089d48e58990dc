/* Parsers of answers: text in, content, calls and reasoning out, in pieces of any size. */
#include <stdio.h>
#include <string.h>

#include "tests/support/test.h"
#include "text/chat/reasoning.h"
#include "text/chat/tool_calls.h"

/* --- tool calls ------------------------------------------------------------- */

typedef struct call_case {
    const char *parser, *in, *text, *calls; /* calls: "name arguments;" each */
} call_case;

static const char offered[] =
    "[{\"function\": {\"name\": \"get\", \"parameters\": {\"properties\": {\"s\": "
    "{\"type\": "
    "\"string\"}, \"n\": {\"type\": \"integer\"}}}}}, {\"function\": {\"name\": \"put\"}}]";

static const call_case cases[] = {
    { "mistral",
      "ok[TOOL_CALLS] [{\"name\": \"get\", \"arguments\": {\"n\": 1}}, {\"name\": "
      "\"put\", \"arguments\": {}}]",
      "ok", "get {\"n\": 1};put {};" },
    { "mistral", "[TOOL_CALLS]get[ARGS]{\"n\": 2}[TOOL_CALLS]put{}", "",
      "get {\"n\": 2};put {};" },
    { "mistral", "[TOOL_CALLS]other[ARGS]{}", "[TOOL_CALLS]other[ARGS]{}", "" },
    { "mistral", "a [TOOL", "a [TOOL", "" },
    { "deepseekv3",
      "So<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{"
      "\"n\": "
      "1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>put\n```"
      "json\n{}\n"
      "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      "So", "get {\"n\": 1};put {};" },
    { "deepseekv31",
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{\"s\": "
      "\"x\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      "", "get {\"s\": \"x\"};" },
    { "deepseekv31", "<｜tool▁call▁begin｜>get<｜tool▁sep｜>{bad<｜tool▁call▁end｜>",
      "<｜tool▁call▁begin｜>get<｜tool▁sep｜>{bad<｜tool▁call▁end｜>", "" },
    { "deepseekv32",
      "Hm\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get\">\n<｜DSML｜parameter "
      "name=\"s\" "
      "string=\"true\">12</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" "
      "string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</"
      "｜DSML｜function_calls>",
      "Hm\n", "get {\"s\": \"12\", \"n\": 3};" },
    { "glm45",
      "x<tool_call>get\n<arg_key>s</arg_key>\n<arg_value>12</arg_value>\n<arg_key>n</"
      "arg_key>\n"
      "<arg_value>3</arg_value>\n</tool_call>",
      "x", "get {\"s\": \"12\", \"n\": 3};" },
    { "glm47",
      "<tool_call>put</tool_call><tool_call>get<arg_key>n</arg_key><arg_value>1"
      "</arg_value></tool_call>",
      "", "put {};get {\"n\": 1};" },
    { "kimi_k2",
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_"
      "begin|>{\"n\": "
      "1}<|tool_call_end|><|tool_call_begin|>functions.put:1<|tool_call_argument_"
      "begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
      "", "get {\"n\": 1};put {};" },
    { "qwen3_coder",
      "Let me see.\n<tool_call>\n<function=get>\n<parameter=s>\ntwo\nlines\n</parameter>\n"
      "<parameter=n>\n4\n</parameter>\n</function>\n</tool_call>",
      "Let me see.\n", "get {\"s\": \"two\\nlines\", \"n\": 4};" },
    { "qwen3_coder", "<tool_call>\n<function=put>\n</function>\n</tool_call>", "",
      "put {};" },
    { "minimax-m2",
      "<minimax:tool_call>\n<invoke name=\"get\">\n<parameter name=\"s\">a</parameter>\n"
      "<parameter name=\"n\">5</parameter>\n</invoke>\n<invoke name=\"put\">\n</invoke>\n"
      "</minimax:tool_call>",
      "", "get {\"s\": \"a\", \"n\": 5};put {};" },
    { "pythonic", "[get(s='it\\'s', n=-1), put(a=[1, {\"k\": None}], b=True)]", "",
      "get {\"s\": \"it's\", \"n\": -1};put {\"a\": [1, {\"k\": null}], \"b\": true};" },
    { "pythonic", "<|python_start|>[put()]", "", "put {};" },
    { "pythonic", "[1, 2] is a list", "[1, 2] is a list", "" },
    { "pythonic", "[get(s=x)]", "[get(s=x)]", "" },
    { "gpt-oss",
      "<|channel|>commentary to=functions.get <|constrain|>json<|message|>{\"n\": 1}", "",
      "get {\"n\": 1};" },
    { "gpt-oss", "<|channel|>final<|message|>Done.", "Done.", "" },
    { "hermes", "<tool_call>{\"name\": \"put\", \"arguments\": {}}</tool_call>", "",
      "put {};" },
};

static void check_calls(const call_case *c, size_t step, const ml_json *tools,
                        ml_arena *a) {
    ml_tool_reader r;
    ml_text text = { 0 }, calls = { 0 };

    ml_text_add(&text, "", 0);
    ml_text_add(&calls, "", 0);
    ml_tool_reader_init(&r, ml_tool_format_find(c->parser), tools, a);
    for (size_t i = 0; i < strlen(c->in); i += step) {
        size_t n = strlen(c->in) - i < step ? strlen(c->in) - i : step;
        ml_tool_reader_push(&r, (ml_str){ c->in + i, n }, &text);
    }
    ml_tool_reader_finish(&r, &text);
    for (int32_t i = 0; i < r.n; i++)
        ml_text_printf(&calls, "%.*s %.*s;", (int)r.call[i].name.len, r.call[i].name.ptr,
                       (int)r.call[i].arguments.len, r.call[i].arguments.ptr);
    if (strcmp(text.ptr, c->text) != 0 || strcmp(calls.ptr, c->calls) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s: %s by %zu: text '%s', calls '%s'", c->parser,
                     c->in, step, text.ptr, calls.ptr);
    ml_tool_reader_release(&r);
    ml_text_release(&text);
    ml_text_release(&calls);
}

static void tool_calls(void) {
    const ml_json *tools;
    ml_arena a;

    ml_arena_init(&a, "test");
    CHECK(ml_json_parse(&tools, &a, ml_str_of(offered), "tools", NULL) == ML_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(ml_tool_format_find(cases[i].parser) != ML_TOOLS_NONE);
        for (size_t step = 1; step < 20; step++)
            check_calls(&cases[i], step, tools, &a);
    }
    for (int f = ML_TOOLS_NONE + 1; f < ML_N_TOOLS; f++)
        CHECK((int)ml_tool_format_find(ml_tool_format_name((ml_tool_format)f)) == f);
    CHECK(ml_tool_format_find("none of these") == ML_TOOLS_NONE);
    ml_arena_release(&a);
}

/* --- reasoning -------------------------------------------------------------- */

typedef struct reasoning_case {
    const char *parser, *in, *reasoning, *content;
} reasoning_case;

static const reasoning_case thoughts[] = {
    { "qwen3", "<think>\nHm, so.\n</think>\n\nYes.", "Hm, so.", "Yes." },
    { "qwen3", "Yes < no <think>x</think>", "", "Yes < no <think>x</think>" },
    { "qwen3", "<think>\n\n</think>\n\nYes.", "", "Yes." },
    { "qwen3", "<think>cut off </thin", "cut off </thin", "" },
    { "qwen3", "<thi", "", "<thi" },
    { "qwen3", "\n  Plain.\n", "", "\n  Plain.\n" },
    { "deepseek-r1", "Hm.\n</think>\nYes.", "Hm.", "Yes." },
    { "deepseek-r1", "<think>Hm.</think>Yes.", "Hm.", "Yes." },
    { "deepseek-r1", "never ends \n", "never ends", "" },
    { "qwen3-thinking", "a\n\nb </think> c", "a\n\nb", "c" },
    { "kimi", "◁think▷日◁/think▷本", "日", "本" },
    { "mistral", "[THINK]a[/THINK]b", "a", "b" },
    { "gpt-oss",
      "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|"
      ">Y",
      "Hm.", "<|start|>assistant<|channel|>final<|message|>Y" },
    { "glm45", "<think>a</think><tool_call>", "a", "<tool_call>" },
};

static void check_reasoning(const reasoning_case *c, size_t step) {
    ml_reasoning_reader r = { .format = ml_reasoning_find(c->parser) };
    ml_text reasoning = { 0 }, content = { 0 };

    ml_text_add(&reasoning, "", 0);
    ml_text_add(&content, "", 0);
    for (size_t i = 0; i < strlen(c->in); i += step) {
        size_t n = strlen(c->in) - i < step ? strlen(c->in) - i : step;
        ml_reasoning_push(&r, (ml_str){ c->in + i, n }, &reasoning, &content);
    }
    ml_reasoning_finish(&r, &reasoning, &content);
    if (strcmp(reasoning.ptr, c->reasoning) != 0 || strcmp(content.ptr, c->content) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s: %s by %zu: reasoning '%s', content '%s'",
                     c->parser, c->in, step, reasoning.ptr, content.ptr);
    ml_reasoning_release(&r);
    ml_text_release(&reasoning);
    ml_text_release(&content);
}

static void reasoning(void) {
    for (size_t i = 0; i < sizeof thoughts / sizeof *thoughts; i++) {
        CHECK(ml_reasoning_find(thoughts[i].parser) != NULL);
        for (size_t step = 1; step < 20; step++)
            check_reasoning(&thoughts[i], step);
    }
    CHECK(ml_reasoning_find("none of these") == NULL);
}

static const ml_test tests[] = {
    { "tool calls of all families are parsed in pieces of any size", tool_calls },
    { "reasoning is separated in pieces of any size", reasoning },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
