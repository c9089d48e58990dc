/* run_store_rows.h - rows of the store's tables as samples, for the files that read it. */
#ifndef ML_RL_RECORD_RUN_STORE_ROWS_H
#define ML_RL_RECORD_RUN_STORE_ROWS_H

#include "rl/sample.h"

struct sqlite3_stmt;

/* The columns that ml_run_store_sample reads. */
#define ML_SAMPLE_COLUMNS                                                                  \
    "SELECT rollout, place, sample, grp, prompt, response, label, reward, status,"         \
    " n_response, tokens, mask, logprobs, versions"

/* Valid until the next step. */
ml_str ml_run_store_text(struct sqlite3_stmt *row, int at);
/* A copy in the arena; NULL if the row has none, or one of another length. */
void *ml_run_store_array(struct sqlite3_stmt *row, int at, int64_t n, size_t size,
                         ml_arena *a);
ml_sample ml_run_store_sample(struct sqlite3_stmt *row, ml_arena *a);

#endif
