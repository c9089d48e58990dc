/* `miles bench`: its loads, its arithmetic, and both kinds against a tiny model and a server
 * that is none. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/commands/bench_report.h"
#include "net/http_server.h"
#include "net/sse.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

#define LLAMA "tests/golden/data/llama"

static ml_config config_of(int64_t n, int64_t in, int64_t out, double ratio) {
    ml_config c = { 0 };
    c.bench.n_prompt = n;
    c.bench.input_len = in;
    c.bench.output_len = out;
    c.bench.range_ratio = ratio;
    c.bench.seed = 5;
    return c;
}

/* ---- loads ---- */

static void made_up_loads_follow_the_flags(void) {
    ml_config c = config_of(200, 40, 10, 0.5);
    ml_bench_load a, b;
    ml_arena arena;
    int32_t least = 100, most = 0;

    ml_arena_init(&arena, "test");
    CHECK(ml_bench_load_make(&a, &arena, &c, 50, NULL, NULL) == ML_OK);
    CHECK(ml_bench_load_make(&b, &arena, &c, 50, NULL, NULL) == ML_OK);
    CHECK(a.n == 200 && a.longest <= 50 && a.n_out >= 200 * 5 && a.n_out <= 200 * 10);
    for (int32_t i = 0; i < a.n; i++) {
        const ml_bench_item *x = &a.item[i], *y = &b.item[i];
        least = x->n < least ? x->n : least;
        most = x->n > most ? x->n : most;
        CHECK(x->n_out >= 5 && x->n_out <= 10);
        CHECK(x->n == y->n && memcmp(x->id, y->id, (size_t)x->n * sizeof *x->id) == 0);
        for (int32_t k = 0; k < x->n; k++)
            CHECK(x->id[k] >= 0 && x->id[k] < 50);
    }
    CHECK(least == 20 && most == 40);
    CHECK(memcmp(a.item[0].id, a.item[1].id, 20 * sizeof(int32_t)) != 0);
    ml_arena_release(&arena);
}

static void files_give_prompts_and_say_what_is_wrong(void) {
    static const struct {
        const char *row, *says;
    } bad[] = {
        { "{\"input_ids\": [1, 50]}", "from 0 to 49" },
        { "{\"prompt\": 3}", "expected \"input_ids\"" },
        { "{\"prompt\": \"a\", \"output_len\": 0}", "\"output_len\" must be" },
    };
    const char *path = ml_test_path("prompts.jsonl");
    ml_config c = config_of(3, 1, 7, 1);
    ml_bench_load l;
    ml_arena arena;
    ml_err err;

    ml_arena_init(&arena, "test");
    c.bench.dataset = path;
    CHECK(ml_file_replace(path,
                          ml_str_of("{\"input_ids\": [4, 9, 2]}\n"
                                    "{\"prompt\": \"hello\", \"output_len\": 3}\n"),
                          NULL) == ML_OK);
    CHECK(ml_bench_load_make(&l, &arena, &c, 50, NULL, &err) == ML_OK);
    CHECK(l.item[0].n == 3 && l.item[0].id[1] == 9 && l.item[0].n_out == 7);
    CHECK(!l.item[1].id && ml_str_is(l.item[1].text, "hello") && l.item[1].n_out == 3);
    CHECK(l.item[2].n == 3 && l.n_out == 17); /* the rows again */
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(ml_file_replace(path, ml_str_of(bad[i].row), NULL) == ML_OK);
        CHECK(ml_bench_load_make(&l, &arena, &c, 50, NULL, &err) == ML_EFORMAT);
        CHECK_HAS(err.msg, "prompts.jsonl:1: ");
        CHECK_HAS(err.msg, bad[i].says);
    }
    ml_arena_release(&arena);
}

/* ---- the report ---- */

static double number_in(const char *json, const char *key) {
    const ml_json *root;
    double v = -1.0;
    ml_arena a;

    ml_arena_init(&a, "test");
    if (ml_json_parse(&root, &a, ml_str_of(json), "report", NULL) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "no JSON: %s", json);
    else if (!ml_json_f64(ml_json_get(root, key), &v))
        ml_test_fail(__FILE__, __LINE__, "no number called %s", key);
    ml_arena_release(&a);
    return v;
}

static void report_counts_and_times(void) {
    ml_config c = config_of(100, 8, 3, 1);
    ml_bench_load l;
    ml_bench_run r;
    ml_text json = { 0 };
    ml_arena a;

    ml_arena_init(&a, "test");
    CHECK(ml_bench_load_make(&l, &a, &c, 50, NULL, NULL) == ML_OK);
    ml_bench_run_init(&r, &a, &l);
    r.begin_s = 100.0;
    for (int32_t i = 0; i < 99; i++) {
        ml_bench_sent(&r, i, 100.0);
        ml_bench_token(&r, i, 1, 100.0 + 0.001 * (i + 1));
        ml_bench_token(&r, i, 2, 100.02 + 0.001 * (i + 1)); /* 10 ms each */
        ml_bench_ended(&r, i, 8, 104.0);
    }
    ml_bench_sent(&r, 99, 100.0);
    ml_bench_failed(&r, 99, ml_str_of("gone"), 104.0);
    ml_bench_json(&json, &r, NULL);
    CHECK(number_in(json.ptr, "completed") == 99 && number_in(json.ptr, "failed") == 1);
    CHECK(number_in(json.ptr, "total_input_tokens") == 99 * 8);
    CHECK(number_in(json.ptr, "total_output_tokens") == 99 * 3);
    CHECK(number_in(json.ptr, "duration") == 4.0);
    CHECK(number_in(json.ptr, "output_throughput") == 74.25);
    CHECK(number_in(json.ptr, "p50_ttft_ms") == 50.0);
    CHECK(number_in(json.ptr, "p90_ttft_ms") == 90.0);
    CHECK(number_in(json.ptr, "p99_ttft_ms") == 99.0);
    CHECK(number_in(json.ptr, "mean_itl_ms") == 10.0);
    ml_text_release(&json);
    ml_arena_release(&a);
}

/* ---- the engine ---- */

static void engine_is_measured(void) {
    static char out[20000], json[20000];
    char line[1000];
    ml_file f;

    snprintf(line, sizeof line,
             "bench engine --model-path " LLAMA " --num-prompts 5 --random-input-len 20 "
             "--random-output-len 6 --max-running-requests 2 --chunked-prefill-size 16 "
             "--threads 2 --output-file %s",
             ml_test_path("report.json"));
    CHECK(ml_test_miles(out, sizeof out, line) == 0);
    CHECK_HAS(out, "tokens/s");
    if (ml_file_map(&f, ml_test_path("report.json"), NULL) != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "no report: %s", out);
        return;
    }
    snprintf(json, sizeof json, "%.*s", (int)f.bytes.len, f.bytes.ptr);
    ml_file_unmap(&f);
    CHECK(number_in(json, "completed") == 5 && number_in(json, "failed") == 0);
    CHECK(number_in(json, "total_input_tokens") == 100);
    CHECK(number_in(json, "total_output_tokens") == 30);
    CHECK(number_in(json, "prefill_throughput") > 0);
    CHECK(number_in(json, "decode_throughput") > 0);
    CHECK(number_in(json, "kv_pages_peak") >= 2);
    CHECK(number_in(json, "p99_itl_ms") >= number_in(json, "p50_itl_ms"));
}

static void engine_refusals_are_sentences(void) {
    static char out[20000];
    CHECK(ml_test_miles(out, sizeof out, "bench engine --model-path ./no/such") == 1);
    CHECK_HAS(out, "./no/such");
    CHECK(ml_test_miles(out, sizeof out,
                        "bench engine --model-path " LLAMA " --load-format dummy "
                        "--mem-fraction-static 0.01 --random-input-len 16000000 "
                        "--num-prompts 1 --threads 1") != 0);
    CHECK_HAS(out, "KV cache");
}

/* ---- a server ---- */

static int32_t asked_tokens(ml_str body) {
    const ml_json *root;
    int64_t n = 0;
    ml_arena a;

    ml_arena_init(&a, "test");
    if (ml_json_parse(&root, &a, body, "request", NULL) == ML_OK &&
        ml_json_get(root, "input_ids"))
        ml_json_i64(ml_json_get(ml_json_get(root, "sampling_params"), "max_new_tokens"),
                    &n);
    ml_arena_release(&a);
    return (int32_t)n;
}

/* Streams as many tokens as were asked for; a request for 13 fails, and one for 14 needs a
 * key. */
static void fake_generate(void *ud, ml_http_call *c) {
    int32_t n = asked_tokens(ml_http_body(c));

    (void)ud;
    if (n == 14 && !ml_str_is(ml_http_header(c, "authorization"), "Bearer k3y")) {
        ml_http_reply(c, 401, "text/plain", ml_str_of("who is it"));
        return;
    }
    if (n == 13 || !ml_str_is(ml_http_path(c), "/generate")) {
        ml_http_reply(c, 503, "text/plain", ml_str_of("not today"));
        return;
    }
    ml_http_begin(c, 200, "text/event-stream");
    for (int32_t i = 1; i <= n; i++) {
        ml_text event = { 0 }, json = { 0 };
        ml_text_printf(&json,
                       "{\"text\": \"x\", \"meta_info\": {\"prompt_tokens\": 8, "
                       "\"completion_tokens\": %d}}",
                       i);
        ml_sse_write(&event, (ml_str){ json.ptr, json.len });
        ml_http_write(c, (ml_str){ event.ptr, event.len });
        ml_text_release(&event);
        ml_text_release(&json);
    }
    ml_http_write(c, ml_str_of("data: [DONE]\n\n"));
    ml_http_end(c);
}

static void serve_forever(int port_to) {
    ml_http_limits limits = { .max_header = 1 << 16,
                              .max_body = 1 << 20,
                              .max_connections = 100,
                              .idle_s = 30,
                              .max_unsent = 1 << 20 };
    ml_http_server *s;
    ml_loop *l;
    int port;

    if (ml_loop_new(&l, NULL) != ML_OK ||
        ml_http_server_open(&s, l, "127.0.0.1", 0, limits, fake_generate, NULL, NULL) !=
            ML_OK)
        _exit(1);
    port = ml_http_server_port(s);
    if (write(port_to, &port, sizeof port) != sizeof port)
        _exit(1);
    ml_loop_run(l);
    _exit(0);
}

static pid_t start_server(int *port) {
    int fd[2];
    pid_t pid;

    *port = 0;
    if (pipe(fd) != 0)
        return -1;
    pid = fork();
    if (pid == 0)
        serve_forever(fd[1]);
    close(fd[1]);
    CHECK(read(fd[0], port, sizeof *port) == sizeof *port);
    close(fd[0]);
    return pid;
}

static int bench_serve(char *out, size_t cap, int port, const char *more) {
    char line[500];
    snprintf(line, sizeof line,
             "bench serve --port %d --num-prompts 6 --random-input-len 8 %s", port, more);
    return ml_test_miles(out, cap, line);
}

static void servers_are_measured(void) {
    static char out[20000];
    int port;
    pid_t pid = start_server(&port);

    CHECK(bench_serve(out, sizeof out, port, "--random-output-len 5") == 0);
    CHECK_HAS(out, "completed requests                                    6");
    CHECK_HAS(out, "prompt tokens                                        48");
    CHECK_HAS(out, "response tokens                                      30");
    CHECK(bench_serve(out, sizeof out, port,
                      "--random-output-len 5 --request-rate 200 --max-concurrency 2") == 0);
    CHECK_HAS(out, "completed requests                                    6");
    CHECK(bench_serve(out, sizeof out, port, "--random-output-len 13") == 3);
    CHECK_HAS(out, "6 of 6 requests failed");
    CHECK_HAS(out, "returned status 503: not today");
    CHECK(bench_serve(out, sizeof out, port, "--random-output-len 14") == 3);
    CHECK_HAS(out, "returned status 401");
    CHECK(bench_serve(out, sizeof out, port, "--random-output-len 14 --api-key k3y") == 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    CHECK(bench_serve(out, sizeof out, port, "") == 3); /* nobody there */
    CHECK_HAS(out, "miles bench serve: ");
}

static const ml_test tests[] = {
    { "random loads of miles bench follow the flags", made_up_loads_follow_the_flags },
    { "miles bench reads prompts from a file and names bad rows",
      files_give_prompts_and_say_what_is_wrong },
    { "the report of miles bench counts requests and times", report_counts_and_times },
    { "miles bench engine measures an engine", engine_is_measured },
    { "miles bench engine names what it refuses", engine_refusals_are_sentences },
    { "miles bench serve measures a server", servers_are_measured },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
