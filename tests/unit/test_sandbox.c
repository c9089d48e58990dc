/* Programs of models in a sandbox, hostile ones among them; rewards and tools that use it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "rl/builtins.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"

/* The exit status and the output of a program. */
static int run(const char *flags, const char *code, char *out, size_t cap) {
    char args[1000];

    ml_toy_file("code", code);
    snprintf(args, sizeof args, "sandbox %s < %s", flags, ml_test_path("code"));
    return ml_test_miles(out, cap, args);
}

static void need_sandbox(void) {
    char out[2000];

    if (run("--language sh", "exit 7\n", out, sizeof out) != 7)
        ml_test_skip("%.600s", out);
}

static void programs_run(void) {
    char out[4000];

    need_sandbox();
    CHECK(run("", "import json\nprint(json.dumps([6 * 7]))\n", out, sizeof out) == 0);
    CHECK_HAS(out, "[42]");
    CHECK(run("", "import sys\nsys.exit(9)\n", out, sizeof out) == 9);
    CHECK(run("", "raise ValueError('why')\n", out, sizeof out) == 1);
    CHECK_HAS(out, "ValueError: why");
    CHECK(run("--language sh", "echo $((6 * 7)) | tee /tmp/x; cat /tmp/x; kill -9 $$\n",
              out, sizeof out) == 137);
    CHECK_HAS(out, "42\n42");
    CHECK(run("--code-bytes 24", "import sys\nprint(input())hello\n", out, sizeof out) !=
          0);
    CHECK(run("--code-bytes 26", "import sys\nprint(input())\nhello\n", out, sizeof out) ==
          0);
    CHECK_HAS(out, "hello");
    CHECK(run("", "exit(126)\n", out, sizeof out) == 1);
}

/* Each ends with the status of its limit, and none leaves a process. */
static void limits_hold(void) {
    static const char *const loops[] = {
        "while True: pass\n",
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass\n",
        "import os\nos.close(1)\nos.close(2)\nwhile True: pass\n",
        "import signal, time\nsignal.pthread_sigmask(0, range(1, 65))\ntime.sleep(1e6)\n",
        "import os, time\nos.fork() or os.setsid()\ntime.sleep(1e6)\n",
    };
    char out[100000];

    need_sandbox();
    for (size_t i = 0; i < sizeof loops / sizeof *loops; i++) {
        int status = run("--time-limit 1", loops[i], out, sizeof out);
        if (status != 124)
            ml_test_fail(__FILE__, __LINE__, "program %zu ended with %d: %s", i, status,
                         out);
        CHECK_HAS(out, "the program took longer than 1 s");
    }
    CHECK(run("", "while True: print('x' * 1000)\n", out, sizeof out) == 125);
    CHECK_HAS(out, "the program wrote more than 65536 bytes");
    CHECK(run("", "x = bytearray(1 << 30)\n", out, sizeof out) == 1);
    CHECK_HAS(out, "MemoryError");
    CHECK(
        run("--time-limit 30",
            "import os, time\nfor i in range(10):\n  if os.fork() == 0:\n"
            "    x = bytearray(200 << 20)\n    for k in range(0, len(x), 4096): x[k] = 1\n"
            "    time.sleep(1e6)\ntime.sleep(1e6)\n",
            out, sizeof out) == 137);
    CHECK_HAS(out, "bytes of memory");
    CHECK(run("", "f = open('/tmp/big', 'wb')\nwhile True: f.write(b'0' * 1000000)\n", out,
              sizeof out) == 1);
    CHECK(ml_test_has(out, "No space left") || ml_test_has(out, "File too large"));
}

static void nothing_else_is_reached(void) {
    char out[8000], code[3000];

    need_sandbox();
    ml_toy_file("secret", "the label of a test");
    snprintf(code, sizeof code,
             "import os, socket\n"
             "def refused(f, *a):\n"
             "  try: f(*a)\n"
             "  except OSError: return\n"
             "  raise SystemExit(f'{f} {a} is possible')\n"
             "for p in ('/usr/x', '/etc/x', '/x', '/dev/x', '/proc/x', '/etc/passwd'):\n"
             "  refused(open, p, 'w')\n"
             "refused(open, '%s')\n"
             "refused(open, '/etc/shadow')\n"
             "refused(open, '/dev/sda')\n"
             "refused(socket.create_connection, ('127.0.0.1', 80), 1)\n"
             "refused(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)\n"
             "refused(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW)\n"
             "refused(os.mknod, '/tmp/null', 0o20666, 259)\n"
             "refused(os.setuid, 0)\n"
             "refused(os.chroot, '/tmp')\n"
             "assert os.getpid() < 10 and 'SECRET_KEY' not in os.environ\n"
             "assert len([p for p in os.listdir('/proc') if p.isdigit()]) <= 2\n"
             "assert not [f for f in os.listdir('/proc/self/fd') if int(f) > 3]\n"
             "print('nothing')\n",
             ml_test_path("secret"));
    if (run("", code, out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    CHECK_HAS(out, "nothing");
    CHECK(run("",
              "import ctypes\nc = ctypes.CDLL(None)\n"
              "print(c.unshare(0x10000000), c.ptrace(16, 1, 0, 0), c.mount(b'a', b'/tmp', "
              "b'tmpfs', 0, 0), c.clone(0, 0, 0x10000000, 0))\n",
              out, sizeof out) == 0);
    CHECK_HAS(out, "-1 -1 -1 -1");
}

/* Forms of tests, right and wrong programs, and one that tries to pass without an answer. */
static void programs_are_graded(void) {
    static const struct {
        const char *response, *label;
        double all, part;
    } row[] = {
        { "Here:\\n```python\\ndef f(x):\\n    return x + 1\\n```\\n",
          "\"assert f(1) == 2\"", 1, 1 },
        { "```python\\ndef f(x):\\n    return x + 2\\n```",
          "[\"assert f(1) == 2\", \"assert f(1) == 3\"]", 0, 0.5 },
        { "import os\\nos._exit(0)", "\"assert f(1) == 2\"", 0, 0 },
        { "a, b = map(int, input().split())\\nprint(a + b)",
          "{\"inputs\": [\"1 2\\n\", \"3 4\"], \"outputs\": [\"3\\n\", \"7 \\n\"]}", 1, 1 },
        { "class Solution:\\n    def add(self, a, b):\\n        return a + b",
          "{\"fn_name\": \"add\", \"inputs\": [[1, 2], \"3\\n4\"], \"outputs\": [3, "
          "\"7\"]}",
          1, 1 },
        { "def f(x):\\n    return x",
          "{\"test\": \"def check(c):\\n    assert c(1) == 1\", \"entry_point\": \"f\"}", 1,
          1 },
        { "print(input())",
          "\"[{\\\"input\\\": \\\"a\\\", \\\"output\\\": \\\"a\\\"}, {\\\"input\\\": "
          "\\\"b\\\", \\\"output\\\": \\\"c\\\"}]\"",
          0, 0.5 },
    };
    enum { N = sizeof row / sizeof *row };
    char out[8000], args[1000], want[2][N * 40] = { "", "" };
    ml_text t = { 0 };

    need_sandbox();
    for (int i = 0; i < N; i++) {
        ml_text_printf(&t, "{\"response\": \"%s\", \"label\": %s}\n", row[i].response,
                       row[i].label);
        snprintf(want[0] + strlen(want[0]), 40, "\"reward\": %g,", row[i].all);
        snprintf(want[1] + strlen(want[1]), 40, "\"reward\": %g,", row[i].part);
    }
    ml_toy_file("rows", t.ptr);
    ml_text_release(&t);
    for (int k = 0; k < 2; k++) {
        char got[N * 40] = "";
        snprintf(args, sizeof args, "reward --rm-type %s < %s", k ? "code_partial" : "code",
                 ml_test_path("rows"));
        if (ml_test_miles(out, sizeof out, args) != 0)
            ml_test_fail(__FILE__, __LINE__, "%s", out);
        for (char *at = out; (at = strstr(at, "\"reward\":")); at++)
            snprintf(got + strlen(got), sizeof got - strlen(got), "%.*s",
                     (int)strcspn(at, ",") + 1, at);
        if (strcmp(got, want[k]) != 0)
            ml_test_fail(__FILE__, __LINE__, "%s", out);
    }
    ml_toy_file("rows", "{\"response\": \"x\", \"label\": 5}\n");
    snprintf(args, sizeof args, "reward --rm-type code < %s", ml_test_path("rows"));
    CHECK(ml_test_miles(out, sizeof out, args) != 0);
    CHECK_HAS(out, "the tests of a coding task are not known");
}

static void append(miles_turn_out *out, const char *role, const char *text, size_t len) {
    ml_text_add(out->ctx, text, len);
    ml_text_printf(out->ctx, "|%s\n", role);
}

static void tools_run_code(void) {
    static const char *const call[][2] = {
        { "python", "{\"code\": \"print(6 * 7)\"}" },
        { "shell", "{\"command\": \"echo hi; exit 3\"}" },
        { "python", "{\"code\": \"1 / 0\"}" },
        { "python", "{\"text\": 1}" },
        { "browser", "{}" },
    };
    miles_call given[5];
    ml_text said = { 0 };
    miles_turn_out out = { .size = sizeof out, .ctx = &said, .append_message = append };
    miles_turn_in in = { .size = sizeof in, .call = given, .n_call = 5 };
    miles_error err = { "" };

    need_sandbox();
    for (int i = 0; i < 5; i++)
        given[i] =
            (miles_call){ call[i][0], call[i][1], strlen(call[i][0]), strlen(call[i][1]) };
    if (ml_generate_sandbox.run(&in, &out, &err) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", err.text);
    CHECK_HAS(said.ptr, "42\n|tool\n");
    CHECK_HAS(said.ptr, "hi\n[exit status 3]|tool\n");
    CHECK_HAS(said.ptr, "ZeroDivisionError: division by zero\n[exit status 1]|tool\n");
    CHECK_HAS(said.ptr, "error: python takes a string, code|tool\n");
    CHECK_HAS(said.ptr, "error: the tools are python(code) and shell(command)|tool\n");
    ml_text_release(&said);
}

static void a_run_uses_the_tool(void) {
    char out[20000], args[2000];

    need_sandbox();
    ml_toy_model(ml_toy_chatml);
    ml_toy_file("data.jsonl", "{\"input\": \"1+1?\", \"label\": \"assert True\"}\n");
    snprintf(args, sizeof args,
             "train --hf-checkpoint %s --prompt-data %s --label-key label "
             "--apply-chat-template --rollout-batch-size 1 --n-samples-per-prompt 2 "
             "--num-rollout 1 --rollout-max-response-len 8 --lr 1e-3 "
             "--custom-generate-function-path sandbox --rm-type code --save %s",
             ml_test_path("model"), ml_test_path("data.jsonl"), ml_test_path("save"));
    if (ml_test_miles(out, sizeof out, args) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", out);
    CHECK_HAS(out, "forward_logp_max_diff 0,");
}

static const ml_test tests[] = {
    { "a sandbox gives a program's output and exit status", programs_run, 60 },
    { "a sandbox ends programs that exceed a limit", limits_hold, 200 },
    { "a program in a sandbox reaches no file, process or network", nothing_else_is_reached,
      60 },
    { "programs of responses are graded by their tests", programs_are_graded, 200 },
    { "tools run the code of a model in a sandbox", tools_run_code, 100 },
    { "a training run calls tools and tests in a sandbox", a_run_uses_the_tool, 60 },
    { 0 },
};

/* The sandbox starts the program that uses it, which is miles. */
static void become_miles(char **argv) {
    char path[4096];

    snprintf(path, sizeof path, "%s/miles", getenv("MILES_UNDER_TEST"));
    execv(path, argv);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "sandbox") == 0)
        become_miles(argv);
    return ml_test_main(argc, argv, tests);
}
