#include "cli/bus_error.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

/* Async-signal-safe code only: no stdio, no allocation. */

/* One write, so that lines of other threads are not interleaved. */
typedef struct sentence {
    char text[1400];
    size_t n;
} sentence;

static void add(sentence *s, const char *text) {
    size_t n = strlen(text), room = sizeof s->text - s->n;

    n = n < room ? n : room;
    memcpy(s->text + s->n, text, n);
    s->n += n;
}

static int digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static uintptr_t read_hex(const char **p) {
    uintptr_t x = 0;

    for (; digit(**p) >= 0; ++*p)
        x = x * 16 + (uintptr_t)digit(**p);
    return x;
}

/* A line of /proc/self/maps: "begin-end mode offset device inode  path". */
static const char *path_if_inside(const char *line, uintptr_t address) {
    const char *p = line;
    uintptr_t begin = read_hex(&p), end = 0;

    if (*p == '-') {
        p++;
        end = read_hex(&p);
    }
    return address >= begin && address < end ? strchr(p, '/') : NULL;
}

static bool name_file(sentence *s, int fd, uintptr_t address) {
    char line[1024], c;
    const char *path;
    size_t n = 0;

    while (read(fd, &c, 1) == 1) {
        if (c != '\n') {
            line[n] = c;
            n += n + 1 < sizeof line;
            continue;
        }
        line[n] = 0;
        n = 0;
        path = path_if_inside(line, address);
        if (path) {
            add(s, path);
            return true;
        }
    }
    return false;
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    int fd = open("/proc/self/maps", O_RDONLY);
    sentence s = { .n = 0 };

    (void)number;
    (void)context;
    while (atomic_flag_test_and_set(&said)) /* another thread faulted too */
        pause();
    add(&s, "miles: ");
    if (fd < 0 || !name_file(&s, fd, (uintptr_t)info->si_addr))
        add(&s, "a file");
    add(&s, " was truncated while it was mapped: restore it and restart the run, which "
            "resumes from its last snapshot\n");
    (void)!write(STDERR_FILENO, s.text, s.n);
    _exit(ML_EXIT_FAILED);
}

void ml_bus_error_catch(void) {
    struct sigaction action = { .sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO };

    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
