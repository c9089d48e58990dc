#include "tests/support/toy_run.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/str.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"

void ml_toy_run_inputs(void) {
    ml_text t = { 0 };

    ml_toy_model(ml_toy_chatml);
    for (int i = 0; i < 12; i++)
        ml_text_printf(&t, "{\"input\": \"what is %d+%d?\", \"label\": \"%d\"}\n", i % 10,
                       i % 7, i % 10 + i % 7);
    ml_toy_file("data.jsonl", t.ptr);
    ml_text_release(&t);
}

void ml_toy_run_args(char *args, size_t cap, const char *command, const char *save,
                     int rounds, const char *more) {
    const char *data = ml_test_path("data.jsonl");
    bool graded = strstr(more, "--rm-type") || strstr(more, "--custom-rm-path");

    snprintf(
        args, cap,
        "%s --hf-checkpoint %s --prompt-data %s --label-key label "
        "--apply-chat-template --rollout-shuffle --rollout-batch-size 4 "
        "--n-samples-per-prompt 4 --num-steps-per-rollout 2 --num-rollout %d "
        "%s %s --lr 1e-3 "
        "--lr-decay-style constant --eval-prompt-data toy %s %s --save %s --load %s %s",
        command, ml_test_path("model"), data, rounds,
        strstr(more, "--rollout-max-response-len") ? "" : "--rollout-max-response-len 12",
        graded ? "" : "--rm-type deterministic_random", data,
        strstr(more, "--eval-interval") ? "" : "--eval-interval 2", save, save, more);
}

int ml_toy_run(const char *command, const char *save, int rounds, const char *more,
               char *out, size_t cap) {
    char args[3000];
    ml_toy_run_args(args, sizeof args, command, save, rounds, more);
    return ml_test_miles(out, cap, args);
}

pid_t ml_toy_start_to(const char *log, const char *line) {
    char args[4000], program[600], *argv[100], *word, *rest = args;
    int n = 0;
    pid_t pid;

    snprintf(args, sizeof args, "%s", line);
    snprintf(program, sizeof program, "%s/miles", getenv("MILES_UNDER_TEST"));
    argv[n++] = program;
    while ((word = strtok_r(rest, " ", &rest)) && n < 99)
        argv[n++] = word;
    argv[n] = NULL;
    pid = fork();
    if (pid == 0) {
        int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || fd < 0 ||
            dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
            _exit(127);
        execv(program, argv);
        _exit(127);
    }
    return pid;
}

pid_t ml_toy_start(const char *line) {
    return ml_toy_start_to("/dev/null", line);
}

pid_t ml_toy_run_start(const char *command, const char *save, int rounds,
                       const char *more) {
    char args[3000];
    ml_toy_run_args(args, sizeof args, command, save, rounds, more);
    return ml_toy_start(args);
}

int ml_toy_run_stop(pid_t pid, int sig, unsigned after_us) {
    int status = 0;

    usleep(after_us);
    kill(pid, sig);
    waitpid(pid, &status, 0);
    return status;
}

void ml_toy_run_same(const char *a, const char *b, int rounds) {
    char command[1500];

    snprintf(command, sizeof command,
             "diff -r %s/iter_%07d %s/iter_%07d >&2 && cmp %s/metrics.jsonl "
             "%s/metrics.jsonl >&2",
             a, rounds - 1, b, rounds - 1, a, b);
    if (system(command) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s and %s differ", a, b);
}
