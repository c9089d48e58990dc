/* log.h - log lines for the user.  Libraries may warn (once, with the object in the
 * sentence) but never both log an error and return it.
 *
 * main sets the sink before it starts threads; without one, lines are dropped. */
#ifndef ML_BASE_LOG_H
#define ML_BASE_LOG_H

typedef enum ml_log_level {
    ML_LOG_WARN,
    ML_LOG_INFO,
    ML_LOG_DEBUG,
    ML_LOG_OUTPUT /* of a user's program: shown at every level */
} ml_log_level;

typedef void ml_log_sink(void *ud, ml_log_level level, const char *line);

void ml_log_to(ml_log_sink *sink, void *ud);
__attribute__((format(printf, 2, 3))) void ml_log(ml_log_level level, const char *fmt, ...);

#endif
