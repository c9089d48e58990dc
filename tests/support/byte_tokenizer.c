#include "tests/support/byte_tokenizer.h"

#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "tests/support/must.h"

const char *const ml_json_tokens[] = {
    "{\"",   "\": ", "\":",   "\", \"", "\",\"", "\"}",  "\"]",         "},",   "], ",
    "]}",    "}}",   "{}",    "[]",     "[\"",   "[{",   " \"",         "  ",   "\n ",
    ",\n",   "true", "false", "null",   "na",    "name", "age",         "id",   "12",
    "10",    "00",   "-1",    ".5",     "e1",    "1.",   "the ",        "abc",  "ab\"",
    "a\": ", "\\n",  "\\\"",  "\\u00",  "é",     "日本", "\xe6\x97",    "2024", "2024-",
    "-01",   "T1",   ":00",   "Z\"",    "@x",    ".co",  "<tool_call>", "</",   "tool",
};
const int32_t ml_n_json_tokens = (int32_t)(sizeof ml_json_tokens / sizeof *ml_json_tokens);

/* GPT-2's character of a byte. */
static uint32_t char_of(unsigned char byte) {
    uint32_t next = 256;

    for (int b = 0; b < 256; b++) {
        bool shown = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte)
            return shown ? (uint32_t)b : next;
        next += !shown;
    }
    return 0;
}

static void add_token(ml_text *json, const char *bytes, size_t n, int32_t id) {
    ml_text spelled = { 0 };

    for (size_t i = 0; i < n; i++) {
        char utf8[4];
        int len = ml_utf8_put(utf8, char_of((unsigned char)bytes[i]));
        ml_text_add(&spelled, utf8, (size_t)len);
    }
    ml_text_printf(json, "%s", id ? "," : "");
    ml_json_quote(json, (ml_str){ spelled.ptr, spelled.len });
    ml_text_printf(json, ":%d", id);
    ml_text_release(&spelled);
}

ml_tokenizer *ml_byte_tokenizer(const char *const *extra, int32_t n_extra) {
    ml_text json = { 0 };
    ml_tokenizer *t;

    ml_text_printf(&json, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int b = 0; b < 256; b++)
        add_token(&json, &(char){ (char)b }, 1, b);
    for (int32_t i = 0; i < n_extra; i++)
        add_token(&json, extra[i], strlen(extra[i]), 256 + i);
    ml_text_printf(&json,
                   "}},\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":"
                   "\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"
                   "\"added_tokens\":[{\"id\":%d,\"content\":\"<|end|>\",\"special\":true,"
                   "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                   "\"normalized\":false}]}",
                   256 + n_extra);
    MUST(ml_tokenizer_parse(&t, (ml_str){ json.ptr, json.len }, "test", &err));
    ml_text_release(&json);
    return t;
}
