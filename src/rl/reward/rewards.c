#include "rl/reward/rewards.h"

#include <pthread.h>
#include <string.h>

#include "base/sandbox.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/job_queue.h"
#include "rl/reward/judge.h"

#define DEADLINE_S 30.0

typedef struct task {
    ml_job job;
    struct task *next; /* unused ones */
    const miles_reward_in *in;
    ml_reward_done *done;
    void *ud;
    const miles_reward_in *const *group; /* [n] replaces `in`; NULL: one sample */
    void *const *group_ud;               /* [n] */
    int64_t n;
    struct ml_rewards *rewards; /* of a call in flight */
    double start;
} task;

struct ml_rewards {
    ml_reward_opts opts;
    ml_job_queue *queue;
    ml_judge **judge;     /* [opts.n_thread] one for each thread */
    pthread_mutex_t lock; /* protects the following fields */
    pthread_cond_t idle;
    ml_arena arena; /* owns this struct and the tasks */
    task *unused;
    int64_t n_open; /* submitted samples without a result */
    int64_t counts[ML_REWARD_OUTCOMES];
};

const char *ml_reward_outcome_name(ml_reward_outcome o) {
    static const char *const names[ML_REWARD_OUTCOMES] = { "ok", "timeout", "crash",
                                                           "invalid" };
    return names[o];
}

/* --- a reward thread ---------------------------------------------------------- */

/* Counts after the callback, so that every callback has returned when ml_rewards_wait
 * returns. */
static void count(ml_rewards *r, ml_reward_outcome outcome) {
    pthread_mutex_lock(&r->lock);
    r->counts[outcome]++;
    if (--r->n_open == 0)
        pthread_cond_broadcast(&r->idle);
    pthread_mutex_unlock(&r->lock);
}

static void reuse(ml_rewards *r, task *t) {
    pthread_mutex_lock(&r->lock);
    t->next = r->unused;
    r->unused = t;
    pthread_mutex_unlock(&r->lock);
}

static void tell(ml_rewards *r, const ml_verdict *v, double start, ml_reward_done *done,
                 void *ud) {
    ml_reward_value part[ML_REWARD_PARTS];
    ml_reward_result result = { .outcome = v->outcome,
                                .reward = v->reward,
                                .ms = (ml_clock_s() - start) * 1e3,
                                .json = v->json.ptr,
                                .why = v->why.ptr,
                                .part = part };

    if (v->outcome == ML_REWARD_OK)
        result.n_part = ml_reward_parts(part, (ml_str){ v->json.ptr, v->json.len },
                                        r->opts.n_part ? "reward" : r->opts.reward_key);

    done(ud, &result);
    count(r, v->outcome);
}

static void score_group(ml_rewards *r, ml_judge *judge, task *t) {
    double start = ml_clock_s();
    ml_verdict *v;
    ml_arena a;

    ml_arena_init(&a, "rewards of a group");
    v = ML_NEW(&a, ml_verdict, t->n);
    ml_judge_grade_group(judge, v, t->group, t->n);
    for (int64_t i = 0; i < t->n; i++) {
        tell(r, &v[i], start, t->done, t->group_ud[i]);
        ml_verdict_release(&v[i]);
    }
    ml_arena_release(&a);
}

static void score(ml_rewards *r, ml_judge *judge, task *t) {
    double start = ml_clock_s();
    ml_verdict v = { 0 };

    ml_judge_grade(judge, &v, t->in);
    tell(r, &v, start, t->done, t->ud);
    ml_verdict_release(&v);
}

/* The answer of a Python function, on the thread of its pool. */
static void take_answer(void *ud, ml_worker_end end, ml_str text) {
    task *t = ud;
    ml_rewards *r = t->rewards;
    ml_verdict *v;
    ml_arena a;

    ml_arena_init(&a, "rewards");
    v = ML_NEW(&a, ml_verdict, t->n);
    ml_judge_read_answer(v, t->n, t->group != NULL, end, text, r->opts.reward_key);
    for (int64_t i = 0; i < t->n; i++) {
        tell(r, &v[i], t->start, t->done, t->group ? t->group_ud[i] : t->ud);
        ml_verdict_release(&v[i]);
    }
    ml_arena_release(&a);
    reuse(r, t);
}

static void call_python(ml_rewards *r, task *t) {
    ml_text call = { 0 };

    t->rewards = r;
    t->start = ml_clock_s();
    ml_judge_write_call(&call, "custom-rm-path", t->group ? t->group : &t->in, t->n,
                        t->group != NULL);
    ml_worker_pool_call(r->opts.python_pool, (ml_str){ call.ptr, call.len },
                        r->opts.deadline_s * (double)t->n, take_answer, t);
    ml_text_release(&call);
}

static void run(void *rewards, int64_t thread, ml_job *job) {
    ml_rewards *r = rewards;
    task *t = (task *)job;

    if (t->group)
        score_group(r, r->judge[thread], t);
    else
        score(r, r->judge[thread], t);
    reuse(r, t);
}

/* --- callers ------------------------------------------------------------------ */

static ml_status open_pool(ml_worker_pool **out, const ml_worker_pool_opts *opts,
                           const ml_rewards *r, ml_err *err) {
    ml_worker_pool_opts o = *opts;

    if (!o.line)
        return ML_OK;
    o.n = r->opts.n_thread;
    o.memory_bytes = r->opts.memory_bytes;
    return ml_worker_pool_open(out, &o, err);
}

/* Programs of models run nowhere else. */
static ml_status check_sandbox(const ml_reward_opts *o, ml_err *err) {
    ml_status st = ML_OK;

    if (o->rm_type && strncmp(o->rm_type, "code", 4) == 0 && !o->python.line && !o->ext)
        st = ml_sandbox_check(err);
    if (st != ML_OK)
        ml_err_prefix(err, "--rm-type %s", o->rm_type);
    return st;
}

/* The pools of a reward, or of the parts of a sum, which are shared by all threads. */
static ml_status open_pools(ml_rewards *r, ml_reward_opts *o, ml_err *err) {
    ml_reward_part *part = ML_NEW(&r->arena, ml_reward_part, o->n_part + 1);
    ml_status st = check_sandbox(o, err);

    if (st == ML_OK)
        st = open_pool(&o->python_pool, &o->python, r, err);
    if (st == ML_OK)
        st = open_pool(&o->ifbench_pool, &o->ifbench, r, err);
    if (o->n_part)
        memcpy(part, o->part, (size_t)o->n_part * sizeof *part);
    o->part = part;
    for (int i = 0; i < o->n_part && st == ML_OK; i++)
        st = open_pools(r, &part[i].opts, err);
    return st;
}

static void close_pools(const ml_reward_opts *o) {
    ml_worker_pool_close(o->python_pool);
    ml_worker_pool_close(o->ifbench_pool);
    for (int i = 0; i < o->n_part; i++)
        close_pools(&o->part[i].opts);
}

/* Threads that wait for a model in this process are its batch: many of them, where they have no worker
 * processes of their own. */
static int64_t thread_count(const ml_reward_opts *o) {
    enum { BATCH = 64 };
    bool waits =
        (o->model || o->judge.engine) && !o->n_part && !o->command.line && !o->python.line;
    int64_t n = o->n_thread > 0 ? o->n_thread : 1;

    return waits && n < BATCH ? BATCH : n;
}

static ml_status start(ml_rewards *r, ml_err *err) {
    ml_status st = open_pools(r, &r->opts, err);

    for (int64_t i = 0; i < r->opts.n_thread && st == ML_OK; i++)
        st = ml_judge_open(&r->judge[i], &r->opts, err);
    return st == ML_OK ? ml_job_queue_open(&r->queue, r->opts.n_thread, run, r, err) : st;
}

ml_status ml_rewards_open(ml_rewards **out, const ml_reward_opts *opts, ml_err *err) {
    ml_arena arena;
    ml_rewards *r;
    ml_status st;

    ml_arena_init(&arena, "rewards");
    r = ML_NEW(&arena, ml_rewards, 1);
    r->opts = *opts;
    r->opts.n_thread = thread_count(opts);
    r->opts.deadline_s = opts->deadline_s > 0 ? opts->deadline_s : DEADLINE_S;
    r->judge = ML_NEW(&arena, ml_judge *, r->opts.n_thread);
    r->arena = arena;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->idle, NULL);
    st = start(r, err);
    if (st != ML_OK) {
        ml_rewards_close(r);
        r = NULL;
    }
    *out = r;
    return st;
}

void ml_rewards_close(ml_rewards *r) {
    ml_arena arena;

    if (!r)
        return;
    ml_job_queue_close(r->queue);
    ml_rewards_wait(r); /* for calls in flight */
    close_pools(&r->opts);
    for (int64_t i = 0; i < r->opts.n_thread; i++)
        ml_judge_close(r->judge[i]);
    pthread_cond_destroy(&r->idle);
    pthread_mutex_destroy(&r->lock);
    arena = r->arena;
    ml_arena_release(&arena);
}

static void post(ml_rewards *r, task what) {
    task *t;

    pthread_mutex_lock(&r->lock);
    t = r->unused;
    if (t)
        r->unused = t->next;
    else
        t = ML_NEW(&r->arena, task, 1);
    *t = what;
    r->n_open += what.n;
    pthread_mutex_unlock(&r->lock);
    if (r->opts.python_pool)
        call_python(r, t);
    else
        ml_job_queue_post(r->queue, &t->job);
}

void ml_rewards_submit(ml_rewards *r, const miles_reward_in *in, ml_reward_done *done,
                       void *ud) {
    post(r, (task){ .in = in, .done = done, .ud = ud, .n = 1 });
}

void ml_rewards_submit_group(ml_rewards *r, const miles_reward_in *const *in, int64_t n,
                             ml_reward_done *done, void *const *ud) {
    bool sum = r->opts.n_part > 0 && r->opts.custom;

    if (r->opts.group &&
        (sum || r->opts.command.line || r->opts.python_pool || r->opts.group_ext)) {
        post(r, (task){ .group = in, .done = done, .group_ud = ud, .n = n });
        return;
    }
    for (int64_t i = 0; i < n; i++)
        ml_rewards_submit(r, in[i], done, ud[i]);
}

void ml_rewards_wait(ml_rewards *r) {
    pthread_mutex_lock(&r->lock);
    while (r->n_open > 0)
        pthread_cond_wait(&r->idle, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

void ml_rewards_counts(ml_rewards *r, int64_t counts[ML_REWARD_OUTCOMES]) {
    pthread_mutex_lock(&r->lock);
    memcpy(counts, r->counts, sizeof r->counts);
    pthread_mutex_unlock(&r->lock);
}
