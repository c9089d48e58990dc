#include "dash/dash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dash/dash_priv.h"

/* --- the page -------------------------------------------------------------------------- */

#define PAGE_FILE(symbol, file)                                                            \
    __asm__(".pushsection .rodata\n"                                                       \
            ".global ml_page_" #symbol "\n"                                                \
            ".hidden ml_page_" #symbol "\n"                                                \
            "ml_page_" #symbol ":\n"                                                       \
            ".incbin \"src/dash/page/" file "\"\n"                                         \
            ".byte 0\n"                                                                    \
            ".popsection\n");                                                              \
    extern const char ml_page_##symbol[]

PAGE_FILE(index, "index.html");
PAGE_FILE(icon, "icon.svg");
PAGE_FILE(style, "style.css");
PAGE_FILE(app, "app.js");
PAGE_FILE(chart, "chart.js");
PAGE_FILE(samples, "samples.js");
PAGE_FILE(timeline, "timeline.js");

static const struct {
    const char *path, *type, *text;
} page[] = {
    { "/", "text/html; charset=utf-8", ml_page_index },
    { "/icon.svg", "image/svg+xml", ml_page_icon },
    { "/style.css", "text/css; charset=utf-8", ml_page_style },
    { "/app.js", "text/javascript; charset=utf-8", ml_page_app },
    { "/chart.js", "text/javascript; charset=utf-8", ml_page_chart },
    { "/samples.js", "text/javascript; charset=utf-8", ml_page_samples },
    { "/timeline.js", "text/javascript; charset=utf-8", ml_page_timeline },
};
enum { N_PAGE = sizeof page / sizeof *page };

/* The page may load its own files and ask its own server, and nothing else: text of a sample
 * that became markup by mistake could neither run a script nor load or send anything. */
static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/* --- paths ------------------------------------------------------------------------------ */

/* %: a whole number. */
static const struct {
    const char *method, *path;
    ml_dash_answer *answer;
} paths[] = {
    { "GET", "/metrics", ml_dash_gauges },
    { "GET", "/api/runs", ml_dash_runs },
    { "GET", "/api/meta", ml_dash_meta },
    { "GET", "/api/metrics", ml_dash_metrics },
    { "GET", "/api/advisory", ml_dash_advisory },
    { "GET", "/api/events", ml_dash_events },
    { "GET", "/api/samples", ml_dash_samples },
    { "GET", "/api/rollout/%/summary", ml_dash_summary },
    { "GET", "/api/rollout/%/groups", ml_dash_groups },
    { "GET", "/api/rollout/%/trajectories", ml_dash_trajectories },
    { "GET", "/api/rollout/%/sample/%/messages", ml_dash_messages },
    { "GET", "/api/rollout/%/sample/%/tokens", ml_dash_tokens },
    { "GET", "/api/timeline/topology", ml_dash_topology },
    { "GET", "/api/timeline/phases", ml_dash_phases },
    { "GET", "/api/timeline/bubbles", ml_dash_bubbles },
    { "GET", "/api/timeline/outliers", ml_dash_outliers },
    { "GET", "/api/timeline/fleet", ml_dash_fleet },
    { "GET", "/api/timeline/heatmap", ml_dash_heatmap },
    { "GET", "/api/timeline/gpu", ml_dash_gpu },
    { "GET", "/api/timeline/gpu_processes", ml_dash_gpu_processes },
    { "GET", "/api/timeline/engine_series", ml_dash_engine_series },
    { "GET", "/api/control", ml_dash_control_log },
    { "POST", "/api/control", ml_dash_control },
};
enum { N_PATH = sizeof paths / sizeof *paths };

/* Matches the path and reads its numbers; at most two. */
static bool is_path(ml_str path, const char *form, int64_t number[2]) {
    const char *at = path.ptr, *end = at + path.len;
    int n = 0;

    for (; *form; form++) {
        if (*form != '%') {
            if (at == end || *at++ != *form)
                return false;
            continue;
        }
        char digits[20] = "";
        int k = 0;
        while (at < end && k < 18 && ((*at >= '0' && *at <= '9') || (k == 0 && *at == '-')))
            digits[k++] = *at++;
        if (k == 0 || (k == 1 && digits[0] == '-'))
            return false;
        number[n++] = strtoll(digits, NULL, 10);
    }
    return at == end;
}

/* The page needs no key: it asks for one.  Requests to a run need the administrator's. */
static ml_access_class class_of(ml_str method, ml_str path) {
    bool reads = ml_str_is(method, "GET") || ml_str_is(method, "HEAD");

    for (int i = 0; i < N_PAGE; i++)
        if (reads && ml_str_is(path, page[i].path))
            return ML_ACCESS_OPEN;
    return reads ? ML_ACCESS_METRICS : ML_ACCESS_ADMIN;
}

/* --- replies ----------------------------------------------------------------------------- */

static void reply(ml_http_call *c, int status, const char *type, ml_str body) {
    ml_http_add_header(c, "Content-Security-Policy", policy);
    ml_http_add_header(c, "X-Content-Type-Options", "nosniff");
    ml_http_add_header(c, "Referrer-Policy", "no-referrer");
    ml_http_add_header(c, "Cache-Control", "no-cache");
    ml_http_reply(c, status, type, body);
}

static void reply_error(ml_http_call *c, int status, const char *why) {
    ml_text t = { 0 };
    ml_json_out o = { .to = &t };

    ml_json_begin(&o, '{');
    ml_dash_put_text(&o, "detail", ml_str_of(why));
    ml_json_end(&o, '}');
    reply(c, status, "application/json", (ml_str){ t.ptr, t.len });
    ml_text_release(&t);
}

ml_status ml_dash_refuse(ml_dash_request *r, int status, ml_err *err, const char *fmt,
                         ...) {
    char why[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    r->status = status;
    return ml_fail(err, ML_EUSAGE, "%s", why);
}

/* The run that the query names. */
static ml_status find_run(ml_dash_request *r, ml_err *err) {
    const char *name = ml_dash_param(r, "run");

    for (int i = 0; i < r->dash->n_run && !r->run; i++)
        if (!name || strcmp(r->dash->run[i].name, name) == 0)
            r->run = &r->dash->run[i];
    return r->run ? ML_OK : ml_dash_refuse(r, 404, err, "there is no run \"%.100s\"", name);
}

static void answer(ml_dash *d, ml_http_call *c, ml_dash_answer *fn, const int64_t n[2]) {
    ml_dash_request r = { .dash = d,
                          .query = ml_http_query(c),
                          .body = ml_http_body(c),
                          .rollout = n[0],
                          .sample = n[1] };
    ml_err err = { 0 };
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "a request to the dashboard");
    r.arena = &a;
    r.out.to = &r.text;
    st = find_run(&r, &err);
    if (st == ML_OK)
        ml_series_refresh(&r.run->series);
    if (st == ML_OK)
        st = fn(&r, &err);
    if (st == ML_OK)
        reply(c, 200, r.type ? r.type : "application/json",
              (ml_str){ r.text.ptr, r.text.len });
    else
        reply_error(c, r.status ? r.status : st == ML_EUSAGE ? 400 : 503, err.msg);
    ml_text_release(&r.text);
    ml_arena_release(&a);
}

static void handle(void *ud, ml_http_call *c) {
    ml_dash *d = ud;
    ml_str path = ml_http_path(c), method = ml_http_method(c);
    int64_t number[2] = { 0 };
    bool known = false;

    ml_access_add_headers(&d->access, c);
    for (int i = 0; i < N_PAGE; i++)
        if (ml_str_is(path, page[i].path) && ml_str_is(method, "GET")) {
            reply(c, 200, page[i].type, ml_str_of(page[i].text));
            return;
        }
    for (int i = 0; i < N_PATH; i++)
        if (is_path(path, paths[i].path, number)) {
            known = true;
            if (ml_str_is(method, paths[i].method)) {
                answer(d, c, paths[i].answer, number);
                return;
            }
        }
    reply_error(c, known ? 405 : 404, known ? "method not allowed" : "unknown path");
}

/* --- runs ------------------------------------------------------------------------------- */

ml_status ml_dash_view(ml_dash_request *r, ml_err *err) {
    const char *path = ml_arena_printf(r->arena, "%s/run.db", r->run->dir);
    ml_dash_run *run = r->run;
    struct stat is;

    if (stat(path, &is) != 0)
        return ml_dash_refuse(r, 404, err,
                              "the run has no run.db: it has not recorded samples");
    if (run->view && run->view_inode == is.st_ino)
        return ML_OK;
    ml_run_view_close(run->view); /* another run has replaced the file */
    run->view = NULL;
    run->view_inode = is.st_ino;
    return ml_run_view_open(&run->view, path, err);
}

/* The last part of the path; the whole path if another run has the same. */
static void name_run(ml_dash *d, ml_dash_run *r) {
    size_t n = strlen(r->dir);
    const char *slash;

    while (n > 1 && r->dir[n - 1] == '/')
        n--;
    r->name = ml_arena_str(&d->arena, r->dir, n);
    slash = strrchr(r->name, '/');
    if (slash && slash[1])
        r->name = ml_arena_str(&d->arena, slash + 1, strlen(slash + 1));
    for (int i = 0; &d->run[i] != r; i++)
        if (strcmp(d->run[i].name, r->name) == 0)
            r->name = ml_arena_printf(&d->arena, "%s", r->dir);
}

static ml_status open_runs(ml_dash *d, ml_err *err) {
    d->run = ML_NEW(&d->arena, ml_dash_run, d->opts.n_dir);
    for (int i = 0; i < d->opts.n_dir; i++) {
        ml_dash_run *r = &d->run[i];
        const char *dir = d->opts.dir[i];
        if (access(ml_arena_printf(&d->arena, "%s/metrics.jsonl", dir), R_OK) != 0)
            return ml_fail(err, ML_EUSAGE,
                           "%s: no run found: expected the directory of --save, with "
                           "metrics.jsonl in it",
                           dir);
        *r = (ml_dash_run){ .dir = dir };
        name_run(d, r);
        ml_series_open(&r->series, dir);
        d->n_run++;
    }
    return ML_OK;
}

ml_status ml_dash_open(ml_dash **out, ml_loop *l, const ml_dash_opts *opts, ml_err *err) {
    ml_http_limits limits = { .max_header = 32 << 10,
                              .max_body = 64 << 10,
                              .max_connections = 200,
                              .idle_s = 60,
                              .max_unsent = 256 << 20,
                              .head_s = ML_HTTP_HEAD_S,
                              .body_s = ML_HTTP_BODY_S,
                              .min_rate = ML_HTTP_MIN_RATE };
    ml_dash *d;
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "the dashboard");
    d = ML_NEW(&a, ml_dash, 1);
    d->arena = a;
    d->opts = *opts;
    d->opts.access.class_of = class_of;
    st = ml_access_init(&d->access, opts->host, &d->opts.access, err);
    if (st == ML_OK)
        st = open_runs(d, err);
    if (st == ML_OK)
        st = ml_http_server_open(&d->server, l, opts->host, opts->port, limits, handle, d,
                                 err);
    if (st == ML_OK)
        ml_access_attach(&d->access, d->server);
    else
        ml_dash_close(d);
    *out = st == ML_OK ? d : NULL;
    return st;
}

int ml_dash_port(const ml_dash *d) {
    return ml_http_server_port(d->server);
}

void ml_dash_close(ml_dash *d) {
    ml_arena a;

    if (!d)
        return;
    if (d->server)
        ml_http_server_close(d->server);
    ml_access_release(&d->access);
    for (int i = 0; i < d->n_run; i++) {
        ml_series_close(&d->run[i].series);
        ml_run_view_close(d->run[i].view);
        if (d->run[i].tokenizer)
            ml_tokenizer_close(d->run[i].tokenizer);
    }
    a = d->arena; /* the dashboard itself is allocated in it */
    ml_arena_release(&a);
}
