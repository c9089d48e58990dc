/* Worker processes: their memory, their children, their ends. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/line_process.h"
#include "tests/support/test.h"

static bool is_gone(const char *pid) {
    char path[60];

    snprintf(path, sizeof path, "/proc/%.20s/exe", pid);
    for (int i = 0; i < 1000 && access(path, R_OK) == 0; i++)
        usleep(10000);
    return access(path, R_OK) != 0;
}

static ml_line_process *worker_of(const char *line, int64_t memory_bytes) {
    return ml_line_process_new(&(ml_worker_command){ .line = line }, memory_bytes);
}

/* Reserved address space is free, resident memory counts, children's included. */
static void memory_is_limited(void) {
    static const char reserve[] =
        "exec python3 -c 'import mmap\n"
        "input(); m = mmap.mmap(-1, 4 << 30); print(len(m) >> 30, flush=True); input()'";
    static const char use[] = "exec python3 -c 'import time\n"
                              "input(); m = b\"x\" * (256 << 20); time.sleep(60)'";
    static const char by_child[] =
        "python3 -c 'import time\nm = b\"x\" * (256 << 20); time.sleep(60)' & wait";
    ml_text out = { 0 };
    ml_line_process *w = worker_of(reserve, 128 << 20);

    CHECK(ml_line_process_ask(w, &out, ml_str_of("x"), 30) == ML_LINE_PROCESS_ANSWERED);
    CHECK(strcmp(out.ptr, "4") == 0);
    ml_line_process_free(w);
    w = worker_of(use, 128 << 20);
    CHECK(ml_line_process_ask(w, &out, ml_str_of("x"), 30) == ML_LINE_PROCESS_DIED);
    CHECK_HAS(out.ptr, "used more than 128 MiB of memory");
    CHECK_HAS(out.ptr, "--reward-memory");
    ml_line_process_free(w);
    w = worker_of(by_child, 128 << 20);
    CHECK(ml_line_process_ask(w, &out, ml_str_of("x"), 30) == ML_LINE_PROCESS_DIED);
    CHECK_HAS(out.ptr, "--reward-memory");
    ml_line_process_free(w);
    ml_text_release(&out);
}

/* A line longer than any buffer on the way. */
static void long_lines_pass(void) {
    ml_line_process *w = worker_of("read -r l; echo ${#l}", 0);
    char line[300001];
    ml_text out = { 0 };

    memset(line, 'x', sizeof line);
    CHECK(ml_line_process_ask(w, &out, (ml_str){ line, sizeof line }, 20) ==
          ML_LINE_PROCESS_ANSWERED);
    CHECK(strcmp(out.ptr, "300001") == 0);
    ml_line_process_free(w);
    ml_text_release(&out);
}

/* What the shell started is ended too, in the worker's process group or out of it. */
static void children_are_killed(void) {
    static const char *const lines[] = { "sleep 300 & echo $!; wait",
                                         "setsid sleep 300 & echo $!; wait" };
    ml_text out = { 0 };

    for (int i = 0; i < 2; i++) {
        ml_line_process *w = worker_of(lines[i], 0);
        CHECK(ml_line_process_ask(w, &out, ml_str_of("x"), 5) == ML_LINE_PROCESS_ANSWERED);
        ml_line_process_free(w);
        CHECK(is_gone(out.ptr));
    }
    ml_text_release(&out);
}

/* The program is killed: the worker and its children do not outlive it. */
static void no_worker_outlives_the_program(void) {
    char pid[2][24] = { "", "" }, text[100] = "";
    ml_text out = { 0 };
    int end[2];
    pid_t child;

    CHECK(pipe(end) == 0);
    child = fork();
    if (child == 0) {
        ml_line_process *w = worker_of("sleep 300 & echo $$ $!; wait", 0);
        ml_line_process_ask(w, &out, ml_str_of("x"), 30);
        if (write(end[1], out.ptr, out.len) != (ssize_t)out.len)
            _exit(1);
        for (;;)
            pause();
    }
    CHECK(read(end[0], text, sizeof text - 1) > 0);
    CHECK(sscanf(text, "%20s %20s", pid[0], pid[1]) == 2);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    CHECK(is_gone(pid[0]) && is_gone(pid[1]));
}

/* A worker that hangs is killed after the deadline, also the next time. */
static void restarts_obey_the_deadline(void) {
    ml_line_process *w = worker_of("read -r l; echo 1; read -r l; sleep 300", 0);
    ml_line_process *slow;
    ml_text out = { 0 };
    double start;

    CHECK(ml_line_process_ask(w, &out, ml_str_of("x"), 10) == ML_LINE_PROCESS_ANSWERED);
    CHECK(ml_line_process_ask(w, &out, ml_str_of("x"), 0.2) == ML_LINE_PROCESS_LATE);
    CHECK(ml_line_process_ask(w, &out, ml_str_of("x"), 20) == ML_LINE_PROCESS_ANSWERED);
    ml_line_process_free(w);
    slow = worker_of("read -r l; [ \"$l\" = a ] && exit; sleep 300", 0);
    CHECK(ml_line_process_ask(slow, &out, ml_str_of("a"), 0.2) == ML_LINE_PROCESS_DIED);
    start = ml_clock_s();
    CHECK(ml_line_process_ask(slow, &out, ml_str_of("b"), 0.2) == ML_LINE_PROCESS_LATE);
    CHECK(ml_clock_s() - start < 50.0); /* a start had a minute more */
    CHECK_HAS(out.ptr, "within 0.2 s");
    ml_line_process_free(slow);
    ml_text_release(&out);
}

static const ml_test tests[] = {
    { "a worker's resident memory is limited with its children's", memory_is_limited, 0 },
    { "a worker takes and gives long lines", long_lines_pass, 0 },
    { "a worker's children are killed with it", children_are_killed, 0 },
    { "a killed program leaves no worker", no_worker_outlives_the_program, 0 },
    { "a hung worker is killed at the deadline and restarted", restarts_obey_the_deadline,
      120 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
