/* round_speeds.h - a GPU whose times can be computed by hand. */
#ifndef ML_TESTS_SUPPORT_ROUND_SPEEDS_H
#define ML_TESTS_SUPPORT_ROUND_SPEEDS_H

#include "run/speeds.h"
#include "tests/support/must.h"

/* Round numbers: 100 TFLOP/s, 1 TB/s, 10 multiprocessors with tiles of 100, launches of 1 us. */
static const char ml_round_speeds_text[] =
    "{\"kind\": \"round\", \"name\": \"Round\", \"memory_bytes\": 1e11, \"base_bytes\": "
    "1e9,"
    " \"comm_bytes\": 1e9, \"sm\": 10, \"tile\": 100, \"launch_us\": 1,"
    " \"micro_batch_us\": 1, \"step_us\": 1, \"optimizer_gb_s\": 1000,"
    " \"ops\": {\"linear\": {\"forward\": {\"tflops\": 100, \"gb_s\": 1000,"
    " \"k_overhead\": 100}}, \"other\": {\"forward\": {\"tflops\": 10, \"gb_s\": 1000},"
    " \"backward\": {\"tflops\": 10, \"gb_s\": 1000}}},"
    " \"links\": {\"overlap\": true, \"nvlink\": {\"gb_s\": 100, \"latency_us\": 10},"
    " \"network\": {\"gb_s\": 10, \"latency_us\": 20}}}";

static inline ml_speeds ml_round_speeds(void) {
    ml_speeds s;

    MUST(ml_speeds_parse(&s, ml_str_of(ml_round_speeds_text), "round", &err));
    return s;
}

#endif
