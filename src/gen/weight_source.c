#include "gen/weight_source.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/bug.h"
#include "base/checksum.h"
#include "base/log.h"
#include "base/map.h"
#include "base/oom.h"
#include "base/secret.h"
#include "gen/weight_link.h"

#define ACCEPT_S 0.2    /* how often the accepting thread looks whether to stop */
#define MAX_WORLD 65536 /* ranks of a group */

/* One version, of which connections may be sending tensors. */
typedef struct image {
    atomic_int n_user;
    ml_arena arena;
    char version[24];
    ml_st_tensor *tensor; /* [n] their bytes are on the heap */
    char (*sum)[ML_CHECKSUM_TEXT];
    int32_t n, cap;
    ml_map by_name;
} image;

typedef struct connection {
    struct connection *next;
    ml_weight_source *source;
    pthread_t thread;
    ml_tcp tcp;
    char engine[ML_WEIGHT_MAX_GROUP + 120]; /* for messages */
    atomic_bool ended;
} connection;

struct ml_weight_source {
    ml_secret key;
    double timeout_s;
    int fd, port;
    pthread_t thread;
    atomic_bool stopping;
    connection *first; /* the accepting thread's, and after its end the owner's */
    image *next;       /* being written; the owner's */
    pthread_mutex_t lock;
    image *now; /* under the lock; NULL: none yet, or it is being replaced */
};

/* --- versions ----------------------------------------------------------------- */

static void drop(image *m) {
    ml_arena arena;

    if (!m || atomic_fetch_sub(&m->n_user, 1) > 1)
        return;
    for (int32_t i = 0; i < m->n; i++)
        free((void *)(uintptr_t)m->tensor[i].data);
    free(m->tensor);
    free(m->sum);
    arena = m->arena;
    ml_arena_release(&arena);
}

static image *swap_image(ml_weight_source *s, image *m) {
    image *old;

    pthread_mutex_lock(&s->lock);
    old = s->now;
    s->now = m;
    pthread_mutex_unlock(&s->lock);
    return old;
}

void ml_weight_source_begin(ml_weight_source *s, uint64_t version) {
    ml_arena arena;
    image *m;

    drop(swap_image(s, NULL));
    drop(s->next);
    ml_arena_init(&arena, "published weights");
    m = ML_NEW(&arena, image, 1);
    m->arena = arena;
    m->n_user = 1;
    snprintf(m->version, sizeof m->version, "%llu", (unsigned long long)version);
    ml_map_init(&m->by_name, &m->arena, 1024);
    s->next = m;
}

ml_status ml_weight_source_add(ml_weight_source *s, const ml_st_tensor *t, ml_err *err) {
    image *m = s->next;
    ml_st_tensor *own;

    if (m->n == m->cap) {
        m->cap = m->cap ? 2 * m->cap : 256;
        m->tensor = ml_memory_grow(m->tensor, (size_t)m->cap * sizeof *m->tensor,
                                   "published tensors");
        m->sum =
            ml_memory_grow(m->sum, (size_t)m->cap * sizeof *m->sum, "published tensors");
    }
    own = &m->tensor[m->n];
    *own = *t;
    own->name =
        ml_str_of(ml_arena_str(&m->arena, t->name.ptr, t->name.len)); /* ends with NUL */
    own->data = malloc(t->bytes + 1);
    if (!own->data)
        return ml_fail(err, ML_ENOMEM, "out of memory for %zu bytes of %s, to publish it",
                       t->bytes, own->name.ptr);
    memcpy((void *)(uintptr_t)own->data, t->data, t->bytes);
    ml_checksum_write(m->sum[m->n], ML_CHECKSUM_XXH3, own->data, t->bytes);
    ml_map_add(&m->by_name, own->name, m->n++);
    return ML_OK;
}

void ml_weight_source_commit(ml_weight_source *s) {
    image *m = s->next;

    s->next = NULL;
    drop(swap_image(s, m));
}

int32_t ml_weight_source_count(const ml_weight_source *s) {
    return s->now->n;
}

const ml_st_tensor *ml_weight_source_tensor(const ml_weight_source *s, int32_t i) {
    return &s->now->tensor[i];
}

static image *take_image(ml_weight_source *s) {
    image *m;

    pthread_mutex_lock(&s->lock);
    m = s->now;
    if (m)
        atomic_fetch_add(&m->n_user, 1);
    pthread_mutex_unlock(&s->lock);
    return m;
}

/* --- a connection, on its thread ------------------------------------------------ */

static ml_status greet(connection *c, ml_err *err) {
    struct {
        char magic[8];
        uint32_t rank, world, n;
    } hello;
    char group[ML_WEIGHT_MAX_GROUP + 1] = "";
    uint8_t theirs[ML_WEIGHT_NONCE], mine[ML_WEIGHT_NONCE], proof[ML_SHA256_BYTES],
        given[ML_SHA256_BYTES], welcome = 1;
    ml_status st = ml_tcp_read(&c->tcp, &hello, sizeof hello, err);

    if (st == ML_OK && (memcmp(hello.magic, ML_WEIGHT_MAGIC, sizeof hello.magic) != 0 ||
                        hello.n > ML_WEIGHT_MAX_GROUP || hello.world > MAX_WORLD))
        st = ml_fail(err, ML_EFORMAT, "%s is not an engine of this program", c->tcp.peer);
    if (st == ML_OK)
        st = ml_tcp_read(&c->tcp, group, hello.n, err);
    if (st == ML_OK)
        st = ml_tcp_read(&c->tcp, theirs, sizeof theirs, err);
    if (st == ML_OK)
        st = ml_weight_nonce(mine, err);
    if (st != ML_OK)
        return st;
    snprintf(c->engine, sizeof c->engine, "rank %u of group %s at %s", hello.rank, group,
             c->tcp.peer);
    ml_weight_proof(proof, c->source->key.text, "trainer", group, theirs, mine);
    st = ml_tcp_write(&c->tcp, mine, sizeof mine, err);
    if (st == ML_OK)
        st = ml_tcp_write(&c->tcp, proof, sizeof proof, err);
    if (st == ML_OK)
        st = ml_tcp_read(&c->tcp, given, sizeof given, err);
    ml_weight_proof(proof, c->source->key.text, "engine", group, theirs, mine);
    if (st == ML_OK && !ml_weight_proof_is(proof, given))
        st = ml_fail(err, ML_EPEER, "it does not know the key of the group");
    return st == ML_OK ? ml_tcp_write(&c->tcp, &welcome, 1, err) : st;
}

static ml_status refuse(connection *c, const char *sentence, ml_err *err) {
    uint8_t refused = 1;
    uint32_t n = (uint32_t)strlen(sentence);
    ml_status st = ml_tcp_write(&c->tcp, &refused, 1, err);

    if (st == ML_OK)
        st = ml_tcp_write(&c->tcp, &n, sizeof n, err);
    return st == ML_OK ? ml_tcp_write(&c->tcp, sentence, n, err) : st;
}

static ml_status send_tensor(connection *c, const image *m, int64_t i, ml_err *err) {
    const ml_st_tensor *t = &m->tensor[i];
    uint8_t ok = 0;
    uint64_t n = t->bytes;
    ml_status st = ml_tcp_write(&c->tcp, &ok, 1, err);

    if (st == ML_OK)
        st = ml_tcp_write(&c->tcp, &n, sizeof n, err);
    if (st == ML_OK)
        st = ml_tcp_write(&c->tcp, m->sum[i], ML_WEIGHT_SUM, err);
    if (st == ML_OK)
        st = ml_tcp_write(&c->tcp, t->data, t->bytes, err);
    if (st != ML_OK)
        ml_err_prefix(err, "tensor %s", t->name.ptr);
    return st;
}

/* The names that follow the version in a request. */
static ml_status send_names(connection *c, const image *m, const char *name,
                            const char *end, uint32_t n, ml_err *err) {
    ml_text why = { 0 };
    ml_status st = ML_OK;

    for (; n > 0 && name < end && st == ML_OK && !why.ptr; n--, name += strlen(name) + 1) {
        int64_t i = ml_map_get(&m->by_name, ml_str_of(name), -1);
        if (i >= 0)
            st = send_tensor(c, m, i, err);
        else
            ml_text_printf(&why, "version %s has no tensor %.300s", m->version, name);
    }
    if (st == ML_OK && n > 0 && !why.ptr)
        ml_text_printf(&why, "the request has fewer names than it says");
    if (st == ML_OK && why.ptr)
        st = refuse(c, why.ptr, err);
    ml_text_release(&why);
    return st;
}

static ml_status answer(connection *c, const char *asked, size_t bytes, uint32_t n,
                        ml_err *err) {
    image *m = take_image(c->source);
    ml_text why = { 0 };
    ml_status st;

    if (!m)
        ml_text_printf(&why, "the weights are being replaced by a newer version");
    else if (strcmp(m->version, asked) != 0)
        ml_text_printf(&why, "the newest weights are version %s, not %.40s", m->version,
                       asked);
    st = why.ptr ? refuse(c, why.ptr, err)
                 : send_names(c, m, asked + strlen(asked) + 1, asked + bytes, n, err);
    ml_text_release(&why);
    drop(m);
    return st;
}

/* ML_EAGAIN: the engine has left. */
static ml_status serve_request(connection *c, ml_err *err) {
    uint32_t n = 0;
    uint64_t bytes = 0;
    char *asked;
    ml_status st = ml_tcp_read_next(&c->tcp, &n, sizeof n, err);

    if (st == ML_OK)
        st = ml_tcp_read(&c->tcp, &bytes, sizeof bytes, err);
    if (st != ML_OK)
        return st;
    asked = bytes && bytes <= ML_WEIGHT_MAX_ASK ? malloc(bytes) : NULL;
    if (!asked)
        return ml_fail(err, ML_EFORMAT, "it asked with %llu bytes of names",
                       (unsigned long long)bytes);
    st = ml_tcp_read(&c->tcp, asked, bytes, err);
    if (st == ML_OK && asked[bytes - 1] != 0)
        st = ml_fail(err, ML_EFORMAT, "its last name has no end");
    if (st == ML_OK)
        st = answer(c, asked, bytes, n, err);
    free(asked);
    return st;
}

static void *serve(void *ud) {
    connection *c = ud;
    ml_err err = { 0 };
    ml_status st = greet(c, &err);

    while (st == ML_OK)
        st = serve_request(c, &err);
    if (st != ML_EAGAIN && !atomic_load(&c->source->stopping))
        ml_log(ML_LOG_WARN, "weights over TCP: lost %s: %s", c->engine, err.msg);
    atomic_store(&c->ended, true);
    return NULL;
}

/* --- accepting ---------------------------------------------------------------- */

static void end_connection(connection *c) {
    pthread_join(c->thread, NULL);
    ml_tcp_close(&c->tcp);
    free(c);
}

static void bury_ended(ml_weight_source *s) {
    for (connection **at = &s->first, *c; (c = *at) != NULL;)
        if (atomic_load(&c->ended)) {
            *at = c->next;
            end_connection(c);
        } else {
            at = &c->next;
        }
}

static void start_connection(ml_weight_source *s, ml_tcp tcp) {
    connection *c = calloc(1, sizeof *c);

    if (c) {
        c->source = s;
        c->tcp = tcp;
        snprintf(c->engine, sizeof c->engine, "%s", tcp.peer);
    }
    if (!c || pthread_create(&c->thread, NULL, serve, c) != 0) {
        ml_log(ML_LOG_WARN, "weights over TCP: no memory or thread for %s", tcp.peer);
        ml_tcp_close(&tcp);
        free(c);
        return;
    }
    c->next = s->first;
    s->first = c;
}

static void *accept_engines(void *ud) {
    ml_weight_source *s = ud;
    ml_err err = { 0 };

    while (!atomic_load(&s->stopping)) {
        ml_tcp tcp;
        if (ml_tcp_accept(&tcp, s->fd, ACCEPT_S, s->timeout_s, &err) == ML_OK)
            start_connection(s, tcp);
        bury_ended(s);
    }
    return NULL;
}

ml_status ml_weight_source_open(ml_weight_source **out, const char *host, double timeout_s,
                                ml_err *err) {
    ml_weight_source *s = calloc(1, sizeof *s);
    ml_status st;

    if (!s)
        return ml_fail(err, ML_ENOMEM, "out of memory to publish weights");
    s->timeout_s = timeout_s;
    s->fd = -1;
    ML_BUG_IF(pthread_mutex_init(&s->lock, NULL));
    st = ml_secret_random(&s->key, err);
    if (st == ML_OK)
        st = ml_tcp_listen(&s->fd, &s->port, host, err);
    if (st == ML_OK && pthread_create(&s->thread, NULL, accept_engines, s) != 0)
        st = ml_fail(err, ML_ENOMEM, "cannot create a thread to publish weights");
    if (st == ML_OK) {
        *out = s;
        return ML_OK;
    }
    if (s->fd >= 0)
        close(s->fd);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return st;
}

void ml_weight_source_close(ml_weight_source *s) {
    if (!s)
        return;
    atomic_store(&s->stopping, true);
    pthread_join(s->thread, NULL);
    for (connection *c = s->first, *next; c; c = next) {
        next = c->next;
        ml_tcp_break(&c->tcp);
        end_connection(c);
    }
    close(s->fd);
    drop(s->next);
    drop(s->now);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int ml_weight_source_port(const ml_weight_source *s) {
    return s->port;
}

const char *ml_weight_source_key(const ml_weight_source *s) {
    return s->key.text;
}
