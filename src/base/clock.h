/* clock.h - a monotonic clock. */
#ifndef ML_BASE_CLOCK_H
#define ML_BASE_CLOCK_H

/* Seconds since an arbitrary fixed point. */
double ml_clock_s(void);

/* Wall-clock seconds since 1970, for display; may jump. */
double ml_clock_unix_s(void);

/* 2026-01-31T12:00:00.123Z */
#define ML_CLOCK_TEXT 32
void ml_clock_write(char out[ML_CLOCK_TEXT]);

#endif
