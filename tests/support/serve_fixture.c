#include "tests/support/serve_fixture.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bug.h"
#include "base/file.h"
#include "tests/support/scratch.h"

enum { MAX_REQUESTS = 256, MAX_STOPS = 8, MAX_PROMPT = 512, MAX_TOP = 100 };

typedef struct asked {
    bool used, aborted;
    uint64_t ticket;
    ml_gen_fn *fn;
    void *ud;
    int32_t prompt[MAX_PROMPT], n_prompt, score_from, max_new, n_top, n_also, n_said;
    char stop[MAX_STOPS][32];
    int32_t n_stop;
} asked;

struct ml_serve_fixture_priv {
    ml_gen gen; /* first: an ml_gen * of this kind is one of these */
    ml_serve_fixture *f;
    pthread_t engine, server;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    asked all[MAX_REQUESTS];
    uint64_t n_ticket, version;
    uint64_t n_said, n_taken;
    bool paused, closing;
    ml_loop *loop;
    ml_server *s;
    ml_tokenizer *tokenizer;
    ml_chat_template *chat;
    ml_text reply;
};

typedef struct ml_serve_fixture_priv priv;

/* --- the generator ---------------------------------------------------------- */

static void score(float *lp, float *entropy, int32_t *top_id, float *top, int32_t id,
                  int32_t n_top) {
    *lp = (float)-id / 64;
    *entropy = (float)id / 128;
    for (int32_t k = 0; k < n_top; k++) {
        top_id[k] = id + k;
        top[k] = (float)-(id + k) / 64;
    }
}

/* The script ends in the end token. */
static int32_t next_token(const priv *p, const asked *a) {
    int32_t n = (int32_t)strlen(p->f->script);
    return a->n_said < n ? (unsigned char)p->f->script[a->n_said] : ML_FAKE_EOS;
}

static int32_t matched_stop(const priv *p, const asked *a) {
    char said[4096];

    snprintf(said, sizeof said, "%.*s", (int)a->n_said, p->f->script);
    for (int32_t i = 0; i < a->n_stop; i++)
        if (strstr(said, a->stop[i]))
            return i;
    return -1;
}

/* One token of one request, or its end. */
static void say(priv *p, asked *a) {
    int32_t id = next_token(p, a), top_id[128], ptop_id[MAX_PROMPT * MAX_TOP];
    float lp, entropy, top[128], also[128], plp[MAX_PROMPT], pent[MAX_PROMPT],
        ptop[MAX_PROMPT * MAX_TOP], palso[MAX_PROMPT * MAX_TOP];
    uint64_t version[MAX_PROMPT];
    ml_gen_update u = { .ticket = a->ticket, .version = p->version, .n_cached = 2 };
    int32_t first = a->score_from;

    for (int i = 0; i < MAX_PROMPT; i++)
        version[i] = p->version;
    if (a->n_said == 0 && first >= 0) {
        for (int32_t i = first; i < a->n_prompt; i++) {
            int32_t at = i - first;
            score(&plp[at], &pent[at], &ptop_id[at * a->n_top], &ptop[at * a->n_top],
                  a->prompt[i], a->n_top);
            for (int32_t k = 0; k < a->n_also; k++)
                palso[at * a->n_also + k] = -7;
        }
        u.prompt = (ml_scored){
            a->n_prompt - first, a->prompt + first, plp, pent, version, ptop_id, ptop, palso
        };
    }
    if (a->max_new > 0) {
        score(&lp, &entropy, top_id, top, id, a->n_top);
        for (int32_t k = 0; k < a->n_also; k++)
            also[k] = -7;
        u.answer = (ml_scored){ 1, &id, &lp, &entropy, version, top_id, top, also };
        a->n_said++;
    }
    if (id == ML_FAKE_EOS && a->max_new > 0) {
        u.finish = ML_FINISH_TOKEN;
        u.matched = id;
    } else if (matched_stop(p, a) >= 0) {
        u.finish = ML_FINISH_STRING;
        u.matched = matched_stop(p, a);
    } else if (a->n_said >= a->max_new) {
        u.finish = ML_FINISH_LENGTH;
    }
    a->used = u.finish == ML_FINISH_NOT;
    a->fn(a->ud, &u);
}

static void end_aborted(priv *p, asked *a) {
    ml_gen_update u = { .ticket = a->ticket,
                        .version = p->version,
                        .finish = ML_FINISH_ABORT,
                        .message = ml_str_of("aborted") };

    a->used = false;
    p->f->n_abort++;
    a->fn(a->ud, &u);
}

static asked *next_asked(priv *p) {
    for (int i = 0; i < MAX_REQUESTS; i++) {
        asked *a = &p->all[i];
        bool stuck = p->f->hold && a->n_said >= 1;
        if (a->used && (a->aborted || p->closing || (!p->paused && !stuck)))
            return a;
    }
    return NULL;
}

static void taken(void *ud) {
    priv *p = ud;

    pthread_mutex_lock(&p->lock);
    p->n_taken++;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

/* Until the server has seen what was said: what it is handed is taken in order. */
static void wait_taken(priv *p) {
    p->n_said++;
    ml_loop_post(p->loop, taken, p);
    while (p->n_taken < p->n_said && !p->closing)
        pthread_cond_wait(&p->wake, &p->lock);
}

static void *run_engine(void *ud) {
    priv *p = ud;

    pthread_mutex_lock(&p->lock);
    for (;;) {
        asked *a = next_asked(p);
        if (!a && p->closing)
            break;
        if (!a) {
            pthread_cond_wait(&p->wake, &p->lock);
        } else if (a->aborted || p->closing) {
            end_aborted(p, a);
        } else {
            say(p, a);
            if (p->f->slow)
                wait_taken(p);
        }
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static ml_status submit(ml_gen *g, const ml_gen_request *r, ml_gen_fn *fn, void *ud,
                        uint64_t *ticket, ml_err *err) {
    priv *p = (priv *)g;
    asked *a = p->all;

    pthread_mutex_lock(&p->lock);
    if (p->f->full) {
        pthread_mutex_unlock(&p->lock);
        return ml_fail(err, ML_EAGAIN, "the queue is full");
    }
    while (a->used)
        a++;
    ML_BUG_IF(a == p->all + MAX_REQUESTS || r->n_prompt > MAX_PROMPT);
    *a = (asked){ .used = true,
                  .ticket = ++p->n_ticket,
                  .fn = fn,
                  .ud = ud,
                  .n_prompt = r->n_prompt,
                  .score_from = r->score_from,
                  .max_new = r->max_new,
                  .n_top = r->n_top,
                  .n_also = r->n_also,
                  .n_stop = r->n_stop };
    memcpy(a->prompt, r->prompt, (size_t)r->n_prompt * sizeof *r->prompt);
    for (int32_t i = 0; i < r->n_stop; i++)
        snprintf(a->stop[i], sizeof a->stop[i], "%.*s", (int)r->stop[i].len,
                 r->stop[i].ptr);
    *ticket = a->ticket;
    p->f->seed = r->draw.seed;
    p->f->sample = r->draw.sample;
    p->f->max_new = r->max_new;
    p->f->temperature = r->draw.temperature;
    p->f->top_p = r->draw.top_p;
    p->f->n_prompt = r->n_prompt;
    p->f->adapter = r->adapter;
    p->f->adapter_id = r->adapter_id;
    p->f->score_from = r->score_from;
    p->f->n_submit++;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    return ML_OK;
}

static void abort_ticket(priv *p, uint64_t ticket, bool all) {
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < MAX_REQUESTS; i++)
        if (p->all[i].used && (all || p->all[i].ticket == ticket))
            p->all[i].aborted = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

static void abort_one(ml_gen *g, uint64_t ticket) {
    abort_ticket((priv *)g, ticket, false);
}

static void abort_all(ml_gen *g) {
    abort_ticket((priv *)g, 0, true);
}

static void set_paused(priv *p, bool paused) {
    pthread_mutex_lock(&p->lock);
    p->paused = paused;
    *(paused ? &p->f->n_pause : &p->f->n_resume) += 1;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

static void pause_steps(ml_gen *g) {
    set_paused((priv *)g, true);
}

static void resume_steps(ml_gen *g) {
    set_paused((priv *)g, false);
}

static bool flush(ml_gen *g) {
    return !((priv *)g)->f->no_flush;
}

static ml_status load(ml_gen *g, const char *dir, uint64_t version, ml_switch how,
                      ml_err *err) {
    priv *p = (priv *)g;

    if (strstr(dir, "/missing"))
        return ml_fail(err, ML_EIO, "missing/config.json: no such file");
    pthread_mutex_lock(&p->lock);
    snprintf(p->f->loaded, sizeof p->f->loaded, "%s", strrchr(dir, '/') + 1);
    p->version = version ? version : p->version + 1;
    p->f->load_version = p->version;
    p->f->load_how = how;
    pthread_mutex_unlock(&p->lock);
    return ML_OK;
}

static void stats(ml_gen *g, ml_gen_stats *out) {
    priv *p = (priv *)g;

    pthread_mutex_lock(&p->lock);
    *out = (ml_gen_stats){ .version = p->version,
                           .paused = p->paused,
                           .page_tokens = 16,
                           .n_page = 8,
                           .n_page_free = 6 };
    pthread_mutex_unlock(&p->lock);
}

static void close_gen(ml_gen *g) {
    priv *p = (priv *)g;

    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->engine, NULL);
}

static void release_memory(ml_gen *g, bool kv, bool weights) {
    ((priv *)g)->f->n_release += kv + 10 * weights;
}

static ml_status take_memory(ml_gen *g, bool kv, bool weights, ml_err *err) {
    (void)err;
    ((priv *)g)->f->n_take += kv + 10 * weights;
    return ML_OK;
}

static ml_status set_adapter(ml_gen *g, int32_t slot, const ml_adapter_source *from,
                             ml_err *err) {
    priv *p = (priv *)g;
    const char *dir = from->dir;

    if (dir && strstr(dir, "/missing"))
        return ml_fail(err, ML_EIO, "missing/adapter_config.json: no such file");
    pthread_mutex_lock(&p->lock);
    ML_BUG_IF(slot > 3 || (!dir && !*p->f->slot[slot]));
    p->version = from->version ? from->version : p->version;
    snprintf(p->f->slot[slot], sizeof p->f->slot[slot], "%s",
             dir ? strrchr(dir, '/') + 1 : "");
    p->f->n_set++;
    pthread_mutex_unlock(&p->lock);
    return ML_OK;
}

void ml_serve_fixture_adapters(ml_serve_fixture *f, int32_t max_loaded) {
    f->opts.lora = (ml_server_lora){ .set = set_adapter, .max_loaded = max_loaded };
}

/* --- text ------------------------------------------------------------------- */

static const char default_template[] =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments.q }})"
    "{% endfor %}{% endfor %}{% if tools %}#{{ tools | length }}{% endif %}"
    "{% if mood %}~{{ mood }}{% endif %}[assistant]";

static void write_tokenizer(void) {
    ml_text t = { 0 };

    ml_text_printf(&t,
                   "{\"version\": \"1.0\", \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                   "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": "
                   "false}, \"decoder\": {\"type\": \"ByteLevel\"}, \"added_tokens\": [");
    ml_text_printf(&t,
                   "{\"id\": %d, \"content\": \"<|im_end|>\", \"special\": true, "
                   "\"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                   "\"normalized\": false}, {\"id\": %d, \"content\": \"<|python_tag|>\", "
                   "\"special\": true, \"single_word\": false, \"lstrip\": false, "
                   "\"rstrip\": false, \"normalized\": false}], \"model\": {\"type\": "
                   "\"BPE\", \"merges\": [], \"vocab\": {\"\\u010a\": 10, \"\\u0120\": 32",
                   ML_FAKE_EOS, ML_FAKE_PYTHON_TAG);
    for (int c = 33; c < 127; c++)
        ml_text_printf(&t, c == '"' || c == '\\' ? ", \"\\%c\": %d" : ", \"%c\": %d", c, c);
    ml_text_printf(&t, ", \"<|im_end|>\": %d, \"<|python_tag|>\": %d}}}", ML_FAKE_EOS,
                   ML_FAKE_PYTHON_TAG);
    ML_BUG_IF(
        ml_file_replace(ml_test_path("tokenizer.json"), (ml_str){ t.ptr, t.len }, NULL));
    ml_text_release(&t);
}

static void open_text(priv *p) {
    ml_err err = { 0 };

    write_tokenizer();
    ML_BUG_IF(ml_file_replace(ml_test_path("chat_template.jinja"),
                              ml_str_of(p->f->template), NULL));
    if (ml_tokenizer_open(&p->tokenizer, ml_test_dir(), &err) ||
        ml_chat_template_open(&p->chat, ml_test_dir(), NULL, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        ML_BUG_IF(true);
    }
}

/* --- life ------------------------------------------------------------------- */

void ml_serve_fixture_init(ml_serve_fixture *f) {
    static const char *const anywhere[] = { "/" };

    *f = (ml_serve_fixture){ .script = "hello", .template = default_template };
    f->opts = (ml_server_opts){ .host = "127.0.0.1",
                                .n_vocab = ML_FAKE_VOCAB,
                                .context = 400,
                                .model_path = "a/model",
                                .model_name = "fake",
                                .model_type = "llama",
                                .load_format = "auto",
                                .weight_version = "default",
                                .weight_root = anywhere,
                                .n_weight_root = 1,
                                .version = "0",
                                .seed = 42,
                                .max_body = 1 << 20,
                                .max_connections = 100,
                                .drain_s = 5,
                                .memory = { release_memory, take_memory } };
}

static void *run_server(void *ud) {
    ml_loop_run(((priv *)ud)->loop);
    return NULL;
}

void ml_serve_fixture_start(ml_serve_fixture *f) {
    priv *p = calloc(1, sizeof *p);
    ml_err err = { 0 };

    if (!p)
        abort();
    f->priv = p;
    p->f = f;
    p->gen = (ml_gen){ "fake",       submit, abort_one, abort_all, pause_steps,
                       resume_steps, flush,  load,      stats,     close_gen };
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    open_text(p);
    f->opts.gen = &p->gen;
    f->opts.tokenizer = f->no_text ? NULL : p->tokenizer;
    f->opts.chat = f->no_text ? NULL : p->chat;
    pthread_create(&p->engine, NULL, run_engine, p);
    ML_BUG_IF(ml_loop_new(&p->loop, &err));
    if (ml_server_open(&p->s, p->loop, &f->opts, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        ML_BUG_IF(true);
    }
    pthread_create(&p->server, NULL, run_server, p);
}

static void drain(void *ud) {
    ml_server_drain(ud);
}

void ml_serve_fixture_stop(ml_serve_fixture *f) {
    priv *p = f->priv;

    ml_loop_post(p->loop, drain, p->s);
    pthread_join(p->server, NULL);
    p->gen.close(&p->gen);
    ml_server_close(p->s);
    ml_loop_free(p->loop);
    ml_chat_template_close(p->chat);
    ml_tokenizer_close(p->tokenizer);
    ml_text_release(&p->reply);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    free(p);
}

int32_t ml_serve_count(ml_serve_fixture *f, const int32_t *counter) {
    int32_t n;

    pthread_mutex_lock(&f->priv->lock);
    n = *counter;
    pthread_mutex_unlock(&f->priv->lock);
    return n;
}

bool ml_serve_wait(ml_serve_fixture *f, const int32_t *counter, int32_t n) {
    for (int i = 0; i < 500 && ml_serve_count(f, counter) < n; i++)
        usleep(10000);
    return ml_serve_count(f, counter) >= n;
}

/* --- the client ------------------------------------------------------------- */

static int send_request(ml_serve_fixture *f, const char *method, const char *path,
                        const char *headers, const char *body) {
    struct sockaddr_in to = { .sin_family = AF_INET,
                              .sin_port = htons((uint16_t)ml_server_port(f->priv->s)) };
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ml_text t = { 0 };

    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    ML_BUG_IF(connect(fd, (const struct sockaddr *)&to, sizeof to) != 0);
    ml_text_printf(&t,
                   "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Length: "
                   "%zu\r\n%s%s\r\n",
                   method, path, f->host ? f->host : "localhost",
                   f->promised ? f->promised
                   : body      ? strlen(body)
                               : 0,
                   headers && strstr(headers, "Content-Type:")
                       ? ""
                       : "Content-Type: application/json\r\n",
                   headers ? headers : "");
    if (body)
        ml_text_add(&t, body, strlen(body));
    for (size_t at = 0; at < t.len;) { /* a server may refuse before it has read all */
        ssize_t n = send(fd, t.ptr + at, t.len - at, MSG_NOSIGNAL);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    ml_text_release(&t);
    return fd;
}

/* Chunks of a streamed reply are put together, in place. */
static void join_chunks(char *body) {
    char *from = body, *to = body;

    for (;;) {
        char *end;
        size_t n = strtoul(from, &end, 16);
        if (n == 0)
            break;
        memmove(to, end + 2, n);
        to += n;
        from = end + 2 + n + 2;
    }
    *to = 0;
}

int ml_serve_ask(ml_serve_fixture *f, const char *method, const char *path,
                 const char *headers, const char *body, const char **reply) {
    int fd = send_request(f, method, path, headers, body), status = 0;
    ml_text *t = &f->priv->reply;
    char piece[4096], *split;
    ssize_t n;

    t->len = 0;
    ml_text_add(t, "", 0);
    while ((n = read(fd, piece, sizeof piece)) > 0)
        ml_text_add(t, piece, (size_t)n);
    close(fd);
    if (sscanf(t->ptr, "HTTP/1.1 %d", &status) != 1)
        status = -1;
    split = strstr(t->ptr, "\r\n\r\n");
    if (split && strstr(t->ptr, "Transfer-Encoding: chunked"))
        join_chunks(split + 4);
    if (reply)
        *reply = headers || !split ? t->ptr : split + 4;
    return status;
}

int ml_serve_send(ml_serve_fixture *f, const char *path, const char *body) {
    return send_request(f, "POST", path, NULL, body);
}

void ml_serve_hang_up(ml_serve_fixture *f, const char *path, const char *body) {
    int before = ml_serve_count(f, &f->n_submit);
    int fd = send_request(f, "POST", path, NULL, body);

    ml_serve_wait(f, &f->n_submit, before + 1);
    close(fd);
}
