#include "base/clock.h"

#include <stdio.h>
#include <time.h>

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double ml_clock_s(void) {
    return seconds(CLOCK_MONOTONIC);
}

double ml_clock_unix_s(void) {
    return seconds(CLOCK_REALTIME);
}

void ml_clock_write(char out[ML_CLOCK_TEXT]) {
    double now = ml_clock_unix_s();
    time_t s = (time_t)now;
    struct tm tm;
    char date[24];

    gmtime_r(&s, &tm);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out, ML_CLOCK_TEXT, "%.19s.%03dZ", date, (int)((now - (double)s) * 1000));
}
