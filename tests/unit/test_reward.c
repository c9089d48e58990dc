/* Rewards by threads, worker processes and servers, and what happens when those fail. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "net/http_server.h"
#include "plugin/reward_path.h"
#include "tests/support/example.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"

#define N 40

/* --- samples and their results --------------------------------------------------------------- */

typedef struct answer {
    ml_reward_outcome outcome;
    double reward;
    char why[300];
    int calls;
} answer;

static void note(void *ud, const ml_reward_result *r) {
    answer *a = ud;

    a->outcome = r->outcome;
    a->reward = r->reward;
    snprintf(a->why, sizeof a->why, "%s", r->why);
    a->calls++;
}

static miles_reward_in sample(const char *response, const char *label) {
    return (miles_reward_in){ .size = sizeof(miles_reward_in),
                              .response = response,
                              .response_len = strlen(response),
                              .label = label,
                              .label_len = label ? strlen(label) : 0 };
}

/* Scores n responses, waits, and checks that each was answered once and counted. */
static void score(const ml_reward_opts *opts, const char *const *response, int n,
                  answer *out) {
    miles_reward_in in[N];
    int64_t counts[ML_REWARD_OUTCOMES], sum = 0;
    ml_rewards *r = NULL;
    ml_err err = { 0 };

    CHECK(ml_rewards_open(&r, opts, &err) == ML_OK);
    if (!r) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    memset(out, 0, (size_t)n * sizeof *out);
    for (int i = 0; i < n; i++) {
        in[i] = sample(response[i], "\"7\"");
        ml_rewards_submit(r, &in[i], note, &out[i]);
    }
    ml_rewards_wait(r);
    ml_rewards_counts(r, counts);
    for (int i = 0; i < n; i++) {
        CHECK(out[i].calls == 1);
        CHECK(out[i].outcome == ML_REWARD_OK ? isfinite(out[i].reward)
                                             : isnan(out[i].reward));
        CHECK(out[i].outcome == ML_REWARD_OK || out[i].why[0]);
    }
    for (int i = 0; i < ML_REWARD_OUTCOMES; i++)
        sum += counts[i];
    CHECK(sum == n);
    ml_rewards_close(r);
}

/* --- built-in graders ------------------------------------------------------------------------- */

static void threads_score_all(void) {
    ml_reward_opts opts = { .rm_type = "math", .n_thread = 4 };
    const char *response[N];
    answer a[N];

    for (int i = 0; i < N; i++)
        response[i] = i % 2 ? "so \\boxed{7}" : "so \\boxed{8}";
    score(&opts, response, N, a);
    for (int i = 0; i < N; i++)
        CHECK(a[i].outcome == ML_REWARD_OK && a[i].reward == i % 2);
}

static void wrong_types_are_refused(void) {
    ml_reward_opts nope = { .rm_type = "nope" }, remote = { .rm_type = "remote_rm" };
    ml_reward_opts ifbench = { .rm_type = "ifbench" };
    ml_rewards *r;
    ml_err err;

    CHECK(ml_rewards_open(&r, &nope, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "nope");
    CHECK_HAS(err.msg, "deepscaler");
    CHECK(ml_rewards_open(&r, &remote, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "--rm-url");
    CHECK(ml_rewards_open(&r, &ifbench, &err) == ML_EUNSUP);
    CHECK_HAS(err.msg, "IFBench");
}

static void samples_choose_their_type(void) {
    ml_reward_opts opts = { .rm_type = "math" };
    miles_reward_in in = sample("a b", "\"a b\""), bad = in;
    answer a = { 0 }, b = { 0 };
    ml_rewards *r = NULL;
    ml_err err;

    in.metadata = "{\"rm_type\": \" f1 \"}";
    in.metadata_len = strlen(in.metadata);
    bad.metadata = "{\"rm_type\": \"nope\"}";
    bad.metadata_len = strlen(bad.metadata);
    CHECK(ml_rewards_open(&r, &opts, &err) == ML_OK);
    ml_rewards_submit(r, &in, note, &a);
    ml_rewards_submit(r, &bad, note, &b);
    ml_rewards_close(r); /* scores what is left */
    CHECK(a.calls == 1 && a.outcome == ML_REWARD_OK && a.reward == 1.0);
    CHECK(b.calls == 1 && b.outcome == ML_REWARD_INVALID);
}

/* --- worker processes ----------------------------------------------------------------------------- */

/* Answers by what the response says. */
#define MOODY                                                                              \
    "while read -r l; do case $l in *hang*) sleep 100 & wait;; *die*) exit 3;; "           \
    "*garbage*) echo 'what?';; *nan*) echo NaN;; *nothing*) echo null;; "                  \
    "*twice*) printf '1\\n2\\n';; *kill*) kill -9 $$;; *object*) echo '{\"reward\": "      \
    "0.5}';; "                                                                             \
    "*error*) echo '{\"error\": \"no idea\"}';; *) echo 1;; esac; done"

static void workers_fail_apart(void) {
    static const char *const response[] = { "fine",    "hang", "fine", "die",   "fine",
                                            "garbage", "fine", "nan",  "fine",  "nothing",
                                            "fine",    "kill", "fine", "error", "fine",
                                            "object",  "fine" };
    ml_reward_opts opts = { .command = { .line = MOODY }, .deadline_s = 3 };
    enum { COUNT = sizeof response / sizeof *response };
    answer a[COUNT];

    score(&opts, response, COUNT, a);
    for (int i = 0; i < COUNT; i += 2)
        CHECK(a[i].outcome == ML_REWARD_OK && a[i].reward == 1.0);
    CHECK(a[1].outcome == ML_REWARD_TIMEOUT);
    CHECK_HAS(a[1].why, "did not answer within 3 s");
    CHECK(a[3].outcome == ML_REWARD_CRASH);
    CHECK_HAS(a[3].why, "status 3");
    CHECK(a[5].outcome == ML_REWARD_INVALID);
    CHECK(a[7].outcome == ML_REWARD_INVALID);
    CHECK(a[9].outcome == ML_REWARD_INVALID);
    CHECK(a[11].outcome == ML_REWARD_CRASH);
    CHECK_HAS(a[11].why, "signal 9");
    CHECK(a[13].outcome == ML_REWARD_INVALID);
    CHECK_HAS(a[13].why, "no idea");
    CHECK(a[15].outcome == ML_REWARD_OK && a[15].reward == 0.5);
}

/* An answer of two lines must not become the next sample's reward. */
static void answers_stay_with_their_sample(void) {
    static const char *const response[] = { "twice", "fine", "twice", "fine", "fine" };
    ml_reward_opts opts = { .command = { .line = MOODY }, .deadline_s = 5 };
    answer a[5];

    score(&opts, response, 5, a);
    for (int i = 0; i < 5; i++)
        CHECK(a[i].outcome == ML_REWARD_OK && a[i].reward == 1.0);
}

static void missing_programs_are_crashes(void) {
    static const char *const response[] = { "a", "b" };
    ml_reward_opts opts = { .command = { .line = "exec /no/such/program 2>/dev/null" } };
    answer a[2];

    score(&opts, response, 2, a);
    CHECK(a[0].outcome == ML_REWARD_CRASH && a[1].outcome == ML_REWARD_CRASH);
    CHECK_HAS(a[0].why, "status 127");
}

/* --- servers ----------------------------------------------------------------------------------------- */

typedef struct server {
    ml_loop *loop;
    ml_http_server *http;
    pthread_t thread;
    int n_call;
    char url[80];
} server;

/* A judge that says a number twice, the second one being the score, or none. */
static void judge(ml_http_call *c, ml_str body) {
    static const char question[] = "\"content\": \"Q: 3 + 4 {x} A: good L: 7\"";
    bool good = memmem(body.ptr, body.len, question, strlen(question)) &&
                memmem(body.ptr, body.len, "\"model\": \"strict\"", 17) &&
                ml_str_is(ml_http_header(c, "authorization"), "Bearer secret");

    ml_http_reply(c, 200, "application/json",
                  ml_str_of(good ? "{\"choices\": [{\"message\": {\"content\": "
                                   "\"A score: 3 is too much.\\nScore: -0.5\"}}]}"
                                 : "{\"choices\": [{\"message\": {\"content\": "
                                   "\"I cannot say.\"}}]}"));
}

/* Fails twice, then answers; "slow" is never answered. */
static void handle(void *ud, ml_http_call *c) {
    server *s = ud;
    ml_str body = ml_http_body(c);

    if (ml_str_is(ml_http_path(c), "/rm/chat/completions")) {
        judge(c, body);
        return;
    }
    s->n_call++;
    if (memmem(body.ptr, body.len, "slow", 4))
        return;
    if (memmem(body.ptr, body.len, "refuse", 6))
        ml_http_reply(c, 404, "text/plain", ml_str_of("no"));
    else if (s->n_call <= 2)
        ml_http_reply(c, 503, "text/plain", ml_str_of("busy"));
    else
        ml_http_reply(c, 200, "application/json", ml_str_of("{\"score\": 0.75}"));
}

static void *run_loop(void *ud) {
    ml_loop_run(((server *)ud)->loop);
    return NULL;
}

static void start_server(server *s) {
    ml_http_limits limits = { 10000, 100000, 20, 10, 100000 };
    ml_err err;

    memset(s, 0, sizeof *s);
    CHECK(ml_loop_new(&s->loop, &err) == ML_OK);
    CHECK(ml_http_server_open(&s->http, s->loop, "127.0.0.1", 0, limits, handle, s, &err) ==
          ML_OK);
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%d/rm", ml_http_server_port(s->http));
    pthread_create(&s->thread, NULL, run_loop, s);
}

static void stop_server(server *s) {
    ml_loop_stop(s->loop);
    pthread_join(s->thread, NULL);
    ml_http_server_close(s->http);
    ml_loop_free(s->loop);
}

static void servers_are_tried_again(void) {
    static const char *const response[] = { "first", "refuse", "third", "slow" };
    server s;
    answer a[4];

    start_server(&s);
    ml_reward_opts opts = {
        .rm_type = "remote_rm", .rm_url = s.url, .n_retry = 5, .deadline_s = 2
    };
    score(&opts, response, 4, a);
    stop_server(&s);
    CHECK(a[0].outcome == ML_REWARD_OK && a[0].reward == 0.75);
    CHECK(a[1].outcome == ML_REWARD_INVALID);
    CHECK_HAS(a[1].why, "404");
    CHECK(a[2].outcome == ML_REWARD_OK);
    CHECK(a[3].outcome == ML_REWARD_TIMEOUT);
    CHECK(s.n_call == 3 + 1 + 1 + 1);
}

/* One sample by one reward. */
static answer score_one(const ml_reward_opts *opts, const miles_reward_in *in) {
    ml_rewards *r = NULL;
    answer a = { 0 };
    ml_err err = { 0 };

    CHECK(ml_rewards_open(&r, opts, &err) == ML_OK);
    ml_rewards_submit(r, in, note, &a);
    ml_rewards_wait(r);
    ml_rewards_close(r);
    return a;
}

/* Servers get the answer with its stop token, as Miles sends it; everybody else without. */
static void servers_see_the_stop_token(void) {
    miles_reward_in in = sample("7", "\"7\"");
    server s;

    in.raw_response = "7 refuse"; /* 404 from the server, if it sees it */
    in.raw_response_len = strlen(in.raw_response);
    start_server(&s);
    ml_reward_opts remote = { .rm_type = "remote_rm", .rm_url = s.url, .deadline_s = 5 },
                   exact = { .rm_type = "exact_match" },
                   program = { .command.line =
                                   "read -r l; case \"$l\" in *refuse*) echo 0 ;; "
                                   "*) echo 1 ;; esac" };
    CHECK(score_one(&remote, &in).outcome == ML_REWARD_INVALID);
    stop_server(&s);
    CHECK(score_one(&exact, &in).reward == 1.0);
    CHECK(score_one(&program, &in).reward == 1.0);
}

static void servers_that_are_down_are_crashes(void) {
    static const char *const response[] = { "a" };
    ml_reward_opts opts = { .rm_type = "remote_rm",
                            .rm_url = "http://127.0.0.1:1/",
                            .n_retry = 1,
                            .deadline_s = 5 };
    answer a[1];

    score(&opts, response, 1, a);
    CHECK(a[0].outcome == ML_REWARD_CRASH);
    CHECK_HAS(a[0].why, "127.0.0.1:1");
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");

    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void judges_give_scores(void) {
    const char *prompt = ml_test_path("prompt.txt"), *key = ml_test_path("key");
    miles_reward_in good = sample("good", "\"7\""), bad = sample("bad", "\"7\"");
    ml_rewards *r = NULL;
    ml_err err;
    server s;
    answer a;

    write_text(prompt, "Q: {prompt} {x} A: {response} L: {label}");
    write_text(key, "secret\n");
    CHECK(chmod(key, 0600) == 0);
    start_server(&s);
    ml_reward_opts opts = { .rm_type = "judge",
                            .deadline_s = 30,
                            .judge = { .url = s.url,
                                       .model = "strict",
                                       .key_file = key,
                                       .prompt_path = prompt,
                                       .pattern = "(?i)score[:=*\"\\s]*\\K-?\\d+(\\.\\d+)?",
                                       .max_tokens = 9 } };
    good.messages = "[{\"role\": \"user\", \"content\": \"3 + 4\"}]";
    good.messages_len = strlen(good.messages);
    a = score_one(&opts, &good);
    CHECK(a.outcome == ML_REWARD_OK && a.reward == -0.5);
    a = score_one(&opts, &bad);
    CHECK(a.outcome == ML_REWARD_INVALID);
    CHECK_HAS(a.why, "the judge's reply has no score that matches");
    stop_server(&s);
    write_text(prompt, "no place");
    CHECK(ml_rewards_open(&r, &opts, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "has no {response}");
    opts.judge.url = NULL;
    CHECK(ml_rewards_open(&r, &opts, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "--judge-url");
}

/* --- paths -------------------------------------------------------------------------------------------- */

static void paths_resolve(void) {
    ml_reward_opts opts = { 0 };
    ml_arena a;
    ml_err err;

    ml_arena_init(&a, "paths");
    CHECK(ml_reward_path_resolve(&opts, &a, "cmd:./score --fast", &err) == ML_OK);
    CHECK(strcmp(opts.command.line, "./score --fast") == 0);
    CHECK(ml_reward_path_resolve(&opts, &a, "my.module.reward", &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "--custom-rm-path: my.module.reward: ModuleNotFoundError: No module "
                       "named 'my' (add its directory to PYTHONPATH)");
    CHECK(ml_reward_path_resolve(&opts, &a, "reward", &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "./reward.py:function");
    CHECK(ml_reward_path_resolve(&opts, &a, "no_such_file.py", &err) == ML_EIO);
    CHECK_HAS(err.msg, "no_such_file.py");
    CHECK(ml_reward_path_resolve(&opts, &a, "./no_such.so:x", &err) == ML_EIO);
    CHECK(ml_reward_path_resolve(&opts, &a, NULL, &err) == ML_OK);
    ml_arena_release(&a);
}

static void lists_resolve(void) {
    static const char *const bad[][2] = {
        { "math=1,f1", "'f1' has no weight" },
        { "math=1,math=2", "two rewards are named 'math'" },
        { "math=1,", "has no weight" },
        { "=1,math=1", "has no weight" },
    };
    ml_reward_opts opts = { 0 }, list = { .rm_type = "math=0.25,f1=-1e1" };
    ml_reward_opts unknown = { .rm_type = "math=1,nope=1" };
    ml_rewards *r;
    ml_arena a;
    ml_err err;

    ml_arena_init(&a, "paths");
    CHECK(ml_reward_path_resolve(&list, &a, NULL, &err) == ML_OK);
    CHECK(list.n_part == 2 && list.part[0].weight == 0.25 && list.part[1].weight == -10.0);
    CHECK(strcmp(list.part[1].name, "f1") == 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        opts = (ml_reward_opts){ .rm_type = bad[i][0] };
        CHECK(ml_reward_path_resolve(&opts, &a, NULL, &err) == ML_EUSAGE);
        CHECK_HAS(err.msg, "--rm-type");
        CHECK_HAS(err.msg, bad[i][1]);
    }
    CHECK(ml_reward_path_resolve(&unknown, &a, NULL, &err) == ML_OK);
    CHECK(ml_rewards_open(&r, &unknown, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "nope");
    ml_arena_release(&a);
}

/* Each part counts by its weight; a sample's own type goes before a list of types. */
static void sums_are_weighted(void) {
    static const char *const response[] = { "7", "\\boxed{7}", "8" };
    ml_reward_opts opts = { .rm_type = "math=0.25,exact_match=0.5", .n_thread = 2 };
    miles_reward_in own = sample("7 7", "\"7\"");
    answer a[3], b = { 0 };
    ml_rewards *r = NULL;
    ml_arena arena;
    ml_err err;

    ml_arena_init(&arena, "paths");
    CHECK(ml_reward_path_resolve(&opts, &arena, NULL, &err) == ML_OK);
    score(&opts, response, 3, a);
    CHECK(a[0].outcome == ML_REWARD_OK && a[0].reward == 0.5);
    CHECK(a[1].outcome == ML_REWARD_OK && a[1].reward == 0.25);
    CHECK(a[2].outcome == ML_REWARD_OK && a[2].reward == 0.0);
    own.metadata = "{\"rm_type\": \"zero\"}";
    own.metadata_len = strlen(own.metadata);
    CHECK(ml_rewards_open(&r, &opts, &err) == ML_OK);
    ml_rewards_submit(r, &own, note, &b);
    ml_rewards_close(r);
    CHECK(b.outcome == ML_REWARD_OK && b.reward == 0.0);
    /* One that fails is named. */
    opts = (ml_reward_opts){ .deadline_s = 20 };
    CHECK(ml_reward_path_resolve(&opts, &arena,
                                 "zero=1,cmd:while read l; do echo NaN; done=1",
                                 &err) == ML_OK);
    score(&opts, response, 1, a);
    CHECK(a[0].outcome == ML_REWARD_INVALID);
    CHECK_HAS(a[0].why, ": the reward is NaN");
    ml_arena_release(&arena);
}

/* --- of one's own --- */

static void shared_objects_score(void) {
    const char *object = ml_test_example();
    static const char *const response[] = { "seven b", "" };
    ml_reward_opts opts = { .n_thread = 2 };
    char line[1000];
    answer a[2];
    ml_arena arena;
    ml_err err;

    ml_arena_init(&arena, "paths");
    snprintf(line, sizeof line, "%s:length", object);
    CHECK(ml_reward_path_resolve(&opts, &arena, line, &err) == ML_OK);
    score(&opts, response, 2, a);
    CHECK(a[0].outcome == ML_REWARD_OK && a[0].reward == 7.0);
    CHECK(a[1].outcome == ML_REWARD_INVALID);
    snprintf(line, sizeof line, "%s:width", object);
    CHECK(ml_reward_path_resolve(&opts, &arena, line, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "length");
    ml_arena_release(&arena);
}

/* Writes a Python file and finds it as --custom-rm-path does. */
static ml_status find_python(ml_reward_opts *opts, ml_arena *a, const char *source,
                             ml_err *err) {
    const char *file = ml_test_path("reward_example.py");

    CHECK(ml_file_replace(file, ml_str_of(source), err) == ML_OK);
    return ml_reward_path_resolve(opts, a, file, err);
}

static void python_functions_score(void) {
    static const char *const response[] = { "abc",  "raise", "nan",   "dict",
                                            "none", "exit",  "text",  "scalar",
                                            "bool", "array", "minus", "pair" };
    static const char source[] =
        "from fractions import Fraction\n"
        "class Scalar:  # as numpy and torch have them\n"
        "    def __init__(self, x): self.x = x\n"
        "    def item(self): return self.x\n"
        "class Array(Scalar):\n"
        "    ndim, shape = 1, (1,)\n"
        "    def tolist(self): return [self.x]\n"
        "class Pair(Scalar):\n"
        "    ndim, shape = 1, (2,)\n"
        "    def tolist(self): return [self.x, self.x]\n"
        "def reward(sample):\n"
        "    print('not an answer')\n"
        "    r = sample['response']\n"
        "    if r == 'raise':\n"
        "        raise ValueError('cannot')\n"
        "    if r == 'nan': return Scalar(float('nan'))\n"
        "    if r == 'dict': return {'reward': Fraction(1, 2), 'why': sample['label']}\n"
        "    if r == 'none': return None\n"
        "    if r == 'exit': raise SystemExit(3)\n"
        "    if r == 'text': return '1.0'\n"
        "    if r == 'scalar': return Scalar(0.25)\n"
        "    if r == 'bool': return Scalar(True)\n"
        "    if r == 'array': return Array(1.0)\n"
        "    if r == 'pair': return Pair(1.0)\n"
        "    if r == 'minus': return {'score': float('-inf')}\n"
        "    return len(r)\n";
    enum { COUNT = sizeof response / sizeof *response };
    ml_reward_opts opts = { .deadline_s = 30 };
    answer a[COUNT];
    ml_arena arena;
    ml_err err;

    ml_arena_init(&arena, "paths");
    CHECK(find_python(&opts, &arena, source, &err) == ML_OK);
    score(&opts, response, COUNT, a);
    CHECK(a[0].outcome == ML_REWARD_OK && a[0].reward == 3.0);
    CHECK(a[1].outcome == ML_REWARD_INVALID);
    CHECK_HAS(a[1].why, "ValueError: cannot (");
    CHECK_HAS(a[1].why, "reward_example.py, line 15)");
    CHECK(a[2].outcome == ML_REWARD_INVALID);
    CHECK_HAS(a[2].why, "the reward is NaN");
    CHECK(a[3].outcome == ML_REWARD_OK && a[3].reward == 0.5);
    CHECK(a[4].outcome == ML_REWARD_INVALID);
    CHECK_HAS(a[4].why, "None");
    CHECK(a[5].outcome == ML_REWARD_INVALID);
    CHECK_HAS(a[5].why, "SystemExit: 3");
    CHECK(a[6].outcome == ML_REWARD_INVALID);
    CHECK(a[7].outcome == ML_REWARD_OK && a[7].reward == 0.25);
    CHECK(a[8].outcome == ML_REWARD_OK && a[8].reward == 1.0);
    CHECK(a[9].outcome == ML_REWARD_OK && a[9].reward == 1.0);
    CHECK(a[11].outcome == ML_REWARD_INVALID);
    CHECK_HAS(a[11].why, "an array");
    CHECK(a[10].outcome == ML_REWARD_INVALID);
    CHECK_HAS(a[10].why, "'score'");
    CHECK_HAS(a[10].why, "-infinity");
    ml_arena_release(&arena);
}

/* Found before anything is scored, in one sentence with the file and the line. */
static void python_files_are_tried_first(void) {
    static const struct {
        const char *source, *why;
    } bad[] = {
        { "def reward(s):\n    return 1 +\n", "SyntaxError: " },
        { "def reward(s):\n    return 1 +\n", "reward_example.py, line 2" },
        { "import math\nimport no_such_module_xyz\n", "reward_example.py, line 2" },
        { "import math\nimport no_such_module_xyz\n", "no_such_module_xyz" },
        { "x = 1\nx.y\n", "AttributeError" },
        { "def score(s):\n    return 1\n", "the file has no function reward" },
        { "reward = 1\n", "the file has no function reward" },
        { "raise SystemExit('no GPU')\n", "no GPU" },
    };
    ml_reward_opts opts = { 0 };
    ml_arena arena;
    ml_err err;

    ml_arena_init(&arena, "paths");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(find_python(&opts, &arena, bad[i].source, &err) == ML_EFORMAT);
        CHECK_HAS(err.msg, "--custom-rm-path: ");
        CHECK_HAS(err.msg, bad[i].why);
    }
    ml_arena_release(&arena);
}

/* --- the command ---------------------------------------------------------------------------------------- */

static void command_replays(void) {
    static char out[100000];

    CHECK(ml_test_miles(out, sizeof out,
                        "reward --rm-type math < tests/golden/rewards/math.jsonl") == 0);
    CHECK_HAS(out, "{\"reward\": 1, \"outcome\": \"ok\", \"ms\": ");
    CHECK(ml_test_miles(out, sizeof out, "reward --rm-type nope < /dev/null") == 2);
    CHECK_HAS(out, "unknown reward 'nope'");
    CHECK(ml_test_miles(out, sizeof out,
                        "reward --custom-rm-path 'cmd:while read l; do echo 2; done' < "
                        "tests/golden/rewards/f1.jsonl") == 0);
    CHECK_HAS(out, "mean reward 2");
    CHECK(ml_test_miles(out, sizeof out,
                        "reward --custom-rm-path 'cmd:while read l; do echo NaN; done' < "
                        "tests/golden/rewards/f1.jsonl") == 3);
    CHECK_HAS(out, "samples has a reward");
    CHECK_HAS(out, "the reward is NaN");
}

/* A copy of the program, without a file beside it, serves Python rewards. */
static void the_program_works_alone(void) {
    char line[6000], out[2000], program[4096];
    FILE *f;
    size_t n;

    snprintf(line, sizeof line, "%s/miles", getenv("MILES_UNDER_TEST"));
    CHECK(realpath(line, program) != NULL);
    snprintf(
        line, sizeof line,
        "cd %s && cp %s ./alone && printf 'def reward(s):\\n    return 0.5\\n' > r.py && "
        "echo '{\"response\": \"x\"}' | ./alone reward --custom-rm-path ./r.py 2>&1",
        ml_test_dir(), program);
    f = popen(line, "r");
    CHECK(f != NULL);
    n = f ? fread(out, 1, sizeof out - 1, f) : 0;
    out[n] = 0;
    CHECK(f && pclose(f) == 0);
    CHECK_HAS(out, "{\"reward\": 0.5, \"outcome\": \"ok\"");
}

/* With the model's name, its end token is no part of answers that it ended. */
static void command_takes_the_end_token_off(void) {
    char out[4000], args[1500];

    ml_toy_model(ml_toy_chatml);
    ml_toy_file("model/generation_config.json", "{\"eos_token_id\": [57]}");
    ml_toy_file("samples.jsonl",
                "{\"response\": \"7<|im_end|>\", \"label\": \"7\"}\n"
                "{\"response\": \"7<|im_end|>\", \"label\": \"7\", "
                "\"status\": \"truncated\"}\n"
                "{\"response\": \"7<|im_end|><|im_end|>\", \"label\": \"7<|im_end|>\", "
                "\"status\": \"completed\"}\n");
    snprintf(args, sizeof args, "reward --rm-type exact_match --hf-checkpoint %s < %s",
             ml_test_path("model"), ml_test_path("samples.jsonl"));
    CHECK(ml_test_miles(out, sizeof out, args) == 0);
    CHECK_HAS(out, "{\"reward\": 1, ");
    CHECK_HAS(out, "mean reward 0.666667");
    snprintf(args, sizeof args, "reward --rm-type exact_match < %s",
             ml_test_path("samples.jsonl"));
    CHECK(ml_test_miles(out, sizeof out, args) == 0);
    CHECK_HAS(out, "mean reward 0\n");
}

static const ml_test tests[] = {
    { "reward threads score every sample", threads_score_all, 0 },
    { "an unknown reward type is refused", wrong_types_are_refused, 0 },
    { "a sample's metadata chooses its reward type", samples_choose_their_type, 0 },
    { "a failing reward worker fails its own sample alone", workers_fail_apart, 120 },
    { "a worker's extra line is not the next sample's reward",
      answers_stay_with_their_sample, 0 },
    { "a missing reward program is a crash", missing_programs_are_crashes, 0 },
    { "a reward server's failure is retried", servers_are_tried_again, 0 },
    { "reward servers get the stop token and graders do not", servers_see_the_stop_token,
      0 },
    { "a judge's score is the last match in its reply", judges_give_scores, 0 },
    { "a reward server that is down is a crash", servers_that_are_down_are_crashes, 0 },
    { "--custom-rm-path finds commands, objects and files", paths_resolve, 0 },
    { "a list of weighted rewards is parsed or refused", lists_resolve, 0 },
    { "weighted rewards are summed", sums_are_weighted, 0 },
    { "a plugin's reward function scores", shared_objects_score, 0 },
    { "a Python reward function scores", python_functions_score, 120 },
    { "a broken Python reward is found before anything is scored",
      python_files_are_tried_first, 120 },
    { "miles without files beside it serves Python rewards", the_program_works_alone, 0 },
    { "miles reward scores recorded samples", command_replays, 0 },
    { "miles reward removes the model's end token", command_takes_the_end_token_off, 0 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
