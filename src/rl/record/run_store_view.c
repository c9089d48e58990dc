#include "rl/record/run_store_view.h"

#include <math.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "rl/record/run_store_rows.h"

struct ml_run_view {
    sqlite3 *db;
    bool has_rows;   /* indexes, and columns row and advantages; older stores lack them */
    bool has_spans;  /* the table of phases, likewise */
    bool has_places; /* answers of evaluations, likewise */
};

static ml_status failed(const ml_run_view *v, ml_err *err) {
    return ml_fail(err, ML_EIO, "%s: %s", sqlite3_db_filename(v->db, "main"),
                   sqlite3_errmsg(v->db));
}

static bool finds(ml_run_view *v, const char *sql) {
    sqlite3_stmt *row = NULL;
    bool found = sqlite3_prepare_v2(v->db, sql, -1, &row, NULL) == SQLITE_OK &&
                 sqlite3_step(row) == SQLITE_ROW;

    sqlite3_finalize(row);
    return found;
}

ml_status ml_run_view_open(ml_run_view **out, const char *path, ml_err *err) {
    ml_run_view *v = calloc(1, sizeof *v);
    ml_status st = ML_OK;

    *out = NULL;
    if (!v)
        return ml_fail(err, ML_ENOMEM, "%s: out of memory", path);
    if (sqlite3_open_v2(path, &v->db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK ||
        sqlite3_exec(v->db, "SELECT 1 FROM samples LIMIT 1", NULL, NULL, NULL) != SQLITE_OK)
        st = ml_fail(err, ML_EIO, "%s: %s", path, sqlite3_errmsg(v->db));
    if (st != ML_OK) {
        ml_run_view_close(v);
        return st;
    }
    sqlite3_busy_timeout(v->db, 1000);
    v->has_rows = finds(v, "SELECT 1 FROM sqlite_schema WHERE name = 'spans_by_time'");
    v->has_spans = finds(v, "SELECT 1 FROM sqlite_schema WHERE name = 'spans'");
    v->has_places = finds(v, "SELECT 1 FROM pragma_table_info('answers')"
                             " WHERE name = 'place'");
    *out = v;
    return ML_OK;
}

void ml_run_view_close(ml_run_view *v) {
    if (!v)
        return;
    sqlite3_close(v->db);
    free(v);
}

static ml_status prepare(ml_run_view *v, sqlite3_stmt **out, const ml_text *sql,
                         ml_err *err) {
    return sqlite3_prepare_v2(v->db, sql->ptr, -1, out, NULL) == SQLITE_OK ? ML_OK
                                                                           : failed(v, err);
}

/* ---- samples in short ---- */

/* The table, and the columns that older stores lack. */
static const char *table_of(bool evals) {
    return evals ? "answers" : "samples";
}

static const char *row_of(const ml_run_view *v, bool evals) {
    return evals || !v->has_rows ? "-1" : "row";
}

/* Conditions appear in the text only where they hold, so that SQLite can use its indexes. */
static void add_conditions(ml_text *sql, const ml_run_view *v, const ml_view_query *q) {
    if (q->rollout != ML_ALL_ROLLOUTS)
        ml_text_printf(sql, " AND rollout = ?1");
    if (q->group >= 0)
        ml_text_printf(sql, " AND grp = ?2");
    if (q->row >= 0 && !q->evals && v->has_rows)
        ml_text_printf(sql, " AND row = ?3");
    if (!isnan(q->least))
        ml_text_printf(sql, " AND reward >= ?4");
    if (!isnan(q->most))
        ml_text_printf(sql, " AND reward <= ?5");
    if (q->status)
        ml_text_printf(sql, " AND status = ?6");
    if (q->evals && q->set)
        ml_text_printf(sql, " AND name = ?7");
    if (q->after)
        ml_text_printf(sql, " AND (rollout, place) > (?8, ?9)");
}

/* Reading the index instead of the samples makes lists quick; excerpts need the samples. */
static const char *index_of(const ml_run_view *v, const ml_view_query *q) {
    bool reads = q->texts || q->text || q->row >= 0 || !v->has_rows;
    return reads      ? ""
           : q->evals ? " INDEXED BY answers_in_short"
                      : " INDEXED BY samples_in_short";
}

static void write_rows_query(ml_text *sql, const ml_run_view *v, const ml_view_query *q) {
    ml_text_printf(sql,
                   "SELECT rollout, place, sample, grp, %s, reward, status, n_response, %s",
                   row_of(v, q->evals), q->evals ? "name" : "''");
    if (q->texts || q->text)
        ml_text_printf(sql, ", substr(prompt, -400), substr(response, 1, 400), %s",
                       q->text ? "instr(prompt, ?10) OR instr(response, ?10)" : "1");
    ml_text_printf(sql, " FROM %s%s WHERE 1", table_of(q->evals), index_of(v, q));
    add_conditions(sql, v, q);
    ml_text_printf(sql, " ORDER BY rollout, place");
}

static void bind_rows_query(sqlite3_stmt *row, const ml_view_query *q) {
    sqlite3_bind_int64(row, 1, q->rollout);
    sqlite3_bind_int64(row, 2, q->group);
    sqlite3_bind_int64(row, 3, q->row);
    sqlite3_bind_double(row, 4, q->least);
    sqlite3_bind_double(row, 5, q->most);
    if (q->status)
        sqlite3_bind_text(row, 6, q->status, -1, SQLITE_STATIC);
    if (q->set)
        sqlite3_bind_text(row, 7, q->set, -1, SQLITE_STATIC);
    sqlite3_bind_int64(row, 8, q->after_rollout);
    sqlite3_bind_int64(row, 9, q->after_place);
    if (q->text)
        sqlite3_bind_text(row, 10, q->text, -1, SQLITE_STATIC);
}

static ml_view_row short_of(sqlite3_stmt *row, bool texts) {
    ml_view_row r = { .rollout = sqlite3_column_int64(row, 0),
                      .place = sqlite3_column_int64(row, 1),
                      .sample = sqlite3_column_int64(row, 2),
                      .group = sqlite3_column_int64(row, 3),
                      .row = sqlite3_column_type(row, 4) == SQLITE_NULL
                                 ? -1
                                 : sqlite3_column_int64(row, 4),
                      .has_reward = sqlite3_column_type(row, 5) != SQLITE_NULL,
                      .reward = sqlite3_column_double(row, 5),
                      .status = ml_run_store_text(row, 6),
                      .n_response = sqlite3_column_int64(row, 7),
                      .set = ml_run_store_text(row, 8) };

    if (texts) {
        r.prompt = ml_run_store_text(row, 9);
        r.response = ml_run_store_text(row, 10);
    }
    return r;
}

typedef struct clock_limit {
    double end_s;
    bool reached;
} clock_limit;

/* Called by SQLite every few thousand instructions. */
static int past_limit(void *limit) {
    clock_limit *l = limit;
    l->reached = ml_clock_s() > l->end_s;
    return 0;
}

static int walk(sqlite3_stmt *row, const ml_view_query *q, const clock_limit *limit,
                ml_view_each *each, void *ud, ml_view_page *page) {
    int64_t n = 0;
    int code;

    while ((code = sqlite3_step(row)) == SQLITE_ROW) {
        ml_view_row r = short_of(row, q->texts || q->text);
        if (!q->text || sqlite3_column_int(row, 11)) {
            each(ud, &r);
            n++;
        }
        *page = (ml_view_page){ true, r.rollout, r.place };
        if ((q->n_most && n == q->n_most) || limit->reached)
            return SQLITE_DONE;
    }
    page->more = false;
    return code;
}

ml_status ml_run_view_rows(ml_run_view *v, const ml_view_query *q, ml_view_each *each,
                           void *ud, ml_view_page *page, ml_err *err) {
    clock_limit limit = { q->budget_s > 0 ? ml_clock_s() + q->budget_s : (double)INFINITY,
                          false };
    sqlite3_stmt *row = NULL;
    ml_text sql = { 0 };
    ml_status st;

    *page = (ml_view_page){ 0 };
    if (q->evals && !v->has_places)
        return ML_OK;
    write_rows_query(&sql, v, q);
    st = prepare(v, &row, &sql, err);
    ml_text_release(&sql);
    if (st == ML_OK) {
        bind_rows_query(row, q);
        sqlite3_progress_handler(v->db, 2000, past_limit, &limit);
        if (walk(row, q, &limit, each, ud, page) != SQLITE_DONE)
            st = failed(v, err);
        sqlite3_progress_handler(v->db, 0, NULL, NULL);
    }
    sqlite3_finalize(row);
    return st;
}

/* ---- groups ---- */

static ml_view_group group_of(sqlite3_stmt *row) {
    double n = (double)sqlite3_column_int64(row, 2), sum = sqlite3_column_double(row, 3),
           squares = sqlite3_column_double(row, 4), mean = n > 0 ? sum / n : 0;

    return (ml_view_group){ .group = sqlite3_column_int64(row, 0),
                            .n = sqlite3_column_int64(row, 1),
                            .mean = n > 0 ? mean : (double)NAN,
                            .spread = n > 0 ? sqrt(fmax(squares / n - mean * mean, 0))
                                            : (double)NAN,
                            .least = n > 0 ? sqlite3_column_double(row, 5) : (double)NAN,
                            .most = n > 0 ? sqlite3_column_double(row, 6) : (double)NAN,
                            .n_response = sqlite3_column_double(row, 7),
                            .n_truncated = sqlite3_column_int64(row, 8),
                            .row = sqlite3_column_type(row, 9) == SQLITE_NULL
                                       ? -1
                                       : sqlite3_column_int64(row, 9) };
}

ml_status ml_run_view_groups(ml_run_view *v, bool evals, int64_t rollout,
                             ml_view_each_group *each, void *ud, ml_err *err) {
    sqlite3_stmt *row = NULL;
    ml_text sql = { 0 };
    ml_status st;
    int code = SQLITE_DONE;

    if (evals && !v->has_places)
        return ML_OK;
    ml_text_printf(&sql,
                   "SELECT grp, count(*), count(reward), sum(reward), sum(reward * reward),"
                   " min(reward), max(reward), avg(n_response), sum(status = 'truncated'),"
                   " min(%s) FROM %s WHERE rollout = ?1 GROUP BY grp ORDER BY grp",
                   row_of(v, evals), table_of(evals));
    st = prepare(v, &row, &sql, err);
    ml_text_release(&sql);
    if (st == ML_OK)
        sqlite3_bind_int64(row, 1, rollout);
    while (st == ML_OK && (code = sqlite3_step(row)) == SQLITE_ROW) {
        ml_view_group g = group_of(row);
        each(ud, &g);
    }
    if (st == ML_OK && code != SQLITE_DONE)
        st = failed(v, err);
    sqlite3_finalize(row);
    return st;
}

/* ---- one sample ---- */

/* One number stands for every token. */
static ml_sample_advantages advantages_of(sqlite3_stmt *row, int at, int32_t n,
                                          ml_arena *a) {
    int bytes = sqlite3_column_bytes(row, at);

    if (bytes != (int)sizeof(float) && bytes != n * (int)sizeof(float))
        return (ml_sample_advantages){ 0 };
    n = bytes / (int)sizeof(float);
    return (ml_sample_advantages){ ml_run_store_array(row, at, n, sizeof(float), a), n };
}

static void give_whole(sqlite3_stmt *row, ml_view_whole *each, void *ud) {
    ml_sample_advantages advantage;
    ml_view_row in_short;
    ml_sample s;
    ml_arena a;

    ml_arena_init(&a, "a sample of the store");
    s = ml_run_store_sample(row, &a);
    advantage = advantages_of(row, 16, s.n_response, &a);
    in_short = (ml_view_row){ .rollout = sqlite3_column_int64(row, 0),
                              .place = sqlite3_column_int64(row, 1),
                              .sample = s.index,
                              .group = s.group,
                              .row = sqlite3_column_int64(row, 15),
                              .has_reward = s.has_reward,
                              .reward = s.reward,
                              .status = ml_run_store_text(row, 8),
                              .set = ml_run_store_text(row, 14),
                              .n_response = s.n_response };
    each(ud, &in_short, &s, &advantage);
    ml_arena_release(&a);
}

ml_status ml_run_view_sample(ml_run_view *v, int64_t rollout, int64_t sample,
                             const char *set, ml_view_whole *each, void *ud, bool *found,
                             ml_err *err) {
    sqlite3_stmt *row = NULL;
    ml_text sql = { 0 };
    ml_status st;
    int code = SQLITE_DONE;

    *found = false;
    if (set && !v->has_places)
        return ML_OK;
    ml_text_printf(&sql, ML_SAMPLE_COLUMNS ", %s, %s, %s FROM %s WHERE rollout = ?1",
                   set ? "name" : "''", row_of(v, set != NULL),
                   set || !v->has_rows ? "NULL" : "advantages", table_of(set != NULL));
    ml_text_printf(&sql, set ? " AND sample = ?2 AND name = ?3 LIMIT 1"
                             : " AND place = (SELECT place FROM samples WHERE rollout = ?1"
                               " AND sample = ?2 LIMIT 1)");
    st = prepare(v, &row, &sql, err);
    ml_text_release(&sql);
    if (st == ML_OK) {
        sqlite3_bind_int64(row, 1, rollout);
        sqlite3_bind_int64(row, 2, sample);
        if (set)
            sqlite3_bind_text(row, 3, set, -1, SQLITE_STATIC);
        code = sqlite3_step(row);
    }
    if (st == ML_OK && code == SQLITE_ROW) {
        *found = true;
        give_whole(row, each, ud);
    } else if (st == ML_OK && code != SQLITE_DONE) {
        st = failed(v, err);
    }
    sqlite3_finalize(row);
    return st;
}

/* ---- what there is ---- */

bool ml_run_view_rollouts(ml_run_view *v, bool evals, int64_t *first, int64_t *last) {
    const char *sql = evals ? "SELECT (SELECT min(rollout) FROM answers),"
                              " (SELECT max(rollout) FROM answers)"
                            : "SELECT (SELECT min(rollout) FROM samples),"
                              " (SELECT max(rollout) FROM samples)";
    sqlite3_stmt *row = NULL;
    bool found = sqlite3_prepare_v2(v->db, sql, -1, &row, NULL) == SQLITE_OK &&
                 sqlite3_step(row) == SQLITE_ROW &&
                 sqlite3_column_type(row, 0) != SQLITE_NULL;

    if (found) {
        *first = sqlite3_column_int64(row, 0);
        *last = sqlite3_column_int64(row, 1);
    }
    sqlite3_finalize(row);
    return found;
}

/* All evaluations have the same sets: those of the last one. */
ml_status ml_run_view_sets(ml_run_view *v, ml_view_each_name *each, void *ud, ml_err *err) {
    ml_text sql = { 0 };
    sqlite3_stmt *row = NULL;
    ml_status st;
    int code = SQLITE_DONE;

    if (!v->has_places)
        return ML_OK;
    ml_text_printf(&sql, "SELECT DISTINCT name FROM answers WHERE rollout ="
                         " (SELECT max(rollout) FROM answers) ORDER BY name");
    st = prepare(v, &row, &sql, err);
    ml_text_release(&sql);
    while (st == ML_OK && (code = sqlite3_step(row)) == SQLITE_ROW)
        each(ud, ml_run_store_text(row, 0));
    if (st == ML_OK && code != SQLITE_DONE)
        st = failed(v, err);
    sqlite3_finalize(row);
    return st;
}

/* ---- phases and events ---- */

static ml_status give_spans(ml_run_view *v, sqlite3_stmt *row, ml_view_each_span *each,
                            void *ud, ml_err *err) {
    int code;

    while ((code = sqlite3_step(row)) == SQLITE_ROW) {
        ml_view_span s = { .rollout = sqlite3_column_int64(row, 0),
                           .lane = ml_run_store_text(row, 1),
                           .name = ml_run_store_text(row, 2),
                           .begin = sqlite3_column_double(row, 3),
                           .end = sqlite3_column_double(row, 4) };
        each(ud, &s);
    }
    return code == SQLITE_DONE ? ML_OK : failed(v, err);
}

static ml_status list_spans(ml_run_view *v, const char *query, double begin, double end,
                            int64_t n_most, ml_view_each_span *each, void *ud,
                            ml_err *err) {
    sqlite3_stmt *row = NULL;
    ml_status st = sqlite3_prepare_v2(v->db, query, -1, &row, NULL) == SQLITE_OK
                       ? ML_OK
                       : failed(v, err);

    if (st == ML_OK) {
        sqlite3_bind_int64(row, 1, n_most);
        sqlite3_bind_double(row, 2, begin);
        sqlite3_bind_double(row, 3, end);
        st = give_spans(v, row, each, ud, err);
    }
    sqlite3_finalize(row);
    return st;
}

ml_status ml_run_view_spans(ml_run_view *v, double begin, double end, int64_t n_most,
                            ml_view_each_span *each, void *ud, ml_err *err) {
    return !v->has_spans
               ? ML_OK
               : list_spans(
                     v,
                     "SELECT * FROM (SELECT rollout, lane, name, begin, end FROM spans"
                     " WHERE end >= ?2 AND begin <= ?3 ORDER BY end DESC LIMIT ?1)"
                     " ORDER BY begin, end DESC",
                     begin, end, n_most, each, ud, err);
}

ml_status ml_run_view_events(ml_run_view *v, int64_t n_most, ml_view_each_span *each,
                             void *ud, ml_err *err) {
    return list_spans(
        v,
        "SELECT * FROM (SELECT rollout, '', what, time, time AS end FROM events"
        " ORDER BY rowid DESC LIMIT ?1) ORDER BY end",
        0, 0, n_most, each, ud, err);
}
