/* What one request, or many, may cost the server; and the smaller endpoints. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "serve/sampling_params.h"
#include "tests/support/log_text.h"
#include "tests/support/scratch.h"
#include "tests/support/serve_fixture.h"
#include "tests/support/test.h"

static ml_serve_fixture f;
static const char *body;
static ml_text json;

static void post(int status, const char *path, const char *request) {
    int got = ml_serve_ask(&f, "POST", path, NULL, request, &body);
    if (got != status)
        ml_test_fail(__FILE__, __LINE__, "%s %.100s: status %d: %.300s", path, request, got,
                     body);
}

static void start(size_t max_in_flight) {
    ml_serve_fixture_init(&f);
    f.opts.max_in_flight = max_in_flight;
    f.opts.max_body = 8 << 20;
}

static void stop(void) {
    ml_serve_fixture_stop(&f);
    ml_text_release(&json);
}

/* n copies of an element, with commas between them. */
static void repeat(const char *element, int n) {
    for (int i = 0; i < n; i++)
        ml_text_printf(&json, "%s%s", i ? "," : "", element);
}

/* head, n elements, tail */
static void build(const char *head, const char *element, int n, const char *tail) {
    json.len = 0;
    ml_text_printf(&json, "%s", head);
    repeat(element, n);
    ml_text_printf(&json, "%s", tail);
}

static void long_lists(void) {
    start(0);
    ml_serve_fixture_start(&f);
    build("{\"text\": \"a\", \"sampling_params\": {\"stop_token_ids\": [", "7", 1025,
          "]}}");
    post(400, "/generate", json.ptr);
    CHECK_HAS(body, "\\\"stop_token_ids\\\" has 1025 elements; expected at most 1024");
    build("{\"text\": \"a\", \"sampling_params\": {\"logit_bias\": {", "\"7\": 1", 4097,
          "}}}");
    post(400, "/generate", json.ptr);
    CHECK_HAS(body, "\\\"logit_bias\\\" has 4097 elements; expected at most 4096");
    build("{\"text\": \"a\", \"sampling_params\": {\"stop\": [", "\"s\"", 65, "]}}");
    post(400, "/generate", json.ptr);
    CHECK_HAS(body, "\\\"stop\\\" has 65 elements; expected at most 64");
    build("{\"text\": \"a\", \"return_logprob\": true, \"token_ids_logprob\": [", "7", 101,
          "]}");
    post(400, "/generate", json.ptr);
    CHECK_HAS(body, "\\\"token_ids_logprob\\\" has 101 elements; expected at most 100");
    build("{\"prompt\": \"a\", \"stop_token_ids\": [", "7", 5000, "]}");
    post(400, "/v1/completions", json.ptr);
    CHECK_HAS(body, "\\\"stop_token_ids\\\" has 5000 elements");
    build("{\"text\": \"a\", \"sampling_params\": {\"stop\": \"", "x", 2500, "\"}}");
    post(400, "/generate", json.ptr);
    CHECK_HAS(body, "a string has 4999 bytes; expected at most 4096");
    build("{\"text\": \"a\", \"rid\": \"", "x", 600, "\"}");
    post(400, "/generate", json.ptr);
    CHECK_HAS(body, "\\\"rid\\\" has 1199 bytes; expected at most 1024");
    build("{\"text\": \"a\", \"sampling_params\": {\"stop_token_ids\": [", "7", 1024,
          "]}}");
    post(200, "/generate", json.ptr);
    stop();
}

/* What the generator would copy for each answer counts before it is copied. */
static void one_request_of_many_answers(void) {
    start(16 << 20);
    ml_serve_fixture_start(&f);
    build("{\"sampling_params\": {\"stop_token_ids\": [", "7", 1024,
          "]}, \"input_ids\": [");
    repeat("[1]", 4096);
    ml_text_printf(&json, "]}");
    post(400, "/generate", json.ptr);
    CHECK_HAS(body, "the request's 4096 samples need ");
    CHECK_HAS(body, "--max-inflight-bytes");
    build("{\"return_logprob\": true, \"logprob_start_len\": 0, \"top_logprobs_num\": 100, "
          "\"sampling_params\": {\"n\": 4096}, \"input_ids\": [",
          "1", 300, "]}");
    post(400, "/generate", json.ptr);
    CHECK_HAS(body, "the request's 4096 samples need ");
    CHECK(ml_serve_count(&f, &f.n_submit) == 0);
    post(200, "/generate", "{\"text\": \"a\"}");
    stop();
}

/* Parsed values that are passed over do not stay, and their bytes count while they are there. */
static void ignored_members(void) {
    int fd[4];

    start(16 << 20);
    f.hold = true;
    ml_serve_fixture_start(&f);
    build("{\"text\": \"a\", \"custom_labels\": [", "1", 1000000, "]}");
    post(503, "/generate", json.ptr);
    CHECK_HAS(body, "out of memory for this request; try again later");
    CHECK(ml_serve_ask(&f, "POST", "/generate", "X: y\r\n", json.ptr, &body) == 503);
    CHECK_HAS(body, "Retry-After: 1\r\n");
    /* Each of these needs most of the budget while it is read, and little afterwards. */
    build("{\"text\": \"a\", \"custom_labels\": [", "1", 80000, "]}");
    for (int i = 0; i < 4; i++) {
        fd[i] = ml_serve_send(&f, "/generate", json.ptr);
        CHECK(ml_serve_wait(&f, &f.n_submit, i + 1));
    }
    for (int i = 0; i < 4; i++)
        close(fd[i]);
    CHECK(ml_serve_wait(&f, &f.n_abort, 4));
    stop();
}

/* Over budget a request is turned away; when others have ended, it is taken. */
static void budget_of_all(void) {
    int fd, status = 503;

    start(4 << 20);
    f.hold = true;
    ml_serve_fixture_start(&f);
    build("{\"text\": \"a\", \"sampling_params\": {\"n\": 200, \"stop_token_ids\": [", "7",
          1024, "]}}");
    for (int i = 0; i < 3; i++) {
        fd = ml_serve_send(&f, "/generate", json.ptr);
        CHECK(ml_serve_wait(&f, &f.n_submit, 200 * (i + 1)));
        post(
            503, "/generate",
            "{\"text\": \"a\", \"sampling_params\": {\"n\": 4000, \"max_new_tokens\": 1}}");
        CHECK_HAS(body, "try again later");
        close(fd);
        CHECK(ml_serve_wait(&f, &f.n_abort, 200 * (i + 1)));
    }
    for (int i = 0; i < 500 && status != 200; i++, usleep(10000)) /* the last job ends */
        status =
            ml_serve_ask(&f, "POST", "/tokenize", NULL, "{\"prompt\": \"abc\"}", &body);
    CHECK(status == 200);
    stop();
}

static bool submitted(int n) {
    return ml_serve_wait(&f, &f.n_submit, n) || ml_serve_wait(&f, &f.n_submit, n);
}

/* While a large conversation is rendered, others are answered. */
static void text_off_the_loop(void) {
    int fd, n = 0;
    bool early = false;

    start(0);
    f.hold = true;
    f.template = "{% for m in messages %}{% for c in m.content %}{% for k in m.content %}"
                 "{% if k == 'y' %}{% endif %}{% endfor %}{% endfor %}{% endfor %}hi";
    ml_serve_fixture_start(&f);
    build("{\"messages\": [{\"role\": \"user\", \"content\": \"", "x", 600,
          "\"}], \"metadata\": \"");
    ml_text_printf(&json, "%020000d\", \"rid\": \"slow\"}", 0);
    for (; n < 100 && !early; n++) { /* a busy machine may need several attempts */
        fd = ml_serve_send(&f, "/v1/chat/completions", json.ptr);
        usleep(20000);
        CHECK(ml_serve_ask(&f, "GET", "/health", NULL, NULL, NULL) == 200);
        early = ml_serve_count(&f, &f.n_submit) == n;
        CHECK(submitted(n + 1));
        close(fd);
    }
    CHECK(early && f.n_prompt == 2);
    /* Aborts of requests that are being read. */
    CHECK(ml_serve_wait(&f, &f.n_abort, n)); /* of the clients above, who have left */
    for (int i = 0; i < 2; i++) {
        fd = ml_serve_send(&f, "/v1/chat/completions", json.ptr);
        usleep(20000);
        post(200, "/abort_request", i ? "{\"abort_all\": true}" : "{\"rid\": \"slow\"}");
        CHECK(submitted(n + i + 1));
        CHECK(ml_serve_wait(&f, &f.n_abort, n + i + 1));
        close(fd);
    }
    /* A client that leaves while its request is read. */
    fd = ml_serve_send(&f, "/v1/chat/completions", json.ptr);
    usleep(50000);
    close(fd);
    stop();
}

static void large_requests(void) {
    start(0);
    f.script = "{\"a\": 1}";
    ml_serve_fixture_start(&f);
    build(
        "{\"rid\": \"big\", \"sampling_params\": {\"stop\": [\"1\"]}, \"custom_labels\": [",
        "\"12345678\"", 4000, "], \"text\": [\"ab\", \"c\"]}");
    post(200, "/generate", json.ptr);
    CHECK_HAS(body, "\"text\": \"{\\\"a\\\": \"");
    CHECK_HAS(body, "\"matched\": \"1\"");
    CHECK_HAS(body, "\"id\": \"big_1\"");
    build("{\"model\": \"fake\", \"echo\": true, \"prompt\": \"ab\", \"metadata\": [",
          "\"12345678\"", 4000, "]}");
    post(200, "/v1/completions", json.ptr);
    CHECK_HAS(body, "\"text\": \"ab{\\\"a\\\": 1}\"");
    CHECK_HAS(body, "\"model\": \"fake\"");
    build("{\"text\": \"", "xxxxxxxxx", 4000, "\"}");
    post(400, "/generate", json.ptr);
    CHECK_HAS(body, "the prompt has 39999 tokens, but the context length is 400");
    build("{\"text\": \"", "xxxxxxxxx", 4000, "\"");
    post(400, "/generate", json.ptr);
    CHECK_HAS(body, "request body:1:40011");
    build("{\"rid\": \"", "xxxxxxxxx", 140000, "\"}");
    post(400, "/abort_request", json.ptr);
    CHECK_HAS(body, "this endpoint accepts at most 1048576");
    stop();
}

/* Replies with many numbers are written elsewhere, and are the same. */
static void large_replies(void) {
    int fd;

    start(0);
    f.script = "ab";
    ml_serve_fixture_start(&f);
    build("{\"return_logprob\": true, \"logprob_start_len\": 0, \"top_logprobs_num\": 4, "
          "\"sampling_params\": {\"n\": 40}, \"input_ids\": [",
          "64", 300, "]}");
    post(200, "/generate", json.ptr);
    CHECK(body[0] == '[' && body[strlen(body) - 1] == ']');
    CHECK_HAS(body,
              "\"output_token_logprobs\": [[-1.515625, 97, null], [-1.53125, 98, null]");
    CHECK_HAS(body, "\"weight_version\": \"default\"");
    for (int i = 0; i < 5; i++) { /* clients that leave at any time */
        fd = ml_serve_send(&f, "/generate", json.ptr);
        usleep((useconds_t)i * 4000);
        close(fd);
    }
    stop();
}

/* A stream whose every event is large sends few of them, and loses nothing. */
static void large_events(void) {
    char script[200];
    int n = 0;

    memset(script, 'a', sizeof script - 1);
    script[sizeof script - 1] = 0;
    start(0);
    f.script = script;
    f.slow = true;
    f.opts.context = 600;
    ml_serve_fixture_start(&f);
    build("{\"stream\": true, \"return_logprob\": true, \"logprob_start_len\": 0, "
          "\"sampling_params\": {\"max_new_tokens\": 250}, \"top_logprobs_num\": 100, "
          "\"input_ids\": [",
          "1", 300, "]}");
    post(200, "/generate", json.ptr);
    for (const char *p = body; (p = strstr(p, "data: {")); p++)
        n++;
    CHECK(n >= 2 && n < 150);
    CHECK_HAS(body, "\"completion_tokens\": 200,");
    CHECK_HAS(body, "data: [DONE]");
    stop();
}

/* --- tools ------------------------------------------------------------------ */

static void tools_nobody_would_see(void) {
    static const char request[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": [{\"type\": "
        "\"function\", \"function\": {\"name\": \"f\"}}]}";

    start(0);
    ml_serve_fixture_start(&f);
    post(400, "/v1/chat/completions", request);
    CHECK_HAS(body, "start the server with --tool-call-parser");
    stop();
    start(0);
    f.opts.tools = ML_TOOLS_QWEN;
    f.template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    ml_serve_fixture_start(&f);
    post(400, "/v1/chat/completions", request);
    CHECK_HAS(body, "the chat template ignores");
    post(200, "/v1/chat/completions",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": []}");
    stop();
    start(0);
    f.opts.tools = ML_TOOLS_QWEN;
    ml_serve_fixture_start(&f);
    post(200, "/v1/chat/completions", request);
    stop();
}

/* --- numbers and names ------------------------------------------------------ */

static void numbers_at_their_ends(void) {
    start(0);
    ml_serve_fixture_start(&f);
    post(400, "/generate",
         "{\"text\": \"ab\", \"return_logprob\": true, \"logprob_start_len\": 2147483647}");
    CHECK_HAS(body, "\\\"logprob_start_len\\\" is 2147483647, but the prompt has 2 tokens");
    post(400, "/update_weights_from_disk",
         "{\"model_path\": \"m\", \"weight_version\": \"18446744073709551615\"}");
    CHECK_HAS(body, "weight version 18446744073709551615 exceeds the maximum "
                    "9007199254740992");
    post(400, "/update_weights_from_disk",
         "{\"model_path\": \"m\", \"weight_version\": \"99999999999999999999999999\"}");
    post(200, "/update_weights_from_disk",
         "{\"model_path\": \"m\", \"weight_version\": \"9007199254740992\"}");
    CHECK(f.load_version == (uint64_t)1 << 53);
    post(400, "/update_weights_from_disk", "{\"model_path\": \"m\\u0000n\"}");
    CHECK_HAS(body, "\\\"model_path\\\" contains a NUL character");
    stop();
}

/* A label is cut between characters. */
static void long_labels(void) {
    start(0);
    ml_serve_fixture_start(&f);
    json.len = 0;
    ml_text_printf(&json, "{\"new_version\": \"");
    for (int i = 0; i < 45; i++)
        ml_text_printf(&json, "\xc3\xa9");
    ml_text_printf(&json, "\"}");
    post(200, "/update_weight_version", json.ptr);
    CHECK(ml_serve_ask(&f, "GET", "/weight_version", NULL, NULL, &body) == 200);
    CHECK_HAS(body, "\xc3\xa9\xc3\xa9\"");
    stop();
}

/* --- small endpoints -------------------------------------------------------- */

static void tokens_and_text(void) {
    start(0);
    ml_serve_fixture_start(&f);
    post(200, "/tokenize", "{\"model\": \"fake\", \"prompt\": \"abc\"}");
    CHECK_HAS(body, "{\"tokens\": [97, 98, 99], \"count\": 3, \"max_model_len\": 400}");
    post(200, "/tokenize",
         "{\"prompt\": [\"a\", \"\"], \"return_token_strs\": true, "
         "\"add_special_tokens\": false}");
    CHECK_HAS(body, "{\"tokens\": [[97], []], \"count\": [1, 0], \"max_model_len\": 400, "
                    "\"token_strs\": [[\"a\"], []]}");
    post(200, "/detokenize", "{\"tokens\": [97, 200, 98]}");
    CHECK_HAS(body, "{\"text\": \"ab\"}");
    post(200, "/v1/detokenize",
         "{\"tokens\": [[97], [98, 200]], \"skip_special_tokens\": false}");
    CHECK_HAS(body, "{\"text\": [\"a\", \"b<|im_end|>\"]}");
    post(400, "/detokenize", "{\"tokens\": [97, 100000]}");
    CHECK_HAS(body, "element 1 is not a token id");
    post(400, "/detokenize", "{}");
    post(400, "/tokenize", "{\"prompt\": [3]}");
    build("{\"prompt\": \"", "x", 30000, "\"}");
    post(200, "/tokenize", json.ptr);
    CHECK_HAS(body, "\"count\": 59999");
    stop();
    start(0);
    f.no_text = true;
    ml_serve_fixture_start(&f);
    post(400, "/tokenize", "{\"prompt\": \"a\"}");
    CHECK_HAS(body, "has no tokenizer");
    stop();
}

static void head_requests(void) {
    start(0);
    ml_serve_fixture_start(&f);
    CHECK(ml_serve_ask(&f, "HEAD", "/v1/models", "X: y\r\n", NULL, &body) == 200);
    CHECK(strcmp(strstr(body, "\r\n\r\n"), "\r\n\r\n") == 0);
    CHECK(ml_serve_ask(&f, "HEAD", "/generate", "X: y\r\n", NULL, &body) == 405);
    CHECK(ml_serve_ask(&f, "PUT", "/health", "X: y\r\n", NULL, &body) == 405);
    CHECK_HAS(body, "Allow: GET,HEAD");
    stop();
}

/* --- generation_config.json ------------------------------------------------- */

static ml_status defaults(ml_sampling_params *p, const char *text, ml_err *err) {
    CHECK(ml_file_replace(ml_test_path("generation_config.json"), ml_str_of(text), err) ==
          ML_OK);
    ml_sampling_params_init(p);
    return ml_sampling_params_defaults(p, ml_test_dir(), err);
}

static void sampling_defaults(void) {
    ml_sampling_params p;
    ml_err err = { 0 };

    ml_sampling_params_init(&p);
    CHECK(ml_sampling_params_defaults(&p, "/nonexistent", &err) == ML_OK);
    CHECK(p.temperature == 1 && p.top_k == -1);
    CHECK(defaults(&p,
                   "{\"temperature\": 0.25, \"top_k\": 0, \"max_length\": 20, "
                   "\"transformers_version\": \"4\"}",
                   &err) == ML_OK);
    CHECK(p.temperature == 0.25f && p.top_k == -1 && p.top_p == 1);
    CHECK(defaults(&p, "{\"top_p\": 7}", &err) != ML_OK);
    CHECK_HAS(err.msg, "generation_config.json: \"top_p\" is 7; expected 0 to 1");
    CHECK_HAS(err.msg, "--sampling-defaults openai");
    CHECK(defaults(&p, "{\"temperature\": 0.5, \"top_p\": 0.75}", &err) == ML_OK);
    start(0);
    f.opts.defaults = &p;
    ml_serve_fixture_start(&f);
    post(200, "/v1/completions", "{\"prompt\": \"a\"}");
    CHECK(f.temperature == 0.5f && f.top_p == 0.75f && f.max_new == 16);
    post(200, "/v1/chat/completions",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"temperature\": "
         "0.125}");
    CHECK(f.temperature == 0.125f && f.top_p == 0.75f);
    post(200, "/generate", "{\"text\": \"a\"}"); /* as in SGLang, not its native API's */
    CHECK(f.temperature == 1 && f.top_p == 1);
    stop();
}

/* --- the log ---------------------------------------------------------------- */

static void log_with_time(void) {
    ml_text log = { 0 };
    int year = 0, month, day, hour, minute;
    double second = 0;

    ml_log_to_text(&log);
    start(0);
    f.opts.log_requests = true;
    ml_serve_fixture_start(&f);
    post(200, "/generate", "{\"text\": \"a\", \"rid\": \"r\"}");
    stop();
    CHECK(log.ptr && sscanf(log.ptr, "%d-%d-%dT%d:%d:%lfZ", &year, &month, &day, &hour,
                            &minute, &second) == 6);
    CHECK_HAS(log.ptr, "Z /generate \"r\": 1 prompt tokens");
    CHECK(year >= 2024 && second < 61);
    ml_log_to(NULL, NULL);
    ml_text_release(&log);
}

static const ml_test tests[] = {
    { "lists in requests have limits", long_lists },
    { "a request of many answers counts against the budget before it is copied",
      one_request_of_many_answers },
    { "ignored members count against the budget while parsed", ignored_members },
    { "requests over the memory budget get 503 until others end", budget_of_all },
    { "a large conversation does not block other requests", text_off_the_loop },
    { "large requests give the answers of small ones", large_requests },
    { "large replies are complete", large_replies },
    { "large stream events are merged and complete", large_events },
    { "tools that the template does not write are refused", tools_nobody_would_see },
    { "extreme numbers in requests are refused or taken", numbers_at_their_ends },
    { "long weight versions are cut between characters", long_labels },
    { "/tokenize and /detokenize answer", tokens_and_text },
    { "HEAD requests are answered without a body", head_requests },
    { "generation_config.json sets sampling defaults", sampling_defaults },
    { "logged requests have a time stamp", log_with_time },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
