/* clock.h - a monotonic clock. */
#ifndef ML_BASE_CLOCK_H
#define ML_BASE_CLOCK_H

/* Seconds since an arbitrary fixed point. */
double ml_clock_s(void);

/* Wall-clock seconds since 1970, for display; may jump. */
double ml_clock_unix_s(void);

#endif
