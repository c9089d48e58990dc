/* log_text.h - captures log lines for checks. */
#ifndef ML_TESTS_SUPPORT_LOG_TEXT_H
#define ML_TESTS_SUPPORT_LOG_TEXT_H

#include "base/str.h"

/* From now on lines are appended to t. */
void ml_log_to_text(ml_text *t);

#endif
