/* terminal.h - a pseudo-terminal with a process on it.
 *
 * thread: one. */
#ifndef ML_TESTS_SUPPORT_TERMINAL_H
#define ML_TESTS_SUPPORT_TERMINAL_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/str.h"

typedef struct ml_terminal {
    pid_t pid;
    int fd;
    ml_text out; /* all that was written */
} ml_terminal;

/* Forks with a terminal of 24 rows and so many columns; true in the child. */
bool ml_terminal_open(ml_terminal *t, unsigned short columns);
/* Reads until the text is there (true), or the process has ended. */
bool ml_terminal_until(ml_terminal *t, const char *text);
/* Presses keys, after what was written before is forgotten. */
void ml_terminal_type(ml_terminal *t, const char *keys);
/* Waits for the end of the process; its exit status, or -1. */
int ml_terminal_close(ml_terminal *t);

/* The lines of the screen after all that was written. */
typedef char ml_screen[25][200];
void ml_terminal_screen(const ml_terminal *t, ml_screen screen);

#endif
