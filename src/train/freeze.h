/* freeze.h - parameters that are not trained: --freeze, a comma-separated list of shell
 * patterns of their names, and those that the spec freezes.
 *
 * thread: any; no state. */
#ifndef ML_TRAIN_FREEZE_H
#define ML_TRAIN_FREEZE_H

#include "model/spec.h"

bool ml_freeze_fits(const char *list, const ml_param *p); /* list NULL: no patterns */
/* ML_EUSAGE: a pattern that matches nothing, or patterns that match everything. */
ml_status ml_freeze_check(const char *list, const ml_spec *s, ml_err *err);

#endif
