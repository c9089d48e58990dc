/* Conversations in the form that templates take: messages, tool calls, tools. */
#include <string.h>

#include "text/chat/conversation.h"
#include "tests/support/json_text.h"
#include "tests/support/test.h"

static void normal_messages(void) {
    static const struct {
        const char *in, *out; /* out NULL: an error */
    } cases[] = {
        { "[{\"role\":\"user\",\"content\":null}]",
          "[{\"role\":\"user\",\"content\":null}]" },
        { "[{\"role\":\"assistant\",\"content\":null,\"x\":1}]",
          "[{\"role\":\"assistant\",\"content\":\"\",\"x\":1}]" },
        { "[{\"role\":\"assistant\"}]", "[{\"role\":\"assistant\"}]" },
        { "[{\"role\":\"assistant\",\"tool_calls\":[]}]",
          "[{\"role\":\"assistant\",\"tool_calls\":[]}]" },
        { "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
          "\"arguments\":"
          "\"{\\\"a\\\": [1.0, "
          "\\\"x\\\"]}\"},\"id\":7}]},{\"role\":\"tool\",\"content\":\"r\"}]",
          "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
          "\"arguments\":"
          "{\"a\":[1.0,\"x\"]}},\"id\":7}],\"content\":\"\"},{\"role\":\"tool\","
          "\"content\":\"r\"}]" },
        { "[{\"role\":\"assistant\",\"content\":\"c\",\"tool_calls\":[{\"function\":"
          "{\"arguments\":{\"a\":1}}},3,{\"function\":null}]}]",
          "[{\"role\":\"assistant\",\"content\":\"c\",\"tool_calls\":[{\"function\":"
          "{\"arguments\":{\"a\":1}}},3,{\"function\":null}]}]" },
        { "[{\"role\":\"user\",\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}]",
          "[{\"role\":\"user\",\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}]" },
        { "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}"
          "]",
          NULL },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ml_json *in, *out;
        ml_text before = { 0 }, after = { 0 };
        ml_arena a;
        ml_err err;
        ml_status st;
        ml_arena_init(&a, "test");
        CHECK(!ml_json_parse(&in, &a, ml_str_of(cases[i].in), "case", &err));
        st = ml_conversation_normal(&out, &a, in, &err);
        CHECK((st == ML_OK) == (cases[i].out != NULL));
        if (st)
            CHECK_HAS(err.msg, "arguments of a tool call:1:2:");
        else
            ml_json_text(&after, out);
        if (!st && strcmp(after.ptr, cases[i].out) != 0)
            ml_test_fail(__FILE__, __LINE__, "%s became %s", cases[i].in, after.ptr);
        ml_json_text(&before, in);
        CHECK(ml_str_is(ml_str_of(cases[i].in), before.ptr) || strchr(cases[i].in, ' '));
        ml_text_release(&before);
        ml_text_release(&after);
        ml_arena_release(&a);
    }
}

static void normal_tools(void) {
    static const struct {
        const char *in, *out;
        bool good;
    } cases[] = {
        { "[]", NULL, true },
        { "[{\"function\":{\"parameters\":{\"b\":1,\"a\":2},\"name\":\"f\",\"more\":1,"
          "\"description\":\"d\",\"strict\":true},\"type\":\"other\"}]",
          "[{\"type\":\"other\",\"function\":{\"description\":\"d\",\"name\":\"f\","
          "\"parameters\":"
          "{\"b\":1,\"a\":2},\"strict\":true}}]",
          true },
        { "[{\"name\":\"g\",\"type\":5}]",
          "[{\"type\":\"function\",\"function\":{\"description\":null,\"name\":\"g\","
          "\"parameters\":null,\"strict\":false}}]",
          true },
        { "[1]", "a tool is a number without a function name", false },
        { "[{\"function\":{}}]", "a tool is an object without a function name", false },
        { "[{\"function\":[]}]", "a tool is an array without a function name", false },
        { "[{\"name\":1}]", "the name of a tool is a number", false },
        { "[{\"name\":\"f\",\"strict\":null}]", "the strict of a tool is null", false },
        { "[{\"name\":\"f\",\"description\":{}}]", "the description of a tool is an object",
          false },
        { "[{\"function\":{\"name\":\"f\"},\"type\":1}]", "the type of a tool is a number",
          false },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ml_json *in, *out;
        ml_text got = { 0 };
        ml_arena a;
        ml_err err = { 0 };
        ml_arena_init(&a, "test");
        CHECK(!ml_json_parse(&in, &a, ml_str_of(cases[i].in), "case", &err));
        CHECK((ml_tools_normal(&out, &a, in, &err) == ML_OK) == cases[i].good);
        if (!cases[i].good)
            CHECK_HAS(err.msg, cases[i].out);
        else if (out)
            ml_json_text(&got, out);
        if (cases[i].good && cases[i].out && strcmp(got.ptr, cases[i].out) != 0)
            ml_test_fail(__FILE__, __LINE__, "%s became %s", cases[i].in, got.ptr);
        CHECK(!cases[i].good || (out != NULL) == (cases[i].out != NULL));
        ml_text_release(&got);
        ml_arena_release(&a);
    }
}

static const ml_test tests[] = {
    { "messages of a conversation are normalised for templates", normal_messages },
    { "tools of a conversation are normalised for templates", normal_tools },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
