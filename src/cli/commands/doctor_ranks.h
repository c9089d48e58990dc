/* doctor_ranks.h - what `miles doctor` finds out about the ranks of a job. */
#ifndef ML_CLI_COMMANDS_DOCTOR_RANKS_H
#define ML_CLI_COMMANDS_DOCTOR_RANKS_H

#include "comm/comm.h"
#include "model/probe.h"

typedef struct ml_rank_report {
    char host[64], backend[32]; /* "cpu avx512" */
    int32_t n_thread;
    ml_probe probe;
    double latency_s, link_bytes; /* to the next rank: of a message; bytes per second */
} ml_rank_report;

/* Measures this rank and its link; all ranks call it.  all: [size], filled on every rank. */
ml_status ml_doctor_measure(ml_rank_report *all, ml_comm *c, ml_err *err);

/* The table, and a line for each rank that differs from most others.  Returns how many ranks
 * cannot be in one job with the others: their backend or its bits differ. */
int32_t ml_doctor_table(ml_text *out, const ml_rank_report *all, int32_t n);

#endif
