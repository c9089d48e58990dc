/* miles train with engines of other processes: the same bytes, whatever happens to them. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/support/example.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"
#include "tests/support/toy_run.h"

enum { ROUNDS = 6 };

/* --- servers ---------------------------------------------------------------------- */

/* Ports of this process: servers that are started again keep theirs.  Below those that
 * systems give to clients. */
static int port_of(int i) {
    return 10000 + (int)(getpid() % 5500) * 4 + i;
}

/* Until it answers. */
static void await(int port) {
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_port = htons((uint16_t)port),
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

    for (int i = 0; i < 1000; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        bool there = connect(fd, (struct sockaddr *)&at, sizeof at) == 0;
        close(fd);
        if (there)
            return;
        usleep(10000);
    }
    ml_test_fail(__FILE__, __LINE__, "nothing listens at port %d", port);
}

static pid_t serve_with(int i, const char *more) {
    char args[2000];
    pid_t pid;

    snprintf(args, sizeof args, "serve --model-path %s --port %d --threads 1 %s",
             ml_test_path("model"), port_of(i), more);
    pid = ml_toy_start(args);
    await(port_of(i));
    return pid;
}

static pid_t serve(int i) {
    return serve_with(i, "");
}

static pid_t route(int i, int first, int n) {
    char args[1000];
    size_t at;
    pid_t pid;

    snprintf(args, sizeof args, "router --port %d --worker-urls", port_of(i));
    for (int k = 0; k < n; k++) {
        at = strlen(args);
        snprintf(args + at, sizeof args - at, " http://127.0.0.1:%d", port_of(first + k));
    }
    pid = ml_toy_start(args);
    await(port_of(i));
    return pid;
}

/* Flags for n servers from the first on. */
static const char *external(char *out, size_t cap, int first, int n, const char *more) {
    size_t at =
        (size_t)snprintf(out, cap, "--rollout-external --rollout-external-engine-addrs");

    for (int i = first; i < first + n; i++)
        at += (size_t)snprintf(out + at, cap - at, " 127.0.0.1:%d", port_of(i));
    snprintf(out + at, cap - at, " %s", more);
    return out;
}

/* Until a run has found its servers: before that, one that is missing ends it. */
static void await_begin(const char *save) {
    char path[1000];

    snprintf(path, sizeof path, "%s/metrics.jsonl", save);
    for (int i = 0; i < 3000 && access(path, F_OK) != 0; i++)
        usleep(10000);
}

static void end(pid_t pid) {
    ml_toy_run_stop(pid, SIGKILL, 0);
}

static bool says(const char *log, const char *sentence) {
    char line[2000];

    snprintf(line, sizeof line, "grep -qs '%s' %s", sentence, log);
    for (int i = 0; i < 1500; i++) {
        if (system(line) == 0)
            return true;
        usleep(20000);
    }
    return false;
}

/* A reward program.  While a file "log" says that the first rollout is trained and there is no
 * file "go", it does not answer: the run stays inside its second rollout until the test has
 * done its part, however fast the machine is. */
static const char *held_reward(void) {
    static char command[1200];
    char script[3000];
    const char *log = ml_test_path("log"), *go = ml_test_path("go");

    snprintf(
        script, sizeof script,
        "#!/bin/sh\n"
        "while read -r sample; do\n"
        "    while grep -qs 'rollout 0, step 1:' %s && [ ! -e %s ]; do sleep 0.1; done\n"
        "    echo 0.$((${#sample} %% 10))\n"
        "done\n",
        log, go);
    ml_toy_file("held.sh", script);
    CHECK(chmod(ml_test_path("held.sh"), 0700) == 0);
    snprintf(command, sizeof command, "--custom-rm-path cmd:%s", ml_test_path("held.sh"));
    return command;
}

/* --- tests ------------------------------------------------------------------------ */

/* One server, two, or two behind a router: who draws a sample does not show. */
static void the_same_bytes_as_here(void) {
    const char *here = ml_test_path("here"), *one = ml_test_path("one"),
               *two = ml_test_path("two"), *routed = ml_test_path("routed");
    char out[16000], more[1500], hook[1200];
    pid_t a, b, router;

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, ROUNDS, "", out, sizeof out) == 0);
    a = serve(1);
    b = serve(2);
    router = route(3, 1, 2);
    CHECK(ml_toy_run("train", one, ROUNDS, external(more, sizeof more, 1, 1, ""), out,
                     sizeof out) == 0);
    CHECK_HAS(out, "forward_logp_max_diff 0,");
    ml_toy_run_same(here, one, ROUNDS);
    setenv("EXAMPLE_JOURNAL", ml_test_path("journal"), 1);
    snprintf(hook, sizeof hook,
             "--update-weight-transfer-mode disk --update-weight-buffer-size 20000 "
             "--custom-update-weight-post-write-path %s:journal",
             ml_test_example());
    CHECK(ml_toy_run("train", two, ROUNDS, external(more, sizeof more, 1, 2, hook), out,
                     sizeof out) == 0);
    ml_toy_run_same(here, two, ROUNDS);
    snprintf(hook, sizeof hook,
             "grep -q 'weights written: rollout 1, .*/version_' %s && "
             "test $(ls %s/rollout_weights/version_*/model-*.safetensors | wc -l) -gt 3",
             ml_test_path("journal"), two);
    CHECK(system(hook) == 0);
    CHECK(ml_toy_run("train", routed, ROUNDS, external(more, sizeof more, 3, 1, ""), out,
                     sizeof out) == 0);
    ml_toy_run_same(here, routed, ROUNDS);
    /* Deltas: both workers hear of them, and have one copy. */
    snprintf(hook, sizeof hook,
             "--update-weight-transfer-mode disk-delta "
             "--update-weight-local-checkpoint-dir %s",
             ml_test_path("copy"));
    CHECK(ml_toy_run("train", ml_test_path("deltas"), ROUNDS,
                     external(more, sizeof more, 3, 1, hook), out, sizeof out) == 0);
    ml_toy_run_same(here, ml_test_path("deltas"), ROUNDS);
    end(router);
    end(b);
    end(a);
}

/* Modes of train-async, with the same servers. */
static void asynchronous_with_servers(void) {
    const char *here = ml_test_path("here"), *there = ml_test_path("there"),
               *async_rollout = ml_test_path("flow"), *again = ml_test_path("again");
    char out[16000], more[1000];
    pid_t a;

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train-async", here, ROUNDS, "", out, sizeof out) == 0);
    a = serve(1);
    CHECK(ml_toy_run("train-async", there, ROUNDS, external(more, sizeof more, 1, 1, ""),
                     out, sizeof out) == 0);
    ml_toy_run_same(here, there, ROUNDS);
    CHECK(ml_toy_run("train-async", async_rollout, ROUNDS,
                     external(more, sizeof more, 1, 1, "--fully-async --save-interval 1"),
                     out, sizeof out) == 0);
    snprintf(more, sizeof more,
             "--load-debug-rollout-data %s/rollout_data/{rollout_id}.jsonl.zst",
             async_rollout);
    CHECK(ml_toy_run("train", again, ROUNDS, more, out, sizeof out) == 0);
    snprintf(more, sizeof more,
             "cmp %s/iter_%07d/model.safetensors %s/iter_%07d/"
             "model.safetensors",
             async_rollout, ROUNDS - 1, again, ROUNDS - 1);
    CHECK(system(more) == 0);
    end(a);
}

/* Servers are killed again and again while a run uses them. */
static void servers_may_die(void) {
    const char *here = ml_test_path("here"), *there = ml_test_path("there");
    char out[16000], more[1000];
    int status = 0, n = 0;
    pid_t a, run;

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, ROUNDS, "", out, sizeof out) == 0);
    a = serve(1);
    run = ml_toy_run_start("train", there, ROUNDS, external(more, sizeof more, 1, 1, ""));
    await_begin(there);
    while (n < 4 && waitpid(run, &status, WNOHANG) == 0) {
        usleep(60000);
        end(a);
        n++;
        usleep(20000);
        a = serve(1);
    }
    if (n == 4)
        waitpid(run, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ml_toy_run_same(here, there, ROUNDS);
    printf("%d times\n", n);
    end(a);
}

/* Flags that notice soon, so that a test need not wait. */
static const char watch[] =
    "--rollout-health-check-interval 0.2 --rollout-health-check-timeout 0.5";

/* A server that is stopped keeps its connections and answers nothing. */
static void a_server_may_hang(void) {
    const char *here = ml_test_path("here"), *there = ml_test_path("there"),
               *log = ml_test_path("log");
    char out[16000], more[2500], flags[2000], args[4000], line[100];
    int status = 0;
    pid_t a, b, run;

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, ROUNDS, held_reward(), out, sizeof out) == 0);
    a = serve(1);
    b = serve(2);
    snprintf(flags, sizeof flags, "%s %s", watch, held_reward());
    ml_toy_run_args(args, sizeof args, "train", there, ROUNDS,
                    external(more, sizeof more, 1, 2, flags));
    run = ml_toy_start_to(log, args);
    CHECK(says(log, "rollout 0, step 1:"));
    kill(b, SIGSTOP);
    ml_toy_file("go", "");
    snprintf(line, sizeof line, "127.0.0.1:%d/health", port_of(2));
    CHECK(says(log, line));
    kill(b, SIGCONT);
    waitpid(run, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ml_toy_run_same(here, there, ROUNDS);
    end(b);
    end(a);
}

static void a_server_that_hangs_for_good_ends_the_run(void) {
    const char *log = ml_test_path("log"), *save = ml_test_path("save");
    char more[1000], args[3000], flags[300];
    int status = 0;
    pid_t a, run;

    ml_toy_run_inputs();
    a = serve(1);
    snprintf(flags, sizeof flags, "%s --sglang-router-request-timeout-secs 3", watch);
    ml_toy_run_args(args, sizeof args, "train", save, 1000,
                    external(more, sizeof more, 1, 1, flags));
    run = ml_toy_start_to(log, args);
    await_begin(save);
    kill(a, SIGSTOP);
    waitpid(run, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    snprintf(args, sizeof args,
             "grep -Eq 'no successful reply to|no engine has answered' %s", log);
    CHECK(system(args) == 0);
    end(a);
}

/* A worker behind a router that comes back has other weights, which is noticed. */
static void workers_behind_a_router_may_die(void) {
    const char *here = ml_test_path("here"), *there = ml_test_path("there");
    char out[16000], more[1000];
    int status = 0;
    pid_t a, b, router, run;

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, ROUNDS, "", out, sizeof out) == 0);
    a = serve(1);
    b = serve(2);
    router = route(3, 1, 2);
    run = ml_toy_run_start("train", there, ROUNDS, external(more, sizeof more, 3, 1, ""));
    await_begin(there);
    end(b);
    b = serve(2);
    waitpid(run, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ml_toy_run_same(here, there, ROUNDS);
    end(router);
    end(b);
    end(a);
}

static void write_key(const char *name, const char *key) {
    CHECK(ml_file_replace(ml_test_path(name), ml_str_of(key), NULL) == ML_OK);
    CHECK(chmod(ml_test_path(name), 0600) == 0);
}

/* Engines that ask for keys, alone and behind a router with a key of its own; the trainer's key
 * is written nowhere. */
static void engines_with_keys(void) {
    const char *here = ml_test_path("here"), *there = ml_test_path("there");
    char out[16000], more[1500], flags[1200];
    pid_t a, router;

    ml_toy_run_inputs();
    write_key("client.key", "client-key\n");
    write_key("admin.key", "admin-key\n");
    write_key("router.key", "router-key\n");
    CHECK(ml_toy_run("train", here, 2, "", out, sizeof out) == 0);
    snprintf(flags, sizeof flags, "--api-key-file %s --admin-api-key-file %s",
             ml_test_path("client.key"), ml_test_path("admin.key"));
    a = serve_with(1, flags);
    CHECK(ml_toy_run("train", ml_test_path("none"), 1,
                     external(more, sizeof more, 1, 1, ""), out, sizeof out) == 3);
    CHECK_HAS(out, "401");
    snprintf(flags, sizeof flags, "--rollout-external-api-key-file %s",
             ml_test_path("admin.key"));
    CHECK(ml_toy_run("train", there, 2, external(more, sizeof more, 1, 1, flags), out,
                     sizeof out) == 0);
    ml_toy_run_same(here, there, 2);
    snprintf(flags, sizeof flags,
             "router --port %d --worker-urls http://127.0.0.1:%d --worker-api-key-file %s "
             "--api-key-file %s",
             port_of(3), port_of(1), ml_test_path("admin.key"), ml_test_path("router.key"));
    router = ml_toy_start(flags);
    await(port_of(3));
    setenv("MILES_ROLLOUT_API_KEY", "router-key", 1);
    CHECK(ml_toy_run("train", ml_test_path("routed"), 2,
                     external(more, sizeof more, 3, 1, ""), out, sizeof out) == 0);
    ml_toy_run_same(here, ml_test_path("routed"), 2);
    unsetenv("MILES_ROLLOUT_API_KEY");
    snprintf(flags, sizeof flags, "! grep -rqE '(admin|router)-key' %s %s", there,
             ml_test_path("routed"));
    CHECK(system(flags) == 0);
    end(router);
    end(a);
}

/* An engine that may not read the run's directory says which flag lets it. */
static void engines_with_other_directories(void) {
    char out[16000], more[1500], flags[1200];
    pid_t a;

    ml_toy_run_inputs();
    snprintf(flags, sizeof flags, "--weight-path-prefix %s", ml_test_path("elsewhere"));
    a = serve_with(1, flags);
    CHECK(
        ml_toy_run("train", ml_test_path("save"), 1,
                   external(more, sizeof more, 1, 1, "--update-weight-transfer-mode disk"),
                   out, sizeof out) == 3);
    CHECK_HAS(out, "--weight-path-prefix DIR");
    end(a);
}

/* --- the router of a run -------------------------------------------------------------- */

/* POST with the key of the run's router; false: it does not answer with 200. */
static bool tell_router(const char *save, const char *path, int engine) {
    char line[2000];

    snprintf(line, sizeof line,
             "python3 - <<'END'\n"
             "import json, urllib.request as u\n"
             "r = json.load(open('%s/router.json'))\n"
             "q = u.Request(r['url'] + '%s', b'{\"url\": \"http://127.0.0.1:%d\"}',\n"
             "              {'Authorization': 'Bearer ' + r['api_key'], 'Content-Type': "
             "'application/json'})\n"
             "assert u.urlopen(q).status == 200\n"
             "END",
             save, path, port_of(engine));
    return system(line) == 0;
}

/* An engine joins a run, and the one that it began with leaves: no byte changes.  The engine
 * that joins has other weights than the run at that time. */
static void engines_come_and_go(void) {
    enum { MANY = 5 };
    const char *here = ml_test_path("here"), *there = ml_test_path("there"),
               *log = ml_test_path("log");
    char out[16000], more[2500], flags[2000], args[4000], line[1200];
    int status = 0;
    pid_t a, b, run;

    ml_toy_run_inputs();
    snprintf(flags, sizeof flags, "--sglang-router-port 0 --router-policy cache_aware %s",
             held_reward());
    CHECK(ml_toy_run("train", here, MANY, held_reward(), out, sizeof out) == 0);
    a = serve(1);
    b = serve(2);
    ml_toy_run_args(args, sizeof args, "train", there, MANY,
                    external(more, sizeof more, 1, 1, flags));
    run = ml_toy_start_to(log, args);
    CHECK(says(log, "rollout 0, step 1:"));
    CHECK(tell_router(there, "/add_worker", 2));
    snprintf(line, sizeof line, "127.0.0.1:%d is back, with the current weights",
             port_of(2));
    CHECK(says(log, line));
    CHECK(tell_router(there, "/remove_worker", 1));
    snprintf(line, sizeof line, "127.0.0.1:%d is removed", port_of(1));
    CHECK(says(log, line));
    end(a);
    ml_toy_file("go", "");
    waitpid(run, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ml_toy_run_same(here, there, MANY);
    snprintf(line, sizeof line, "test $(stat -c %%a %s/router.json) = 600", there);
    CHECK(system(line) == 0);
    end(b);
}

/* --sglang-router-ip: the workers of a router that runs already. */
static void a_router_of_others(void) {
    const char *here = ml_test_path("here"), *there = ml_test_path("there");
    char out[16000], more[300];
    pid_t a, router;

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, 2, "", out, sizeof out) == 0);
    a = serve(1);
    router = route(3, 1, 1);
    snprintf(more, sizeof more, "--sglang-router-ip 127.0.0.1 --sglang-router-port %d",
             port_of(3));
    CHECK(ml_toy_run("train", there, 2, more, out, sizeof out) == 0);
    ml_toy_run_same(here, there, 2);
    end(router);
    end(a);
    CHECK(ml_toy_run("train", ml_test_path("none"), 2, more, out, sizeof out) == 3);
    CHECK_HAS(out, "--sglang-router-ip: an engine is not reachable");
}

static void what_is_missing_is_said(void) {
    char out[16000], more[1000];

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", ml_test_path("save"), 1,
                     external(more, sizeof more, 1, 1, ""), out, sizeof out) == 3);
    CHECK_HAS(out, "--rollout-external-engine-addrs: an engine is not reachable: ");
    CHECK_HAS(out, "127.0.0.1:");
    CHECK(ml_toy_run("train", ml_test_path("save"), 1, "--rollout-external", out,
                     sizeof out) == 2);
    CHECK_HAS(out, "--rollout-external needs ");
}

static const ml_test tests[] = {
    { "external engines give the bytes of an engine in process", the_same_bytes_as_here },
    { "train-async with external engines gives the same bytes", asynchronous_with_servers },
    { "an external engine that dies is retried and changes no byte", servers_may_die },
    { "an external engine that hangs is passed over", a_server_may_hang },
    { "an external engine that hangs for good ends the run",
      a_server_that_hangs_for_good_ends_the_run },
    { "a worker that dies behind a router is noticed", workers_behind_a_router_may_die },
    { "external engines take their keys and no log shows one", engines_with_keys },
    { "an engine that may not read the weights names --weight-path-prefix",
      engines_with_other_directories },
    { "engines join a run and leave it and change no byte", engines_come_and_go, 120 },
    { "--sglang-router-ip generates with the workers of a router", a_router_of_others },
    { "an external engine that is missing is named", what_is_missing_is_said },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
