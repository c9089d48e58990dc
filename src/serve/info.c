/* Endpoints with information about the server: health, model, server info. */
#include "serve/serve_priv.h"

#define HEALTH_S 20.0 /* a token must arrive, or a step end, within this time */
#define GLANCE_S 0.1

static void reply(ml_http_call *c, ml_text *body) {
    ml_reply_json(c, 200, body);
    ml_text_release(body);
}

static ml_gen_stats stats_of(ml_server *s) {
    ml_gen_stats st = { 0 };

    s->opts.gen->stats(s->opts.gen, &st);
    return st;
}

/* --- health ----------------------------------------------------------------- */

void ml_serve_health(ml_server *s, ml_http_call *c) {
    ml_http_reply(c, s->draining ? 503 : 200, "text/plain", ml_str_of(""));
}

/* A health check that generates one token; the reply is only a status. */
struct ml_probe {
    ml_http_call *call; /* NULL: answered or disconnected */
    ml_arena arena;
    ml_server *server;
    ml_probe *next;
    ml_output_queue queue;
    ml_timer *timer;
    uint64_t ticket;
    int64_t n_step; /* the engine's step count at the start */
    int32_t n_glance;
};

static void free_probe(ml_probe *p) {
    ml_arena arena = p->arena;
    ml_probe **at = &p->server->probes;

    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    ml_timer_stop(p->timer);
    ml_output_queue_release(&p->queue);
    ml_arena_release(&arena);
}

void ml_probes_free(ml_server *s) {
    while (s->probes)
        free_probe(s->probes);
}

static void end_probe(ml_probe *p, int status) {
    ml_http_call *c = p->call;

    p->call = NULL;
    if (c)
        ml_http_reply(c, status, "text/plain", ml_str_of(""));
}

static void probe_gone(void *ud) {
    ((ml_probe *)ud)->call = NULL;
}

/* An engine that completes steps is healthy, however long the queue before the probe is. */
static void probe_glance(void *ud) {
    ml_probe *p = ud;
    bool steps = stats_of(p->server).n_step > p->n_step;

    if (!steps && ++p->n_glance * GLANCE_S < HEALTH_S)
        return;
    ml_timer_stop(p->timer);
    p->timer = NULL;
    end_probe(p, steps ? 200 : 503);
    p->server->opts.gen->abort(p->server->opts.gen, p->ticket);
}

static void on_probe_output(void *ud, const ml_output *output) {
    ml_probe *p = ud;

    if (output->finish == ML_FINISH_NOT)
        return;
    end_probe(p, output->finish == ML_FINISH_ABORT ? 503 : 200);
    free_probe(p);
}

/* A full queue or a pause does not make the server unhealthy. */
void ml_serve_health_generate(ml_server *s, ml_http_call *c) {
    static const int32_t prompt[] = { 0 };
    ml_gen_request r = { .prompt = prompt,
                         .n_prompt = 1,
                         .max_new = 1,
                         .ignore_eos = true,
                         .score_from = -1,
                         .draw = { .top_p = 1, .repetition = 1 } };
    ml_arena arena;
    ml_probe *p;
    ml_err err;
    ml_status st;

    if (stats_of(s).paused) {
        ml_http_reply(c, 200, "text/plain", ml_str_of(""));
        return;
    }
    ml_arena_init(&arena, "a health check");
    p = ML_NEW(&arena, ml_probe, 1);
    *p = (ml_probe){ .call = c,
                     .arena = arena,
                     .server = s,
                     .next = s->probes,
                     .n_step = stats_of(s).n_step };
    s->probes = p;
    ml_output_queue_init(&p->queue, s->dispatcher, 0, 0, on_probe_output, p);
    st = s->opts.gen->submit(s->opts.gen, &r, ml_output_queue_put, &p->queue, &p->ticket,
                             &err);
    if (st) {
        end_probe(p, st == ML_EAGAIN ? 200 : 503);
        free_probe(p);
        return;
    }
    ml_http_on_gone(c, probe_gone, p);
    p->timer = ml_timer_start(s->loop, GLANCE_S, true, probe_glance, p);
}

/* --- the model -------------------------------------------------------------- */

void ml_serve_model_info(ml_server *s, ml_http_call *c) {
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };

    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "model_path", s->model_path);
    ml_json_put_word(&o, "served_model_name", s->opts.model_name);
    ml_json_put_word(&o, "tokenizer_path", s->opts.tokenizer_path);
    ml_json_put_bool(&o, "is_generation", true);
    ml_json_put_word(&o, "preferred_sampling_params", NULL);
    ml_json_key(&o, "weight_version");
    ml_server_write_label(s, stats_of(s).version, &o);
    ml_json_put_word(&o, "load_format", s->opts.load_format);
    ml_json_put_word(&o, "reasoning_parser", NULL);
    ml_json_put_word(&o, "tool_call_parser", ml_tool_format_name(s->opts.tools));
    ml_json_put_word(&o, "model_type", s->opts.model_type);
    ml_json_end(&o, '}');
    reply(c, &body);
}

void ml_serve_weight_version(ml_server *s, ml_http_call *c) {
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };
    ml_gen_stats st = stats_of(s);

    ml_json_begin(&o, '{');
    ml_json_key(&o, "weight_version");
    ml_server_write_label(s, st.version, &o);
    ml_json_put_int(&o, "version", (int64_t)st.version);
    ml_json_end(&o, '}');
    reply(c, &body);
}

static void add_state(ml_server *s, ml_json_out *o) {
    ml_gen_stats st = stats_of(s);

    ml_json_key(o, "internal_states");
    ml_json_begin(o, '[');
    ml_json_begin(o, '{');
    ml_json_put_int(o, "num_running_reqs", st.n_running);
    ml_json_put_int(o, "num_queue_reqs", st.n_waiting);
    ml_json_put_int(o, "num_pages", st.n_page);
    ml_json_put_int(o, "num_pages_free", st.n_page_free);
    ml_json_put_int(o, "num_pages_cached", st.n_page_cached);
    ml_json_put_int(o, "num_steps", st.n_step);
    ml_json_put_bool(o, "paused", st.paused);
    ml_json_end(o, '}');
    ml_json_end(o, ']');
}

void ml_serve_server_info(ml_server *s, ml_http_call *c) {
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };
    ml_gen_stats st = stats_of(s);

    ml_json_begin(&o, '{');
    if (s->opts.flags.len)
        ml_json_raw(&o, s->opts.flags);
    ml_json_put_word(&o, "status", s->draining ? "draining" : "ready");
    ml_json_put_word(&o, "version", s->opts.version);
    ml_json_put_int(&o, "max_total_num_tokens", st.n_page * st.page_tokens);
    ml_json_put_int(&o, "max_req_input_len", s->opts.context - 1);
    add_state(s, &o);
    ml_json_end(&o, '}');
    reply(c, &body);
}

/* --- /v1/models ------------------------------------------------------------- */

static void write_model(const ml_server *s, ml_json_out *o) {
    ml_json_begin(o, '{');
    ml_json_put_word(o, "id", s->opts.model_name);
    ml_json_put_word(o, "object", "model");
    ml_json_put_int(o, "created", s->created);
    ml_json_put_word(o, "owned_by", "miles");
    ml_json_put_word(o, "root", s->opts.model_name);
    ml_json_put_word(o, "parent", NULL);
    ml_json_put_int(o, "max_model_len", s->opts.context);
    ml_json_end(o, '}');
}

static void write_adapter(const ml_server *s, const ml_adapter *e, ml_json_out *o) {
    ml_json_begin(o, '{');
    ml_json_put_word(o, "id", e->name);
    ml_json_put_word(o, "object", "model");
    ml_json_put_int(o, "created", s->created);
    ml_json_put_word(o, "owned_by", "miles");
    ml_json_put_word(o, "root", e->dir);
    ml_json_put_word(o, "parent", s->opts.model_name);
    ml_json_put_int(o, "max_model_len", s->opts.context);
    ml_json_end(o, '}');
}

void ml_serve_models(ml_server *s, ml_http_call *c) {
    size_t prefix = sizeof "/v1/models/" - 1;
    ml_str path = ml_http_path(c);
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };

    if (path.len > prefix) {
        ml_str name = { path.ptr + prefix, path.len - prefix };
        const ml_adapter *e = ml_adapters_find(s->adapters, name);
        if (!e && !ml_str_is(name, s->opts.model_name)) {
            ml_reply_no_model(c, "Unknown model; /v1/models lists the available ones.");
            return;
        }
        if (e)
            write_adapter(s, e, &o);
        else
            write_model(s, &o);
        reply(c, &body);
        return;
    }
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "object", "list");
    ml_json_key(&o, "data");
    ml_json_begin(&o, '[');
    write_model(s, &o);
    for (const ml_adapter *e = NULL; (e = ml_adapters_next(s->adapters, e));)
        write_adapter(s, e, &o);
    ml_json_end(&o, ']');
    ml_json_end(&o, '}');
    reply(c, &body);
}
