/* bug.h - our own mistakes.  A condition that only a fault in this program can
 * cause ends it at once, with the place; the world's faults are ml_err's. */
#ifndef ML_BASE_BUG_H
#define ML_BASE_BUG_H

/* Prints the place and aborts; main turns SIGABRT into exit code 70. */
_Noreturn void ml_bug(const char *file, int line, const char *what);

#define ML_BUG_IF(cond)                                                                    \
    do {                                                                                   \
        if (cond)                                                                          \
            ml_bug(__FILE__, __LINE__, #cond);                                             \
    } while (0)

#endif
