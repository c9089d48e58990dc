/* The endpoints of sessions, and the part of a chat that records its answer in one.
 *
 *   POST   /sessions                             a new session
 *   GET    /sessions/ID                          its records
 *   DELETE /sessions/ID
 *   POST   /sessions/ID/samples                  its training samples
 *   POST   /sessions/ID/v1/chat/completions      OpenAI's chat,
 *   POST   /sessions/ID/v1/messages              Anthropic's messages,
 *   POST   /sessions/ID/v1/responses             OpenAI's responses, whose answers are
 *                                                recorded
 *
 * An id is 128 random bits: whoever knows it may use the session without an API key. */
#include <stdio.h>
#include <string.h>

#include "serve/openai.h"
#include "serve/session_samples.h"

/* --- new sessions ------------------------------------------------------------------- */

typedef struct session_body {
    ml_str owner;
    const ml_json *seed, *sampling;
} session_body;

#define AT(field) offsetof(session_body, field)

static const ml_field rows[] = {
    { "owner", ML_FIELD_STR, AT(owner) },
    { "seed", ML_FIELD_JSON, AT(seed) },
    { "sampling_params", ML_FIELD_JSON, AT(sampling) },
    { 0 },
};

static ml_status fill_session(ml_session *x, const session_body *b, int32_t n_vocab,
                              ml_err *err) {
    ml_sampling_params *p;
    int64_t seed = 0;

    if (b->seed && !ml_json_i64(b->seed, &seed))
        return ml_fail(err, ML_EUSAGE, "\"seed\" is %s; expected an integer",
                       ml_json_what(b->seed));
    x->has_seed = b->seed != NULL;
    x->seed = (uint64_t)seed;
    if (!b->sampling)
        return ML_OK;
    p = ML_NEW(&x->arena, ml_sampling_params, 1);
    ml_sampling_params_init(p);
    x->sampling = p;
    /* A copy: the parameters point into it. */
    return ml_sampling_params_read(p, ml_json_tree_copy(&x->arena, b->sampling), n_vocab,
                                   &x->arena, err);
}

typedef struct creation {
    ml_server *server;
    ml_http_call *call;
    ml_arena arena;
    ml_text reply;
    ml_session *session;
    ml_status st;
    ml_err err;
} creation;

static void create(void *ud) {
    creation *n = ud;
    session_body b = { 0 };
    const ml_json *doc = NULL;
    ml_json_out o = { .to = &n->reply };

    n->st = ml_read_body(&doc, n->call, &n->arena, true, &n->err);
    if (!n->st)
        n->st = ml_fields_read(&b, rows, doc, "request body", &n->err);
    if (!n->st)
        n->st = ml_session_open(&n->session, n->server->sessions, b.owner, &n->err);
    if (!n->st)
        n->st = fill_session(n->session, &b, n->server->opts.n_vocab, &n->err);
    if (n->st)
        return;
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "session_id", n->session->id);
    ml_json_end(&o, '}');
}

static void serve_create(ml_server *s, ml_http_call *c) {
    creation n = { .server = s, .call = c };

    ml_arena_init(&n.arena, "a new session");
    if (!ml_memory_try(create, &n))
        n.st = ml_fail(&n.err, ML_ENOMEM, "out of memory for a session; try again later");
    if (n.st && n.session)
        ml_session_delete(n.session);
    n.err.code = n.st;
    if (n.st)
        ml_reply_err(c, &n.err);
    else
        ml_reply_json(c, 200, &n.reply);
    ml_text_release(&n.reply);
    ml_arena_release(&n.arena);
}

/* --- records and samples -------------------------------------------------------------- */

static ml_session_text text_of(ml_job *j, const ml_json *kwargs) {
    return (ml_session_text){ j->server->opts.chat, j->server->opts.tokenizer, j->encoder,
                              kwargs };
}

static ml_status check_text(const ml_job *j, ml_err *err) {
    if (j->server->opts.chat && j->encoder)
        return ML_OK;
    return ml_fail(err, ML_EUSAGE,
                   "sessions need a tokenizer and a chat template: set one with "
                   "--chat-template");
}

static void add_counts(ml_server *s, const int64_t *count) {
    for (int i = 0; i < ML_MISMATCH_TYPES; i++)
        atomic_fetch_add(&s->n_mismatch[i], count[i]);
}

static ml_status read_records(ml_job *j, ml_err *err) {
    const ml_session_opts *o = &j->server->opts.sessions;
    ml_session_text x = text_of(j, o->kwargs);
    int64_t count[ML_MISMATCH_TYPES] = { 0 };
    ml_json_out out = { .to = &j->out };
    ml_session_view v;
    ml_status st = check_text(j, err);

    if (st)
        return st;
    ml_session_view_take(&v, j->session, o->kind, &j->scratch);
    j->out.len = 0;
    ml_session_write(j->session, &v, &x, &out, count, &j->scratch);
    return ML_OK;
}

/* "metadata" is for the functions that select samples, which run elsewhere. */
static const ml_field sample_rows[] = {
    { "max_seq_len", ML_FIELD_I32, 0, 0, INT32_MAX },
    { "metadata", ML_FIELD_IGNORE },
    { 0 },
};

static ml_status read_samples(ml_job *j, ml_err *err) {
    const ml_session_opts *o = &j->server->opts.sessions;
    ml_session_text x = text_of(j, o->kwargs);
    int64_t count[ML_MISMATCH_TYPES] = { 0 };
    ml_json_out out = { .to = &j->out };
    int32_t max_tokens = 0;
    ml_session_view v;
    ml_status st = check_text(j, err);

    if (!st)
        st = ml_fields_read(&max_tokens, sample_rows, j->body, "request body", err);
    if (st)
        return st;
    ml_session_view_take(&v, j->session, o->kind, &j->scratch);
    j->out.len = 0;
    ml_session_samples_write(&v, &x, max_tokens, &out, count, &j->scratch);
    add_counts(j->server, count);
    return ML_OK;
}

static const ml_api records_api = { .path = "/sessions/ID",
                                    .read = read_records,
                                    .background = true };
static const ml_api samples_api = { .path = "/sessions/ID/samples",
                                    .read = read_samples,
                                    .background = true };

/* --- a chat in a session ------------------------------------------------------------------ */

/* The options of the session's template, and those of the request, which come last and
 * count. */
static const ml_json *join_kwargs(ml_job *j, const ml_json *own, const ml_json *request) {
    ml_json_list all;

    if (!own || !request)
        return own ? own : request;
    all = ml_json_list_begin(&j->scratch, ML_JSON_OBJECT);
    ml_json_list_join(&all, own);
    ml_json_list_join(&all, request);
    return all.list;
}

/* The run decides how the policy is sampled; the request, how long it answers. */
static void take_sampling(ml_sampling_params *p, const ml_sampling_params *own) {
    p->temperature = own->temperature;
    p->top_p = own->top_p;
    p->top_k = own->top_k;
    p->min_p = own->min_p;
    p->repetition = own->repetition;
    p->frequency = own->frequency;
    p->presence = own->presence;
    if (p->max_new < 0)
        p->max_new = own->max_new;
    if (!p->n_stop) {
        p->stop = own->stop;
        p->n_stop = own->n_stop;
    }
    if (!p->n_stop_id) {
        p->stop_id = own->stop_id;
        p->n_stop_id = own->n_stop_id;
    }
}

static ml_status check_chat(const ml_openai_body *b, ml_err *err) {
    if (b->sampling.n != 1)
        return ml_fail(err, ML_EUNSUP, "\"n\": a request of a session has one answer");
    if (b->input_ids || b->continue_final)
        return ml_fail(err, ML_EUNSUP,
                       "\"%s\" is not supported in a session, which keeps the tokens of "
                       "the conversation itself",
                       b->input_ids ? "input_ids" : "continue_final_message");
    return ML_OK;
}

static bool may_append(const char *roles, ml_str role) {
    const char *at = roles;

    while (at && *at) {
        size_t n = strcspn(at, " ");
        if (role.len == n && memcmp(role.ptr, at, n) == 0)
            return true;
        at += n + (at[n] == ' ');
    }
    return roles == NULL;
}

/* Of the messages after the parent's. */
static ml_status check_roles(const ml_session_turn *t, const char *roles, ml_err *err) {
    int32_t i = 0;

    for (const ml_json *v = t->normal->child; v && t->parent; v = v->next) {
        const ml_json *role = ml_json_get(v, "role");
        if (i++ >= t->n_matched && !may_append(roles, role->text))
            return ml_fail(err, ML_EUSAGE,
                           "a message of the role \"%.*s\" cannot be appended: the "
                           "template of --tito-model accepts %s",
                           (int)(role->text.len < 40 ? role->text.len : 40), role->text.ptr,
                           roles);
    }
    return ML_OK;
}

/* Ids that a template may render depend on the session's seed alone. */
static void number_reply(ml_job *j, const ml_session_turn *t) {
    size_t n = strcspn(j->id, "-_") + 1;

    snprintf(j->id + n, sizeof j->id - n, "%016llx", (unsigned long long)t->seed);
}

ml_status ml_session_begin(ml_job *j, ml_chat *chat, const ml_json *raw, ml_err *err) {
    const ml_session_opts *o = &j->server->opts.sessions;
    ml_openai_body *b = j->ud;
    ml_session_turn *t = &j->turn;
    ml_status st = check_chat(b, err);

    chat->kwargs = join_kwargs(j, o->kwargs, chat->kwargs);
    j->keep_body = true; /* the record of the answer needs the messages */
    t->raw = raw;
    t->normal = chat->messages;
    if (!st) {
        st = ml_session_attach(j->session, t, err);
        j->conflict = st && o->kind == ML_SESSION_TREE;
    }
    if (!st)
        st = check_roles(t, o->roles, err);
    if (st)
        return st;
    if (j->session->sampling)
        take_sampling(&b->sampling, j->session->sampling);
    if (j->session->has_seed && !b->sampling.has_seed) {
        b->sampling.has_seed = true;
        b->sampling.seed = t->seed;
    }
    if (j->session->has_seed)
        number_reply(j, t);
    return ML_OK;
}

ml_status ml_session_prompt(ml_job *j, const ml_chat *chat, ml_choice *c, ml_err *err) {
    ml_session_text x = text_of(j, chat->kwargs);

    return ml_session_continue(&j->turn, &x, chat->tools, &c->prompt, &c->n_prompt,
                               &j->arena, &j->scratch, err);
}

void ml_session_record(ml_job *j) {
    ml_choice *c = &j->choice[0];
    const ml_openai_body *b = j->ud;
    ml_scored answer = ml_logprob_buffer_view(&c->answer);
    ml_json_out o = { .to = &j->event };
    ml_err err = { 0 };

    ml_chat_read_text(c);
    j->event.len = 0;
    ml_chat_answer_write(c, &o);
    if (ml_session_turn_end(&j->turn, b->tools, (ml_str){ j->event.ptr, j->event.len },
                            c->prompt, c->n_prompt, &answer, c->finish, &err) != ML_OK) {
        ml_session_turn_release(&j->turn);
        return;
    }
    j->turn.node->n_cached = c->n_cached;
    memcpy(j->turn.node->id, j->id, sizeof j->turn.node->id);
    ml_session_commit(j->session, &j->turn);
}

/* --- paths --------------------------------------------------------------------------------- */

static const struct {
    const char *path, *method;
    const ml_api *api; /* or */
    ml_endpoint *fn;   /* that does not depend on the session */
} paths[] = {
    { "", "GET", &records_api, NULL },
    { "/samples", "POST", &samples_api, NULL },
    { "/v1/chat/completions", "POST", &ml_chat_api, NULL },
    { "/v1/messages", "POST", &ml_messages_api, NULL },
    { "/v1/responses", "POST", &ml_responses_api, NULL },
    { "/v1/messages/count_tokens", "POST", NULL, ml_serve_count_tokens },
    { "/v1/models", "GET", NULL, ml_serve_models },
};

static void refuse(ml_http_call *c, int status, const char *what, ml_str path) {
    char message[300];

    snprintf(message, sizeof message, "%s %.*s.", what,
             (int)(path.len < 200 ? path.len : 200), path.ptr);
    ml_reply_error(c, status, message);
}

static void serve_in(ml_server *s, ml_http_call *c, ml_session *x, ml_str rest) {
    ml_str method = ml_http_method(c);

    if (!rest.len && ml_str_is(method, "DELETE")) {
        ml_session_delete(x);
        ml_http_reply(c, 204, "application/json", (ml_str){ "", 0 });
        return;
    }
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        if (!ml_str_is(rest, paths[i].path))
            continue;
        if (!ml_str_is(method, paths[i].method))
            refuse(c, 405, "Wrong method for", ml_http_path(c));
        else if (s->draining)
            ml_reply_error(c, 503, "The server is shutting down.");
        else if (paths[i].fn)
            paths[i].fn(s, c);
        else
            ml_job_serve_in(s, c, paths[i].api, x);
        return;
    }
    refuse(c, 404, "Unknown endpoint", ml_http_path(c));
}

void ml_serve_sessions(ml_server *s, ml_http_call *c) {
    static const char root[] = "/sessions";
    ml_str path = ml_http_path(c);
    ml_str rest = { path.ptr + sizeof root - 1, path.len - (sizeof root - 1) };
    ml_session *x;
    size_t n;

    if (!s->sessions) {
        ml_reply_error(c, 404, "There are no sessions: start with --use-session-server.");
        return;
    }
    if (!rest.len) {
        if (ml_str_is(ml_http_method(c), "POST"))
            serve_create(s, c);
        else
            refuse(c, 405, "Only POST is possible at", path);
        return;
    }
    rest = (ml_str){ rest.ptr + 1, rest.len - 1 };
    n = 0;
    while (n < rest.len && rest.ptr[n] != '/')
        n++;
    x = ml_session_find(s->sessions, (ml_str){ rest.ptr, n });
    if (x)
        serve_in(s, c, x, (ml_str){ rest.ptr + n, rest.len - n });
    else
        ml_reply_error(c, 404, "There is no such session.");
}
