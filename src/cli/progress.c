#include "cli/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/shown.h"

enum { BAR = 30 }; /* characters */

static struct {
    bool bar, drawn; /* there is a terminal; the bar is on it */
    double began_s;
    int64_t first, done, total; /* rounds: when we began, now, all; total 0: not known */
} the;

static void erase(void) {
    if (the.drawn)
        fputs("\r\033[K", stdout);
    the.drawn = false;
}

static void print_time(double s) {
    long n = (long)(s + 0.5);
    if (n >= 3600)
        printf("%ld:%02ld:%02ld", n / 3600, n / 60 % 60, n % 60);
    else
        printf("%ld:%02ld", n / 60, n % 60);
}

static void draw(void) {
    double passed = ml_clock_s() - the.began_s;
    int64_t here = the.done - the.first;
    int full = the.total ? (int)(BAR * the.done / the.total) : 0;

    if (!the.bar || !the.total)
        return;
    fputs("\r[", stdout);
    for (int i = 0; i < BAR; i++)
        putchar(i < full ? '#' : '-');
    printf("] %lld/%lld  ", (long long)the.done, (long long)the.total);
    print_time(passed);
    if (here > 0) {
        printf(" gone, ");
        print_time(passed / (double)here * (double)(the.total - the.done));
        printf(" left");
    }
    fputs("\033[K", stdout);
    the.drawn = true;
}

static void say(const char *line) {
    ml_text shown = { 0 };

    ml_text_show(&shown, ml_str_of(line), ML_SHOWN_LINES);
    erase();
    puts(shown.ptr ? shown.ptr : "");
    draw();
    fflush(stdout);
    ml_text_release(&shown);
}

static void progress(int64_t done, int64_t total) {
    if (!the.total)
        the.first = done;
    the.done = done;
    the.total = total;
    draw();
    fflush(stdout);
}

ml_watcher ml_progress_watch(void) {
    the.bar = isatty(STDOUT_FILENO) == 1;
    the.began_s = ml_clock_s();
    return (ml_watcher){ .say = say, .progress = progress, .compact = the.bar };
}

void ml_progress_end(void) {
    erase();
    the.total = 0;
    fflush(stdout);
}
