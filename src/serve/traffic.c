#include "serve/traffic.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_out.h"
#include "base/oom.h"

#define GONE 499 /* the status of a request whose client left before the reply */

typedef struct ml_traffic_count {
    const char *route, *key; /* key: its name; "": none */
    char method[8];
    int status;
    int64_t n;
} traffic_count;

/* --- records ------------------------------------------------------------------ */

ml_request_record *ml_request_record_new(const char *route) {
    ml_request_record *r = calloc(1, sizeof *r);

    if (r)
        r->route = route;
    return r;
}

void ml_request_record_use(ml_request_record *r, int64_t n_prompt, int64_t n_answer) {
    if (!r)
        return;
    r->generates = true;
    r->n_prompt += n_prompt;
    r->n_answer += n_answer;
}

static void put_double(ml_json_out *o, const char *key, bool known, double v) {
    ml_json_key(o, key);
    if (known)
        ml_json_double(o, v);
    else
        ml_json_null(o);
}

static void put_tokens(ml_json_out *o, const ml_request_record *r) {
    bool known = r && r->generates;

    ml_json_key(o, "prompt_tokens");
    if (known)
        ml_json_int(o, r->n_prompt);
    else
        ml_json_null(o);
    ml_json_key(o, "completion_tokens");
    if (known)
        ml_json_int(o, r->n_answer);
    else
        ml_json_null(o);
    put_double(o, "queue_s", known && r->first_s > 0, known ? r->queue_s : 0);
    put_double(o, "ttft_s", known && r->first_s > 0, known ? r->first_s : 0);
}

/* The path itself is not logged: that of a session is a key. */
static void log_request(ml_access_log *log, const ml_http_done *d, int status) {
    const ml_request_record *r = d->tag;
    ml_text line = { 0 };
    ml_json_out o = { .to = &line };
    char now[ML_CLOCK_TEXT];

    ml_clock_write(now);
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "time", now);
    ml_json_put_word(&o, "id", r && r->id[0] ? r->id : NULL);
    ml_json_put_word(&o, "key", r && r->key && r->key->name[0] ? r->key->name : NULL);
    ml_json_put_word(&o, "peer", d->peer);
    ml_json_put_str(&o, "method", d->method);
    ml_json_put_word(&o, "route", r ? r->route : NULL);
    ml_json_put_int(&o, "status", status);
    ml_json_put_bool(&o, "complete", d->complete);
    put_tokens(&o, r);
    put_double(&o, "total_s", true, d->seconds);
    ml_json_end(&o, '}');
    ml_access_log_put(log, (ml_str){ line.ptr, line.len });
    ml_text_release(&line);
}

/* --- counters ----------------------------------------------------------------- */

static traffic_count *find_count(ml_traffic *t, const traffic_count *like) {
    for (int i = 0; i < t->n; i++) {
        traffic_count *c = &t->count[i];
        if (c->status == like->status && strcmp(c->route, like->route) == 0 &&
            strcmp(c->key, like->key) == 0 && strcmp(c->method, like->method) == 0)
            return c;
    }
    if (t->n == t->cap) {
        int cap = t->cap ? 2 * t->cap : 32;
        traffic_count *more = realloc(t->count, (size_t)cap * sizeof *more);
        if (!more)
            return NULL;
        t->count = more;
        t->cap = cap;
    }
    t->count[t->n] = *like;
    return &t->count[t->n++];
}

static void observe(void *ud, const ml_http_done *d) {
    ml_traffic *t = ud;
    ml_request_record *r = d->tag;
    traffic_count like = { .route = r ? r->route : "unread",
                           .key = r && r->key ? r->key->name : "",
                           .status = d->status ? d->status : GONE };
    traffic_count *c;

    snprintf(like.method, sizeof like.method, "%.*s", (int)d->method.len, d->method.ptr);
    c = find_count(t, &like);
    if (c)
        c->n++;
    if (t->log)
        log_request(t->log, d, like.status);
}

typedef struct observation {
    void *ud;
    const ml_http_done *done;
} observation;

static void run_observe(void *ud) {
    const observation *o = ud;
    observe(o->ud, o->done);
}

void ml_traffic_observe(void *ud, const ml_http_done *d) {
    observation o = { ud, d };
    ml_request_record *r = d->tag;

    (void)ml_memory_try(run_observe, &o); /* without memory, the request is not logged */
    if (r && r->running)
        ml_api_key_done(r->key);
    free(r);
}

void ml_traffic_release(ml_traffic *t) {
    free(t->count);
    t->count = NULL;
    t->n = t->cap = 0;
}

/* --- writing ------------------------------------------------------------------ */

void ml_metrics_head(const ml_metrics_form *f, const char *name, const char *type,
                     const char *help) {
    ml_text_printf(f->to, "# HELP %s%s %s\n# TYPE %s%s %s\n", f->start, name, help,
                   f->start, name, type);
}

void ml_metrics_value(const ml_metrics_form *f, const char *name, const char *labels,
                      double v) {
    bool both = f->label[0] && labels[0], any = f->label[0] || labels[0];

    ml_text_printf(f->to, "%s%s%s%s%s%s%s %.17g\n", f->start, name, any ? "{" : "", labels,
                   both ? "," : "", f->label, any ? "}" : "", v);
}

void ml_traffic_write(const ml_traffic *t, const ml_metrics_form *f) {
    char labels[300];

    ml_metrics_head(f, "http_responses_total", "counter",
                    "Requests by path, method, status and name of the key; 499: the client "
                    "left.");
    for (int i = 0; i < t->n; i++) {
        const traffic_count *c = &t->count[i];
        snprintf(labels, sizeof labels,
                 "endpoint=\"%s\",method=\"%s\",status_code=\"%d\",key=\"%s\"", c->route,
                 c->method, c->status, c->key);
        ml_metrics_value(f, "http_responses_total", labels, (double)c->n);
    }
    if (!t->log)
        return;
    ml_metrics_head(f, "access_log_dropped_total", "counter",
                    "Lines that the access log lost.");
    ml_metrics_value(f, "access_log_dropped_total", "",
                     (double)ml_access_log_dropped(t->log));
}

typedef double key_value(const ml_api_key *k);

static double get_running(const ml_api_key *k) {
    return (double)k->n_running;
}
static double get_prompt(const ml_api_key *k) {
    return (double)k->n_prompt;
}
static double get_answer(const ml_api_key *k) {
    return (double)k->n_answer;
}
static double get_limited_requests(const ml_api_key *k) {
    return (double)k->n_limited[ML_LIMIT_REQUESTS];
}
static double get_limited_tokens(const ml_api_key *k) {
    return (double)k->n_limited[ML_LIMIT_TOKENS];
}
static double get_limited_concurrent(const ml_api_key *k) {
    return (double)k->n_limited[ML_LIMIT_CONCURRENT];
}

static void write_keys(const ml_api_key *const *own, const ml_api_keys *more,
                       const ml_metrics_form *f, const char *name, const char *also,
                       key_value *get) {
    int n_own = more ? 2 : 3, n = n_own + (more ? more->n : 0);
    char labels[160];

    for (int i = 0; i < n; i++) {
        const ml_api_key *k = i < n_own ? own[i] : &more->key[i - n_own];
        snprintf(labels, sizeof labels, "key=\"%s\"%s", k->name, also);
        ml_metrics_value(f, name, labels, get(k));
    }
}

void ml_api_keys_write(const ml_api_key *const own[3], const ml_api_keys *more,
                       const ml_metrics_form *f) {
    static const struct {
        const char *name, *also;
        key_value *get;
        const char *type, *help; /* NULL: more values of the name before */
    } rows[] = {
        { "key_running_requests", "", get_running, "gauge",
          "Requests in flight that generate, by key." },
        { "key_tokens_total", ",kind=\"prompt\"", get_prompt, "counter",
          "Tokens, by key." },
        { "key_tokens_total", ",kind=\"generation\"", get_answer, NULL, NULL },
        { "rate_limited_requests_total", ",limit=\"requests\"", get_limited_requests,
          "counter", "Requests refused by a limit of their key." },
        { "rate_limited_requests_total", ",limit=\"tokens\"", get_limited_tokens, NULL,
          NULL },
        { "rate_limited_requests_total", ",limit=\"concurrent\"", get_limited_concurrent,
          NULL, NULL },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].type)
            ml_metrics_head(f, rows[i].name, rows[i].type, rows[i].help);
        write_keys(own, more, f, rows[i].name, rows[i].also, rows[i].get);
    }
}

static int64_t open_files(void) {
    DIR *d = opendir("/proc/self/fd");
    int64_t n = -3; /* ".", ".." and d itself */

    if (!d)
        return 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static double resident_bytes(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    long long all = 0, resident = 0;

    if (f) {
        if (fscanf(f, "%lld %lld", &all, &resident) != 2)
            resident = 0;
        fclose(f);
    }
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static void gauge(const ml_metrics_form *f, const char *name, const char *help, double v) {
    ml_metrics_head(f, name, "gauge", help);
    ml_metrics_value(f, name, "", v);
}

void ml_process_write(const ml_http_server *s, const ml_metrics_form *f) {
    ml_metrics_form process = { f->to, "process_", "" };
    struct rlimit files = { 0 };

    getrlimit(RLIMIT_NOFILE, &files);
    gauge(f, "http_connections", "Open connections of clients.",
          ml_http_server_connections(s));
    gauge(f, "http_connections_max", "Connections that are accepted at most.",
          ml_http_server_max_connections(s));
    gauge(&process, "resident_memory_bytes", "Memory of the process.", resident_bytes());
    gauge(&process, "open_fds", "Open files and connections.", (double)open_files());
    gauge(&process, "max_fds", "Files and connections that may be open.",
          (double)files.rlim_cur);
}
