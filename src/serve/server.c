#include "serve/server.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/bug.h"
#include "base/clock.h"
#include "base/log.h"
#include "serve/serve_priv.h"

#define MAX_HEADER ((size_t)64 << 10)
#define IDLE_S 300.0
#define MAX_UNSENT ((size_t)256 << 20) /* a slower client counts as disconnected */

/* --- routes ----------------------------------------------------------------- */

enum { GET = 1, POST = 2, PUT = 4, WORK = 8 /* generates */ };

typedef struct route {
    const char *path;
    unsigned how;
    ml_endpoint *fn;
    const char *why; /* an SGLang path that is not supported: the reason */
} route;

static const char no_push[] =
    "use /update_weights_from_distributed, which receives weights over TCP, or "
    "/update_weights_from_disk";

static const route routes[] = {
    { "/generate", POST | PUT | WORK, ml_serve_generate },
    { "/v1/completions", POST | WORK, ml_serve_completions },
    { "/v1/chat/completions", POST | WORK, ml_serve_chat },
    { "/v1/messages", POST | WORK, ml_serve_messages },
    { "/v1/responses", POST | WORK, ml_serve_responses },
    { "/v1/messages/count_tokens", POST, ml_serve_count_tokens },
    { "/v1/embeddings", POST | WORK, ml_serve_embeddings },
    { "/tokenize", POST, ml_serve_tokenize },
    { "/v1/tokenize", POST, ml_serve_tokenize },
    { "/detokenize", POST, ml_serve_detokenize },
    { "/v1/detokenize", POST, ml_serve_detokenize },
    { "/v1/models", GET, ml_serve_models },
    { "/health", GET, ml_serve_health },
    { "/health_generate", GET | WORK, ml_serve_health_generate },
    { "/model_info", GET, ml_serve_model_info },
    { "/get_model_info", GET, ml_serve_model_info },
    { "/server_info", GET, ml_serve_server_info },
    { "/get_server_info", GET, ml_serve_server_info },
    { "/weight_version", GET, ml_serve_weight_version },
    { "/get_weight_version", GET, ml_serve_weight_version },
    { "/metrics", GET, ml_serve_metrics },
    { "/abort_request", POST, ml_serve_abort },
    { "/pause_generation", POST, ml_serve_pause },
    { "/continue_generation", POST, ml_serve_continue },
    { "/flush_cache", GET | POST, ml_serve_flush },
    { "/update_weights_from_disk", POST, ml_serve_update_from_disk },
    { "/update_weight_version", POST, ml_serve_update_version },
    { "/pull_weights", POST, ml_serve_pull_weights },
    { "/release_memory_occupation", GET | POST, ml_serve_release_memory },
    { "/resume_memory_occupation", GET | POST, ml_serve_resume_memory },
    { "/update_weights_from_tensor", POST, NULL, no_push },
    { "/update_weights_from_distributed", POST, ml_serve_update_from_group },
    { "/update_weights_from_ipc", POST, NULL, no_push },
    { "/init_weights_update_group", POST, ml_serve_init_group },
    { "/destroy_weights_update_group", POST, ml_serve_destroy_group },
    { "/begin_weight_update", POST, ml_serve_begin_update },
    { "/end_weight_update", POST, ml_serve_end_update },
    { "/weights_checker", GET | POST, NULL, "every load is checked against config.json" },
    { "/start_profile", GET | POST, NULL, "see /metrics" },
    { "/stop_profile", GET | POST, NULL, "see /metrics" },
    { "/load_lora_adapter", POST, ml_serve_load_lora },
    { "/load_lora_adapter_from_distributed", POST, ml_serve_receive_lora },
    { "/unload_lora_adapter", POST, ml_serve_unload_lora },
    { "/encode", POST | PUT, NULL, "use /v1/embeddings" },
    { "/open_session", POST, NULL, "use /sessions" },
    { 0 },
};

static unsigned method_bit(ml_str m) {
    return ml_str_is(m, "GET") || ml_str_is(m, "HEAD") ? GET
           : ml_str_is(m, "POST")                      ? POST
           : ml_str_is(m, "PUT")                       ? PUT
                                                       : 0;
}

/* /v1/models/NAME has the route of /v1/models. */
static const route *find_route(ml_str path) {
    ml_str models = ml_str_of("/v1/models/");

    if (path.len > models.len && memcmp(path.ptr, models.ptr, models.len) == 0)
        path = ml_str_of("/v1/models");
    for (const route *r = routes; r->path; r++)
        if (ml_str_is(path, r->path))
            return r;
    return NULL;
}

/* For logs and metrics. */
static const char *route_of(ml_str path) {
    const route *r = find_route(path);

    return r ? r->path : ml_access_route_of(path);
}

static void refuse_method(ml_http_call *c, const route *r) {
    char allow[32], message[160];

    snprintf(allow, sizeof allow, "%s%s%s", r->how & GET ? "GET HEAD " : "",
             r->how & POST ? "POST " : "", r->how & PUT ? "PUT " : "");
    allow[strlen(allow) - 1] = 0;
    for (char *p = allow; *p; p++)
        if (*p == ' ')
            *p = ',';
    ml_http_add_header(c, "Allow", allow);
    snprintf(message, sizeof message, "%s accepts %s only.", r->path, allow);
    ml_reply_error(c, 405, message);
}

/* Whether the path is `root` or below it. */
static bool is_at(ml_str path, const char *root) {
    size_t n = strlen(root);

    return path.len >= n && memcmp(path.ptr, root, n) == 0 &&
           (path.len == n || path.ptr[n] == '/');
}

static void on_call(void *ud, ml_http_call *c) {
    ml_server *s = ud;
    ml_str path = ml_http_path(c);
    const route *r = find_route(path);
    char message[400];

    ml_access_add_headers(&s->access, c);
    if (is_at(path, "/sessions")) {
        ml_serve_sessions(s, c);
    } else if (!r && is_at(path, "/v1/responses")) {
        ml_serve_stored_response(s, c);
    } else if (!r) {
        snprintf(message, sizeof message, "Unknown endpoint %.*s.",
                 (int)(path.len < 200 ? path.len : 200), path.ptr);
        ml_reply_error(c, 404, message);
    } else if (!(r->how & method_bit(ml_http_method(c)))) {
        refuse_method(c, r);
    } else if (r->why) {
        snprintf(message, sizeof message, "%s is not supported: %s.", r->path, r->why);
        ml_reply_error(c, 400, message);
    } else if (r->how & WORK && s->draining && !s->replaced) {
        ml_reply_error(c, 503, "The server is shutting down.");
    } else {
        r->fn(s, c);
    }
}

/* --- labels of weights ------------------------------------------------------ */

void ml_server_set_label(ml_server *s, uint64_t version, ml_str text) {
    ml_weight_label *l;
    size_t n = text.len < sizeof l->text ? text.len : sizeof l->text - 1;

    pthread_mutex_lock(&s->label_lock);
    l = &s->label[s->n_label % ML_LABELS];
    s->n_label++;
    l->version = version;
    while (n > 0 && n < text.len && ((unsigned char)text.ptr[n] & 0xC0) == 0x80)
        n--; /* do not split a UTF-8 character */
    snprintf(l->text, sizeof l->text, "%.*s", (int)n, text.ptr);
    pthread_mutex_unlock(&s->label_lock);
}

ml_status ml_weight_version_read(uint64_t *out, ml_str label, ml_err *err) {
    uint64_t v = 0;

    *out = 0;
    for (size_t i = 0; i < label.len; i++) {
        if (label.ptr[i] < '0' || label.ptr[i] > '9')
            return ML_OK;
        if (v <= ML_WEIGHT_VERSION_MAX)
            v = v * 10 + (uint64_t)(label.ptr[i] - '0');
    }
    if (v > ML_WEIGHT_VERSION_MAX)
        return ml_fail(err, ML_EUSAGE,
                       "weight version %.*s exceeds the maximum %llu: use a smaller "
                       "number, or a string that is not a number",
                       (int)(label.len < 40 ? label.len : 40), label.ptr,
                       (unsigned long long)ML_WEIGHT_VERSION_MAX);
    *out = v;
    return ML_OK;
}

void ml_server_write_label(ml_server *s, uint64_t version, ml_json_out *o) {
    char label[sizeof s->label[0].text];

    snprintf(label, sizeof label, "%llu", (unsigned long long)version);
    pthread_mutex_lock(&s->label_lock);
    for (int32_t i = s->n_label - 1; i >= 0 && i >= s->n_label - ML_LABELS; i--)
        if (s->label[i % ML_LABELS].version == version) {
            memcpy(label, s->label[i % ML_LABELS].text, sizeof label);
            break;
        }
    pthread_mutex_unlock(&s->label_lock);
    ml_json_word(o, label);
}

void ml_server_new_id(ml_server *s, const char *prefix, char *out, size_t cap) {
    snprintf(out, cap, "%s%016llx%08llx", prefix, (unsigned long long)s->boot,
             (unsigned long long)atomic_fetch_add(&s->n_request, 1));
}

uint64_t ml_server_new_key(ml_server *s) {
    return s->boot + 0x9E3779B97F4A7C15U * atomic_fetch_add(&s->n_request, 1);
}

/* --- open, drain, close ----------------------------------------------------- */

static void on_taken(void *ud);

static ml_status open_parts(ml_server *s, ml_err *err) {
    ml_http_limits limits = { .max_header = MAX_HEADER,
                              .max_body = s->opts.max_body,
                              .max_connections = s->opts.max_connections,
                              .idle_s = IDLE_S,
                              .max_unsent = MAX_UNSENT,
                              .head_s = ML_HTTP_HEAD_S,
                              .body_s = ML_HTTP_BODY_S,
                              .min_rate = ML_HTTP_MIN_RATE,
                              .budget = &s->budget };
    ml_listen at = { s->opts.host, s->opts.port, s->opts.handover };
    ml_status st;

    s->opts.access.route_of = route_of;
    st = ml_access_init(&s->access, s->opts.host, &s->opts.access, err);
    if (!st)
        st = ml_adapters_open(&s->adapters, s, err);
    if (!st)
        st = ml_admin_open(&s->admin, s, err);
    if (!st)
        st = ml_text_thread_open(&s->text, s->loop, &s->arena, err);
    if (!st)
        st = ml_handover_open(&s->http, &s->handover, s->loop, &at, limits, on_call,
                              on_taken, s, err);
    if (!st)
        ml_access_attach(&s->access, s->http);
    return st;
}

ml_status ml_server_open(ml_server **out, ml_loop *l, const ml_server_opts *opts,
                         ml_err *err) {
    ml_arena arena;
    ml_server *s;
    ml_gen_stats stats = { 0 };
    ml_status st;

    ml_arena_init(&arena, "the server");
    s = ML_NEW(&arena, ml_server, 1);
    s->arena = arena;
    s->opts = *opts;
    s->loop = l;
    s->created = (int64_t)time(NULL);
    snprintf(s->model_path, sizeof s->model_path, "%s", opts->model_path);
    if (getrandom(&s->boot, sizeof s->boot, GRND_NONBLOCK) != sizeof s->boot)
        s->boot = 0;
    ML_BUG_IF(pthread_mutex_init(&s->label_lock, NULL));
    s->dispatcher = ml_dispatcher_open(l, &s->arena);
    s->metrics = ml_server_metrics_new(&s->arena);
    s->budget.max = opts->max_in_flight;
    s->responses = ml_response_store_new();
    if (opts->sessions.on)
        s->sessions = ml_session_table_new(&opts->sessions);
    if (opts->tokenizer) {
        s->encoder = ml_encoder_new(opts->tokenizer);
        s->text_encoder = ml_encoder_new(opts->tokenizer);
    }
    opts->gen->stats(opts->gen, &stats);
    ml_server_set_label(s, stats.version, ml_str_of(opts->weight_version));
    st = open_parts(s, err);
    if (st)
        ml_server_close(s);
    else
        *out = s;
    return st;
}

int ml_server_port(const ml_server *s) {
    return ml_http_server_port(s->http);
}

int ml_server_max_connections(const ml_server *s) {
    return ml_http_server_max_connections(s->http);
}

/* Time to send the last bytes of the last reply. */
#define PARTING_S 0.2

static void end_drain(void *ud) {
    ml_loop_stop(((ml_server *)ud)->loop);
}

static void part(ml_server *s) {
    ml_timer_stop(s->drain_timer);
    s->drain_timer = ml_timer_start(s->loop, PARTING_S, false, end_drain, s);
}

static void stop_draining(void *ud) {
    ml_server *s = ud;

    if (s->n_job)
        ml_log(ML_LOG_WARN, "aborting %lld requests that did not finish in time",
               (long long)s->n_job);
    ml_loop_stop(s->loop);
}

#define POLL_S 0.05

static void look_at_rest(void *ud) {
    ml_server *s = ud;

    if (ml_clock_s() >= s->drain_at_s)
        stop_draining(s);
    else if (s->n_job == 0 && ml_http_server_connections(s->http) == 0)
        ml_loop_stop(s->loop);
}

/* The next server accepts connections now.  Those that this one has are served to their end,
 * so that no request is lost. */
static void on_taken(void *ud) {
    ml_server *s = ud;

    if (s->draining)
        return;
    ml_log(ML_LOG_INFO, "another server has taken over the port: finishing what is left");
    s->draining = s->replaced = true;
    s->drain_at_s = ml_clock_s() + s->opts.drain_s;
    ml_http_server_stop_accepting(s->http, ML_HANDOVER_GRACE_S);
    s->drain_timer = ml_timer_start(s->loop, POLL_S, true, look_at_rest, s);
}

void ml_server_drain(ml_server *s) {
    if (s->draining)
        return;
    s->draining = true;
    ml_http_server_stop_accepting(s->http, 0);
    if (s->n_job == 0)
        part(s);
    else
        s->drain_timer = ml_timer_start(s->loop, s->opts.drain_s, false, stop_draining, s);
}

void ml_server_job_gone(ml_server *s) {
    if (s->draining && !s->replaced && s->n_job == 0 && !s->closing)
        part(s);
}

void ml_server_close(ml_server *s) {
    ml_arena arena;

    if (!s)
        return;
    s->closing = true;
    ml_timer_stop(s->drain_timer);
    ml_admin_close(s->admin);
    ml_text_thread_close(s->text);
    ml_handover_close(s->handover);
    if (s->http)
        ml_http_server_close(s->http);
    while (s->jobs)
        ml_job_free(s->jobs);
    ml_session_table_free(s->sessions);
    ml_response_store_free(s->responses);
    ml_adapters_close(s->adapters);
    ml_probes_free(s);
    ml_dispatcher_close(s->dispatcher);
    if (s->encoder) {
        ml_encoder_free(s->encoder);
        ml_encoder_free(s->text_encoder);
    }
    ml_access_release(&s->access);
    pthread_mutex_destroy(&s->label_lock);
    arena = s->arena;
    ml_arena_release(&arena);
}
