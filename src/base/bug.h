/* bug.h - internal errors.  A condition that only a bug in this program can cause aborts
 * it and prints the location; errors with external causes are reported through ml_err. */
#ifndef ML_BASE_BUG_H
#define ML_BASE_BUG_H

/* Prints the location and aborts; main turns SIGABRT into exit code 70. */
_Noreturn void ml_bug(const char *file, int line, const char *what);

/* ML_BUG_PLACE=0 omits the location, so that builds before and after a rename can be
 * compared by their machine code. */
#ifndef ML_BUG_PLACE
#define ML_BUG_PLACE 1
#endif
#if ML_BUG_PLACE
#define ML_BUG_AT(cond) ml_bug(__FILE__, __LINE__, #cond)
#else
#define ML_BUG_AT(cond) ml_bug("", 0, "")
#endif

#define ML_BUG_IF(cond)                                                                    \
    do {                                                                                   \
        if (cond)                                                                          \
            ML_BUG_AT(cond);                                                               \
    } while (0)

#endif
