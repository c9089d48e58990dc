#include "rl/data/curriculum.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/exp.h"
#include "base/log.h"
#include "base/philox.h"

#define DRAWS UINT64_MAX /* the philox position of draws; samples have smaller ones */
#define TIES (UINT64_MAX - 1)

typedef struct row {
    double pass_rate, difficulty; /* difficulty NaN: 1 - pass_rate */
    int64_t visits;               /* times it was drawn */
    int32_t replayed;             /* replays since it was passed, or failed too often */
    bool seen, recent, queued;    /* has a result; drawn lately; waits to be replayed */
} row;

/* Weights of a file's rows, with the sums of all subtrees: sum[k] = sum[2k] + sum[2k + 1], the
 * rows from sum[size] on.  So a sum is a function of the weights, not of their history. */
typedef struct tree {
    int64_t begin, n, size;
    double *sum;
} tree;

struct ml_curriculum {
    const ml_dataset *ds;
    ml_curriculum_opts opts;
    uint64_t seed;
    int64_t n_row;
    row *row;
    tree *tree; /* [n_tree], one of each file or one of all rows */
    int32_t n_tree;
    double least, most, target; /* difficulties */
    double passed;              /* sum of the pass rates of n_passed groups ... */
    int64_t n_passed;           /* ... since the target moved */
    int64_t n_replays, n_recent, window;
    int64_t *recent; /* [window] a queue of n_recent rows, oldest first */
    ml_text failed;  /* array of rows (int64_t) that wait to be replayed, oldest first */
};

bool ml_curriculum_wanted(const ml_curriculum_opts *o) {
    return o->order != ML_PROMPTS_IN_SEQUENCE || o->replay_share > 0;
}

bool ml_curriculum_draws(const ml_curriculum *c) {
    return c && c->opts.order != ML_PROMPTS_IN_SEQUENCE;
}

/* --- weights ------------------------------------------------------------------- */

static double weight_of(const ml_curriculum *c, const row *r) {
    double w = c->opts.order == ML_PROMPTS_HARD ? 1 - r->pass_rate
                                                : r->pass_rate * (1 - r->pass_rate);

    return r->recent ? 0 : w > c->opts.floor ? w : c->opts.floor;
}

static tree *tree_of(ml_curriculum *c, int64_t at) {
    tree *t = c->tree;

    while (at >= t->begin + t->n)
        t++;
    return t;
}

static void weigh(ml_curriculum *c, int64_t at) {
    tree *t = tree_of(c, at);
    int64_t k = t->size + at - t->begin;

    if (!t->sum)
        return;
    t->sum[k] = weight_of(c, &c->row[at]);
    for (k /= 2; k; k /= 2)
        t->sum[k] = t->sum[2 * k] + t->sum[2 * k + 1];
}

static void weigh_all(ml_curriculum *c) {
    for (tree *t = c->tree; t < c->tree + c->n_tree; t++) {
        for (int64_t i = 0; t->sum && i < t->n; i++)
            t->sum[t->size + i] = weight_of(c, &c->row[t->begin + i]);
        for (int64_t k = t->size - 1; t->sum && k; k--)
            t->sum[k] = t->sum[2 * k] + t->sum[2 * k + 1];
    }
}

/* --- the rows' fields ------------------------------------------------------------ */

/* Reads a number of the row, or of its metadata. */
static ml_status read_number(double *out, const ml_dataset *ds, const ml_json *v,
                             const char *key, ml_err *err) {
    const ml_json *x = ml_json_get(ml_json_get(v, ds->opts.metadata_key), key);

    x = x ? x : ml_json_get(v, key);
    if (!ml_json_f64(x, out))
        return ml_fail(err, ML_EFORMAT, "\"%s\" is %s; expected a number", key,
                       x ? ml_json_what(x) : "neither in the row nor in its metadata");
    return ML_OK;
}

static ml_status read_row(ml_curriculum *c, int64_t at, ml_arena *a, ml_err *err) {
    const ml_json *v;
    ml_str text;
    row *r = &c->row[at];
    ml_status st = ml_table_parse(&v, &text, &c->ds->rows, at, a, err);

    if (st != ML_OK)
        return st;
    if (c->opts.pass_rate_key)
        st = read_number(&r->pass_rate, c->ds, v, c->opts.pass_rate_key, err);
    if (st == ML_OK && !(r->pass_rate >= 0 && r->pass_rate <= 1))
        st = ml_fail(err, ML_EFORMAT, "\"%s\" is %g; expected a pass rate from 0 to 1",
                     c->opts.pass_rate_key, r->pass_rate);
    if (st == ML_OK && c->opts.difficulty_key)
        st = read_number(&r->difficulty, c->ds, v, c->opts.difficulty_key, err);
    if (st != ML_OK)
        ml_dataset_blame(c->ds, at, err);
    return st;
}

static ml_status read_rows(ml_curriculum *c, ml_err *err) {
    bool keys = c->opts.pass_rate_key || c->opts.difficulty_key;
    ml_status st = ML_OK;
    ml_arena a;

    c->most = 1;
    for (int64_t i = 0; i < c->n_row; i++)
        c->row[i] = (row){ .pass_rate = 0.5, .difficulty = (double)NAN };
    for (int64_t i = 0; keys && i < c->n_row && st == ML_OK; i++) {
        ml_arena_init(&a, "a row");
        st = read_row(c, i, &a, err);
        ml_arena_release(&a);
    }
    for (int64_t i = 0; c->opts.difficulty_key && i < c->n_row; i++) {
        double d = c->row[i].difficulty;
        c->least = i && c->least < d ? c->least : d;
        c->most = i && c->most > d ? c->most : d;
    }
    c->target = c->least;
    return st;
}

/* --- opening --------------------------------------------------------------------- */

static bool new_tree(ml_curriculum *c, int64_t begin, int64_t n) {
    tree *t = &c->tree[c->n_tree++];

    *t = (tree){ .begin = begin, .n = n, .size = 1 };
    if (!ml_curriculum_draws(c) || c->opts.order == ML_PROMPTS_DIFFICULTY)
        return true;
    while (t->size < n)
        t->size *= 2;
    t->sum = calloc((size_t)(2 * t->size), sizeof *t->sum);
    return t->sum != NULL;
}

static bool allocate(ml_curriculum *c, bool by_file) {
    const ml_table *rows = &c->ds->rows;
    int32_t n = by_file ? rows->n_file : 1;
    bool ok = true;

    c->window = c->opts.batch < c->n_row ? c->opts.batch - 1 : c->n_row - 1;
    c->row = calloc((size_t)c->n_row, sizeof *c->row);
    c->tree = calloc((size_t)n, sizeof *c->tree);
    c->recent = calloc((size_t)c->window + 1, sizeof *c->recent);
    if (!c->row || !c->tree || !c->recent)
        return false;
    for (int32_t i = 0; i < n && ok; i++)
        ok = by_file ? new_tree(c, rows->file[i].begin, rows->file[i].n)
                     : new_tree(c, 0, c->n_row);
    return ok;
}

ml_status ml_curriculum_new(ml_curriculum **out, const ml_dataset *ds, bool by_file,
                            const ml_curriculum_opts *o, int64_t seed, ml_err *err) {
    ml_curriculum *c = calloc(1, sizeof *c);
    ml_status st;

    if (!c)
        return ml_fail(err, ML_ENOMEM, "out of memory for the curriculum");
    c->ds = ds;
    c->opts = *o;
    c->seed = (uint64_t)seed;
    c->n_row = ds->rows.n;
    ML_BUG_IF(c->n_row < 1 || o->batch < 1);
    st = allocate(c, by_file)
             ? read_rows(c, err)
             : ml_fail(err, ML_ENOMEM, "out of memory for the pass rates of %lld prompts",
                       (long long)c->n_row);
    if (st != ML_OK) {
        ml_curriculum_free(c);
        return st;
    }
    weigh_all(c);
    *out = c;
    return ML_OK;
}

void ml_curriculum_free(ml_curriculum *c) {
    if (!c)
        return;
    for (int32_t i = 0; i < c->n_tree; i++)
        free(c->tree[i].sum);
    ml_text_release(&c->failed);
    free(c->recent);
    free(c->tree);
    free(c->row);
    free(c);
}

/* --- drawing --------------------------------------------------------------------- */

/* A row with probability proportional to its weight; any row if all were drawn lately. */
static int64_t draw_weighted(const ml_curriculum *c, const tree *t, int64_t group) {
    double u = ml_philox_uniform(c->seed, (uint64_t)group, DRAWS), x = u * t->sum[1];
    int64_t k = 1;

    if (!(t->sum[1] > 0))
        return t->begin + (int64_t)(u * (double)t->n);
    while (k < t->size) {
        bool right = t->sum[2 * k + 1] > 0 && x >= t->sum[2 * k];
        x -= right ? t->sum[2 * k] : 0;
        k = 2 * k + right;
    }
    return t->begin + k - t->size;
}

typedef struct distance {
    bool recent;
    double of_target;
    int64_t visits;
    double tie;
} distance;

static distance distance_of(const ml_curriculum *c, int64_t at) {
    const row *r = &c->row[at];
    double d = c->opts.difficulty_key ? r->difficulty : 1 - r->pass_rate;

    return (distance){ r->recent, fabs(d - c->target), r->visits,
                       ml_philox_uniform(c->seed, (uint64_t)at, TIES) };
}

static bool closer(distance a, distance b) {
    return a.recent != b.recent         ? b.recent
           : a.of_target != b.of_target ? a.of_target < b.of_target
           : a.visits != b.visits       ? a.visits < b.visits
                                        : a.tie < b.tie;
}

/* The row closest to the target; of equally close ones that drawn least often, then by
 * chance. */
static int64_t draw_closest(const ml_curriculum *c, const tree *t) {
    distance best = distance_of(c, t->begin);
    int64_t at = t->begin;

    for (int64_t i = t->begin + 1; i < t->begin + t->n; i++) {
        distance d = distance_of(c, i);
        if (closer(d, best)) {
            best = d;
            at = i;
        }
    }
    return at;
}

/* The row is not drawn again before `window` others. */
static void rest(ml_curriculum *c, int64_t at) {
    if (c->row[at].recent || !c->window)
        return;
    if (c->n_recent == c->window) {
        c->row[c->recent[0]].recent = false;
        weigh(c, c->recent[0]);
        memmove(c->recent, c->recent + 1, (size_t)--c->n_recent * sizeof *c->recent);
    }
    c->recent[c->n_recent++] = at;
    c->row[at].recent = true;
    weigh(c, at);
}

int64_t ml_curriculum_draw(ml_curriculum *c, int32_t file, int64_t group) {
    const tree *t = &c->tree[file];
    int64_t at;

    ML_BUG_IF(!ml_curriculum_draws(c) || file >= c->n_tree || t->n < 1);
    at = c->opts.order == ML_PROMPTS_DIFFICULTY ? draw_closest(c, t)
                                                : draw_weighted(c, t, group);
    c->row[at].visits++;
    rest(c, at);
    return at;
}

/* --- failed prompts ---------------------------------------------------------------- */

static int64_t n_failed(const ml_curriculum *c) {
    return (int64_t)(c->failed.len / sizeof(int64_t));
}

static int64_t *failed_at(const ml_curriculum *c, int64_t i) {
    int64_t *first = (void *)c->failed.ptr;
    return i ? first + i : first;
}

static void take_failed(ml_curriculum *c, int64_t i) {
    c->row[*failed_at(c, i)].queued = false;
    c->failed.len -= sizeof(int64_t);
    memmove(failed_at(c, i), failed_at(c, i) + 1,
            (size_t)(n_failed(c) - i) * sizeof(int64_t));
}

static void put_failed(ml_curriculum *c, int64_t at) {
    c->row[at].queued = true;
    ml_text_add(&c->failed, (const char *)&at, sizeof at);
}

int64_t ml_curriculum_replays(const ml_curriculum *c, int64_t group, int64_t n) {
    double share = c->opts.replay_share;
    int64_t k = (int64_t)((double)(group + n) * share) - (int64_t)((double)group * share);

    return k < n_failed(c) ? k : n_failed(c);
}

int64_t ml_curriculum_replay(ml_curriculum *c) {
    int64_t at;

    ML_BUG_IF(!n_failed(c));
    at = *failed_at(c, 0);
    take_failed(c, 0);
    c->row[at].replayed++;
    c->n_replays++;
    return at;
}

static void note_failure(ml_curriculum *c, int64_t at, bool failed) {
    row *r = &c->row[at];

    if (!failed && r->queued)
        for (int64_t i = 0; i < n_failed(c); i++)
            if (*failed_at(c, i) == at)
                take_failed(c, i--);
    if (failed && !r->queued && r->replayed < c->opts.replay_times)
        put_failed(c, at);
    else if (!r->queued)
        r->replayed = 0;
}

/* --- results ----------------------------------------------------------------------- */

/* AdaRFT's update; our exp, so that all machines give the same bits. */
static void move_target(ml_curriculum *c) {
    double mean = c->passed / (double)c->n_passed,
           x = c->opts.difficulty_sensitivity * (mean - c->opts.difficulty_goal),
           step = c->opts.difficulty_step * (c->most - c->least);

    c->target += step * (1 - 2 / (ml_exp(2 * x) + 1));
    c->target = c->target < c->least ? c->least : c->target > c->most ? c->most : c->target;
    c->passed = 0;
    c->n_passed = 0;
}

bool ml_curriculum_passes(const ml_curriculum *c, double reward) {
    return reward > c->opts.pass_reward;
}

void ml_curriculum_record(ml_curriculum *c, int64_t at, int32_t passed, int32_t n) {
    double rate = (double)passed / n;
    row *r;

    if (at < 0 || at >= c->n_row)
        return;
    r = &c->row[at];
    r->pass_rate += c->opts.newest * (rate - r->pass_rate);
    r->seen = true;
    weigh(c, at);
    if (c->opts.replay_share > 0)
        note_failure(c, at, rate <= c->opts.replay_pass_rate);
    c->passed += rate;
    if (++c->n_passed >= c->opts.batch)
        move_target(c);
}

ml_curriculum_stats ml_curriculum_stats_of(const ml_curriculum *c) {
    ml_curriculum_stats s = { .n_failed = n_failed(c),
                              .n_replays = c->n_replays,
                              .target = c->opts.order == ML_PROMPTS_DIFFICULTY
                                            ? c->target
                                            : (double)NAN };

    for (int64_t i = 0; i < c->n_row; i++) {
        s.n_seen += c->row[i].seen;
        s.pass_rate += c->row[i].seen ? c->row[i].pass_rate : 0;
    }
    s.pass_rate /= s.n_seen ? (double)s.n_seen : 1;
    return s;
}

/* --- the saved state --------------------------------------------------------------- */

static void save_list(ml_text *out, const char *key, const int64_t *at, int64_t n) {
    ml_text_printf(out, ", \"%s\": [", key);
    for (int64_t i = 0; i < n; i++)
        ml_text_printf(out, "%s%lld", i ? ", " : "", (long long)at[i]);
    ml_text_printf(out, "]");
}

void ml_curriculum_save(const ml_curriculum *c, ml_text *out) {
    const char *comma = "";

    ml_text_printf(out, "{\"target\": ");
    ml_json_number(out, c->target);
    ml_text_printf(out, ", \"passed\": ");
    ml_json_number(out, c->passed);
    ml_text_printf(out, ", \"groups\": %lld, \"replays\": %lld", (long long)c->n_passed,
                   (long long)c->n_replays);
    save_list(out, "recent", c->recent, c->n_recent);
    save_list(out, "failed", failed_at(c, 0), n_failed(c));
    ml_text_printf(out, ", \"rows\": [");
    for (int64_t i = 0; i < c->n_row; i++) {
        const row *r = &c->row[i];
        if (!r->seen && !r->visits)
            continue;
        ml_text_printf(out, "%s[%lld, %lld, %d", comma, (long long)i, (long long)r->visits,
                       r->replayed);
        if (r->seen) {
            ml_text_printf(out, ", ");
            ml_json_number(out, r->pass_rate);
        }
        ml_text_printf(out, "]");
        comma = ", ";
    }
    ml_text_printf(out, "]}");
}

static ml_status wrong(const char *name, const char *key, ml_err *err) {
    return ml_fail(err, ML_EFORMAT,
                   "%s: \"%s\" of the curriculum's state is missing or not valid: remove "
                   "\"curriculum\" there to begin without results",
                   name, key);
}

/* One row of "rows". */
static bool read_saved(ml_curriculum *c, const ml_json *v) {
    const ml_json *e = v->type == ML_JSON_ARRAY ? v->child : NULL;
    int64_t at, visits, replayed;
    double rate = 0;

    if (!e || v->n < 3 || v->n > 4 || !ml_json_i64(e, &at) || at < 0 ||
        !ml_json_i64(e->next, &visits) || visits < 0 ||
        !ml_json_i64(e->next->next, &replayed) || replayed < 0 || replayed > INT32_MAX ||
        (v->n == 4 && (!ml_json_f64(e->next->next->next, &rate) || rate < 0 || rate > 1)))
        return false;
    if (at >= c->n_row)
        return true;
    c->row[at].visits = visits;
    c->row[at].replayed = (int32_t)replayed;
    c->row[at].seen = v->n == 4;
    c->row[at].pass_rate = v->n == 4 ? rate : c->row[at].pass_rate;
    return true;
}

/* The rows of a list, each once; those that the data does not have are left out. */
static bool read_list(ml_curriculum *c, const ml_json *v, bool failed) {
    int64_t at;

    if (!v || v->type != ML_JSON_ARRAY)
        return false;
    for (const ml_json *e = v->child; e; e = e->next) {
        if (!ml_json_i64(e, &at) || at < 0)
            return false;
        if (at >= c->n_row)
            continue;
        if (failed && !c->row[at].queued)
            put_failed(c, at);
        else if (!failed)
            rest(c, at);
    }
    return true;
}

/* Reads the state into a curriculum without results. */
static ml_status read_state(ml_curriculum *c, const ml_json *v, const char *name,
                            ml_err *err) {
    const ml_json *rows = ml_json_get(v, "rows");

    if (!ml_json_f64(ml_json_get(v, "target"), &c->target))
        return wrong(name, "target", err);
    c->target = c->target < c->least ? c->least : c->target > c->most ? c->most : c->target;
    if (!ml_json_f64(ml_json_get(v, "passed"), &c->passed) || c->passed < 0)
        return wrong(name, "passed", err);
    if (!ml_json_i64(ml_json_get(v, "groups"), &c->n_passed) || c->n_passed < 0)
        return wrong(name, "groups", err);
    if (!ml_json_i64(ml_json_get(v, "replays"), &c->n_replays) || c->n_replays < 0)
        return wrong(name, "replays", err);
    if (!rows || rows->type != ML_JSON_ARRAY)
        return wrong(name, "rows", err);
    for (const ml_json *e = rows->child; e; e = e->next)
        if (!read_saved(c, e))
            return wrong(name, "rows", err);
    if (!read_list(c, ml_json_get(v, "recent"), false))
        return wrong(name, "recent", err);
    return read_list(c, ml_json_get(v, "failed"), true) ? ML_OK
                                                        : wrong(name, "failed", err);
}

ml_status ml_curriculum_load(ml_curriculum *c, const ml_json *state, const char *name,
                             ml_err *err) {
    ml_curriculum *fresh = NULL;
    ml_status st =
        ml_curriculum_new(&fresh, c->ds, c->n_tree > 1, &c->opts, (int64_t)c->seed, err);

    if (st == ML_OK) {
        st = read_state(fresh, state, name, err);
        if (st == ML_OK) {
            ml_curriculum old = *c;
            weigh_all(fresh);
            *c = *fresh;
            *fresh = old;
        }
        ml_curriculum_free(fresh);
    }
    return st;
}
