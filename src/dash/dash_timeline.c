/* The phases of a run's processes over time.
 *
 * A lane is a process: rank 0, whose phases are in the store, and the other ranks, which note
 * theirs in logs/rank_N.log.  Miles' lanes are GPUs, each named by a node and a number. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/oom.h"
#include "dash/dash_priv.h"

/* The longest window that a client may ask for, and the phases of a reply. */
#define MAX_WINDOW_S 14400.0
enum { MOST_PHASES = 20000, MOST_LANES = 1024, LOG_TAIL = 1 << 20 };

typedef struct phase {
    int rank;
    int64_t rollout;
    const char *name;
    double begin, end;
} phase;

typedef struct phases {
    phase *at; /* [n] */
    int64_t n, cap;
    int n_lane;
    double begin, end; /* the window */
    ml_arena *arena;
} phases;

static void add_phase(phases *p, phase x) {
    if (x.end < p->begin || x.begin > p->end)
        return;
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 1024;
        p->at = ml_memory_grow(p->at, (size_t)p->cap * sizeof *p->at, "phases of a run");
    }
    p->at[p->n++] = x;
    p->n_lane = x.rank >= p->n_lane ? x.rank + 1 : p->n_lane;
}

static void add_span(void *ud, const ml_view_span *s) {
    phases *p = ud;

    add_phase(p, (phase){ 0, s->rollout, ml_arena_str(p->arena, s->name.ptr, s->name.len),
                          s->begin, s->end });
}

/* --- logs of other ranks ------------------------------------------------------------------ */

static const char *const stage_text[][2] = {
    { "waiting for the samples of rank 0", "rollout" },
    { "training", "learn" },
    { "saving, if rank 0 decides so", "save" },
    { "waiting until nothing is generated", "rest" },
    { "publishing", "update_weights" },
    { "evaluating", "eval" },
};

/* "2026-01-31T12:00:00Z rollout 3: training"; false: another line. */
static bool read_stage(const char *line, phase *out) {
    struct tm tm = { 0 };
    const char *rest = strptime(line, "%Y-%m-%dT%H:%M:%SZ", &tm);
    long long rollout;
    int at = 0;

    if (!rest || sscanf(rest, " rollout %lld: %n", &rollout, &at) != 1 || !at)
        return false;
    out->begin = (double)timegm(&tm);
    out->rollout = rollout;
    for (size_t i = 0; i < sizeof stage_text / sizeof *stage_text; i++)
        if (strcmp(rest + at, stage_text[i][0]) == 0) {
            out->name = stage_text[i][1];
            return true;
        }
    return false;
}

/* A stage lasts until the next one begins. */
static void read_log(phases *p, int rank, char *text) {
    phase now = { 0 }, next;
    char *line;

    while ((line = strsep(&text, "\n")) != NULL)
        if (read_stage(line, &next)) {
            next.rank = rank;
            now.end = next.begin;
            if (now.name)
                add_phase(p, now);
            now = next;
        }
}

static bool read_rank(phases *p, const char *dir, int rank) {
    int fd = open(ml_arena_printf(p->arena, "%s/logs/rank_%d.log", dir, rank),
                  O_RDONLY | O_CLOEXEC);
    off_t size, from;
    char *text;
    ssize_t n;

    if (fd < 0)
        return false;
    size = lseek(fd, 0, SEEK_END);
    from = size > LOG_TAIL ? size - LOG_TAIL : 0;
    text = ML_NEW(p->arena, char, size - from + 1);
    n = pread(fd, text, (size_t)(size - from), from);
    close(fd);
    if (n > 0)
        read_log(p, rank, text);
    return true;
}

static ml_status read_window(ml_dash_request *r, phases *p, ml_err *err) {
    ml_status st;

    p->begin = 0;
    p->end = 1e18;
    st = ml_dash_param_number(r, "t0", &p->begin, err);
    if (st == ML_OK)
        st = ml_dash_param_number(r, "t1", &p->end, err);
    if (st != ML_OK)
        return st;
    if (p->end <= p->begin)
        return ml_fail(err, ML_EUSAGE, "t1: expected a time after t0");
    if (p->begin > 0 && p->end < 1e18 && p->end - p->begin > MAX_WINDOW_S)
        return ml_fail(err, ML_EUSAGE, "t0, t1: a window has at most %.0f seconds",
                       MAX_WINDOW_S);
    return ML_OK;
}

static ml_status read_phases(ml_dash_request *r, phases *p, ml_err *err) {
    ml_status st = read_window(r, p, err);

    p->arena = r->arena;
    p->n_lane = 1;
    if (st == ML_OK)
        st = ml_dash_view(r, err);
    if (st == ML_OK)
        st = ml_run_view_spans(r->run->view, p->begin, p->end, MOST_PHASES, add_span, p,
                               err);
    for (int rank = 1; st == ML_OK && rank < MOST_LANES; rank++)
        if (!read_rank(p, r->run->dir, rank))
            break;
    return st;
}

/* --- replies ------------------------------------------------------------------------------- */

static void put_lane(ml_json_out *o, int rank) {
    char node[32];

    snprintf(node, sizeof node, "rank %d", rank);
    ml_json_put_word(o, "node", node);
    ml_json_put_int(o, "gpu", rank);
}

static void put_lanes(ml_json_out *o, const char *key, int n) {
    ml_json_key(o, key);
    ml_json_begin(o, '[');
    for (int i = 0; i < n; i++) {
        ml_json_begin(o, '{');
        put_lane(o, i);
        ml_json_put_int(o, "index", i);
        ml_json_end(o, '}');
    }
    ml_json_end(o, ']');
}

ml_status ml_dash_topology(ml_dash_request *r, ml_err *err) {
    phases p = { 0 };
    ml_status st = read_phases(r, &p, err);

    ml_json_begin(&r->out, '{');
    put_lanes(&r->out, "lanes", p.n_lane);
    ml_json_key(&r->out, "windows");
    ml_json_raw(&r->out, ml_str_of("[]"));
    ml_json_end(&r->out, '}');
    free(p.at);
    return st;
}

static void put_phase(ml_json_out *o, const phase *x) {
    ml_json_begin(o, '{');
    put_lane(o, x->rank);
    ml_json_put_int(o, "rank", x->rank);
    ml_json_put_int(o, "rollout", x->rollout);
    ml_json_put_word(o, "name", x->name);
    ml_dash_put_number(o, "t0", x->begin);
    ml_dash_put_number(o, "t1", x->end);
    ml_json_end(o, '}');
}

ml_status ml_dash_phases(ml_dash_request *r, ml_err *err) {
    phases p = { 0 };
    ml_status st = read_phases(r, &p, err);

    ml_json_begin(&r->out, '{');
    ml_json_key(&r->out, "phases");
    ml_json_begin(&r->out, '[');
    for (int64_t i = 0; i < p.n; i++)
        put_phase(&r->out, &p.at[i]);
    ml_json_end(&r->out, ']');
    ml_json_end(&r->out, '}');
    free(p.at);
    return st;
}

/* --- a step's time, and how much of it was waiting --------------------------------------- */

static double value_at(const ml_series *s, int64_t i) {
    return s && i < s->n ? s->at[i].value : (double)NAN;
}

ml_status ml_dash_bubbles(ml_dash_request *r, ml_err *err) {
    const ml_series *step = ml_series_find(&r->run->series, "perf/step_time"),
                    *wait = ml_series_find(&r->run->series, "perf/train_wait_time");
    ml_json_out *o = &r->out;

    (void)err;
    ml_json_begin(o, '{');
    ml_json_key(o, "bubbles");
    ml_json_begin(o, '[');
    for (int64_t i = 0; step && i < step->n; i++) {
        ml_json_begin(o, '{');
        ml_json_put_int(o, "step", step->at[i].rollout);
        ml_json_put_word(o, "ts", NULL);
        ml_dash_put_number(o, "step_time", step->at[i].value);
        ml_dash_put_number(o, "wait_ratio", value_at(wait, i) / step->at[i].value);
        ml_json_end(o, '}');
    }
    ml_json_end(o, ']');
    ml_json_end(o, '}');
    return ML_OK;
}

/* --- the slowest lanes --------------------------------------------------------------------- */

typedef struct score {
    int rank;
    double sum;
    int64_t n;
} score;

static int by_mean(const void *a, const void *b) {
    const score *x = a, *y = b;
    double p = x->n ? x->sum / (double)x->n : -1, q = y->n ? y->sum / (double)y->n : -1;
    return (p < q) - (p > q);
}

static void put_outliers(ml_dash_request *r, const phases *p, const char *name,
                         int64_t n_most) {
    score *s = ML_NEW(r->arena, score, p->n_lane);
    ml_json_out *o = &r->out;

    for (int i = 0; i < p->n_lane; i++)
        s[i].rank = i;
    for (int64_t i = 0; i < p->n; i++)
        if (strcmp(p->at[i].name, name) == 0) {
            s[p->at[i].rank].sum += p->at[i].end - p->at[i].begin;
            s[p->at[i].rank].n++;
        }
    qsort(s, (size_t)p->n_lane, sizeof *s, by_mean);
    ml_json_key(o, "outliers");
    ml_json_begin(o, '[');
    for (int i = 0; i < p->n_lane && i < n_most && s[i].n; i++) {
        ml_json_begin(o, '{');
        put_lane(o, s[i].rank);
        ml_dash_put_number(o, "score", s[i].sum / (double)s[i].n);
        ml_json_end(o, '}');
    }
    ml_json_end(o, ']');
}

ml_status ml_dash_outliers(ml_dash_request *r, ml_err *err) {
    static const char slowest[] = "slowest_phase:";
    const char *by = ml_dash_param(r, "criterion");
    int64_t n_most = 16;
    phases p = { 0 };
    ml_status st = ml_dash_param_int(r, "top_k", 1, 256, &n_most, err);

    if (st == ML_OK && (!by || (strncmp(by, slowest, sizeof slowest - 1) != 0 &&
                                strcmp(by, "lowest_util"))))
        st = ml_fail(err, ML_EUSAGE,
                     "criterion: expected lowest_util or slowest_phase:NAME");
    if (st == ML_OK)
        st = read_phases(r, &p, err);
    ml_json_begin(&r->out, '{');
    if (st == ML_OK) /* lowest_util: utilisation is not recorded */
        put_outliers(r, &p, by[0] == 's' ? by + sizeof slowest - 1 : "", n_most);
    ml_json_end(&r->out, '}');
    free(p.at);
    return st;
}

/* --- which phase a lane is in, at each moment ------------------------------------------------ */

typedef struct carpet {
    phases p;
    double begin, end;
    int64_t n_bucket;
    const char *palette[64]; /* 0: no phase */
    int n_name;
    uint8_t *cell; /* [n_lane][n_bucket] indexes of the palette */
} carpet;

static int name_index(carpet *c, const char *name) {
    for (int i = 1; i < c->n_name; i++)
        if (strcmp(c->palette[i], name) == 0)
            return i;
    if (c->n_name == 64)
        return 0;
    c->palette[c->n_name] = name;
    return c->n_name++;
}

/* Spans of a lane come with the outer one first, so inner ones replace it. */
static void paint(carpet *c) {
    double width = (c->end - c->begin) / (double)c->n_bucket;

    for (int64_t i = 0; i < c->p.n; i++) {
        const phase *x = &c->p.at[i];
        int64_t from = (int64_t)fmax((x->begin - c->begin) / width, 0),
                to = (int64_t)fmin((x->end - c->begin) / width, (double)(c->n_bucket - 1));
        uint8_t name = (uint8_t)name_index(c, x->name);
        for (int64_t k = from; k <= to; k++)
            c->cell[x->rank * c->n_bucket + k] = name;
    }
}

static ml_status weave(ml_dash_request *r, carpet *c, ml_err *err) {
    ml_status st = ml_dash_param_int(r, "x_buckets", 2, 4000, &c->n_bucket, err);

    if (st == ML_OK)
        st = read_phases(r, &c->p, err);
    if (st != ML_OK)
        return st;
    c->n_name = 1;
    c->palette[0] = "";
    c->begin = (double)INFINITY;
    c->end = 0;
    for (int64_t i = 0; i < c->p.n; i++) {
        c->begin = fmin(c->begin, fmax(c->p.at[i].begin, c->p.begin));
        c->end = fmax(c->end, fmin(c->p.at[i].end, c->p.end));
    }
    c->cell = ML_NEW(r->arena, uint8_t, (int64_t)c->p.n_lane * c->n_bucket);
    if (c->end > c->begin)
        paint(c);
    else
        c->begin = c->end = 0;
    return ML_OK;
}

static void put_head(ml_json_out *o, const carpet *c) {
    ml_dash_put_number(o, "t0", c->begin);
    ml_dash_put_number(o, "t1", c->end);
    ml_json_put_int(o, "x_buckets", c->n_bucket);
    ml_json_key(o, "palette");
    ml_json_begin(o, '[');
    for (int i = 0; i < c->n_name; i++)
        ml_json_word(o, c->palette[i]);
    ml_json_end(o, ']');
}

/* The length of the header (4 bytes, little endian), the header, a byte per cell. */
ml_status ml_dash_heatmap(ml_dash_request *r, ml_err *err) {
    const char *metric = ml_dash_param(r, "metric");
    carpet c = { .n_bucket = 1200 };
    ml_text head = { 0 };
    ml_json_out o = { .to = &head };
    ml_status st;

    if (metric && strcmp(metric, "phase") != 0)
        return ml_fail(err, ML_EUSAGE, "metric: expected phase; others are not recorded");
    st = weave(r, &c, err);
    if (st == ML_OK) {
        ml_json_begin(&o, '{');
        ml_json_put_word(&o, "metric", "phase");
        put_head(&o, &c);
        put_lanes(&o, "rows", c.p.n_lane);
        ml_json_put_word(&o, "scale", NULL);
        ml_json_end(&o, '}');
        for (int i = 0; i < 4; i++)
            ml_text_add(&r->text, &(char){ (char)(head.len >> (8 * i) & 255) }, 1);
        ml_text_add(&r->text, head.ptr, head.len);
        ml_text_add(&r->text, (const char *)c.cell, (size_t)(c.p.n_lane * c.n_bucket));
        r->type = "application/octet-stream";
    }
    ml_text_release(&head);
    free(c.p.at);
    return st;
}

/* For each phase and bucket, the share of the lanes that are in it. */
ml_status ml_dash_fleet(ml_dash_request *r, ml_err *err) {
    carpet c = { .n_bucket = 600 };
    ml_status st = weave(r, &c, err);
    ml_json_out *o = &r->out;

    ml_json_begin(o, '{');
    put_head(o, &c);
    ml_json_put_int(o, "lanes", c.p.n_lane);
    ml_json_key(o, "composition");
    ml_json_begin(o, '{');
    for (int i = 0; st == ML_OK && i < c.n_name; i++) {
        ml_json_key(o, i ? c.palette[i] : "none");
        ml_json_begin(o, '[');
        for (int64_t k = 0; k < c.n_bucket; k++) {
            int n = 0;
            for (int lane = 0; lane < c.p.n_lane; lane++)
                n += c.cell[lane * c.n_bucket + k] == i;
            ml_json_double(o, (double)n / c.p.n_lane);
        }
        ml_json_end(o, ']');
    }
    ml_json_end(o, '}');
    ml_json_put_word(o, "band", NULL);
    ml_json_end(o, '}');
    free(c.p.at);
    return st;
}

/* --- streams that runs do not record ---------------------------------------------------------- */

ml_status ml_dash_gpu(ml_dash_request *r, ml_err *err) {
    (void)err;
    ml_json_raw(&r->out, ml_str_of("{\"lanes\": []}"));
    return ML_OK;
}

ml_status ml_dash_gpu_processes(ml_dash_request *r, ml_err *err) {
    (void)err;
    ml_json_raw(&r->out, ml_str_of("{\"processes\": []}"));
    return ML_OK;
}

ml_status ml_dash_engine_series(ml_dash_request *r, ml_err *err) {
    (void)err;
    ml_json_raw(&r->out, ml_str_of("{\"series\": []}"));
    return ML_OK;
}
