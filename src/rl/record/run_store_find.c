/* Reads the store of a run. */
#include <math.h>
#include <sqlite3.h>
#include <string.h>

#include "rl/record/run_store.h"
#include "rl/record/run_store_rows.h"

ml_str ml_run_store_text(sqlite3_stmt *row, int at) {
    const char *s = (const char *)sqlite3_column_text(row, at);
    return (ml_str){ s ? s : "", (size_t)sqlite3_column_bytes(row, at) };
}

static ml_sample_status status_of(ml_str name) {
    for (int i = ML_SAMPLE_PENDING; i <= ML_SAMPLE_FAILED; i++)
        if (ml_str_is(name, ml_sample_status_name((ml_sample_status)i)))
            return (ml_sample_status)i;
    return ML_SAMPLE_FAILED;
}

/* SQLite's blobs may be unaligned, so arrays are copied. */
void *ml_run_store_array(sqlite3_stmt *row, int at, int64_t n, size_t size, ml_arena *a) {
    void *copy;

    if (n < 0 || (size_t)sqlite3_column_bytes(row, at) != (size_t)n * size || n == 0)
        return NULL;
    copy = ml_arena_take(a, (size_t)n, size);
    memcpy(copy, sqlite3_column_blob(row, at), (size_t)n * size);
    return copy;
}

ml_sample ml_run_store_sample(sqlite3_stmt *row, ml_arena *a) {
    ml_sample s = { .row = -1 };
    int64_t n_token = sqlite3_column_bytes(row, 10) / (int64_t)sizeof *s.token;
    int64_t n = sqlite3_column_int64(row, 9);

    s.index = sqlite3_column_int64(row, 2);
    s.group = sqlite3_column_int64(row, 3);
    s.prompt = ml_run_store_text(row, 4);
    s.response = ml_run_store_text(row, 5);
    s.label = ml_run_store_text(row, 6);
    s.has_reward = sqlite3_column_type(row, 7) != SQLITE_NULL;
    s.reward = sqlite3_column_double(row, 7);
    s.status = status_of(ml_run_store_text(row, 8));
    s.token = ml_run_store_array(row, 10, n_token, sizeof *s.token, a);
    s.n_token = s.token ? (int32_t)n_token : 0;
    s.n_response = n >= 0 && n <= s.n_token ? (int32_t)n : 0;
    s.mask = ml_run_store_array(row, 11, s.n_response, sizeof *s.mask, a);
    s.logprob = ml_run_store_array(row, 12, s.n_response, sizeof *s.logprob, a);
    s.version = ml_run_store_array(row, 13, s.n_response, sizeof *s.version, a);
    return s;
}

/* Missing bounds are NULL, which the query treats as "any". */
#define BOUNDS                                                                             \
    " WHERE (?1 IS NULL OR rollout = ?1)"                                                  \
    " AND (?2 IS NULL OR reward >= ?2)"                                                    \
    " AND (?3 IS NULL OR reward <= ?3)"                                                    \
    " AND (NOT ?4 OR status = 'truncated')"
static const char search[] = ML_SAMPLE_COLUMNS
    ", NULL FROM samples" BOUNDS " ORDER BY rollout, place LIMIT ?5 OFFSET ?6";
static const char search_evals[] =
    ML_SAMPLE_COLUMNS ", name FROM answers" BOUNDS " AND (?7 IS NULL OR name = ?7)"
                      " ORDER BY rollout, rowid LIMIT ?5 OFFSET ?6";

static void bind_bound(sqlite3_stmt *row, int at, double x) {
    if (!isnan(x))
        sqlite3_bind_double(row, at, x);
}

static void bind_query(sqlite3_stmt *row, const ml_sample_query *q) {
    if (q->rollout != ML_ALL_ROLLOUTS)
        sqlite3_bind_int64(row, 1, q->rollout);
    bind_bound(row, 2, q->least);
    bind_bound(row, 3, q->most);
    sqlite3_bind_int(row, 4, q->truncated);
    sqlite3_bind_int64(row, 5, q->n_most ? q->n_most : -1);
    sqlite3_bind_int64(row, 6, q->n_skip);
    if (q->evals && q->set)
        sqlite3_bind_text(row, 7, q->set, -1, SQLITE_STATIC);
}

static int walk(sqlite3_stmt *row, ml_sample_each *each, void *ud) {
    bool on = true;
    int code = SQLITE_ROW;

    while (on && (code = sqlite3_step(row)) == SQLITE_ROW) {
        ml_sample s;
        ml_arena a;
        ml_arena_init(&a, "a sample of the store");
        s = ml_run_store_sample(row, &a);
        on = each(ud, sqlite3_column_int64(row, 0),
                  (const char *)sqlite3_column_text(row, 14), &s);
        ml_arena_release(&a);
    }
    return on ? code : SQLITE_DONE;
}

ml_status ml_run_store_find(const char *path, const ml_sample_query *q,
                            ml_sample_each *each, void *ud, ml_err *err) {
    sqlite3_stmt *row = NULL;
    sqlite3 *db = NULL;
    int code = sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL);

    if (code == SQLITE_OK)
        code = sqlite3_prepare_v2(db, q->evals ? search_evals : search, -1, &row, NULL);
    if (code == SQLITE_OK) {
        bind_query(row, q);
        code = walk(row, each, ud);
    }
    if (code != SQLITE_DONE)
        (void)ml_fail(err, ML_EIO, "%s: %s%s", path, sqlite3_errmsg(db),
                      q->evals && !row ? ": evaluation samples were not recorded" : "");
    sqlite3_finalize(row);
    sqlite3_close(db);
    return code == SQLITE_DONE ? ML_OK : ML_EIO;
}
