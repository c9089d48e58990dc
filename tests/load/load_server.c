#include <fcntl.h>
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

/* build/<config>/tests/load/<program> stands three steps below build/<config>/miles. */
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

/* The tiny model with a tokenizer: a printable character for each id. */
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

static void run_server(const load *l, int to) {
    char miles[4096], body[32], connections[32];

    name_miles(miles, sizeof miles);
    snprintf(body, sizeof body, "%zu", l->max_body);
    snprintf(connections, sizeof connections, "%d", l->n_connection + 200);
    dup2(to, STDOUT_FILENO);
    execl(miles, miles, "serve", "--model-path", ml_test_dir(), "--port", "0", "--threads",
          "1", "--served-model-name", "m", "--max-body-bytes", body, "--max-connections",
          connections, "--max-queued-requests", "100000", (char *)NULL);
    _exit(127);
}

/* "serving m at http://127.0.0.1:12345" */
static int read_port(int from) {
    char line[4096], *colon;
    FILE *f = fdopen(from, "r");

    colon = f && fgets(line, sizeof line, f) ? strrchr(line, ':') : NULL;
    if (f)
        fclose(f);
    return colon ? atoi(colon + 1) : 0;
}

bool load_server_start(load *l) {
    int ends[2];

    if (!make_model() || pipe(ends) != 0)
        return false;
    l->pid = fork();
    if (l->pid == 0) {
        close(ends[0]);
        run_server(l, ends[1]);
    }
    close(ends[1]);
    l->port = l->pid > 0 ? read_port(ends[0]) : 0;
    return l->port > 0;
}

double load_server_rss(const load *l) {
    char path[64];
    long all, resident = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/statm", (int)l->pid);
    f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%ld %ld", &all, &resident) != 2)
            resident = 0;
        fclose(f);
    }
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / 0x1p20;
}

bool load_server_lives(const load *l) {
    siginfo_t info = { 0 };

    return waitid(P_PID, (id_t)l->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
}

int load_server_stop(load *l) {
    int status = 0;

    kill(l->pid, SIGTERM);
    for (int i = 0; i < 600 && load_server_lives(l); i++)
        usleep(100000);
    if (load_server_lives(l)) {
        kill(l->pid, SIGKILL);
        waitpid(l->pid, &status, 0);
        return -1;
    }
    waitpid(l->pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
