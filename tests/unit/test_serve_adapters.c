/* LoRA adapters of a server over a generator with a script: names, slots, eviction, unloading. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/serve_fixture.h"
#include "tests/support/sock.h"
#include "tests/support/test.h"

static ml_serve_fixture f;
static const char *body;

static void start(int32_t max_loaded, bool hold) {
    ml_serve_fixture_init(&f);
    ml_serve_fixture_adapters(&f, max_loaded);
    f.hold = hold;
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

static void load(int status, const char *name, const char *more) {
    char json[200];

    snprintf(json, sizeof json, "{\"lora_name\": \"%s\", \"lora_path\": \"/tmp/%s\"%s}",
             name, name, more);
    post(status, "/load_lora_adapter", json);
}

static void generate(int status, const char *name) {
    char json[200];

    snprintf(json, sizeof json,
             "{\"text\": \"x\", \"lora_path\": \"%s\", \"sampling_params\": "
             "{\"max_new_tokens\": 1}}",
             name);
    post(status, "/generate", json);
}

/* A request whose answer ends when it is aborted. */
static int hold(const char *name) {
    int32_t n = ml_serve_count(&f, &f.n_submit);
    char json[200];
    int fd;

    snprintf(json, sizeof json, "{\"text\": \"x\", \"lora_path\": \"%s\", \"rid\": \"%s\"}",
             name, name);
    fd = ml_serve_send(&f, "/generate", json);
    CHECK(ml_serve_wait(&f, &f.n_submit, n + 1));
    return fd;
}

static bool is_listed(const char *name) {
    char word[80];

    CHECK(ml_serve_ask(&f, "GET", "/v1/models", NULL, NULL, &body) == 200);
    snprintf(word, sizeof word, "\"id\": \"%s\"", name);
    return strstr(body, word);
}

/* Waits until the server has read a request that lists or removes a name. */
static void wait_listed(const char *name, bool listed) {
    for (int i = 0; is_listed(name) != listed && i < 20000; i++)
        usleep(500);
    CHECK(is_listed(name) == listed);
}

static void names(void) {
    start(0, false);
    load(200, "a", "");
    CHECK_HAS(body, "{\"success\": true, \"error_message\": \"\", \"loaded_adapters\": "
                    "{\"a\": \"/tmp/a\"}}");
    load(200, "b", "");
    load(400, "a", "");
    CHECK_HAS(body, "loaded already");
    generate(200, "a");
    CHECK(f.adapter == 1 && f.adapter_id == 1);
    generate(200, "b");
    CHECK(f.adapter == 2 && f.adapter_id == 2);
    post(200, "/generate", "{\"text\": \"x\"}");
    CHECK(f.adapter == 0 && f.adapter_id == 0);
    post(200, "/v1/completions", "{\"model\": \"fake:b\", \"prompt\": \"x\"}");
    CHECK(f.adapter == 2);
    post(200, "/v1/completions", "{\"model\": \"a\", \"prompt\": \"x\"}");
    CHECK(f.adapter == 1);
    post(200, "/v1/chat/completions",
         "{\"model\": \"fake:a\", \"lora_path\": \"b\", \"messages\": [{\"role\": "
         "\"user\", \"content\": \"x\"}]}");
    CHECK(f.adapter == 1);
    post(404, "/v1/completions", "{\"model\": \"fake:c\", \"prompt\": \"x\"}");
    post(404, "/v1/completions", "{\"model\": \"other:a\", \"prompt\": \"x\"}");
    generate(400, "c");
    post(400, "/generate", "{\"text\": [\"x\", \"y\"], \"lora_path\": [\"a\"]}");
    CHECK_HAS(body, "a list with one per prompt");
    post(400, "/generate", "{\"text\": \"x\", \"lora_path\": 3}");
    load(400, "missing", "");
    CHECK_HAS(body, "missing/adapter_config.json: no such file");
    CHECK(!is_listed("missing"));
    post(400, "/load_lora_adapter", "{\"lora_name\": \"x\"}");
    post(400, "/load_lora_adapter", "{\"lora_path\": \"/tmp/x\"}");
    post(200, "/unload_lora_adapter", "{\"lora_name\": \"a\"}");
    CHECK_HAS(body, "\"loaded_adapters\": {\"b\": \"/tmp/b\"}");
    CHECK(!*f.slot[0] && strcmp(f.slot[1], "b") == 0);
    post(400, "/unload_lora_adapter", "{\"lora_name\": \"a\"}");
    load(200, "c", "");
    generate(200, "c");
    CHECK(f.adapter == 1 && f.adapter_id == 3);
    stop();
}

static void evicts(void) {
    start(2, false);
    load(200, "a", "");
    load(200, "b", ", \"pinned\": true");
    generate(200, "a");
    load(200, "c", "");
    CHECK(strcmp(f.slot[0], "c") == 0 && strcmp(f.slot[1], "b") == 0);
    CHECK(is_listed("a"));
    generate(200, "a");
    CHECK(f.adapter == 1 && f.adapter_id == 4 && strcmp(f.slot[0], "a") == 0);
    post(400, "/generate", "{\"text\": [\"x\", \"y\"], \"lora_path\": [\"a\", \"c\"]}");
    CHECK_HAS(body, "--max-loaded-loras");
    post(200, "/generate", "{\"text\": [\"x\", \"y\"], \"lora_path\": [\"b\", \"c\"]}");
    post(200, "/unload_lora_adapter", "{\"lora_name\": \"a\"}");
    CHECK(!is_listed("a"));
    stop();
}

static void keeps_used(void) {
    int a, b;

    start(1, true);
    load(200, "a", "");
    a = hold("a");
    b = ml_serve_send(&f, "/load_lora_adapter",
                      "{\"lora_name\": \"b\", \"lora_path\": \"/tmp/b\"}");
    wait_listed("b", true);
    CHECK(ml_serve_count(&f, &f.n_set) == 1);
    post(200, "/abort_request", "{\"rid\": \"a\"}");
    CHECK(ml_serve_wait(&f, &f.n_set, 3));
    CHECK(strcmp(f.slot[0], "b") == 0);
    close(a);
    close(b);
    stop();
}

static void unload_waits(void) {
    int a, b;

    start(0, true);
    load(200, "a", "");
    a = hold("a");
    b = ml_serve_send(&f, "/unload_lora_adapter", "{\"lora_name\": \"a\"}");
    wait_listed("a", false);
    CHECK(ml_serve_count(&f, &f.n_set) == 1);
    generate(400, "a");
    load(200, "a", ""); /* the name is free */
    CHECK(strcmp(f.slot[1], "a") == 0);
    post(200, "/abort_request", "{\"rid\": \"a\"}");
    CHECK(ml_serve_wait(&f, &f.n_set, 3));
    CHECK(!*f.slot[0] && *f.slot[1]);
    close(a);
    close(b);
    stop();
}

/* With a version requests continue with the new values, without one they finish first. */
static void replaces(void) {
    int a, b;

    start(0, true);
    load(200, "a", "");
    a = hold("a");
    load(400, "a", "");
    load(200, "a", ", \"upsert\": true, \"weight_version\": \"5\"");
    CHECK(ml_serve_count(&f, &f.n_set) == 2);
    CHECK(ml_serve_ask(&f, "GET", "/weight_version", NULL, NULL, &body) == 200);
    CHECK_HAS(body, "\"weight_version\": \"5\", \"version\": 5");
    load(400, "a", ", \"upsert\": true, \"weight_version\": \"99999999999999999999\"");
    b = ml_serve_send(
        &f, "/load_lora_adapter",
        "{\"lora_name\": \"a\", \"lora_path\": \"/tmp/b\", \"upsert\": true}");
    for (int i = 0; !strstr(body, "/tmp/b") && i < 20000; i++, usleep(500))
        CHECK(ml_serve_ask(&f, "GET", "/v1/models", NULL, NULL, &body) == 200);
    CHECK(ml_serve_count(&f, &f.n_set) == 2);
    post(200, "/abort_request", "{\"rid\": \"a\"}");
    CHECK(ml_serve_wait(&f, &f.n_set, 3));
    CHECK(strcmp(f.slot[0], "b") == 0);
    close(a);
    close(b);
    stop();
}

static void leaves_queue(void) {
    int a, b;

    start(1, true);
    load(200, "a", "");
    load(200, "b", "");
    b = hold("b");
    a = ml_serve_send(&f, "/generate", "{\"text\": \"x\", \"lora_path\": \"a\"}");
    close(a);
    post(200, "/abort_request", "{\"abort_all\": true}");
    close(b);
    generate(200, "b");
    generate(200, "a");
    stop();
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "requests name adapters, which are loaded and unloaded", names },
        { "the least recently used adapter is evicted, and read again", evicts },
        { "an adapter that a request uses is not evicted", keeps_used },
        { "unloading an adapter waits for its requests", unload_waits },
        { "a new version of an adapter replaces it", replaces },
        { "a client that waits for an adapter may disconnect", leaves_queue },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
