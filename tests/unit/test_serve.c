/* The server over a generator with a script: what it accepts, refuses and answers. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/serve_fixture.h"
#include "tests/support/sock.h"
#include "tests/support/test.h"

static ml_serve_fixture f;
static const char *body;

static void start(const char *script) {
    ml_serve_fixture_init(&f);
    f.script = script;
    ml_serve_fixture_start(&f);
}

/* Tokens come one by one, so that streams have their pieces. */
static void start_slow(const char *script) {
    ml_serve_fixture_init(&f);
    f.script = script;
    f.slow = true;
    ml_serve_fixture_start(&f);
}

static void stop(void) {
    ml_serve_fixture_stop(&f);
}

static void post(int status, const char *path, const char *json) {
    int got = ml_serve_ask(&f, "POST", path, NULL, json, &body);
    if (got != status)
        ml_test_fail(__FILE__, __LINE__, "%s %s: status %d: %s", path, json, got, body);
}

static bool lacks(const char *words) {
    return !strstr(body, words);
}

/* --- /generate -------------------------------------------------------------- */

static void answers(void) {
    start("hello");
    post(200, "/generate",
         "{\"text\": \"ab\", \"sampling_params\": {\"max_new_tokens\": 9}}");
    CHECK_HAS(body, "{\"text\": \"hello\", \"output_ids\": [104, 101, 108, 108, 111, 200]");
    CHECK_HAS(body, "\"finish_reason\": {\"type\": \"stop\", \"matched\": 200}");
    CHECK_HAS(body, "\"prompt_tokens\": 2, \"completion_tokens\": 6, \"cached_tokens\": 2");
    CHECK_HAS(body, "\"weight_version\": \"default\"");
    CHECK_HAS(body, "\"e2e_latency\"");
    CHECK(lacks("logprobs"));
    post(200, "/generate",
         "{\"input_ids\": [97, 98], \"sampling_params\": {\"max_new_tokens\": 2}}");
    CHECK_HAS(body, "\"text\": \"he\"");
    CHECK_HAS(body, "\"finish_reason\": {\"type\": \"length\", \"length\": 2}");
    post(200, "/generate",
         "{\"text\": \"ab\", \"sampling_params\": null, \"rid\": \"mine\"}");
    CHECK(f.max_new == 128);
    CHECK_HAS(body, "\"id\": \"mine\"");
    stop();
}

static void batches(void) {
    start("hi");
    post(200, "/generate",
         "{\"text\": [\"a\", \"bc\"], \"rid\": [\"x\", \"y\"], \"sampling_params\": "
         "[{\"max_new_tokens\": 1}, {\"max_new_tokens\": 5}]}");
    CHECK(body[0] == '[');
    CHECK_HAS(body,
              "{\"text\": \"h\", \"output_ids\": [104], \"meta_info\": {\"id\": \"x\"");
    CHECK_HAS(body, "{\"text\": \"hi\", \"output_ids\": [104, 105, 200], \"meta_info\": "
                    "{\"id\": \"y\"");
    post(200, "/generate",
         "{\"input_ids\": [[97], [98, 99]], \"rid\": \"r\", \"sampling_params\": {\"n\": "
         "2}}");
    CHECK_HAS(body, "\"id\": \"r_3\"");
    CHECK(lacks("\"id\": \"r_4\""));
    post(200, "/generate", "{\"text\": [\"a\"]}");
    CHECK(body[0] == '[');
    stop();
}

static void logprobs(void) {
    start("@");
    post(200, "/generate",
         "{\"input_ids\": [64, 128, 32], \"return_logprob\": true, \"logprob_start_len\": "
         "0, "
         "\"top_logprobs_num\": 2, \"token_ids_logprob\": [5], \"return_entropy\": true, "
         "\"return_text_in_logprobs\": true}");
    CHECK_HAS(body, "\"input_token_logprobs\": [[null, 64, \"@\"], [-2, 128, \"\"], [-0.5, "
                    "32, \" \"]]");
    CHECK_HAS(body, "\"input_top_logprobs\": [null, [[-2, 128, \"\"], [-2.015625, 129, "
                    "\"\"]], ");
    CHECK_HAS(body,
              "\"input_token_ids_logprobs\": [null, [[-7, 5, \"\"]], [[-7, 5, \"\"]]]");
    CHECK_HAS(body, "\"output_token_logprobs\": [[-1, 64, \"@\"], [-3.125, 200, "
                    "\"<|im_end|>\"]]");
    CHECK_HAS(body,
              "\"output_top_logprobs\": [[[-1, 64, \"@\"], [-1.015625, 65, \"A\"]], ");
    CHECK_HAS(body, "\"output_token_logprobs_length\": 2");
    CHECK_HAS(body, "\"input_token_entropy\": [null, 1, 0.25]");
    CHECK_HAS(body, "\"output_token_entropy\": [0.5, 1.5625]");
    CHECK(f.score_from == 1);
    post(
        200, "/generate",
        "{\"input_ids\": [64, 32, 33], \"return_logprob\": true, \"logprob_start_len\": 1, "
        "\"sampling_params\": {\"max_new_tokens\": 0, \"temperature\": 0}}");
    CHECK_HAS(body, "\"input_token_logprobs\": [[null, 32, null], [-0.515625, 33, null]]");
    CHECK_HAS(body, "\"output_token_logprobs\": []");
    CHECK_HAS(body, "\"completion_tokens\": 0");
    post(
        200, "/generate",
        "{\"input_ids\": [64, 32, 33], \"return_logprob\": true, \"logprob_start_len\": 0, "
        "\"token_ids_logprob_positions\": [[9], [5, 6], [7]], "
        "\"sampling_params\": {\"max_new_tokens\": 0}}");
    CHECK_HAS(body, "\"input_token_ids_logprobs\": [null, [[-7, 5, null], [-7, 6, null]], "
                    "[[-7, 7, null]]]");
    post(400, "/generate",
         "{\"input_ids\": [64, 32], \"return_logprob\": true, "
         "\"token_ids_logprob_positions\": [[9]], "
         "\"sampling_params\": {\"max_new_tokens\": 0}}");
    CHECK_HAS(body, "expected a list of token ids for each of the 2 input tokens");
    post(400, "/generate",
         "{\"input_ids\": [64], \"return_logprob\": true, "
         "\"token_ids_logprob_positions\": [[9]]}");
    CHECK_HAS(body, "needs \\\"max_new_tokens\\\" 0");
    post(200, "/generate", "{\"input_ids\": [64, 32], \"return_logprob\": true}");
    CHECK_HAS(body, "\"input_token_logprobs\": [], \"output_token_logprobs\": [[");
    CHECK(f.score_from == -1);
    stop();
}

static void streams(void) {
    start_slow("hey");
    post(200, "/generate", "{\"text\": \"a\", \"stream\": true}");
    CHECK_HAS(body, "data: {\"text\": \"h\", \"output_ids\": [104], ");
    CHECK_HAS(body, "data: {\"text\": \"hey\", \"output_ids\": [104, 101, 121, 200], ");
    CHECK_HAS(body, "\n\ndata: [DONE]\n\n");
    CHECK(lacks("\"index\""));
    post(200, "/generate", "{\"text\": [\"a\", \"b\"], \"stream\": true}");
    CHECK_HAS(body, "\"index\": 1}");
    stop();
    ml_serve_fixture_init(&f);
    f.script = "hey";
    f.slow = true;
    f.opts.incremental = true;
    ml_serve_fixture_start(&f);
    post(200, "/generate", "{\"text\": \"a\", \"stream\": true}");
    CHECK_HAS(body, "data: {\"text\": \"\", \"output_ids\": [200], ");
    CHECK(lacks("\"output_ids\": [104, 101"));
    stop();
}

static void stop_strings(void) {
    start_slow("one two three");
    post(200, "/generate", "{\"text\": \"a\", \"sampling_params\": {\"stop\": \" two\"}}");
    CHECK_HAS(body, "{\"text\": \"one\", ");
    CHECK_HAS(body, "\"matched\": \" two\"");
    post(200, "/generate",
         "{\"text\": \"a\", \"sampling_params\": {\"stop\": [\"xyz\", \"tw\"], "
         "\"no_stop_trim\": true}}");
    CHECK_HAS(body, "{\"text\": \"one tw\", ");
    post(200, "/generate",
         "{\"text\": \"a\", \"sampling_params\": {\"no_stop_trim\": true, "
         "\"skip_special_tokens\": false}}");
    CHECK_HAS(body, "{\"text\": \"one two three<|im_end|>\", ");
    post(200, "/generate",
         "{\"text\": \"a\", \"stream\": true, \"sampling_params\": {\"stop\": \" tho\"}}");
    CHECK(lacks("\"text\": \"one two t\"")); /* held back: it may begin the stop string */
    CHECK_HAS(body, "{\"text\": \"one two three\", ");
    stop();
}

/* --- what is refused -------------------------------------------------------- */

static const struct {
    const char *path, *json, *words;
} bad[] = {
    { "/generate", "{\"text\": \"a\",", "request body:1:14: " },
    { "/generate", "[]", "request body is an array; expected an object" },
    { "/generate", "{}", "expected either \\\"text\\\" or \\\"input_ids\\\"" },
    { "/generate", "{\"text\": \"a\", \"input_ids\": [1]}", "expected either" },
    { "/generate", "{\"text\": \"\"}", "the prompt is empty" },
    { "/generate", "{\"text\": 3}", "expected a string or a list of strings" },
    { "/generate", "{\"input_ids\": [1, 202]}", "element 1 is not a token id" },
    { "/generate", "{\"input_ids\": [1, -1]}", "from 0 to 201" },
    { "/generate", "{\"text\": \"a\", \"strem\": true}", "did you mean \\\"stream\\\"?" },
    { "/generate", "{\"text\": \"a\", \"stream\": 1}", "expected true or false" },
    { "/generate", "{\"text\": \"a\", \"image_data\": [\"x\"]}",
      "\\\"image_data\\\" is not supported: models are text-only" },
    { "/generate", "{\"text\": \"a\", \"lora_path\": \"x\"}", "--enable-lora" },
    { "/generate",
      "{\"text\": \"a\", \"sampling_params\": {\"regex\": \"x\", \"ebnf\": \"y\"}}",
      "\\\"regex\\\" and \\\"ebnf\\\" are both set" },
    { "/generate", "{\"text\": \"a\", \"sampling_params\": {\"temperature\": -1}}",
      "\\\"temperature\\\" is -1; expected 0 to" },
    { "/generate", "{\"text\": \"a\", \"sampling_params\": {\"temperature\": \"1\"}}",
      "\\\"temperature\\\" is a string; expected a number" },
    { "/generate", "{\"text\": \"a\", \"sampling_params\": {\"top_p\": 0}}", "top_p" },
    { "/generate", "{\"text\": \"a\", \"sampling_params\": {\"top_k\": 0}}", "top_k" },
    { "/generate", "{\"text\": \"a\", \"sampling_params\": {\"max_new_tokens\": 1.5}}",
      "expected a whole number" },
    { "/generate",
      "{\"text\": \"a\", \"sampling_params\": {\"max_new_tokens\": 1, "
      "\"min_new_tokens\": 2}}",
      "min_new_tokens is 2, but max_new_tokens is 1" },
    { "/generate", "{\"text\": \"a\", \"sampling_params\": {\"stop\": [\"\"]}}",
      "non-empty" },
    { "/generate", "{\"text\": \"a\", \"sampling_params\": {\"stop_token_ids\": [999]}}",
      "stop_token_ids" },
    { "/generate", "{\"text\": \"a\", \"sampling_params\": {\"logit_bias\": {\"x\": 1}}}",
      "the key \\\"x\\\" is not a token id" },
    { "/generate", "{\"text\": \"a\", \"sampling_params\": {\"n\": 0}}", "\\\"n\\\" is 0" },
    { "/generate", "{\"text\": \"a\", \"sampling_params\": {\"sampling_seed\": 1.5}}",
      "64-bit integer" },
    { "/generate",
      "{\"text\": \"a\", \"sampling_params\": {\"logprob_distribution\": \"x\"}}",
      "expected \\\"raw\\\", \\\"model\\\" or \\\"drawn\\\"" },
    { "/generate", "{\"text\": [\"a\", \"b\"], \"sampling_params\": [{}]}",
      "a list with one per prompt" },
    { "/generate", "{\"text\": \"ab\", \"return_logprob\": true, \"logprob_start_len\": 3}",
      "\\\"logprob_start_len\\\" is 3, but the prompt has 2 tokens" },
    { "/generate", "{\"text\": \"a\", \"return_logprob\": true, \"top_logprobs_num\": 101}",
      "from 0 to 100" },
    { "/v1/completions", "{}", "expected \\\"prompt\\\"" },
    { "/v1/completions", "{\"prompt\": \"a\", \"suffix\": \"b\"}",
      "fill-in-the-middle is not supported" },
    { "/v1/completions", "{\"prompt\": \"a\", \"n\": 3, \"best_of\": 2}", "best_of" },
    { "/v1/completions", "{\"prompt\": \"a\", \"stream_options\": {}}", "stream_options" },
    { "/v1/chat/completions", "{}", "expected \\\"messages\\\"" },
    { "/v1/chat/completions", "{\"messages\": [{\"content\": \"x\"}]}",
      "an object with a \\\"role\\\"" },
    { "/v1/chat/completions",
      "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
      "\"image_url\"}]}]}",
      "\\\"image_url\\\" are not supported" },
    { "/v1/chat/completions",
      "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": [{}], "
      "\"tool_choice\": \"required\"}",
      "need a tool call parser" },
    { "/v1/chat/completions",
      "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"response_format\": "
      "{\"type\": \"yaml\"}}",
      "response_format" },
    { "/v1/chat/completions",
      "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tool_choice\": "
      "\"required\"}",
      "there are no \\\"tools\\\"" },
    { "/v1/chat/completions",
      "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"top_logprobs\": 2}",
      "needs" },
    { "/v1/chat/completions",
      "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], "
      "\"continue_final_message\": true}",
      "final assistant message" },
    { "/abort_request", "{}", "expected \\\"rid\\\"" },
    { "/pause_generation", "{\"mode\": \"x\"}", "\\\"retract\\\"" },
    { "/update_weights_from_disk", "{}", "model_path" },
    { "/update_weights_from_tensor", "{}", "is not supported" },
    { "/pull_weights", "{\"source_dir\": \"x\", \"target_version\": 1}",
      "expected \\\"local_checkpoint_dir\\\"" },
    { "/release_memory_occupation", "{\"tags\": [\"x\"]}", "tags" },
};

static void refusals(void) {
    start("hello");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        post(400, bad[i].path, bad[i].json);
        CHECK_HAS(body, "{\"error\": {\"message\": \"");
        CHECK_HAS(body, bad[i].words);
    }
    post(404, "/v1/completions", "{\"prompt\": \"a\", \"model\": \"other\"}");
    CHECK_HAS(body, "unknown model \\\"other\\\": this server has \\\"fake\\\"");
    CHECK_HAS(body, "\"type\": \"invalid_request_error\"");
    CHECK_HAS(body, "\"code\": \"model_not_found\"");
    CHECK(f.n_submit == 0);
    /* Asking for nothing is no asking. */
    post(200, "/generate",
         "{\"text\": \"a\", \"return_routed_experts\": false, \"lora_path\": null, "
         "\"image_data\": []}");
    stop();
}

static void ids_alone(void) {
    ml_serve_fixture_init(&f);
    f.no_text = true;
    f.script = "hi";
    ml_serve_fixture_start(&f);
    post(200, "/generate",
         "{\"input_ids\": [5], \"return_logprob\": true, "
         "\"return_text_in_logprobs\": true}");
    CHECK_HAS(body, "{\"output_ids\": [104, 105, 200], ");
    CHECK_HAS(body, "[-1.625, 104, null]");
    CHECK(lacks("\"text\""));
    post(400, "/generate", "{\"text\": \"a\"}");
    CHECK_HAS(body, "--skip-tokenizer-init");
    post(400, "/generate", "{\"input_ids\": [5], \"sampling_params\": {\"stop\": \"x\"}}");
    CHECK_HAS(body, "stop strings need a tokenizer");
    post(400, "/v1/completions", "{\"prompt\": [5]}");
    CHECK_HAS(body, "use /generate");
    post(400, "/v1/chat/completions", "{\"messages\": [{\"role\": \"user\"}]}");
    CHECK_HAS(body, "use /generate");
    stop();
}

/* --- the command ------------------------------------------------------------ */

static void command(void) {
    static const struct {
        const char *flags;
        int code;
        const char *words;
    } cases[] = {
        { "--skip-tokenizer-init --dry-run", 0,
          "context length 512, KV cache of 16384 tokens" },
        { "--skip-tokenizer-init --dry-run --context-length 64 --max-running-requests 2", 0,
          "context length 64, KV cache of 128 tokens, 2 running requests" },
        { "--skip-tokenizer-init --dry-run --max-total-tokens 320", 0,
          "context length 320, KV cache of 320 tokens" },
        { "--skip-tokenizer-init --dry-run --context-length 512 --max-total-tokens 320", 1,
          "less than one context of 512" },
        { "--dry-run", 1, "--skip-tokenizer-init" },
        { "--skip-tokenizer-init --dry-run --enable-return-routed-experts", 2,
          "has no experts" },
        { "--skip-tokenizer-init --tp 2", 2, "the launcher started 1 rank" },
        { "--skip-tokenizer-init --dry-run --speculative-algorithm EAGLE2", 2,
          "is not supported" },
        { "--skip-tokenizer-init --dry-run --speculative-algorithm EAGLE3", 2,
          "needs an EAGLE-3 head" },
        { "--skip-tokenizer-init --dry-run --speculative-algorithm NGRAM "
          "--speculative-eagle-topk 4 --speculative-num-steps 3",
          0, "context length 512" },
        { "--skip-tokenizer-init --dry-run --speculative-algorithm NGRAM "
          "--speculative-eagle-topk 17",
          2, "speculative-eagle-topk" },
        { "--skip-tokenizer-init --dry-run --speculative-algorithm STANDALONE", 2,
          "needs a draft model" },
        { "--skip-tokenizer-init --dry-run --host 0.0.0.0", 2, "add --insecure" },
        { "--skip-tokenizer-init --dry-run --host 0.0.0.0 --insecure", 0,
          "context length 512" },
        { "--skip-tokenizer-init --dry-run --host 0.0.0.0 --api-key k", 0,
          "context length 512" },
        { "--skip-tokenizer-init --dry-run --api-key=", 2, "expected a string" },
        { "--skip-tokenizer-init --dry-run --api-key-file /dev/null", 2,
          "is accessible by other users" },
        { "--skip-tokenizer-init --dry-run --allowed-origins '*'", 2, "every web page" },
        { "--skip-tokenizer-init --host no.such.host.invalid", 1, "no.such.host.invalid" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[300], said[4096];
        int code;
        snprintf(line, sizeof line, "serve --model-path tests/golden/data/llama %s",
                 cases[i].flags);
        code = ml_test_miles(said, sizeof said, line);
        if (code != cases[i].code)
            ml_test_fail(__FILE__, __LINE__, "%s: exit code %d: %s", line, code, said);
        CHECK_HAS(said, cases[i].words);
    }
}

static void long_prompts(void) {
    char json[2048];
    int n = snprintf(json, sizeof json, "{\"text\": \"");

    start("hello");
    memset(json + n, 'x', 400);
    snprintf(json + n + 400, sizeof json - (size_t)n - 400, "\"}");
    post(400, "/generate", json);
    CHECK_HAS(body, "the prompt has 400 tokens, but the context length is 400");
    memcpy(json + n + 399, "\"}", 3);
    post(200, "/generate", json);
    CHECK(f.max_new == 1); /* no more room */
    stop();
}

static void doors(void) {
    start("hello");
    CHECK(ml_serve_ask(&f, "GET", "/nope%ff", NULL, NULL, &body) == 404);
    CHECK_HAS(body, "Unknown endpoint /nope?.");
    CHECK(ml_serve_ask(&f, "GET", "/generate", "X: y\r\n", NULL, &body) == 405);
    CHECK_HAS(body, "Allow: POST,PUT");
    stop();
    ml_serve_fixture_init(&f);
    f.opts.access.api_key = "secret";
    ml_serve_fixture_start(&f);
    CHECK(ml_serve_ask(&f, "GET", "/health", NULL, NULL, NULL) == 200);
    CHECK(ml_serve_ask(&f, "GET", "/model_info", NULL, NULL, NULL) == 401);
    CHECK(ml_serve_ask(&f, "GET", "/nope", NULL, NULL, NULL) == 401);
    CHECK(ml_serve_ask(&f, "GET", "/model_info", "Authorization: Bearer secre\r\n", NULL,
                       NULL) == 401);
    CHECK(ml_serve_ask(&f, "GET", "/model_info", "Authorization: Bearer secrets\r\n", NULL,
                       NULL) == 401);
    CHECK(ml_serve_ask(&f, "GET", "/model_info", "Authorization: Bearer \r\n", NULL,
                       NULL) == 401);
    CHECK(ml_serve_ask(&f, "GET", "/model_info", "Authorization: Bearer secret\r\n", NULL,
                       NULL) == 200);
    stop();
}

static void full_queue(void) {
    start("hello");
    f.full = true;
    CHECK(ml_serve_ask(&f, "POST", "/generate", "X: y\r\n", "{\"text\": \"a\"}", &body) ==
          429);
    CHECK_HAS(body, "Retry-After: 1");
    CHECK(ml_serve_ask(&f, "GET", "/health_generate", NULL, NULL, NULL) == 200);
    stop();
}

/* --- keys of the draw ------------------------------------------------------- */

static void seeds(void) {
    uint64_t first;

    start("hello");
    post(200, "/generate",
         "{\"text\": \"a\", \"sampling_params\": {\"sampling_seed\": 7, \"n\": 3}}");
    CHECK(f.seed == 7 && f.sample == 2);
    post(200, "/generate",
         "{\"text\": \"a\", \"sampling_params\": {\"sampling_seed\": -1}}");
    CHECK(f.seed == UINT64_MAX && f.sample == 0);
    post(200, "/generate",
         "{\"text\": \"a\", \"sampling_params\": {\"sampling_seed\": "
         "18446744073709551614, \"sample\": 9223372036854775809}}");
    CHECK(f.seed == UINT64_MAX - 1 && f.sample == ((uint64_t)1 << 63) + 1);
    post(400, "/generate",
         "{\"text\": \"a\", \"sampling_params\": {\"sampling_seed\": "
         "18446744073709551616}}");
    post(200, "/v1/completions", "{\"prompt\": \"a\", \"seed\": 8, \"n\": 2}");
    CHECK(f.seed == 8 && f.sample == 1);
    post(200, "/generate", "{\"text\": \"a\"}");
    first = f.sample;
    CHECK(f.seed == 42 && first >> 63 == 1);
    post(200, "/generate", "{\"text\": \"a\"}");
    CHECK(f.sample == first + 1);
    post(200, "/generate",
         "{\"text\": \"a\", \"sampling_params\": {\"sample\": 9, \"n\": 2}}");
    CHECK(f.seed == 42 && f.sample == 10);
    stop();
}

/* --- aborts and clients that leave ------------------------------------------ */

static void leaving(void) {
    ml_serve_fixture_init(&f);
    f.hold = true;
    f.opts.tools = ML_TOOLS_QWEN;
    ml_serve_fixture_start(&f);
    ml_serve_hang_up(&f, "/generate", "{\"text\": [\"a\", \"b\"]}");
    CHECK(ml_serve_wait(&f, &f.n_abort, 2));
    ml_serve_hang_up(&f, "/generate", "{\"text\": \"a\", \"stream\": true}");
    CHECK(ml_serve_wait(&f, &f.n_abort, 3));
    ml_serve_hang_up(
        &f, "/v1/chat/completions",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"stream\": "
        "true, \"tools\": [{}]}");
    CHECK(ml_serve_wait(&f, &f.n_abort, 4));
    stop();
}

/* A request that never ends is waited for, then aborted. */
static void drains(void) {
    ml_text reply = { 0 };
    double start;
    int fd;

    ml_serve_fixture_init(&f);
    f.hold = true;
    f.opts.drain_s = 0.1;
    ml_serve_fixture_start(&f);
    fd = ml_serve_send(&f, "/generate", "{\"text\": \"a\"}");
    CHECK(ml_serve_wait(&f, &f.n_submit, 1));
    start = ml_clock_s();
    stop();
    CHECK(ml_clock_s() - start >= 0.1);
    CHECK(f.n_abort == 1);
    ml_sock_hear(fd, &reply);
    CHECK(reply.len == 0); /* the connection is closed without an answer */
    close(fd);
    ml_text_release(&reply);
}

/* --- administration --------------------------------------------------------- */

static void pausing(void) {
    start("hello");
    post(200, "/pause_generation", "{\"mode\": \"retract\"}");
    CHECK_HAS(body, "\"status\": \"ok\"");
    CHECK(f.n_pause == 1);
    CHECK(ml_serve_ask(&f, "GET", "/health_generate", NULL, NULL, NULL) == 200);
    f.no_flush = true;
    CHECK(ml_serve_ask(&f, "GET", "/flush_cache", NULL, NULL, NULL) == 200);
    CHECK(f.n_release == 1 && f.n_take == 1);
    post(200, "/update_weights_from_disk",
         "{\"model_path\": \"new\", \"weight_version\": \"17\"}");
    CHECK_HAS(body, "\"success\": true");
    CHECK_HAS(body, "\"num_paused_requests\": 0");
    CHECK(f.load_how == ML_SWITCH_RECOMPUTE && f.load_version == 17);
    CHECK(strcmp(f.loaded, "new") == 0);
    post(200, "/continue_generation", "{}");
    CHECK(f.n_resume == 1);
    CHECK(ml_serve_ask(&f, "GET", "/flush_cache", NULL, NULL, NULL) == 400);
    post(200, "/generate", "{\"text\": \"a\"}");
    CHECK_HAS(body, "\"weight_version\": \"17\", \"output_token_versions\": [17, 17");
    post(200, "/pause_generation", "{\"mode\": \"in_place\"}");
    post(200, "/update_weights_from_disk", "{\"model_path\": \"b\"}");
    CHECK(f.load_how == ML_SWITCH_INEXACT_KV && f.load_version == 18);
    post(200, "/continue_generation", "");
    stop();
}

static void weights(void) {
    start("hello");
    post(200, "/update_weights_from_disk",
         "{\"model_path\": \"m\", \"weight_version\": \"step-9\"}");
    CHECK(f.load_how == ML_SWITCH_FINISH && f.load_version == 1);
    CHECK(ml_serve_ask(&f, "GET", "/get_weight_version", NULL, NULL, &body) == 200);
    CHECK_HAS(body, "\"weight_version\": \"step-9\"");
    CHECK(ml_serve_ask(&f, "GET", "/model_info", NULL, NULL, &body) == 200);
    CHECK_HAS(body, "/m\"");
    post(200, "/update_weights_from_disk",
         "{\"model_path\": \"m\", \"abort_all_requests\": true}");
    CHECK(f.load_how == ML_SWITCH_ABORT);
    post(400, "/update_weights_from_disk", "{\"model_path\": \"missing\"}");
    CHECK_HAS(body, "{\"success\": false, \"message\": \"missing/config.json");
    post(400, "/update_weights_from_disk",
         "{\"model_path\": \"b\", \"published_version\": 3}");
    CHECK_HAS(body, "b has no published version; expected version 3");
    post(200, "/update_weight_version", "{\"new_version\": \"x\"}");
    CHECK_HAS(body, "\"new_version\": \"x\"");
    CHECK(ml_serve_ask(&f, "GET", "/weight_version", NULL, NULL, &body) == 200);
    CHECK_HAS(body, "\"weight_version\": \"x\"");
    post(200, "/release_memory_occupation", "{\"tags\": [\"kv_cache\"]}");
    post(200, "/resume_memory_occupation", "");
    CHECK(f.n_release == 1 && f.n_take == 11);
    stop();
}

static void looking(void) {
    start("hello");
    post(200, "/generate", "{\"text\": \"abc\"}");
    CHECK(ml_serve_ask(&f, "GET", "/metrics", NULL, NULL, &body) == 200);
    CHECK_HAS(body, "sglang:generation_tokens_total{model_name=\"fake\"} 6\n");
    CHECK_HAS(body, "sglang:prompt_tokens_total{model_name=\"fake\"} 3\n");
    CHECK_HAS(body, "sglang:token_usage{model_name=\"fake\"} 0.25\n");
    CHECK_HAS(body, "sglang:e2e_request_latency_seconds_count{model_name=\"fake\"} 1\n");
    CHECK(ml_serve_ask(&f, "GET", "/v1/models", NULL, NULL, &body) == 200);
    CHECK_HAS(body, "\"data\": [{\"id\": \"fake\", \"object\": \"model\"");
    CHECK(ml_serve_ask(&f, "GET", "/v1/models/fake", NULL, NULL, &body) == 200);
    CHECK(ml_serve_ask(&f, "GET", "/v1/models/other", NULL, NULL, &body) == 404);
    CHECK(ml_serve_ask(&f, "GET", "/server_info", NULL, NULL, &body) == 200);
    CHECK_HAS(body, "\"internal_states\": [{");
    CHECK(ml_serve_ask(&f, "GET", "/health_generate", NULL, NULL, NULL) == 200);
    stop();
}

static const ml_test tests[] = {
    { "/generate answers with text, ids and counts", answers },
    { "/generate answers a batch in order", batches },
    { "/generate returns log-probs, top log-probs and entropies", logprobs },
    { "/generate streams events", streams },
    { "/generate ends at stop strings", stop_strings },
    { "bad requests are refused with a reason", refusals },
    { "a prompt over the context is refused", long_prompts },
    { "a server without tokenizer works with ids", ids_alone },
    { "miles serve checks its flags", command },
    { "unknown endpoints, methods and keys are refused", doors },
    { "a full queue answers 429 with Retry-After", full_queue },
    { "seeds and sample numbers reach the engine", seeds },
    { "a client that disconnects aborts its requests", leaving },
    { "a stopping server cuts requests off after its drain time", drains },
    { "generation pauses, takes weights and continues by request", pausing },
    { "weights are updated from disk by request", weights },
    { "metrics, models and server info are reported", looking },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
