/* The dashboard's server: its JSON, its page's headers, requests to a run, advice. */
#include <math.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/file.h"
#include "dash/advice.h"
#include "dash/turn_split.h"
#include "dash/dash.h"
#include "rl/record/control.h"
#include "rl/record/run_dir.h"
#include "rl/record/run_log.h"
#include "rl/record/run_store_view.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/sock.h"
#include "tests/support/test.h"

/* --- a run ------------------------------------------------------------------------------- */

enum { N_ROLLOUT = 5, N_GROUP = 3, N_IN_GROUP = 4, N_SAMPLE = N_GROUP * N_IN_GROUP };

static const char hostile[] =
    "</script><img src=x onerror=alert(1)> \xE2\x80\xA8 \"quoted\"";

/* Sample i of a rollout: two tokens of prompt, three of response; the second is masked. */
static void fill_sample(ml_sample *s, int64_t rollout, int i) {
    static const int32_t token[] = { 1, 2, 3, 4, 5 };
    static const uint8_t mask[] = { 1, 0, 1 };
    static float logprob[] = { -0.5f, -1, -2 };
    static uint64_t version[] = { 7, 7, 8 };

    *s = (ml_sample){ .index = rollout * N_SAMPLE + i,
                      .group = rollout * N_GROUP + i / N_IN_GROUP,
                      .row = i / N_IN_GROUP,
                      .prompt = ml_str_of("<|im_start|>user\nWhat?<|im_end|>\n"
                                          "<|im_start|>assistant\n"),
                      .response = ml_str_of(i == 5 ? hostile : "an answer"),
                      .label = ml_str_of("\"42\""),
                      .token = token,
                      .n_token = 5,
                      .n_response = 3,
                      .mask = mask,
                      .logprob = logprob,
                      .version = version,
                      .has_reward = true,
                      .reward = i < N_IN_GROUP ? 1 : i % 2, /* the first group is flat */
                      .status = i == 7 ? ML_SAMPLE_TRUNCATED : ML_SAMPLE_COMPLETED };
}

static void log_rollout(ml_run_log *log, int64_t rollout) {
    static const double advantage[] = { 0.25, 0.25, 0.25 };
    miles_sample row = { .n = 3, .advantage = advantage };
    const miles_sample *rows[N_SAMPLE];
    ml_sample sample[N_SAMPLE];
    const ml_sample *all[N_SAMPLE];
    ml_metrics m;
    ml_arena a, round;

    ml_arena_init(&a, "test");
    ml_arena_init(&round, "round");
    ml_metrics_init(&m, &a);
    ml_metrics_add(&m, "rollout/", "raw_reward", 0.5 + 0.1 * (double)rollout);
    for (int i = 0; i < N_SAMPLE; i++) {
        fill_sample(&sample[i], rollout, i);
        all[i] = &sample[i];
        rows[i] = &row;
    }
    ml_run_log_advantages(log, &(miles_batch){ .n = N_SAMPLE, .sample = rows });
    ml_run_log_samples(log, rollout, all, N_SAMPLE);
    ml_run_log_metrics(log, rollout, -1, &m);
    ml_run_log_metrics(log, rollout, 2 * rollout, &m);
    ml_run_log_span(log, rollout, ML_SPAN_OTHER, "rollout", 1, 2);
    CHECK(ml_run_log_settle(log, NULL) == ML_OK);
    ml_arena_release(&round);
    ml_arena_release(&a);
}

static void make_run(const char *dir) {
    ml_run_log log = { 0 };

    MUST(ml_dir_make(dir, &err));
    MUST(ml_run_log_open(&log, &(ml_run_log_opts){ .dir = dir }, 0, &err));
    for (int64_t i = 0; i < N_ROLLOUT; i++)
        log_rollout(&log, i);
    ml_run_log_close(&log);
}

/* --- a server ---------------------------------------------------------------------------- */

typedef struct server {
    ml_loop *loop;
    ml_dash *dash;
    pthread_t thread;
    ml_text reply;
} server;

static void *serve(void *ud) {
    ml_loop_run(((server *)ud)->loop);
    return NULL;
}

static void start(server *s, const char *dir, const char *key) {
    ml_dash_opts o = {
        .host = "127.0.0.1", .dir = &dir, .n_dir = 1, .access = { .admin_key = key }
    };

    *s = (server){ 0 };
    MUST(ml_loop_new(&s->loop, &err));
    MUST(ml_dash_open(&s->dash, s->loop, &o, &err));
    CHECK(pthread_create(&s->thread, NULL, serve, s) == 0);
}

static void stop(server *s) {
    ml_loop_stop(s->loop);
    pthread_join(s->thread, NULL);
    ml_dash_close(s->dash);
    ml_loop_free(s->loop);
    ml_text_release(&s->reply);
}

/* Removes the blanks that the JSON writer puts after commas and colons. */
static void compact(char *body) {
    char *to = body;

    for (const char *at = body; *at; at++)
        if (*at != ' ' || at == body || !strchr(",:", at[-1]))
            *to++ = *at;
    *to = 0;
}

/* Returns the status; the reply has head and body. */
static int ask(server *s, const char *method, const char *target, const char *headers,
               const char *body) {
    ml_text q = { 0 };
    int status = 0;

    ml_text_printf(&q, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s",
                   method, target, headers);
    if (*body)
        ml_text_printf(&q, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                       strlen(body));
    ml_text_printf(&q, "\r\n%s", body);
    s->reply.len = 0;
    ml_sock_ask(ml_dash_port(s->dash), q.ptr, &s->reply);
    ml_text_release(&q);
    CHECK(sscanf(s->reply.ptr, "HTTP/1.1 %d", &status) == 1);
    if (strstr(s->reply.ptr, "\r\nContent-Type: application/json"))
        compact(strstr(s->reply.ptr, "\r\n\r\n"));
    return status;
}

static const char *get(server *s, const char *target) {
    int status = ask(s, "GET", target, "", "");

    if (status != 200)
        ml_test_fail(__FILE__, __LINE__, "%s: %d: %s", target, status, s->reply.ptr);
    return s->reply.ptr;
}

/* --- reading ------------------------------------------------------------------------------- */

static void lists(void) {
    const char *dir = ml_test_path("run");
    server s;

    make_run(dir);
    start(&s, dir, NULL);
    CHECK_HAS(get(&s, "/api/runs"), "\"name\":\"run\"");
    CHECK_HAS(s.reply.ptr, "\"last_rollout\":4");
    CHECK_HAS(s.reply.ptr, "\"control\":false");
    CHECK_HAS(get(&s, "/api/meta"), "\"train\":[0,1,2,3,4]");
    CHECK_HAS(s.reply.ptr, "rollout/raw_reward");
    CHECK_HAS(get(&s, "/api/metrics?keys=rollout/raw_reward&from=1&to=2"),
              "\"x\":[1,1,2,2]");
    CHECK_HAS(get(&s, "/api/metrics?keys=rollout%2Fraw_reward&x=train/step"),
              "\"x\":[0,2,4,6,8]");
    CHECK_HAS(get(&s, "/api/rollout/2/summary"), "\"sample_index\":24");
    CHECK_HAS(get(&s, "/api/rollout/2/groups"), "\"group_index\":6,\"row\":0,\"n\":4");
    CHECK_HAS(s.reply.ptr, "\"zero_std\":true");
    CHECK_HAS(s.reply.ptr, "\"reward_mean\":0.5");
    CHECK_HAS(get(&s, "/api/timeline/phases"), "\"name\":\"rollout\"");
    CHECK_HAS(get(&s, "/api/timeline/topology"), "\"node\":\"rank 0\"");
    CHECK_HAS(get(&s, "/api/timeline/fleet?x_buckets=4"), "\"composition\"");
    CHECK_HAS(get(&s, "/api/timeline/outliers?criterion=slowest_phase:rollout"),
              "\"score\":1");
    CHECK_HAS(get(&s, "/api/events"), "\"events\":[]");
    CHECK_HAS(get(&s, "/api/timeline/heatmap?metric=phase"), "application/octet-stream");
    stop(&s);
}

static void one_sample(void) {
    const char *dir = ml_test_path("run");
    server s;

    make_run(dir);
    start(&s, dir, NULL);
    CHECK_HAS(get(&s, "/api/rollout/1/sample/12/messages"),
              "{\"role\":\"user\",\"content\":\"What?\"}");
    CHECK_HAS(s.reply.ptr, "{\"role\":\"assistant\",\"content\":\"an answer\"}");
    CHECK_HAS(get(&s, "/api/rollout/1/sample/12/tokens"), "\"token_ids\":[1,2,3,4,5]");
    CHECK_HAS(s.reply.ptr, "\"rollout_log_probs\":[-0.5,null,-2]");
    CHECK_HAS(s.reply.ptr, "\"advantages\":[0.25,null,0.25]");
    CHECK_HAS(s.reply.ptr, "\"loss_mask\":[1,0,1]");
    CHECK_HAS(s.reply.ptr, "\"weight_versions\":[7,7,8]");
    CHECK_HAS(get(&s, "/api/rollout/1/sample/12/tokens?start=3&end=4"),
              "\"response_offset\":0,\"token_ids\":[4]");
    stop(&s);
}

static void search(void) {
    const char *dir = ml_test_path("run"), *next;
    char path[200] = "/api/samples?status=completed&limit=7", after[40];
    server s;
    int n = 0;

    make_run(dir);
    start(&s, dir, NULL);
    CHECK_HAS(get(&s, "/api/samples?q=onerror"), "\"rollout_id\":4,\"sample_index\":53");
    CHECK(!strstr(get(&s, "/api/samples?q=absent"), "sample_index"));
    CHECK_HAS(get(&s, "/api/samples?status=truncated&rollout=3"), "\"sample_index\":43");
    CHECK(!strstr(get(&s, "/api/samples?min_reward=1.5"), "sample_index"));
    CHECK_HAS(get(&s, "/api/samples?row=2&max_reward=0"), "\"rollout_id\":0");
    CHECK(!strstr(s.reply.ptr, "\"row\":1"));
    for (;;) { /* page by page, every sample once */
        const char *at = get(&s, path);
        while ((at = strstr(at, "\"sample_index\"")) != NULL) {
            at++;
            n++;
        }
        next = strstr(s.reply.ptr, "\"next\":\"");
        if (!next || sscanf(next, "\"next\":\"%39[0-9,-]", after) != 1)
            break;
        snprintf(path, sizeof path, "/api/samples?status=completed&limit=7&after=%s",
                 after);
    }
    CHECK(n == N_ROLLOUT * (N_SAMPLE - 1));
    stop(&s);
}

static void refusals(void) {
    const char *dir = ml_test_path("run");
    server s;

    make_run(dir);
    start(&s, dir, NULL);
    CHECK(ask(&s, "GET", "/api/rollout/99/summary", "", "") == 404);
    CHECK(ask(&s, "GET", "/api/rollout/1/sample/9999/tokens", "", "") == 404);
    CHECK(ask(&s, "GET", "/api/rollout/x/summary", "", "") == 404);
    CHECK(ask(&s, "GET", "/api/meta?run=other", "", "") == 404);
    CHECK(ask(&s, "GET", "/api/metrics", "", "") == 400);
    CHECK(ask(&s, "GET", "/api/metrics?keys=a&points=x", "", "") == 400);
    CHECK(ask(&s, "GET", "/api/timeline/phases?t0=5&t1=4", "", "") == 400);
    CHECK(ask(&s, "GET", "/api/timeline/phases?t0=1&t1=90000", "", "") == 400);
    CHECK(ask(&s, "GET", "/api/rollout/1/sample/12/tokens?start=9", "", "") == 400);
    CHECK(ask(&s, "POST", "/api/meta", "", "{}") == 405);
    CHECK(ask(&s, "GET", "/api/runs", "Origin: http://evil.example\r\n", "") == 403);
    stop(&s);
}

/* What a sample says is data in JSON, and the page may run no script but its own. */
static void hostile_text(void) {
    const char *dir = ml_test_path("run");
    server s;

    make_run(dir);
    start(&s, dir, NULL);
    CHECK_HAS(get(&s, "/"),
              "Content-Security-Policy: default-src 'none'; script-src 'self';");
    CHECK_HAS(s.reply.ptr, "X-Content-Type-Options: nosniff");
    CHECK(!strstr(s.reply.ptr, "onclick="));
    CHECK_HAS(get(&s, "/api/rollout/0/sample/5/messages"),
              "Content-Type: application/json");
    CHECK_HAS(s.reply.ptr, "\\\"quoted\\\"");
    CHECK_HAS(get(&s, "/app.js"), "text/javascript");
    CHECK(!strstr(s.reply.ptr, "innerHTML") && !strstr(s.reply.ptr, "eval("));
    CHECK(!strstr(get(&s, "/samples.js"), "innerHTML"));
    stop(&s);
}

/* --- a run that writes ------------------------------------------------------------------- */

static void live_updates(void) {
    const char *dir = ml_test_path("run");
    ml_run_log log = { 0 };
    server s;

    make_run(dir);
    start(&s, dir, NULL);
    CHECK_HAS(get(&s, "/api/runs"), "\"last_rollout\":4");
    MUST(ml_run_log_open(&log, &(ml_run_log_opts){ .dir = dir }, 3, &err));
    CHECK_HAS(get(&s, "/api/runs"), "\"last_rollout\":2"); /* it resumed from rollout 3 */
    CHECK_HAS(get(&s, "/api/meta"), "\"train\":[0,1,2]");
    log_rollout(&log, 3);
    CHECK_HAS(get(&s, "/api/runs"), "\"last_rollout\":3");
    CHECK_HAS(get(&s, "/api/meta"), "\"train\":[0,1,2,3]");
    ml_run_log_close(&log);
    stop(&s);
}

/* --- requests to the run ------------------------------------------------------------------ */

static void control(void) {
    const char *dir = ml_test_path("run"), key[] = "Authorization: Bearer secret\r\n";
    ml_run_dir lock = { 0 };
    server s;

    make_run(dir);
    start(&s, dir, "secret");
    CHECK(ask(&s, "POST", "/api/control", "", "{\"action\": \"save\"}") == 401);
    CHECK(ask(&s, "POST", "/api/control", key, "{\"action\": \"save\"}") == 409);
    MUST(ml_run_dir_open(&lock, &(ml_run_dir_opts){ .dir = dir, .load = dir }, &err));
    CHECK(ask(&s, "POST", "/api/control", key, "{\"action\": \"explode\"}") == 400);
    CHECK(ask(&s, "POST", "/api/control", key, "{\"action\": \"lr\", \"value\": -1}") ==
          400);
    CHECK(ask(&s, "POST", "/api/control", key, "{\"action\": \"save\"}") == 200);
    CHECK(access(ml_test_path("run/control.requests"), F_OK) == 0);
    CHECK_HAS(get(&s, "/api/control"), "\"live\":true,\"actions\":[]");
    ml_run_dir_close(&lock);
    stop(&s);
    start(&s, dir, NULL);
    CHECK(ask(&s, "POST", "/api/control", "", "{\"action\": \"save\"}") == 403);
    stop(&s);
}

static void requests_are_recorded(void) {
    const char *dir = ml_test_path("run");
    ml_control_orders o = { 0 };
    ml_control *c = NULL;
    ml_file f = { 0 };

    MUST(ml_dir_make(dir, &err));
    MUST(ml_control_request(dir, ML_CONTROL_STOP, 0, &err)); /* of an earlier process */
    MUST(ml_control_open(&c, dir, NULL, 0, &err));
    CHECK(ml_control_poll(c, 0, true, &o, NULL) == ML_OK && !o.stop && o.lr == 0);
    MUST(ml_control_request(dir, ML_CONTROL_PAUSE, 0, &err));
    MUST(ml_control_request(dir, ML_CONTROL_LR, 0.25, &err));
    CHECK(ml_control_poll(c, 0, false, &o, NULL) == ML_OK && o.paused && o.lr == 0);
    CHECK(ml_control_poll(c, 1, true, &o, NULL) == ML_OK && o.lr == 0.25);
    MUST(ml_control_request(dir, ML_CONTROL_RESUME, 0, &err));
    MUST(ml_control_request(dir, ML_CONTROL_SAVE, 0, &err));
    CHECK(ml_control_poll(c, 1, false, &o, NULL) == ML_OK && !o.paused && o.save);
    ml_control_close(c);
    MUST(ml_file_map(&f, ml_test_path("run/control.jsonl"), &err));
    CHECK_HAS(f.bytes.ptr, "{\"rollout\": 1, \"action\": \"lr\", \"value\": 0.25");
    ml_file_unmap(&f);
}

/* A run that resumes before the change makes it again at its rollout; one that resumes after
 * it has it from the start, also in another directory. */
static void learning_rates_are_repeated(void) {
    const char *dir = ml_test_path("run"), *other = ml_test_path("other");
    ml_control_orders o = { 0 };
    ml_control *c = NULL;

    MUST(ml_dir_make(dir, &err));
    MUST(ml_dir_make(other, &err));
    MUST(ml_control_open(&c, dir, NULL, 0, &err));
    MUST(ml_control_request(dir, ML_CONTROL_LR, 0.5, &err));
    CHECK(ml_control_poll(c, 4, true, &o, NULL) == ML_OK && o.lr == 0.5);
    ml_control_close(c);
    for (int k = 0; k < 2; k++) {
        o = (ml_control_orders){ 0 };
        MUST(ml_control_open(&c, k ? other : dir, dir, 2, &err));
        CHECK(ml_control_poll(c, 3, true, &o, NULL) == ML_OK && o.lr == 0);
        CHECK(ml_control_poll(c, 4, true, &o, NULL) == ML_OK && o.lr == 0.5);
        ml_control_close(c);
    }
    o = (ml_control_orders){ 0 };
    MUST(ml_control_open(&c, other, dir, 9, &err));
    CHECK(ml_control_poll(c, 9, true, &o, NULL) == ML_OK && o.lr == 0.5);
    ml_control_close(c);
}

/* --- advice ------------------------------------------------------------------------------- */

static int advise(ml_advice out[ML_ADVICE_MOST], const char *metrics, const char *timing,
                  const ml_advice_facts *facts) {
    const char *dir = ml_test_path("advice");
    ml_series_set s;
    int n;

    MUST(ml_dir_make(dir, &err));
    MUST(ml_file_replace(ml_test_path("advice/metrics.jsonl"), ml_str_of(metrics), &err));
    MUST(ml_file_replace(ml_test_path("advice/timing.jsonl"), ml_str_of(timing), &err));
    ml_series_open(&s, dir);
    n = ml_advice_find(out, &s, facts);
    ml_series_close(&s);
    return n;
}

static void advice(void) {
    static const char slow[] =
        "{\"rollout\": 0, \"perf/step_time\": 10, \"perf/train_wait_time\": 9}\n";
    ml_advice a[ML_ADVICE_MOST];

    CHECK(advise(a, "{\"rollout\": 0, \"train/loss\": 1}\n", "", &(ml_advice_facts){ 0 }) ==
          0);
    CHECK(advise(a, "{\"rollout\": 0, \"train/loss\": null}\n", slow,
                 &(ml_advice_facts){ 0 }) == 1 &&
          a[0].level == ML_ADVICE_CRITICAL); /* and no tuning beside an alarm */
    CHECK_HAS(a[0].text, "train/loss");
    CHECK(advise(a, "", slow, &(ml_advice_facts){ 0 }) == 1 &&
          a[0].level == ML_ADVICE_INFO);
    CHECK(advise(a, "", slow, &(ml_advice_facts){ .live = true, .silent_s = 4000 }) == 1);
    CHECK_HAS(a[0].text, "hangs");
    CHECK(advise(a, "", slow, &(ml_advice_facts){ .live = true, .silent_s = 1000 }) == 1 &&
          a[0].level == ML_ADVICE_INFO);
    CHECK(advise(a, "", "", &(ml_advice_facts){ .n_group = 4, .n_flat_group = 2 }) == 1);
    CHECK_HAS(a[0].text, "2 of the 4 groups");
    CHECK(advise(a, "{\"rollout\": 0, \"rollout/truncated_ratio\": 0.25}\n", "",
                 &(ml_advice_facts){ .n_sample = 100, .n_aborted = 5 }) == 2);
}

/* --- parts --------------------------------------------------------------------------------- */

static void thinning(void) {
    ml_point at[1000];
    int64_t index[100], n;
    double high = 0;

    for (int i = 0; i < 1000; i++)
        at[i] = (ml_point){ i, -1, i == 577 ? 100 : 0 };
    n = ml_series_thin(at, 1000, 100, index);
    CHECK(n > 0 && n <= 100);
    for (int64_t i = 0; i < n; i++) {
        high = fmax(high, at[index[i]].value);
        CHECK(i == 0 || index[i] > index[i - 1]);
    }
    CHECK(high == 100);
}

static void put_turn(void *ud, const ml_turn_text *t) {
    ml_text_printf(ud, "[%.*s:%.*s]", (int)t->role.len, t->role.ptr, (int)t->content.len,
                   t->content.ptr);
}

static void conversations(void) {
    static const char *const cases[][2] = {
        { "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes",
          "[user:hi][assistant:yes]" },
        { "<|begin|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>",
          "[:<|begin|>][user:hi]" },
        { "<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n",
          "[user:hi][model:]" },
        { "[gMASK]<|user|>\nhi<|assistant|>\nyes<|observation|>42",
          "[:[gMASK]][user:hi][assistant:yes][tool:42]" },
        { "<s>[INST] hi [/INST] yes</s>", "[:<s>][user:hi][assistant:yes]" },
        { "<|im_start|>", "[:]" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ml_text t = { 0 };
        CHECK(ml_conversation_split(ml_str_of(cases[i][0]), put_turn, &t));
        if (strcmp(t.ptr, cases[i][1]) != 0)
            ml_test_fail(__FILE__, __LINE__, "%s: %s", cases[i][0], t.ptr);
        ml_text_release(&t);
    }
    CHECK(!ml_conversation_split(ml_str_of("no marker"), put_turn, NULL));
}

/* A store of an older version lacks columns, indexes and the table of phases. */
static void old_stores(void) {
    const char *dir = ml_test_path("run");
    sqlite3 *db = NULL;
    server s;

    make_run(dir);
    CHECK(sqlite3_open(ml_test_path("run/run.db"), &db) == SQLITE_OK);
    CHECK(sqlite3_exec(db,
                       "DROP INDEX samples_in_short; DROP INDEX samples_by_row; "
                       "DROP TABLE spans; ALTER TABLE samples DROP COLUMN advantages; "
                       "ALTER TABLE samples DROP COLUMN row",
                       NULL, NULL, NULL) == SQLITE_OK);
    sqlite3_close(db);
    start(&s, dir, NULL);
    CHECK_HAS(get(&s, "/api/rollout/2/summary"), "\"sample_index\":24");
    CHECK_HAS(get(&s, "/api/rollout/2/groups"), "\"row\":-1");
    CHECK_HAS(get(&s, "/api/rollout/1/sample/12/tokens"), "\"advantages\":null");
    CHECK_HAS(get(&s, "/api/timeline/phases"), "\"phases\":[]");
    stop(&s);
}

static const ml_test tests[] = {
    { "the dashboard lists runs, metrics, groups and phases", lists },
    { "the dashboard shows a sample's conversation and tokens", one_sample },
    { "the dashboard finds samples by text, reward and status, page by page", search },
    { "the dashboard refuses unknown paths, values and origins", refusals },
    { "text of samples cannot become a script of the dashboard's page", hostile_text },
    { "the dashboard follows a run that writes and resumes", live_updates },
    { "the dashboard controls a run only with the key", control },
    { "requests to a run are recorded with their rollout", requests_are_recorded },
    { "a resumed run repeats changes of the learning rate", learning_rates_are_repeated },
    { "rules give advice for a run's metrics", advice },
    { "a thinned series keeps its peaks", thinning },
    { "text splits into turns by the markers of chat templates", conversations },
    { "the dashboard reads stores of older versions", old_stores },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
