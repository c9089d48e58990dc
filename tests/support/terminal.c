#include "tests/support/terminal.h"

#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"

bool ml_terminal_open(ml_terminal *t, unsigned short columns) {
    struct winsize size = { .ws_row = 24, .ws_col = columns };

    *t = (ml_terminal){ 0 };
    t->pid = forkpty(&t->fd, NULL, NULL, &size);
    CHECK(t->pid >= 0);
    return t->pid == 0;
}

bool ml_terminal_until(ml_terminal *t, const char *text) {
    for (;;) {
        struct pollfd p = { .fd = t->fd, .events = POLLIN };
        char piece[4096];
        ssize_t n;
        if (text && t->out.ptr && strstr(t->out.ptr, text))
            return true;
        if (poll(&p, 1, 60000) <= 0)
            return false;
        n = read(t->fd, piece, sizeof piece);
        if (n <= 0)
            return text == NULL;
        ml_text_add(&t->out, piece, (size_t)n);
        ml_text_add(&t->out, "", 0);
    }
}

void ml_terminal_type(ml_terminal *t, const char *keys) {
    t->out.len = 0;
    ml_text_add(&t->out, "", 0);
    CHECK(write(t->fd, keys, strlen(keys)) == (ssize_t)strlen(keys));
}

int ml_terminal_close(ml_terminal *t) {
    int status = 0;

    ml_terminal_until(t, NULL);
    while (waitpid(t->pid, &status, 0) < 0 && errno == EINTR)
        ;
    close(t->fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void ml_terminal_screen(const ml_terminal *t, ml_screen screen) {
    int row = 0, column = 0;

    for (const char *s = t->out.ptr; *s; s++) {
        if (*s == '\r') {
            column = 0;
        } else if (*s == '\n') {
            row += row < 23;
        } else if (s[0] == '\033' && s[2] == 'K') {
            memset(screen[row] + column, 0, (size_t)(200 - column));
            s += 2;
        } else if (s[0] == '\033' && s[2] == 'J') {
            memset(screen[row] + column, 0, (size_t)(200 - column));
            memset(screen[row + 1], 0, (size_t)(23 - row) * 200);
            s += 2;
        } else if (s[0] == '\033') {
            row -= s[2] - '0';
            CHECK(s[3] == 'A' && row >= 0);
            s += 3;
        } else if (column < 199) {
            screen[row][column++] = *s;
        }
    }
}
