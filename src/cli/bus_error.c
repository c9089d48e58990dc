#include "cli/bus_error.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

/* Only what a signal handler may call is called here: no stdio, no memory. */

static void say(const char *text, size_t n) {
    if (write(STDERR_FILENO, text, n) < 0)
        _exit(ML_EXIT_FAILED);
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

static bool name_file(int fd, uintptr_t address) {
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
            say(path, strlen(path));
            return true;
        }
    }
    return false;
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    static const char before[] = "miles: ", unknown[] = "a file",
                      after[] = " was cut short while it was being read: put it back and "
                                "start again, the run goes on from its last snapshot\n";
    int fd = open("/proc/self/maps", O_RDONLY);

    (void)number;
    (void)context;
    say(before, sizeof before - 1);
    if (fd < 0 || !name_file(fd, (uintptr_t)info->si_addr))
        say(unknown, sizeof unknown - 1);
    say(after, sizeof after - 1);
    _exit(ML_EXIT_FAILED);
}

void ml_bus_error_catch(void) {
    struct sigaction action = { .sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO };

    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
