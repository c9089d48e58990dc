#include "run/run_ranks.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/device/device_comm.h"
#include "comm/watch.h"
#include "run/opts.h"

/* --- hosts -------------------------------------------------------------------- */

/* What ranks tell each other at the start. */
typedef struct place {
    char host[ML_HOST_NAME];
    char devices[ML_HOST_NAME]; /* CUDA_VISIBLE_DEVICES */
    cpu_set_t cores;
} place;

static void count_hosts(ml_run_ranks *r, const place *of) {
    const place *mine = &of[r->world->rank];
    bool shared = false;

    for (int32_t i = 0; i < r->world->size; i++) {
        cpu_set_t both;
        bool seen = false;
        for (int32_t k = 0; k < i && !seen; k++)
            seen = strcmp(of[k].host, of[i].host) == 0;
        r->n_host += !seen;
        if (strcmp(of[i].host, mine->host) != 0)
            continue;
        r->local_size++;
        r->local_rank += i < r->world->rank;
        CPU_AND(&both, &of[i].cores, &mine->cores);
        shared |= i != r->world->rank && CPU_COUNT(&both) > 0;
    }
    r->n_core = shared ? 0 : CPU_COUNT(&mine->cores);
}

/* --- GPUs --- */

/* The numbers of the GPUs of this host, as CUDA_VISIBLE_DEVICES has them. */
static void list_devices(char out[ML_HOST_NAME]) {
    const char *given = getenv("CUDA_VISIBLE_DEVICES");
    size_t n = 0;
    char path[40] = "/dev/nvidia0";

    snprintf(out, ML_HOST_NAME, "%s", given ? given : "");
    for (int i = 0; !given && access(path, F_OK) == 0 && n + 8 < ML_HOST_NAME; i++) {
        n += (size_t)snprintf(out + n, ML_HOST_NAME - n, "%s%d", i ? "," : "", i);
        snprintf(path, sizeof path, "/dev/nvidia%d", i + 1);
    }
}

/* The k-th of n words between commas. */
static ml_str word_of(const char *list, int32_t k, int32_t *n) {
    ml_str word = { list, 0 };

    *n = 0;
    for (const char *at = list, *end; *at; at = *end ? end + 1 : end) {
        end = strchr(at, ',');
        end = end ? end : at + strlen(at);
        if ((*n)++ == k)
            word = (ml_str){ at, (size_t)(end - at) };
    }
    return word;
}

static void take_device(ml_run_ranks *r, const place *of) {
    const place *mine = &of[r->world->rank];
    char own[ML_HOST_NAME];
    int32_t n;
    ml_str word;

    for (int32_t i = 0; i < r->world->size; i++)
        if (strcmp(of[i].host, mine->host) == 0 &&
            strcmp(of[i].devices, mine->devices) != 0)
            return; /* the launcher has divided them */
    word_of(mine->devices, 0, &n);
    if (n == 0)
        return;
    word = word_of(mine->devices, r->local_rank % n, &n);
    snprintf(own, sizeof own, "%.*s", (int)word.len, word.ptr);
    setenv("CUDA_VISIBLE_DEVICES", own, 1);
    r->n_device = (r->local_size + n - 1) / n;
}

/* --- opening --- */

ml_mesh_opts ml_run_ranks_sizes(const ml_place_opts *p) {
    return (ml_mesh_opts){ .tp = (int32_t)p->tp,
                           .cp = (int32_t)p->cp,
                           .pp = (int32_t)p->pp,
                           .ep = (int32_t)p->ep,
                           .etp = (int32_t)p->etp,
                           .fsdp = p->backend == ML_TRAIN_FSDP,
                           .replicate = (int32_t)p->replicas,
                           .whole = p->whole };
}

ml_status ml_run_ranks_chunks(int32_t *out, const ml_place_opts *p, const ml_spec *s,
                              ml_err *err) {
    int64_t in_all = p->pp * p->chunk_layers;

    *out = p->chunks ? (int32_t)p->chunks : 1;
    if (!p->chunk_layers)
        return ML_OK;
    if (s->n_layer % in_all)
        return ml_fail(err, ML_EUSAGE,
                       "--num-layers-per-virtual-pipeline-stage %lld and "
                       "--pipeline-model-parallel-size %lld do not divide the %d layers of "
                       "this model; choose others, or use "
                       "--num-virtual-stages-per-pipeline-rank",
                       (long long)p->chunk_layers, (long long)p->pp, (int)s->n_layer);
    *out = (int32_t)(s->n_layer / in_all);
    return ML_OK;
}

ml_status ml_run_ranks_stages(const int32_t **out, ml_arena *a, const ml_place_opts *p,
                              const ml_spec *s, ml_err *err) {
    ml_stage_opts o = { .n_stage = (int32_t)p->pp,
                        .n_first = (int32_t)p->first_layers,
                        .n_last = (int32_t)p->last_layers,
                        .count_embedding = p->count_embedding,
                        .count_loss = p->count_loss };
    int32_t *stage = ML_NEW(a, int32_t, s->n_node);
    ml_status st;

    *out = NULL;
    if (p->pp <= 1)
        return ML_OK;
    *out = stage;
    st = ml_run_ranks_chunks(&o.n_chunk, p, s, err);
    return st == ML_OK ? ml_stage_of_nodes(stage, s, &o, err) : st;
}

int32_t ml_run_ranks_data_size(const ml_run_ranks *r) {
    return r->sizes.gather ? ml_mesh_data_size(&r->sizes) : 1;
}

void ml_run_ranks_place(ml_run_opts *o) {
    bool engines = !ml_run_elsewhere(o) && !o->rollout.load_debug;

    o->place.apart =
        engines && o->place.rollout && !o->mode.colocate && !o->rollout.rollout_only;
    o->place.engine_size = engines ? o->place.engine_size : 1;
    o->place.engine_dp = engines && o->place.dp_attention ? o->place.engine_dp : 1;
    o->place.plans = o->dry_run;
    o->place.whole = ml_optim_rule_is_whole(&o->trainer.optimizer.rule);
}

/* The fewest ranks that have these sizes. */
static int64_t fewest(const ml_place_opts *p) {
    int64_t model = (p->tp ? p->tp : 1) * (p->cp ? p->cp : 1), n = model;

    while (n % ((p->ep ? p->ep : 1) * (p->etp ? p->etp : 1)))
        n += model;
    return n * (p->pp ? p->pp : 1);
}

/* A process of its own: it is the only rank, or plans one of those that the flags name. */
static ml_status plan_mesh(ml_run_ranks *r, const ml_place_opts *p, ml_err *err) {
    int64_t nodes = p->nodes ? p->nodes : 1;
    int64_t n = p->gpus_per_node ? nodes * p->gpus_per_node : fewest(p);
    ml_status st =
        ml_mesh_size(&r->sizes, p->plans ? (int32_t)n : 1, ml_run_ranks_sizes(p), err);

    r->mesh.sizes = r->sizes;
    return st;
}

/* The ranks that train. */
static ml_status open_mesh(ml_run_ranks *r, const ml_place_opts *p, ml_err *err) {
    ml_comm *host = NULL;
    int32_t color = ml_run_ranks_trains(r) ? 0 : -1;
    ml_status st =
        ml_mesh_size(&r->sizes, ml_run_ranks_n_actor(r), ml_run_ranks_sizes(p), err);

    if (st == ML_OK)
        st = r->world->split(r->world, &host, color, r->world->rank, err);
    r->train = host ? ml_comm_device(host) : NULL;
    r->world->group = "the job";
    r->actors = r->world;
    if (st == ML_OK && r->n_actor) {
        r->actors = NULL;
        st = r->world->split(r->world, &r->actors, color, r->world->rank, err);
    }
    if (st != ML_OK || !r->train)
        return st;
    r->train->group = "train";
    r->train->deadline_s = 60 * p->timeout_min;
    return ml_mesh_open(&r->mesh, r->train, NULL, ml_run_ranks_sizes(p), err);
}

static ml_status open_engine(ml_run_ranks *r, ml_err *err) {
    int32_t at = r->world->rank - r->n_actor;
    ml_comm *host = NULL;
    ml_status st;

    if (r->engine_size < 2 || (r->world->size - r->n_actor) % r->engine_size != 0)
        return ML_OK;
    st = r->world->split(r->world, &host, at < 0 ? -1 : at / r->engine_size, r->world->rank,
                         err);
    if (host) {
        ml_comm_aside(host);
        r->engine = ml_comm_device(host);
        r->engine->group = "engine";
        r->engine->spans = NULL; /* used by other threads */
    }
    return st;
}

static ml_status open_groups(ml_run_ranks *r, ml_comm *world, const ml_place_opts *p,
                             ml_err *err) {
    ml_status st = ml_run_ranks_hosts(r, world, err);

    r->engine_size = (int32_t)p->engine_size;
    r->engine_dp = (int32_t)p->engine_dp;
    r->publish_s = 60 * p->timeout_min;
    if (st != ML_OK)
        return st;
    if (ml_comm_size(world) == 1)
        return plan_mesh(r, p, err);
    if (p->apart && p->rollout < world->size)
        r->n_actor = world->size - (int32_t)p->rollout;
    st = open_mesh(r, p, err);
    return st == ML_OK ? open_engine(r, err) : st;
}

static void set_limit(ml_comm *c, double deadline_s) {
    if (ml_comm_size(c) > 1)
        c->deadline_s = deadline_s;
}

/* The groups of the loop have no limit when they are open: heartbeats do (heartbeat.h). */
ml_status ml_run_ranks_open(ml_run_ranks *r, ml_comm *world, const ml_place_opts *p,
                            ml_err *err) {
    ml_status st;

    set_limit(world, 60 * p->timeout_min);
    st = open_groups(r, world, p, err);
    set_limit(world, 0);
    set_limit(r->actors, 0);
    set_limit(r->engine, 0);
    return st;
}

ml_status ml_run_ranks_hosts(ml_run_ranks *r, ml_comm *world, ml_err *err) {
    place mine = { .host = "" }, *all;
    ml_status st;

    *r = (ml_run_ranks){ .world = world };
    if (ml_comm_size(world) == 1)
        return ML_OK;
    gethostname(mine.host, sizeof mine.host - 1);
    list_devices(mine.devices);
    sched_getaffinity(0, sizeof mine.cores, &mine.cores);
    memcpy(r->host, mine.host, sizeof r->host);
    all = calloc((size_t)world->size, sizeof *all);
    if (!all)
        return ml_fail(err, ML_ENOMEM, "out of memory for the names of %d hosts",
                       (int)world->size);
    st = ml_comm_gather(world, all, &mine, sizeof mine, err);
    if (st == ML_OK) {
        count_hosts(r, all);
        take_device(r, all);
    }
    free(all);
    return st;
}

void ml_run_ranks_close(ml_run_ranks *r) {
    ml_mesh_close(&r->mesh);
    if (r->engine)
        r->engine->close(r->engine);
    if (r->actors && r->actors != r->world)
        r->actors->close(r->actors);
    if (r->train)
        r->train->close(r->train);
    r->train = r->actors = r->engine = NULL;
}

size_t ml_run_ranks_bytes(const ml_run_ranks *r, size_t all, bool host) {
    int32_t n = host ? r->local_size : r->n_device;
    return n > 1 ? all / (size_t)n : all;
}

int ml_run_ranks_threads(const ml_run_ranks *r, int n_thread) {
    int n = r->local_size > 1 && n_thread > r->n_core ? n_thread / r->local_size : n_thread;
    return n > 0 ? n : 1;
}

/* --- options that need one rank ----------------------------------------------- */

typedef struct rank_rule {
    bool (*broken)(const ml_run_opts *o);
    const char *message;
} rank_rule;

static bool checks_coverage(const ml_run_opts *o) {
    return o->record.coverage;
}

static bool dumps_tensors(const ml_run_opts *o) {
    return o->dump.enable || o->dump.inference.n || o->dump.score.n || o->dump.train.n;
}

static const rank_rule rules[] = {
    { checks_coverage,
      "--enable-witness needs one rank: a rank sees its own samples only" },
    { dumps_tensors, "--dumper-enable needs one rank: the dumps of ranks would overwrite "
                     "each other" },
};

static ml_status check_rules(const rank_rule *rule, size_t n, const ml_run_opts *o,
                             ml_err *err) {
    for (size_t i = 0; i < n; i++)
        if (rule[i].broken(o))
            return ml_fail(err, ML_EUSAGE, "%s", rule[i].message);
    return ML_OK;
}

/* --- sizes -------------------------------------------------------------------- */

/* Whether a dry run plans one rank of a job that is not there. */
static bool plans_one(const ml_run_ranks *r, const ml_run_opts *o) {
    return o->dry_run && ml_run_ranks_size(r) == 1;
}

static ml_status check_world(const ml_run_ranks *r, const ml_run_opts *o, ml_err *err) {
    const ml_place_opts *p = &o->place;
    int64_t nodes = p->nodes ? p->nodes : 1, actor = nodes * p->gpus_per_node;
    int64_t more = p->apart ? p->rollout : 0, size = ml_run_ranks_size(r);

    if (plans_one(r, o) || (actor ? actor + more == size : more < size))
        return ML_OK;
    if (!actor)
        return ml_fail(err, ML_EUSAGE,
                       "--rollout-num-gpus %lld are ranks that generate, beside those that "
                       "train, but the job has %lld: start it with mpirun -n %lld, or add "
                       "--colocate",
                       (long long)more, (long long)size, (long long)more + 1);
    if (more)
        return ml_fail(err, ML_EUSAGE,
                       "--actor-num-nodes %lld and --actor-num-gpus-per-node %lld are %lld "
                       "ranks that train, and --rollout-num-gpus %lld ranks generate, but "
                       "the job has %lld: start it with mpirun -n %lld, or add --colocate",
                       (long long)nodes, (long long)p->gpus_per_node, (long long)actor,
                       (long long)more, (long long)size, (long long)(actor + more));
    return ml_fail(err, ML_EUSAGE,
                   "--actor-num-nodes %lld and --actor-num-gpus-per-node %lld are %lld "
                   "ranks, but the job has %lld: start it with mpirun -n %lld, or remove "
                   "the flags",
                   (long long)nodes, (long long)p->gpus_per_node, (long long)actor,
                   (long long)size, (long long)actor);
}

static ml_status check_engines(const ml_run_ranks *r, const ml_run_opts *o, ml_err *err) {
    long long size = o->place.engine_size, n = ml_run_ranks_size(r) - r->n_actor;
    long long dp = o->place.engine_dp;

    if (dp > 1 && size % dp != 0)
        return ml_fail(err, ML_EUSAGE,
                       "--sglang-dp-size is %lld, and an engine has %lld rank%s "
                       "(--rollout-num-gpus-per-engine): use a divisor, or remove "
                       "--sglang-enable-dp-attention",
                       dp, size, size == 1 ? "" : "s");
    if (size < 2 || plans_one(r, o) || n % size == 0)
        return ML_OK;
    return ml_fail(err, ML_EUSAGE,
                   "--rollout-num-gpus-per-engine is %lld, but %lld rank%s: use a divisor "
                   "of %lld, or start mpirun with %lld ranks%s",
                   size, n, n == 1 ? " generates" : "s generate", n,
                   (n + size - 1) / size * size + r->n_actor,
                   r->n_actor ? " and change --rollout-num-gpus" : "");
}

/* Codes do not move between ranks. */
static bool has_codes(const ml_run_opts *o) {
    return o->dtype >= ML_WEIGHT_STORED || o->rollout_dtype > ML_WEIGHT_STORED ||
           (o->qat && o->qat != ML_WEIGHT_QAT_F32_SCALE &&
            o->qat != ML_WEIGHT_QAT_G128_F32_SCALE);
}

static ml_status check_codes(const ml_run_ranks *r, const ml_run_opts *o, ml_err *err) {
    if (!has_codes(o) || (!r->n_actor && r->engine_size < 2))
        return ML_OK;
    return ml_fail(err, ML_EUSAGE,
                   "--base-quantization, --rollout-quantization, --fp8-format and "
                   "--fake-quantization int4 and int4-g128 need engines that read the "
                   "weights of a rank that trains: remove --rollout-num-gpus, or add "
                   "--colocate, and remove --rollout-num-gpus-per-engine; or use "
                   "--fake-quantization int4-f32-scale, whose weights are bf16");
}

/* Each data parallel rank has as many shards of a step, which are a sub-tree. */
static ml_status check_shards(const ml_run_ranks *r, const ml_run_opts *o, ml_err *err) {
    int32_t n = ml_run_ranks_data_size(r), shards = o->trainer.grad_shards;

    if (!shards || shards % n == 0)
        return ML_OK;
    return ml_fail(err, ML_EUSAGE,
                   "--gradient-shards %d is not a multiple of the %d data parallel ranks: "
                   "start the job with a number of ranks that divides it, or choose a "
                   "larger power of two",
                   (int)shards, (int)n);
}

static ml_status check_hosts(const ml_run_ranks *r, const ml_run_opts *o, ml_err *err) {
    const ml_place_opts *p = &o->place;

    if (p->nodes && r->n_host > 1 && !r->n_actor && p->nodes != r->n_host)
        return ml_fail(err, ML_EUSAGE,
                       "--actor-num-nodes is %lld, but the ranks of the job are on %d "
                       "hosts: change the flag, or mpirun's --map-by",
                       (long long)p->nodes, (int)r->n_host);
    if (p->most_per_node && r->local_size > p->most_per_node)
        return ml_fail(err, ML_EUSAGE,
                       "--num-gpus-per-node is %lld, but host %s has %d ranks: use "
                       "mpirun --map-by ppr:%lld:node",
                       (long long)p->most_per_node, r->host, (int)r->local_size,
                       (long long)p->most_per_node);
    return ML_OK;
}

ml_status ml_run_ranks_check(const ml_run_ranks *r, const ml_run_opts *o, ml_err *err) {
    ml_status st = check_world(r, o, err);

    if (st == ML_OK)
        st = check_engines(r, o, err);
    if (st == ML_OK)
        st = check_codes(r, o, err);
    if (st == ML_OK)
        st = check_shards(r, o, err);
    if (st == ML_OK)
        st = check_hosts(r, o, err);
    if (st == ML_OK && ml_run_ranks_size(r) > 1)
        st = check_rules(rules, sizeof rules / sizeof *rules, o, err);
    return st;
}
