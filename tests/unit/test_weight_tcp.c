/* Weights over TCP: an engine has the trainer's bits, or those it had before. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/json.h"
#include "gen/local.h"
#include "gen/weight_link.h"
#include "gen/weight_source.h"
#include "model/spec_shard.h"
#include "model/weight_dir.h"
#include "model/weights_checksum.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/must.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"
#include "tests/support/serve_fixture.h"

#define TIMEOUT_S 20.0

/* --- a trainer ------------------------------------------------------------------- */

typedef struct trainer {
    ml_arena arena;
    ml_spec spec;
    ml_checkpoint *from;
    ml_backend be;
    ml_weights w;
    ml_weight_source *source;
    uint64_t crc;
} trainer;

static ml_status add(void *ud, const ml_st_tensor *t, ml_err *err) {
    return ml_weight_source_add(ud, t, err);
}

/* The weights of a checkpoint, changed by a factor that is exact in every dtype. */
static void open_trainer(trainer *t, const char *model, ml_weight_dtype dtype, float factor,
                         uint64_t version) {
    ml_export_opts how;

    *t = (trainer){ 0 };
    ml_arena_init(&t->arena, "trainer");
    MUST(ml_spec_open(&t->spec, model, &err));
    MUST(ml_checkpoint_open(&t->from, model, &err));
    MUST(ml_backend_cpu_open(&t->be, 1, NULL, &err));
    MUST(ml_weights_load(&t->w, &t->spec, t->from, dtype, &t->be, &t->arena, &err));
    for (int32_t i = 0; i < t->w.n; i++) {
        size_t n = ml_tensor_bytes(&t->w.t[i]) / ml_dtype_bytes(t->w.t[i].dtype);
        for (size_t k = 0; k < n && t->w.t[i].n_dim > 1 && !t->spec.param[i].below; k++)
            if (t->w.t[i].dtype == ML_F32)
                ((float *)t->w.t[i].data)[k] *= factor;
            else
                ((uint16_t *)t->w.t[i].data)[k] = ml_f32_to_bf16(
                    factor * ml_bf16_to_f32(((uint16_t *)t->w.t[i].data)[k]));
    }
    t->w.version = version;
    how = ml_weight_dir_how(&t->w);
    MUST(ml_weights_crc64(&t->crc, &t->w, &t->spec, &err));
    MUST(ml_weight_source_open(&t->source, "127.0.0.1", TIMEOUT_S, &err));
    ml_weight_source_begin(t->source, version);
    MUST(ml_export_each(&t->w, &t->spec, t->from, &how, add, t->source, &err));
    ml_weight_source_commit(t->source);
}

static void close_trainer(trainer *t) {
    ml_weight_source_close(t->source);
    ml_weights_close(&t->w);
    ml_backend_close(&t->be);
    ml_checkpoint_close(t->from);
    ml_spec_close(&t->spec);
    ml_arena_release(&t->arena);
}

/* --- bodies of requests -------------------------------------------------------------- */

static const char *init_body(ml_arena *a, int port, const char *key, const char *group) {
    return ml_arena_printf(a,
                           "{\"master_address\":\"127.0.0.1\",\"master_port\":%d,"
                           "\"group_name\":\"%s\",\"group_key\":\"%s\",\"backend\":\"tcp\","
                           "\"rank_offset\":1,\"world_size\":2,\"timeout_s\":20}",
                           port, group, key);
}

static const char *dtype_of(const ml_st_tensor *t) {
    return t->dtype == ML_ST_F32    ? "torch.float32"
           : t->dtype == ML_ST_BF16 ? "bfloat16"
                                    : "torch.int64";
}

/* Tensors [first, end); `wrong` changes the first one's shape. */
static const char *update_body(ml_arena *a, const trainer *t, const char *group,
                               int32_t first, int32_t end, const char *wrong) {
    ml_text names = { 0 }, dtypes = { 0 }, shapes = { 0 };
    const char *body;

    for (int32_t i = first; i < end; i++) {
        const ml_st_tensor *x = ml_weight_source_tensor(t->source, i);
        const char *comma = i > first ? "," : "";
        ml_text_printf(&names, "%s\"%s\"", comma, x->name.ptr);
        ml_text_printf(&dtypes, "%s\"%s\"", comma, dtype_of(x));
        ml_text_printf(&shapes, "%s[", comma);
        for (int32_t k = 0; k < x->n_dim; k++)
            ml_text_printf(&shapes, "%s%lld", k ? "," : "", (long long)x->shape[k]);
        ml_text_printf(&shapes, "%s]", i == first && wrong ? wrong : "");
    }
    body = ml_arena_printf(
        a, "{\"group_name\":\"%s\",\"names\":[%s],\"dtypes\":[%s],\"shapes\":[%s]}", group,
        names.ptr, dtypes.ptr, shapes.ptr);
    ml_text_release(&names);
    ml_text_release(&dtypes);
    ml_text_release(&shapes);
    return body;
}

static ml_status order(ml_gen *g, ml_group_op op, const char *json, uint64_t version,
                       ml_err *err) {
    return ml_local_group_do(g, op, json, version, ML_SWITCH_RECOMPUTE, err);
}

static void join(ml_gen *g, ml_arena *a, const trainer *t, const char *group) {
    MUST(order(g, ML_GROUP_INIT,
               init_body(a, ml_weight_source_port(t->source),
                         ml_weight_source_key(t->source), group),
               0, &err));
}

static const char *begin_body(ml_arena *a, const trainer *t) {
    return ml_arena_printf(
        a, "{\"weight_version\":\"%llu\"%s}", (unsigned long long)t->w.version,
        ml_weight_dir_how(&t->w).keep_dtype ? "" : ",\"dtype\":\"float32\"");
}

static const char *end_body(ml_arena *a, const trainer *t) {
    return ml_arena_printf(a, "{\"weights_crc64\":\"%016llx\"}",
                           (unsigned long long)t->crc);
}

/* A whole update, in buckets of some tensors. */
static void update(ml_gen *g, ml_arena *a, const trainer *t, const char *group) {
    int32_t n = ml_weight_source_count(t->source);

    MUST(order(g, ML_GROUP_BEGIN, begin_body(a, t), 0, &err));
    for (int32_t i = 0; i < n; i += 5)
        MUST(order(g, ML_GROUP_UPDATE,
                   update_body(a, t, group, i, i + 5 < n ? i + 5 : n, NULL), 0, &err));
    MUST(order(g, ML_GROUP_END, end_body(a, t), t->w.version, &err));
}

/* --- engines ------------------------------------------------------------------------ */

typedef struct engine {
    ml_engine_fixture b;
    ml_spec spec;
    ml_gen *g;
} engine;

static ml_local_opts engine_opts(engine *e, const char *model, const char *dir,
                                 ml_comm *comm) {
    ml_engine_fixture_open(&e->b, model);
    MUST(ml_spec_open(&e->spec, model, &err));
    if (comm)
        MUST(ml_spec_shard(&e->spec, comm->size, comm->rank, &err));
    e->b.o.comm = comm;
    return (ml_local_opts){
        .engine = e->b.o, .spec = &e->spec, .be = &e->b.be, .dir = dir, .version = 1
    };
}

static void close_engine(engine *e) {
    ml_spec_close(&e->spec);
    ml_engine_fixture_close(&e->b);
}

static void open_engine(engine *e, const char *model, const char *dir) {
    ml_local_opts o = engine_opts(e, model, dir, NULL);

    MUST(ml_local_open(&e->g, &o, &err));
}

typedef struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    ml_received h;
} waiter;

static void hear(void *ud, const ml_gen_update *u) {
    waiter *w = ud;

    pthread_mutex_lock(&w->lock);
    ml_receive(&w->h, u);
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->lock);
}

static ml_received generate(ml_gen *g) {
    ml_gen_request r = ml_fixture_request(20, 30);
    waiter w = { 0 };
    uint64_t ticket;

    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.cond, NULL);
    MUST(g->submit(g, &r, hear, &w, &ticket, &err));
    pthread_mutex_lock(&w.lock);
    while (!w.h.n_end)
        pthread_cond_wait(&w.cond, &w.lock);
    pthread_mutex_unlock(&w.lock);
    return w.h;
}

static bool same(const ml_received *a, const ml_received *b) {
    return a->n > 0 && a->n == b->n && !memcmp(a->id, b->id, sizeof a->id) &&
           !memcmp(a->logprob, b->logprob, sizeof a->logprob);
}

/* --- tests: the same bits ------------------------------------------------------------- */

/* What an engine answers that has read the trainer's weights from files. */
static ml_received from_files(const trainer *t, const char *model) {
    ml_received got;
    engine e;

    MUST(ml_weight_dir_put(ml_test_path("files"), &t->w, &t->spec, t->from, 0, &err));
    open_engine(&e, model, ml_test_path("files"));
    got = generate(e.g);
    e.g->close(e.g);
    close_engine(&e);
    return got;
}

static void an_engine_has_the_trainers_bits(void) {
    ml_received files, before, after;
    trainer t;
    engine e;

    open_trainer(&t, ML_FIXTURE_MODEL, ML_WEIGHT_F32, 0.5f, 9);
    files = from_files(&t, ML_FIXTURE_MODEL);
    open_engine(&e, ML_FIXTURE_MODEL, ML_FIXTURE_MODEL);
    before = generate(e.g);
    join(e.g, &t.arena, &t, "g");
    update(e.g, &t.arena, &t, "g");
    after = generate(e.g);
    CHECK(same(&files, &after) && !same(&before, &after));
    CHECK(after.version[0] == 9);
    update(e.g, &t.arena, &t, "g"); /* again, over the same connection */
    MUST(order(e.g, ML_GROUP_DESTROY, "{\"group_name\":\"g\"}", 0, &err));
    ml_local_release(e.g, true, true); /* no directory has them: they stay */
    MUST(ml_local_take(e.g, true, true, &err));
    after = generate(e.g);
    CHECK(same(&files, &after));
    e.g->close(e.g);
    close_engine(&e);
    close_trainer(&t);
}

/* Families with experts, fused tensors, tied heads and other shapes, in both dtypes; the
 * checksum of the values decides. */
static void all_kinds_of_tensors_arrive(void) {
    static const char *const models[] = { "qwen3_moe", "gpt_oss",    "deepseek_v3",
                                          "gemma2",    "qwen3_next", "deepseek_v4" };
    char model[100];

    for (size_t i = 0; i < 2 * sizeof models / sizeof *models; i++) {
        trainer t;
        engine e;
        snprintf(model, sizeof model, "tests/golden/data/%s", models[i / 2]);
        open_trainer(&t, model, i % 2 ? ML_WEIGHT_F32 : ML_WEIGHT_AUTO, 2.0f, 3);
        open_engine(&e, model, model);
        join(e.g, &t.arena, &t, "g");
        update(e.g, &t.arena, &t, "g");
        e.g->close(e.g);
        close_engine(&e);
        close_trainer(&t);
    }
}

/* Two trainers with a group each: the last that gave weights is the one that counts. */
static void two_groups(void) {
    ml_received one, two, got;
    trainer a, b;
    engine e;
    ml_err why = { 0 };

    open_trainer(&a, ML_FIXTURE_MODEL, ML_WEIGHT_F32, 0.5f, 2);
    open_trainer(&b, ML_FIXTURE_MODEL, ML_WEIGHT_F32, 2.0f, 2);
    open_engine(&e, ML_FIXTURE_MODEL, ML_FIXTURE_MODEL);
    join(e.g, &a.arena, &a, "a");
    join(e.g, &b.arena, &b, "b");
    update(e.g, &a.arena, &a, "a");
    one = generate(e.g);
    update(e.g, &b.arena, &b, "b");
    two = generate(e.g);
    CHECK(!same(&one, &two));
    MUST(order(e.g, ML_GROUP_DESTROY, "{\"group_name\":\"b\"}", 0, &err));
    CHECK(order(e.g, ML_GROUP_DESTROY, "{\"group_name\":\"b\"}", 0, &why) != ML_OK);
    CHECK_HAS(why.msg, "there is no group b");
    update(e.g, &a.arena, &a, "a");
    got = generate(e.g);
    CHECK(same(&one, &got));
    e.g->close(e.g);
    close_engine(&e);
    close_trainer(&b);
    close_trainer(&a);
}

/* SGLang's way without begin and end: each request changes the tensors that it names. */
static void single_tensors(void) {
    ml_received whole, got;
    int32_t n;
    trainer t;
    engine e;

    open_trainer(&t, ML_FIXTURE_MODEL, ML_WEIGHT_AUTO, 2.0f, 5);
    n = ml_weight_source_count(t.source);
    open_engine(&e, ML_FIXTURE_MODEL, ML_FIXTURE_MODEL);
    join(e.g, &t.arena, &t, "g");
    update(e.g, &t.arena, &t, "g");
    whole = generate(e.g);
    MUST(e.g->load(e.g, ML_FIXTURE_MODEL, 6, ML_SWITCH_RECOMPUTE, &err));
    for (int32_t i = 0; i < n; i++) {
        const char *body = update_body(&t.arena, &t, "g", i, i + 1, NULL);
        MUST(order(e.g, ML_GROUP_UPDATE,
                   ml_arena_printf(&t.arena, "{\"weight_version\":\"5\",%s", body + 1),
                   (uint64_t)(7 + i), &err));
    }
    got = generate(e.g);
    CHECK(same(&whole, &got) && got.version[0] == (uint64_t)(6 + n));
    e.g->close(e.g);
    close_engine(&e);
    close_trainer(&t);
}

/* --- tests: ranks --------------------------------------------------------------------- */

typedef struct publication {
    trainer t;
    ml_received files;
} publication;

static void run_rank(ml_comm *comm, void *ud) {
    publication *p = ud;
    engine e;
    ml_local_opts o = engine_opts(&e, ML_FIXTURE_MODEL, ML_FIXTURE_MODEL, comm);
    ml_received got;
    ml_err why = { 0 };

    if (comm->rank > 0) {
        MUST(ml_local_follow(&o, &err));
    } else {
        MUST(ml_local_open(&e.g, &o, &err));
        CHECK(order(e.g, ML_GROUP_INIT, init_body(&p->t.arena, 1, "k", "g"), 0, &why) ==
              ML_EPEER);
        join(e.g, &p->t.arena, &p->t, "g");
        update(e.g, &p->t.arena, &p->t, "g");
        got = generate(e.g);
        CHECK(same(&p->files, &got));
        e.g->close(e.g);
    }
    close_engine(&e);
}

/* Each rank has a connection of its own, and its own rows. */
static void engines_of_several_ranks(void) {
    static publication p;

    open_trainer(&p.t, ML_FIXTURE_MODEL, ML_WEIGHT_F32, 0.5f, 4);
    p.files = from_files(&p.t, ML_FIXTURE_MODEL);
    for (int32_t n = 2; n <= 3; n++)
        ml_ranks_run(n, run_rank, &p);
    close_trainer(&p.t);
}

/* --- tests: what goes wrong -------------------------------------------------------------- */

static void fails(ml_gen *g, ml_group_op op, const char *json, const char *sentence) {
    ml_err err = { 0 };

    CHECK(order(g, op, json, 0, &err) != ML_OK);
    CHECK_HAS(err.msg, sentence);
}

static void wrong_requests_change_nothing(void) {
    ml_received before, after;
    trainer t;
    engine e;
    ml_arena *a = &t.arena;

    open_trainer(&t, ML_FIXTURE_MODEL, ML_WEIGHT_F32, 0.5f, 9);
    open_engine(&e, ML_FIXTURE_MODEL, ML_FIXTURE_MODEL);
    before = generate(e.g);
    fails(e.g, ML_GROUP_UPDATE, update_body(a, &t, "g", 0, 1, NULL), "there is no group g");
    fails(e.g, ML_GROUP_INIT, init_body(a, ml_weight_source_port(t.source), "another", "g"),
          "does not know the key of group g");
    join(e.g, a, &t, "g");
    fails(e.g, ML_GROUP_END, "{}", "without /begin_weight_update");
    MUST(order(e.g, ML_GROUP_BEGIN, begin_body(a, &t), 0, &err));
    fails(e.g, ML_GROUP_UPDATE, update_body(a, &t, "g", 0, 1, ",7"),
          "config.json requires");
    fails(e.g, ML_GROUP_UPDATE,
          "{\"group_name\":\"g\",\"names\":[\"model.norm.weight\"],\"dtypes\":[\"int8\"],"
          "\"shapes\":[[64]]}",
          "expected float32, bfloat16, float16");
    fails(e.g, ML_GROUP_UPDATE,
          "{\"group_name\":\"g\",\"names\":[\"who\"],\"dtypes\":[\"float32\"],"
          "\"shapes\":[[64]]}",
          "tensor who is not part of a qwen3 model");
    fails(e.g, ML_GROUP_UPDATE,
          "{\"group_name\":\"g\",\"names\":[\"who\",\"what\"],\"dtypes\":[\"float32\"],"
          "\"shapes\":[[64]]}",
          "");
    fails(e.g, ML_GROUP_END, end_body(a, &t), "is missing");
    /* the trainer has other bytes than the shapes say, and breaks off */
    MUST(order(e.g, ML_GROUP_BEGIN, "{\"weight_version\":\"9\"}", 0, &err));
    fails(
        e.g, ML_GROUP_UPDATE,
        "{\"group_name\":\"g\",\"names\":[\"model.norm.weight\"],\"dtypes\":[\"float16\"],"
        "\"shapes\":[[64]]}",
        "model.norm.weight has ");
    join(e.g, a, &t, "g");
    MUST(order(e.g, ML_GROUP_BEGIN, "{\"weight_version\":\"8\"}", 0, &err));
    fails(e.g, ML_GROUP_UPDATE, update_body(a, &t, "g", 0, 1, NULL),
          "the newest weights are version 9, not 8");
    after = generate(e.g);
    CHECK(same(&before, &after));
    join(e.g, a, &t, "g");
    update(e.g, a, &t, "g"); /* and nothing is left of it all */
    after = generate(e.g);
    CHECK(!same(&before, &after) && after.version[0] == 9);
    e.g->close(e.g);
    close_engine(&e);
    close_trainer(&t);
}

/* A trainer that answers one request with these bytes, after the handshake, and leaves. */
typedef struct liar {
    int fd, port;
    const char *key;
    size_t n_byte; /* of the tensor's that it sends */
    const ml_st_tensor *tensor;
} liar;

static void *lie(void *ud) {
    liar *x = ud;
    ml_tcp tcp;
    ml_err why = { 0 };
    uint8_t hello[20 + 1 + ML_WEIGHT_NONCE], mine[ML_WEIGHT_NONCE], proof[ML_SHA256_BYTES],
        one = 1, zero = 0;
    uint32_t n;
    uint64_t bytes;
    char names[1000], sum[ML_WEIGHT_SUM + 1];

    memset(sum, '0', sizeof sum);
    CHECK(ml_tcp_accept(&tcp, x->fd, TIMEOUT_S, TIMEOUT_S, &why) == ML_OK);
    MUST(ml_tcp_read(&tcp, hello, sizeof hello, &err));
    MUST(ml_weight_nonce(mine, &err));
    ml_weight_proof(proof, x->key, "trainer", "g", hello + 21, mine);
    MUST(ml_tcp_write(&tcp, mine, sizeof mine, &err));
    MUST(ml_tcp_write(&tcp, proof, sizeof proof, &err));
    MUST(ml_tcp_read(&tcp, proof, sizeof proof, &err));
    MUST(ml_tcp_write(&tcp, &one, 1, &err));
    MUST(ml_tcp_read(&tcp, &n, sizeof n, &err));
    MUST(ml_tcp_read(&tcp, &bytes, sizeof bytes, &err));
    MUST(ml_tcp_read(&tcp, names, bytes, &err));
    bytes = x->tensor->bytes;
    MUST(ml_tcp_write(&tcp, &zero, 1, &err));
    MUST(ml_tcp_write(&tcp, &bytes, sizeof bytes, &err));
    MUST(ml_tcp_write(&tcp, sum, ML_WEIGHT_SUM, &err));
    MUST(ml_tcp_write(&tcp, x->tensor->data, x->n_byte, &err));
    ml_tcp_close(&tcp);
    return NULL;
}

static void a_stream_that_breaks(const trainer *t, engine *e, size_t n_byte,
                                 const char *sentence) {
    liar x = { .key = "key",
               .n_byte = n_byte,
               .tensor = ml_weight_source_tensor(t->source, 0) };
    ml_arena a;
    pthread_t thread;

    ml_arena_init(&a, "test");
    MUST(ml_tcp_listen(&x.fd, &x.port, "127.0.0.1", &err));
    CHECK(pthread_create(&thread, NULL, lie, &x) == 0);
    MUST(order(e->g, ML_GROUP_INIT, init_body(&a, x.port, "key", "g"), 0, &err));
    MUST(order(e->g, ML_GROUP_BEGIN, begin_body(&a, t), 0, &err));
    fails(e->g, ML_GROUP_UPDATE, update_body(&a, t, "g", 0, 2, NULL), sentence);
    fails(e->g, ML_GROUP_UPDATE, update_body(&a, t, "g", 0, 2, NULL),
          "there is no group g");
    pthread_join(thread, NULL);
    close(x.fd);
    ml_arena_release(&a);
}

static void broken_streams_change_nothing(void) {
    ml_received before, after;
    trainer t;
    engine e;

    open_trainer(&t, ML_FIXTURE_MODEL, ML_WEIGHT_F32, 0.5f, 9);
    open_engine(&e, ML_FIXTURE_MODEL, ML_FIXTURE_MODEL);
    before = generate(e.g);
    a_stream_that_breaks(&t, &e, 0, "closed the connection after 0 of ");
    a_stream_that_breaks(&t, &e, 1000, "closed the connection after 1000 of ");
    a_stream_that_breaks(&t, &e, ml_weight_source_tensor(t.source, 0)->bytes,
                         "does not match its checksum");
    after = generate(e.g);
    CHECK(same(&before, &after));
    e.g->close(e.g);
    close_engine(&e);
    close_trainer(&t);
}

/* Engines that send nonsense, or leave, do not disturb the trainer. */
static void the_source_survives_its_clients(void) {
    trainer t;
    engine e;
    ml_tcp tcp;
    ml_err why = { 0 };
    char noise[300];

    memset(noise, 'x', sizeof noise);
    open_trainer(&t, ML_FIXTURE_MODEL, ML_WEIGHT_F32, 0.5f, 9);
    for (size_t n = 0; n < sizeof noise; n += 13) {
        MUST(ml_tcp_connect(&tcp, "127.0.0.1", ml_weight_source_port(t.source), TIMEOUT_S,
                            &err));
        memcpy(noise, ML_WEIGHT_MAGIC, n % 2 ? 8 : 0);
        (void)ml_tcp_write(&tcp, noise, n, &why);
        ml_tcp_close(&tcp);
    }
    open_engine(&e, ML_FIXTURE_MODEL, ML_FIXTURE_MODEL);
    join(e.g, &t.arena, &t, "g");
    update(e.g, &t.arena, &t, "g");
    e.g->close(e.g);
    close_engine(&e);
    close_trainer(&t);
}

/* --- tests: requests -------------------------------------------------------------------- */

static ml_status no_group(ml_gen *g, ml_group_op op, const char *json, uint64_t version,
                          ml_switch how, ml_err *err) {
    (void)g, (void)json, (void)version, (void)how;
    return op == ML_GROUP_INIT
               ? ml_fail(err, ML_EPEER, "cannot connect to h:1: Connection refused")
               : ML_OK;
}

static void requests_are_checked(void) {
    static const struct {
        const char *path, *body, *sentence;
        int status;
    } cases[] = {
        { "/init_weights_update_group",
          "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":1,\"world_size\":2,"
          "\"group_name\":\"g\",\"backend\":\"nccl\"}",
          "\\\"backend\\\": this server receives weights over TCP", 400 },
        { "/init_weights_update_group", "{\"backend\":\"tcp\",\"group_name\":\"g\"}",
          "expected \\\"master_address\\\"", 400 },
        { "/init_weights_update_group",
          "{\"master_address\":\"h\",\"master_port\":1,\"group_name\":\"g\","
          "\"backend\":\"tcp\",\"group_key\":\"k\"}",
          "Connection refused", 503 },
        { "/update_weights_from_distributed",
          "{\"names\":[\"a\"],\"dtypes\":[],\"shapes\":[[1]],\"group_name\":\"g\"}",
          "lists of the same length", 400 },
        { "/update_weights_from_distributed",
          "{\"names\":[],\"dtypes\":[],\"shapes\":[],\"load_format\":\"flattened_bucket\"}",
          "tensors travel one by one", 400 },
        { "/begin_weight_update", "{\"selector\":\"draft\"}", "\\\"selector\\\"", 400 },
        { "/begin_weight_update", "", "Succeeded", 200 },
        { "/end_weight_update", "{\"weight_version\":\"7\"}", "Succeeded", 200 },
        { "/destroy_weights_update_group", "{\"group\":\"g\"}", "group", 400 },
        { "/update_weights_from_tensor", "{}", "receives weights over TCP", 400 },
    };
    ml_serve_fixture f;
    const char *reply;

    ml_serve_fixture_init(&f);
    f.opts.group = no_group;
    ml_serve_fixture_start(&f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(ml_serve_ask(&f, "POST", cases[i].path, NULL, cases[i].body, &reply) ==
              cases[i].status);
        CHECK_HAS(reply, cases[i].sentence);
    }
    ml_serve_fixture_stop(&f);
}

static const ml_test tests[] = {
    { "weights over TCP are those of files", an_engine_has_the_trainers_bits },
    { "every kind of tensor arrives over TCP", all_kinds_of_tensors_arrive, 120 },
    { "an engine takes weights from two groups", two_groups },
    { "an update without begin changes the tensors it names", single_tensors },
    { "the ranks of an engine take weights over TCP", engines_of_several_ranks, 120 },
    { "a wrong update over TCP changes nothing", wrong_requests_change_nothing },
    { "a broken stream of weights changes nothing", broken_streams_change_nothing },
    { "engines that send nonsense do not disturb the trainer",
      the_source_survives_its_clients },
    { "requests for update groups are checked", requests_are_checked },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
