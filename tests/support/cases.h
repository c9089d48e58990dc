/* cases.h - recorded calls of Miles' functions, one JSON object per line. */
#ifndef ML_TESTS_SUPPORT_CASES_H
#define ML_TESTS_SUPPORT_CASES_H

#include <stdint.h>

#include "base/json.h"

/* A case, its file and line for messages, and an arena with its lifetime. */
typedef struct ml_case {
    const char *path;
    int64_t line;
    const ml_json *kind, *args, *out;
    ml_arena arena;
} ml_case;

/* Calls check for every case of tests/golden/rl/NAME. */
void ml_test_cases(const char *name, void (*check)(ml_case *c));

void ml_case_fail(const ml_case *c, const char *what);

/* Members of args and out; `absent` if missing or null. */
int64_t ml_case_i64(const ml_json *obj, const char *key, int64_t absent);
double ml_case_f64(const ml_json *obj, const char *key, double absent);
bool ml_case_flag(const ml_json *obj, const char *key);
/* The numbers of a list, in the case's arena; n gets their count. */
int64_t *ml_case_i64s(ml_case *c, const ml_json *list, int64_t *n);
double *ml_case_f64s(ml_case *c, const ml_json *list, int64_t *n);

#endif
