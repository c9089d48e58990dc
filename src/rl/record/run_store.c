#include "rl/record/run_store.h"

#include <math.h>
#include <sqlite3.h>
#include <stdlib.h>

#include "base/clock.h"

/* Rows must survive a crash of the process, not of the machine: a run that continues drops
 * everything newer than its checkpoint anyway. */
static const char schema[] =
    "PRAGMA journal_mode = WAL;"
    "PRAGMA synchronous = OFF;"
    "CREATE TABLE IF NOT EXISTS samples(rollout INTEGER, place INTEGER, sample INTEGER,"
    " grp INTEGER, prompt TEXT, response TEXT, label TEXT, reward REAL, status TEXT,"
    " n_response INTEGER, tokens BLOB, mask BLOB, logprobs BLOB, versions BLOB,"
    " row INTEGER, advantages BLOB, PRIMARY KEY(rollout, place)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS answers(rollout INTEGER, place INTEGER, sample INTEGER,"
    " grp INTEGER, prompt TEXT, response TEXT, label TEXT, reward REAL, status TEXT,"
    " n_response INTEGER, tokens BLOB, mask BLOB, logprobs BLOB, versions BLOB, name TEXT);"
    "CREATE TABLE IF NOT EXISTS metrics(rollout INTEGER, step INTEGER, name TEXT,"
    " value REAL);"
    "CREATE TABLE IF NOT EXISTS timings(rollout INTEGER, name TEXT, value REAL);"
    "CREATE TABLE IF NOT EXISTS events(rollout INTEGER, time REAL, what TEXT);"
    "CREATE TABLE IF NOT EXISTS spans(rollout INTEGER, lane TEXT, name TEXT, begin REAL,"
    " end REAL);";

/* They contain what lists of samples show, so that a list does not read the samples. */
static const char indexes[] =
    "CREATE INDEX IF NOT EXISTS samples_in_short ON samples(rollout, grp, place, sample, "
    "row,"
    " reward, status, n_response);"
    "CREATE INDEX IF NOT EXISTS samples_by_row ON samples(row, rollout);"
    "CREATE INDEX IF NOT EXISTS answers_in_short ON answers(rollout, name, grp, place, "
    "sample,"
    " reward, status, n_response);"
    "CREATE INDEX IF NOT EXISTS spans_by_time ON spans(end);";

enum { SAMPLE, ANSWER, METRIC, TIMING, EVENT, SPAN, N_INSERT };
static const char *const insert[N_INSERT] = {
    "INSERT INTO samples VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "INSERT INTO answers VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "INSERT INTO metrics VALUES(?, ?, ?, ?)",
    "INSERT INTO timings VALUES(?, ?, ?)",
    "INSERT INTO events VALUES(?, ?, ?)",
    "INSERT INTO spans VALUES(?, ?, ?, ?, ?)",
};

struct ml_run_store {
    sqlite3 *db;
    sqlite3_stmt *add[N_INSERT];
};

static ml_status failed(ml_run_store *s, ml_err *err) {
    const char *path = s->db ? sqlite3_db_filename(s->db, "main") : "";
    return ml_fail(err, ML_EIO, "%s: %s", path, sqlite3_errmsg(s->db));
}

static ml_status run(ml_run_store *s, const char *sql, ml_err *err) {
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? ML_OK : failed(s, err);
}

/* Adds the columns that a store of an older version lacks. */
static ml_status add_columns(ml_run_store *s, ml_err *err) {
    sqlite3_stmt *row = NULL;
    ml_status st = ML_OK;

    if (sqlite3_prepare_v2(s->db,
                           "SELECT 1 FROM pragma_table_info('samples')"
                           " WHERE name = 'advantages'",
                           -1, &row, NULL) != SQLITE_OK)
        return failed(s, err);
    if (sqlite3_step(row) == SQLITE_DONE)
        st = run(s,
                 "ALTER TABLE samples ADD COLUMN row INTEGER;"
                 "ALTER TABLE samples ADD COLUMN advantages BLOB;",
                 err);
    sqlite3_finalize(row);
    return st == ML_OK ? run(s, indexes, err) : st;
}

static ml_status drop_rows(ml_run_store *s, int64_t rollout, ml_err *err) {
    ml_text sql = { 0 };
    long long from = rollout;
    ml_status st;

    ml_text_printf(&sql,
                   "BEGIN;"
                   "DELETE FROM samples WHERE rollout >= %lld;"
                   "DELETE FROM answers WHERE rollout >= %lld;"
                   "DELETE FROM metrics WHERE rollout >= %lld"
                   " OR (rollout = %lld AND name LIKE 'eval/%%');"
                   "DELETE FROM timings WHERE rollout >= %lld;"
                   "DELETE FROM events WHERE rollout >= %lld;"
                   "DELETE FROM spans WHERE rollout >= %lld;"
                   "COMMIT;",
                   from, from - 1, from, from - 1, from, from, from);
    st = run(s, sql.ptr, err);
    ml_text_release(&sql);
    return st;
}

ml_status ml_run_store_open(ml_run_store **out, const char *path, int64_t rollout,
                            ml_err *err) {
    ml_run_store *s = calloc(1, sizeof *s);
    ml_status st = ML_OK;

    *out = s;
    if (!s)
        return ml_fail(err, ML_ENOMEM, "%s: out of memory", path);
    if (sqlite3_open(path, &s->db) != SQLITE_OK)
        st = failed(s, err);
    if (st == ML_OK)
        st = run(s, schema, err);
    if (st == ML_OK)
        st = add_columns(s, err);
    if (st == ML_OK)
        st = drop_rows(s, rollout, err);
    for (int i = 0; i < N_INSERT && st == ML_OK; i++)
        if (sqlite3_prepare_v2(s->db, insert[i], -1, &s->add[i], NULL) != SQLITE_OK)
            st = failed(s, err);
    if (st != ML_OK) {
        ml_run_store_close(s);
        *out = NULL;
    }
    return st;
}

void ml_run_store_close(ml_run_store *s) {
    if (!s)
        return;
    for (int i = 0; i < N_INSERT; i++)
        sqlite3_finalize(s->add[i]);
    sqlite3_close(s->db);
    free(s);
}

ml_status ml_run_store_begin(ml_run_store *s, ml_err *err) {
    return run(s, "BEGIN", err);
}

ml_status ml_run_store_end(ml_run_store *s, ml_err *err) {
    return run(s, "COMMIT", err);
}

/* ---- rows ---- */

static ml_status insert_row(ml_run_store *s, int which, ml_err *err) {
    int code = sqlite3_step(s->add[which]);
    ml_status st = code == SQLITE_DONE ? ML_OK : failed(s, err);

    sqlite3_reset(s->add[which]);
    return st;
}

static void bind_number(sqlite3_stmt *row, int at, double x) {
    if (isfinite(x))
        sqlite3_bind_double(row, at, x);
    else
        sqlite3_bind_null(row, at);
}

static void bind_text(sqlite3_stmt *row, int at, ml_str s) {
    sqlite3_bind_text64(row, at, s.len ? s.ptr : "", s.len, SQLITE_STATIC, SQLITE_UTF8);
}

/* NULL if there is no array. */
static void bind_array(sqlite3_stmt *row, int at, const void *x, int32_t n, size_t size) {
    sqlite3_bind_blob64(row, at, n ? x : NULL, x ? (size_t)n * size : 0, SQLITE_STATIC);
}

/* The columns that samples and answers have in common. */
static void bind_sample(sqlite3_stmt *row, int64_t rollout, int64_t place,
                        const ml_sample *x) {
    sqlite3_bind_int64(row, 1, rollout);
    sqlite3_bind_int64(row, 2, place);
    sqlite3_bind_int64(row, 3, x->index);
    sqlite3_bind_int64(row, 4, x->group);
    bind_text(row, 5, x->prompt);
    bind_text(row, 6, x->response);
    bind_text(row, 7, x->label);
    bind_number(row, 8, x->has_reward ? x->reward : (double)NAN);
    bind_text(row, 9, ml_str_of(ml_sample_status_name(x->status)));
    sqlite3_bind_int64(row, 10, x->n_response);
    bind_array(row, 11, x->token, x->n_token, sizeof *x->token);
    bind_array(row, 12, x->mask, x->n_response, sizeof *x->mask);
    bind_array(row, 13, x->logprob, x->n_response, sizeof *x->logprob);
    bind_array(row, 14, x->version, x->n_response, sizeof *x->version);
}

ml_status ml_run_store_add_samples(ml_run_store *s, int64_t rollout,
                                   const ml_sample *const *sample, int64_t n,
                                   const ml_sample_advantages *advantage, ml_err *err) {
    sqlite3_stmt *row = s->add[SAMPLE];
    ml_status st = ML_OK;

    for (int64_t i = 0; i < n && st == ML_OK; i++) {
        bind_sample(row, rollout, i, sample[i]);
        sqlite3_bind_int64(row, 15, sample[i]->row);
        bind_array(row, 16, advantage ? advantage[i].at : NULL,
                   advantage ? advantage[i].n : 0, sizeof(float));
        st = insert_row(s, SAMPLE, err);
    }
    return st;
}

ml_status ml_run_store_add_answers(ml_run_store *s, int64_t rollout,
                                   const ml_eval_answers *first, ml_err *err) {
    ml_status st = ML_OK;

    for (const ml_eval_answers *e = first; e; e = e->next)
        for (int64_t i = 0; i < e->n && st == ML_OK; i++) {
            bind_sample(s->add[ANSWER], rollout, i, e->sample[i]);
            bind_text(s->add[ANSWER], 15, ml_str_of(e->set));
            st = insert_row(s, ANSWER, err);
        }
    return st;
}

ml_status ml_run_store_add_metric(ml_run_store *s, int64_t rollout, int64_t step,
                                  const char *name, double value, ml_err *err) {
    sqlite3_stmt *row = s->add[METRIC];

    sqlite3_bind_int64(row, 1, rollout);
    if (step < 0)
        sqlite3_bind_null(row, 2);
    else
        sqlite3_bind_int64(row, 2, step);
    bind_text(row, 3, ml_str_of(name));
    bind_number(row, 4, value);
    return insert_row(s, METRIC, err);
}

ml_status ml_run_store_add_timing(ml_run_store *s, int64_t rollout, const char *name,
                                  double value, ml_err *err) {
    sqlite3_stmt *row = s->add[TIMING];

    sqlite3_bind_int64(row, 1, rollout);
    bind_text(row, 2, ml_str_of(name));
    bind_number(row, 3, value);
    return insert_row(s, TIMING, err);
}

ml_status ml_run_store_add_event(ml_run_store *s, int64_t rollout, const char *what,
                                 ml_err *err) {
    sqlite3_stmt *row = s->add[EVENT];

    sqlite3_bind_int64(row, 1, rollout);
    sqlite3_bind_double(row, 2, ml_clock_unix_s());
    bind_text(row, 3, ml_str_of(what));
    return insert_row(s, EVENT, err);
}

ml_status ml_run_store_add_span(ml_run_store *s, int64_t rollout, const char *lane,
                                const char *name, double begin, double end, ml_err *err) {
    sqlite3_stmt *row = s->add[SPAN];

    sqlite3_bind_int64(row, 1, rollout);
    bind_text(row, 2, ml_str_of(lane));
    bind_text(row, 3, ml_str_of(name));
    sqlite3_bind_double(row, 4, begin);
    sqlite3_bind_double(row, 5, end);
    return insert_row(s, SPAN, err);
}
