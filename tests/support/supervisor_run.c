#include "tests/support/supervisor_run.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/support/toy_run.h"

/* The parent of a process and the letter of its state; 0 when there is none. */
static pid_t parent_of(pid_t pid, char *state) {
    char path[64], text[600] = "";
    const char *at;
    int parent = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    f = fopen(path, "r");
    if (f && fgets(text, sizeof text, f) && (at = strrchr(text, ')')) != NULL)
        sscanf(at + 1, " %c %d", state, &parent);
    if (f)
        fclose(f);
    return parent;
}

bool ml_supervisor_run_alive(pid_t engine) {
    char state = 'Z';
    return parent_of(engine, &state) != 0 && state != 'Z';
}

/* Its command line begins with "miles", "serve". */
static bool is_engine(pid_t pid) {
    static const char begin[] = "miles\0serve";
    char path[64], text[sizeof begin] = "";
    bool is = false;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    f = fopen(path, "r");
    if (f) {
        is = fread(text, 1, sizeof text, f) == sizeof text &&
             memcmp(text, begin, sizeof begin) == 0;
        fclose(f);
    }
    return is;
}

static int engines_of(pid_t run, pid_t out[ML_SUPERVISOR_MOST]) {
    DIR *d = opendir("/proc");
    struct dirent *e;
    int n = 0;

    while (d && (e = readdir(d)) != NULL) {
        pid_t child = (pid_t)atoi(e->d_name);
        char state = 'Z';
        if (child > 0 && parent_of(child, &state) == run && state != 'Z' &&
            is_engine(child) && n < ML_SUPERVISOR_MOST)
            out[n++] = child;
    }
    if (d)
        closedir(d);
    return n;
}

bool ml_supervisor_run_ended(pid_t run) {
    siginfo_t info = { 0 };
    return waitid(P_PID, (id_t)run, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == run;
}

int ml_supervisor_run_engines(pid_t run, int n, pid_t out[ML_SUPERVISOR_MOST]) {
    int found = 0;

    for (int i = 0; i < 20000 && found != n && !ml_supervisor_run_ended(run); i++) {
        found = engines_of(run, out);
        usleep(5000);
    }
    return found;
}

int ml_supervisor_run_count(const char *path, const char *text) {
    ml_file f = { 0 };
    int n = 0;

    if (ml_file_map(&f, path, NULL) != ML_OK)
        return 0;
    for (const char *at = f.bytes.ptr, *end = at + f.bytes.len;
         at && (at = memmem(at, (size_t)(end - at), text, strlen(text))) != NULL; at++)
        n++;
    ml_file_unmap(&f);
    return n;
}

bool ml_supervisor_run_says(const char *path, const char *text, int n, pid_t run) {
    for (int i = 0; i < 50000 && !ml_supervisor_run_ended(run); i++) {
        if (ml_supervisor_run_count(path, text) >= n)
            return true;
        usleep(2000);
    }
    return false;
}

pid_t ml_supervisor_run_start(const char *log, const char *save, int rounds,
                              const char *more) {
    char args[3000];

    ml_toy_run_args(args, sizeof args, "train", save, rounds, more);
    return ml_toy_start_to(log, args);
}

int ml_supervisor_run_wait(pid_t run) {
    int status = 0;

    waitpid(run, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
