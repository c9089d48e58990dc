/* recording.h - the samples and numbers of a recorded case (cases.h).
 *
 * Numbers that are not finite are the strings "nan", "inf" and "-inf"; null is an absent
 * number, read as NaN. */
#ifndef ML_TESTS_SUPPORT_RECORDING_H
#define ML_TESTS_SUPPORT_RECORDING_H

#include <stdbool.h>
#include <stdint.h>

#include "miles/plugin.h"
#include "tests/support/cases.h"

double ml_record_number(const ml_json *v);
double ml_record_member(const ml_json *from, const char *key);
const char *ml_record_text(ml_case *c, const ml_json *v);

/* The index of the text in the NULL-terminated words; 0 if it is not among them. */
int32_t ml_record_word(ml_case *c, const ml_json *from, const char *key,
                       const char *const *words);
double *ml_record_row(ml_case *c, const ml_json *v); /* NULL for null */

/* Samples with masks (or, without a key, with none masked), unique rollouts and rewards. */
typedef struct ml_record_batch {
    miles_batch of;
    miles_sample *sample;
} ml_record_batch;

void ml_record_batch_init(ml_record_batch *b, ml_case *c, const ml_json *lengths_of,
                          const char *mask_key);
/* Sets the column at offset `at` of every sample from a list of lists; null: absent. */
void ml_record_column(ml_record_batch *b, ml_case *c, const char *key, size_t at);

/* |got - want| <= absolute + relative |want|; NaN equals NaN, infinities themselves. */
typedef struct ml_tolerance {
    double relative, absolute;
} ml_tolerance;

bool ml_record_near(double got, double want, ml_tolerance t);
void ml_record_expect(ml_case *c, bool ok, const char *what);
void ml_record_equal(ml_case *c, double got, const ml_json *want, ml_tolerance t,
                     const char *what);
void ml_record_equal_row(ml_case *c, const double *got, int64_t n, const ml_json *want,
                         ml_tolerance t, const char *what);

/* The defaults of Miles' parser: options that are not set are NaN. */
miles_algo ml_record_algo(void);

#endif
