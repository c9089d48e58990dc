/* clock.h - time that only goes forward. */
#ifndef ML_BASE_CLOCK_H
#define ML_BASE_CLOCK_H

/* Seconds since some fixed moment. */
double ml_clock_s(void);

/* Seconds since 1970, for people; may jump. */
double ml_clock_unix_s(void);

#endif
