#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/load/load.h"
#include "tests/support/scratch.h"

#define MODEL "tests/golden/data/qwen3"
#define VOCAB 83

/* This program is build/<config>/tests/load/<program>; the server is
 * build/<config>/miles. */
static void name_miles(char *path, size_t cap) {
    ssize_t n = readlink("/proc/self/exe", path, cap - 1);

    path[n > 0 ? n : 0] = 0;
    for (int up = 0; up < 3; up++) {
        char *slash = strrchr(path, '/');
        if (slash)
            *slash = 0;
    }
    snprintf(path + strlen(path), cap - strlen(path), "/miles");
}

/* Makes the tiny model with a tokenizer that has a printable character for each id. */
static bool make_model(void) {
    char config[4096], weights[4096];
    FILE *f = fopen(ml_test_path("tokenizer.json"), "w");

    if (!f || !realpath(MODEL "/config.json", config) ||
        !realpath(MODEL "/model.safetensors", weights))
        return false;
    fprintf(f, "{\"added_tokens\": [], \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
               "\"add_prefix_space\": false}, \"decoder\": {\"type\": \"ByteLevel\"}, "
               "\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {");
    for (int i = 0; i < VOCAB; i++)
        fprintf(f, "%s\"%s%c\": %d", i ? ", " : "", strchr("\"\\", '!' + i) ? "\\" : "",
                '!' + i, i);
    fprintf(f, "}}}");
    return fclose(f) == 0 && symlink(config, ml_test_path("config.json")) == 0 &&
           symlink(weights, ml_test_path("model.safetensors")) == 0;
}

/* Starts miles with these arguments and adds it to the processes.  Returns the port at the
 * end of its first line of output, or 0. */
static int start(load *l, const char *arguments) {
    char line[4096] = "", miles[4096], command[16384], *colon;
    int ends[2];
    FILE *f;

    name_miles(miles, sizeof miles);
    snprintf(command, sizeof command, "exec '%s' %s", miles, arguments);
    if (pipe(ends) != 0)
        return 0;
    l->pid[l->n_process] = fork();
    if (l->pid[l->n_process] == 0) {
        close(ends[0]);
        dup2(ends[1], STDOUT_FILENO);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    l->n_process++;
    close(ends[1]);
    f = fdopen(ends[0], "r"); /* "serving m at http://127.0.0.1:12345" */
    colon = f && fgets(line, sizeof line, f) ? strrchr(line, ':') : NULL;
    if (f)
        fclose(f);
    return colon ? atoi(colon + 1) : 0;
}

static int start_server(load *l) {
    char arguments[8192];

    snprintf(arguments, sizeof arguments,
             "serve --model-path %s --port 0 --threads 1 --served-model-name m "
             "--max-body-bytes %zu --max-connections %d --max-queued-requests 100000",
             ml_test_dir(), l->max_body, 2 * l->n_connection + 1000);
    return start(l, arguments);
}

static int start_router(load *l, const int *port) {
    char arguments[400];

    snprintf(arguments, sizeof arguments,
             "router --port 0 --max-payload-size %zu --worker-urls http://127.0.0.1:%d "
             "http://127.0.0.1:%d",
             l->max_body, port[0], port[1]);
    return start(l, arguments);
}

bool load_server_start(load *l) {
    int port[2] = { 0 };

    if (!make_model())
        return false;
    for (int i = 0; i < (l->router ? 2 : 1); i++) {
        port[i] = start_server(l);
        if (!port[i])
            return false;
    }
    l->port = l->router ? start_router(l, port) : port[0];
    return l->port > 0;
}

static double rss_of(pid_t pid) {
    char path[64];
    long all, resident = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%ld %ld", &all, &resident) != 2)
            resident = 0;
        fclose(f);
    }
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / 0x1p20;
}

double load_server_rss(const load *l) {
    double sum = 0;

    for (int i = 0; i < l->n_process; i++)
        sum += rss_of(l->pid[i]);
    return sum;
}

static bool lives(pid_t pid) {
    siginfo_t info = { 0 };

    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
}

bool load_server_lives(const load *l) {
    bool all = true;

    for (int i = 0; i < l->n_process; i++)
        all = all && lives(l->pid[i]);
    return all;
}

static bool stop(pid_t pid) {
    int status = 0;

    kill(pid, SIGTERM);
    for (int i = 0; i < 600 && lives(pid); i++)
        usleep(100000);
    if (lives(pid)) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        return false;
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Stops processes in reverse order of starting: the router before its servers. */
bool load_server_stop(load *l) {
    bool all = true;

    while (l->n_process > 0)
        all = stop(l->pid[--l->n_process]) && all;
    return all;
}
