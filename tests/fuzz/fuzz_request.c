/* Any JSON as a request, of OpenAI's form or Anthropic's: read without a fault or refused with a
 * sentence; and any text as an
 * answer with calls of tools: how it was cut makes no difference.  The first byte chooses. */
#include <stdint.h>
#include <string.h>

#include "base/bug.h"
#include "serve/anthropic_messages.h"
#include "serve/chat_messages.h"
#include "serve/sampling_params.h"
#include "text/chat/tool_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_VOCAB = 1000 };

static void check_params(const ml_sampling_params *p) {
    ml_gen_request r = { 0 };

    ml_sampling_params_apply(p, &r);
    ML_BUG_IF(!(r.draw.temperature >= 0) || !(r.draw.top_p > 0) || r.draw.top_k < 0);
    ML_BUG_IF(r.min_new < 0 || r.n_stop > ML_MAX_STOPS || p->n < 1);
    ML_BUG_IF(r.n_stop_id > ML_MAX_STOP_IDS || r.draw.n_bias > ML_MAX_BIASES);
    for (int32_t i = 0; i < r.n_stop; i++)
        ML_BUG_IF(r.stop[i].len == 0 || r.stop[i].len > ML_MAX_STRING);
    for (int32_t i = 0; i < r.n_stop_id; i++)
        ML_BUG_IF(r.stop_id[i] < 0 || r.stop_id[i] >= N_VOCAB);
    for (int32_t i = 0; i < r.draw.n_bias; i++)
        ML_BUG_IF(r.draw.bias[i].id < 0 || r.draw.bias[i].id >= N_VOCAB);
}

static void read_params(const ml_json *v, ml_arena *a) {
    ml_sampling_params p;
    ml_err err = { 0 };

    ml_sampling_params_init(&p);
    if (ml_sampling_params_read(&p, v, N_VOCAB, a, &err))
        ML_BUG_IF(!err.msg[0]);
    else
        check_params(&p);
}

/* Content is text afterwards, wherever there is any. */
static void check_messages(const ml_json *messages) {
    for (const ml_json *m = messages->child; m; m = m->next) {
        const ml_json *c = ml_json_get(m, "content");
        ML_BUG_IF(!ml_json_get(m, "role"));
        ML_BUG_IF(c && (c->type == ML_JSON_NULL || c->type == ML_JSON_ARRAY));
    }
}

static void read_messages(const ml_json *v, ml_arena *a) {
    const ml_json *messages;
    ml_str begun;
    ml_err err = { 0 };

    if (ml_chat_messages_read(&messages, v, a, &err)) {
        ML_BUG_IF(!err.msg[0]);
        return;
    }
    check_messages(messages);
    if (ml_chat_messages_split(&messages, &begun, a, &err) == ML_OK)
        check_messages(messages);
}

/* A request of Anthropic's API becomes a list that a chat accepts. */
static void read_anthropic(const ml_json *v, ml_str source, ml_arena *a) {
    const ml_json *out = NULL;
    bool parallel;
    ml_err err = { 0 };

    if (ml_anthropic_messages_read(&out, ml_json_get(v, "system"),
                                   ml_json_get(v, "messages"), source, a, &err) == ML_OK)
        check_messages(out);
    else
        ML_BUG_IF(!err.msg[0]);
    if (ml_anthropic_tools_read(&out, ml_json_get(v, "tools"), source, a, &err) == ML_OK)
        ML_BUG_IF(out && out->type != ML_JSON_ARRAY);
    if (ml_json_get(v, "tool_choice"))
        ml_anthropic_tool_choice_read(&out, &parallel, ml_json_get(v, "tool_choice"), a,
                                      &err);
    ml_anthropic_format_read(&out, ml_json_get(v, "output_config"), source, a, &err);
}

static void read_calls(ml_text *out, ml_tool_format format, ml_str text, size_t step,
                       ml_arena *a) {
    ml_tool_reader r;

    ml_tool_reader_init(&r, format, NULL, a);
    for (size_t i = 0; i < text.len; i += step) {
        size_t n = text.len - i < step ? text.len - i : step;
        ml_tool_reader_push(&r, (ml_str){ text.ptr + i, n }, out);
    }
    ml_tool_reader_finish(&r, out);
    for (int32_t i = 0; i < r.n; i++) {
        ml_text_add(out, r.call[i].name.ptr, r.call[i].name.len);
        ml_text_add(out, r.call[i].arguments.ptr, r.call[i].arguments.len);
    }
    ml_tool_reader_release(&r);
}

static void compare_cuts(ml_tool_format format, ml_str text, ml_arena *a) {
    ml_text whole = { 0 }, cut = { 0 };

    read_calls(&whole, format, text, text.len + 1, a);
    read_calls(&cut, format, text, 3, a);
    ML_BUG_IF(!ml_str_eq((ml_str){ whole.ptr, whole.len }, (ml_str){ cut.ptr, cut.len }));
    ml_text_release(&whole);
    ml_text_release(&cut);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ml_str text = { (const char *)data + 1, size ? size - 1 : 0 };
    const ml_json *v;
    ml_arena a;

    if (!size)
        return 0;
    ml_arena_init(&a, "fuzz");
    switch (data[0] % 5) {
    case 0:
        if (!ml_json_parse(&v, &a, text, "fuzz", NULL))
            read_params(v, &a);
        break;
    case 1:
        if (!ml_json_parse(&v, &a, text, "fuzz", NULL))
            read_messages(v, &a);
        break;
    case 2: compare_cuts(ML_TOOLS_QWEN, text, &a); break;
    case 3: compare_cuts(ML_TOOLS_LLAMA3, text, &a); break;
    case 4:
        if (!ml_json_parse(&v, &a, text, "fuzz", NULL))
            read_anthropic(v, text, &a);
        break;
    }
    ml_arena_release(&a);
    return 0;
}
