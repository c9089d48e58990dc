/* The ranks of a run: their part of a host, their heartbeats, the flags that name sizes. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "comm/watch.h"
#include "comm/world.h"
#include "run/heartbeat.h"
#include "run/rank_spans.h"
#include "run/opts.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

static void sleep_s(double s) {
    struct timespec t = { (time_t)s, (long)(1e9 * (s - (double)(time_t)s)) };
    nanosleep(&t, NULL);
}

static ml_status check(int64_t nodes, int64_t per_node, int64_t most, bool dry_run,
                       const ml_run_ranks *r, ml_err *err) {
    ml_run_opts o = { .place = { nodes, per_node, most, 10 }, .dry_run = dry_run };
    return ml_run_ranks_check(r, &o, err);
}

static const ml_place_opts place1 = { .timeout_min = 1 };

static void one_rank_is_a_job(void) {
    ml_run_ranks r;
    ml_err err = { 0 };

    CHECK(ml_run_ranks_open(&r, NULL, &place1, &err) == ML_OK);
    CHECK(ml_run_ranks_first(&r) && ml_run_ranks_size(&r) == 1 && !r.train);
    CHECK(ml_run_ranks_threads(&r, 7) == 7 && ml_run_ranks_bytes(&r, 1000, true) == 1000);
    CHECK(check(0, 0, 0, false, &r, &err) == ML_OK);
    CHECK(check(1, 1, 1, false, &r, &err) == ML_OK);
    CHECK(check(2, 8, 8, true, &r, &err) == ML_OK); /* a dry run plans one of 16 */
    CHECK(check(2, 8, 8, false, &r, &err) == ML_EUSAGE);
    CHECK(strstr(err.msg, "16 ranks") && strstr(err.msg, "mpirun -n 16"));
    ml_run_ranks_close(&r);
}

static void place(ml_comm *c, void *ud) {
    ml_run_opts witness = { .record = { .coverage = true } };
    ml_run_ranks r;
    ml_err err = { 0 };

    (void)ud;
    CHECK(ml_run_ranks_open(&r, c, &place1, &err) == ML_OK);
    CHECK(ml_run_ranks_size(&r) == 3 && ml_run_ranks_first(&r) == (c->rank == 0));
    CHECK(r.n_host == 1 && r.local_size == 3 && r.local_rank == c->rank && !r.n_core);
    CHECK(r.train && r.train != c && r.train->deadline_s == 60 && c->deadline_s == 0);
    CHECK(ml_run_ranks_threads(&r, 7) == 2 && ml_run_ranks_threads(&r, 2) == 1);
    CHECK(ml_run_ranks_bytes(&r, 1000, true) == 333);
    CHECK(r.n_device == 2 && ml_run_ranks_bytes(&r, 1000, false) == 500);
    CHECK(check(0, 0, 0, false, &r, &err) == ML_OK);
    CHECK(check(1, 3, 3, false, &r, &err) == ML_OK);
    CHECK(check(1, 2, 0, true, &r, &err) == ML_EUSAGE && strstr(err.msg, "mpirun -n 2"));
    CHECK(check(0, 0, 2, false, &r, &err) == ML_EUSAGE && strstr(err.msg, "has 3 ranks"));
    CHECK(ml_run_ranks_check(&r, &witness, &err) == ML_EUSAGE);
    CHECK(strstr(err.msg, "--enable-witness needs one rank"));
    ml_run_ranks_close(&r);
}

/* The environment is the process's: the ranks here overwrite each other's choice. */
static void ranks_divide_their_host(void) {
    setenv("CUDA_VISIBLE_DEVICES", "4,7", 1);
    ml_ranks_run(3, place, NULL);
    CHECK(strcmp(getenv("CUDA_VISIBLE_DEVICES"), "4") == 0 ||
          strcmp(getenv("CUDA_VISIBLE_DEVICES"), "7") == 0);
}

/* --- engines ------------------------------------------------------------------------ */

/* Options of a job, and what its ranks are. */
typedef struct engine_job {
    ml_run_opts o;
    const char *says; /* NULL: it is a job */
    int32_t n_actor, n_engine;
} engine_job;

static void be_placed(ml_comm *c, void *ud) {
    engine_job *j = ud;
    ml_run_opts o = j->o;
    ml_run_ranks r;
    ml_err err = { 0 };
    ml_status st;
    int32_t at;

    ml_run_ranks_place(&o);
    CHECK(ml_run_ranks_open(&r, c, &o.place, &err) == ML_OK);
    st = ml_run_ranks_check(&r, &o, &err);
    CHECK((st == ML_OK) == !j->says);
    if (j->says)
        CHECK_HAS(err.msg, j->says);
    at = c->rank - (r.n_actor ? r.n_actor : 0);
    if (st == ML_OK) {
        CHECK(ml_run_ranks_n_actor(&r) == j->n_actor);
        CHECK(ml_run_ranks_n_engine(&r) == j->n_engine);
        CHECK(ml_run_ranks_trains(&r) == (c->rank < j->n_actor));
        CHECK(ml_run_ranks_generates(&r) == (at >= 0));
        CHECK(!r.train == (c->rank >= j->n_actor));
        CHECK(!r.train || (r.train->size == j->n_actor && r.actors->size == j->n_actor));
        CHECK(ml_comm_size(r.engine) == (at < 0 ? 1 : r.engine_size ? r.engine_size : 1));
        CHECK(!r.engine || r.engine->rank == at % r.engine_size);
    }
    ml_run_ranks_close(&r);
}

static void engines_have_ranks(void) {
    static engine_job jobs[] = {
        { { .place = { .engine_size = 2 } }, NULL, 6, 3 },
        { { .place = { .engine_size = 3, .rollout = 3, .nodes = 1, .gpus_per_node = 3 } },
          NULL,
          3,
          1 },
        { { .place = { .engine_size = 2, .rollout = 4 } }, NULL, 2, 2 },
        { { .place = { .rollout = 2 }, .mode = { .colocate = true } }, NULL, 6, 6 },
        { { .place = { .engine_size = 4, .rollout = 2 }, .mode = { .n_engine = 1 } },
          NULL,
          6,
          6 },
        { { .place = { .engine_size = 4 } },
          "--rollout-num-gpus-per-engine is 4, but 6 ranks generate: use a divisor of 6, "
          "or "
          "start mpirun with 8 ranks" },
        { { .place = { .engine_size = 3, .rollout = 4 } },
          "is 3, but 4 ranks generate: use a divisor of 4, or start mpirun with 8 ranks "
          "and "
          "change --rollout-num-gpus" },
        { { .place = { .rollout = 6 } },
          "--rollout-num-gpus 6 are ranks that generate, "
          "beside those that train, but the job has 6: start "
          "it with mpirun -n 7, or add --colocate" },
        { { .place = { .rollout = 4, .nodes = 1, .gpus_per_node = 4 } },
          "4 ranks that train, and --rollout-num-gpus 4 ranks generate, but the job has 6: "
          "start it with mpirun -n 8" },
    };

    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        ml_ranks_run(6, be_placed, &jobs[i]);
}

/* --- heartbeats -------------------------------------------------------------------- */

static void beat(ml_comm *c, void *ud) {
    ml_heartbeat *h;
    ml_err err = { 0 };

    (void)ud;
    CHECK(ml_heartbeat_open(&h, c, &(ml_heartbeat_opts){ .deadline_s = 40 }, &err) ==
              ML_OK &&
          h);
    sleep_s(0.01 * c->rank); /* they end one after the other */
    ml_heartbeat_close(h);
    CHECK(c->barrier(c, NULL, &err) == ML_OK);
}

static void heartbeats_end(void) {
    ml_heartbeat *h;
    ml_err err = { 0 };

    for (int32_t n = 2; n < 6; n++)
        ml_ranks_run(n, beat, NULL);
    CHECK(ml_heartbeat_open(&h, NULL, &(ml_heartbeat_opts){ .deadline_s = 60 }, &err) ==
              ML_OK &&
          !h);
    ml_heartbeat_close(h);
}

static void heartbeats_have_times(void) {
    ml_heartbeat_opts o = ml_heartbeat_times(&(ml_place_opts){ .timeout_min = 10 });

    CHECK(o.deadline_s == 600 && o.every_s == 0 && o.first_s == 0);
    o = ml_heartbeat_times(&(ml_place_opts){ .timeout_min = 10, .beat_failures = 2 });
    CHECK(o.deadline_s == 40 && o.every_s == 10 && o.first_s == 300);
    o = ml_heartbeat_times(&(ml_place_opts){ .timeout_min = 10, .beat_timeout_s = 1 });
    CHECK(o.deadline_s == 33);
    o = ml_heartbeat_times(&(ml_place_opts){
        .beat_s = 2, .beat_timeout_s = 3, .beat_first_s = 4, .beat_failures = 5 });
    CHECK(o.deadline_s == 25 && o.every_s == 2 && o.first_s == 4 && o.stall_s == 0);
    o = ml_heartbeat_times(&(ml_place_opts){ .timeout_min = 10, .stall_min = 2 });
    CHECK(o.deadline_s == 600 && o.stall_s == 120);
    o = ml_heartbeat_times(&(ml_place_opts){ .stall_min = 2 });
    CHECK(o.deadline_s == 120 && o.stall_s == 120);
}

/* The first beat has 2 s more than the others: on a busy machine ranks start late. */
static ml_heartbeat *open_beats(ml_comm *c, ml_heartbeat_opts o) {
    ml_heartbeat *h = NULL;
    ml_err err = { 0 };

    o.first_s = 2;
    CHECK(ml_heartbeat_open(&h, c, &o, &err) == ML_OK);
    return h;
}

/* The last rank sends no heartbeat; the others wait for something else. */
static void fall_silent(ml_comm *c, void *ud) {
    ml_heartbeat *h;
    ml_comm *beats;
    ml_err err = { 0 };
    char byte;
    ml_tensor t = ml_comm_bytes(&byte, 1);

    (void)ud;
    if (c->rank == c->size - 1) {
        CHECK(c->split(c, &beats, 0, c->rank, &err) == ML_OK);
        CHECK(c->recv(c, NULL, &t, 0, &err) == ML_EPEER);
        beats->close(beats);
        return;
    }
    h = open_beats(c, (ml_heartbeat_opts){ .deadline_s = 0.4 });
    CHECK(c->recv(c, NULL, &t, c->size - 1, &err) == ML_EPEER);
    CHECK(strstr(err.msg, "heartbeats") && strstr(err.msg, "rank 2"));
    CHECK(strstr(err.msg, "was waiting in recv over world for rank 2"));
    ml_heartbeat_close(h);
}

static void a_silent_rank_is_named(void) {
    ml_ranks_run(3, fall_silent, NULL);
}

static atomic_int n_lost;

static void count_lost(void *ud, const ml_err *why) {
    (void)ud;
    CHECK(strstr(why->msg, "rank 1") && strstr(why->msg, "heartbeats"));
    atomic_fetch_add(&n_lost, 1);
}

/* Rank 1 falls silent, and the owner of rank 0's heartbeats is busy; *ud: it notices. */
static void be_busy(ml_comm *c, void *ud) {
    ml_heartbeat_opts o = { .deadline_s = 0.2, .lost = count_lost, .grace_s = 0.2 };
    const bool *notices = ud;
    ml_heartbeat *h;
    ml_comm *beats = NULL;
    ml_err err = { 0 };
    char byte;
    ml_tensor t = ml_comm_bytes(&byte, 1);

    if (c->rank == 1) {
        CHECK(c->split(c, &beats, 0, c->rank, &err) == ML_OK);
        CHECK(c->recv(c, NULL, &t, 0, &err) == ML_EPEER);
        beats->close(beats);
        return;
    }
    o.grace_s = *notices ? 60 : 0.2;
    h = open_beats(c, o);
    if (*notices)
        CHECK(c->recv(c, NULL, &t, 1, &err) == ML_EPEER);
    while (!*notices && !atomic_load(&n_lost))
        sleep_s(0.01);
    ml_heartbeat_close(h);
}

static void a_busy_owner_is_told(void) {
    bool notices = false;

    ml_ranks_run(2, be_busy, &notices);
    CHECK(atomic_load(&n_lost) == 1);
    notices = true;
    ml_ranks_run(2, be_busy, &notices);
    CHECK(atomic_load(&n_lost) == 1);
}

/* --- ranks that run, but do not go on ------------------------------------------------- */

static atomic_int n_line, n_ended;

static void count_line(const char *line) {
    CHECK_HAS(line, "waited for rank 0 in recv over world");
    CHECK_HAS(line, "rank 0 was in no collective for");
    CHECK_HAS(line, "(rollout)");
    atomic_fetch_add(&n_line, 1);
}

typedef struct stall {
    double stall_s;    /* of the heartbeats */
    double deadline_s; /* of rank 2's wait */
} stall;

/* Rank 0's loop does something else, rank 1 waits for it, and rank 2 for rank 1. */
static void be_idle(ml_comm *c, const stall *s) {
    ml_err err = { 0 };
    char byte = 0;
    ml_tensor t = ml_comm_bytes(&byte, 1);
    bool ends = s->stall_s > 0 || s->deadline_s > 0;

    ml_watch_stage(ml_comm_watch(c), "rollout");
    while (ends ? atomic_load(&n_ended) < 2 : atomic_load(&n_line) < 2)
        sleep_s(0.01);
    CHECK(c->send(c, NULL, &t, 1, &err) == (ends ? ML_EPEER : ML_OK));
}

static void wait_for_it(ml_comm *c, const stall *s) {
    ml_err err = { 0 };
    char byte = 0;
    ml_tensor t = ml_comm_bytes(&byte, 1);
    bool ends = s->stall_s > 0 || s->deadline_s > 0;

    ml_comm_doing(c, "forward", 3);
    c->deadline_s = c->rank == 2 ? s->deadline_s : 0;
    CHECK(c->recv(c, NULL, &t, c->rank - 1, &err) == (ends ? ML_EPEER : ML_OK));
    atomic_fetch_add(&n_ended, 1);
    if (!ends && c->rank == 1)
        CHECK(c->send(c, NULL, &t, 2, &err) == ML_OK);
    if (!ends)
        return;
    CHECK_HAS(err.msg, "recv over world (forward, layer 3)");
    CHECK_HAS(err.msg, "rank 0 was in no collective for");
    CHECK_HAS(err.msg, "(rollout)");
    CHECK(s->stall_s <= 0 || strstr(err.msg, "(--rank-stall-minutes)"));
    CHECK(s->stall_s > 0 || strstr(err.msg, "rank 1 did not answer within 1 s"));
    CHECK(ml_comm_first_silent(c) || s->stall_s > 0 || c->rank == 1); /* it can print */
}

static void stall_one(ml_comm *c, void *ud) {
    const stall *s = ud;
    ml_heartbeat_opts o = { .every_s = 0.02, .stall_s = s->stall_s, .say = count_line };
    ml_heartbeat *h;

    o.deadline_s = s->stall_s > 0 ? 60 : 1; /* a line comes after a quarter of it */
    h = open_beats(c, o);
    if (c->rank == 0)
        be_idle(c, s);
    else
        wait_for_it(c, s);
    ml_heartbeat_close(h);
}

static void run_stall(stall s) {
    atomic_store(&n_line, 0);
    atomic_store(&n_ended, 0);
    ml_ranks_run(3, stall_one, &s);
}

static void a_rank_that_does_not_go_on_is_named(void) {
    run_stall((stall){ .stall_s = 0.3 });
    run_stall((stall){ .deadline_s = 1 });
}

static void a_rank_may_be_busy_for_long(void) {
    run_stall((stall){ 0 });
    CHECK(atomic_load(&n_line) >= 2);
}

static void a_chain_of_waits_has_an_end(void) {
    ml_rank_state s[4] = {
        { .waits = true, .awaits = 2, .for_s = 7, .call = "barrier over train" },
        { .for_s = 9, .stage = "saving" },
        { .waits = true, .awaits = 1, .for_s = 8, .call = "bcast over tp" },
        { .waits = true, .awaits = 0, .for_s = 6, .call = "recv over pp" },
    };
    ml_text text = { 0 };

    CHECK(ml_rank_states_end(s, 4, 3) == 1 && ml_rank_states_end(s, 4, 1) == 1);
    ml_rank_states_put(&text, s, 4, 0);
    CHECK(strcmp(
              text.ptr,
              "rank 0 waited for rank 2 in barrier over train for 7.0 s, rank 2 waited for "
              "rank 1 in bcast over tp for 8.0 s, rank 1 was in no collective for 9.0 s "
              "(saving)") == 0);
    ml_text_release(&text);
    s[2].awaits = 3; /* a circle */
    CHECK(ml_rank_states_end(s, 4, 0) == -1);
    ml_rank_states_put(&text, s, 4, 0);
    CHECK_HAS(text.ptr, "so that ranks waited for each other");
    ml_text_release(&text);
}

/* --- a trace of all ranks ------------------------------------------------------------ */

static void log_together(ml_comm *c, void *ud) {
    ml_run_log log = { 0 };
    ml_timeline *mine = ml_timeline_new(4);
    ml_iteration it = { .began_s = 0.5 };
    ml_arena round;
    double offset_s = -1;
    ml_err err = { 0 };

    (void)ud;
    ml_arena_init(&round, "round");
    if (c->rank == 0)
        CHECK(ml_run_log_open(&log,
                              &(ml_run_log_opts){ .dir = ml_test_dir(),
                                                  .profile = true,
                                                  .no_store = true,
                                                  .ops = mine,
                                                  .n_rank = c->size },
                              0, &err) == ML_OK);
    CHECK(ml_rank_clock_offset(&offset_s, c, &err) == ML_OK);
    CHECK(c->rank ? offset_s > -0.5 && offset_s < 0.5 : offset_s == 0);
    for (int i = 0; i < 6; i++) /* two more than fit */
        ml_timeline_add(mine,
                        &(ml_time_span){ i % 2 ? "split" : "allgather", ML_TRACK_COMM, i,
                                         1 + i, 2 + i, i % 2 ? "tp" : "world" },
                        1);
    CHECK(ml_rank_spans_meet(c, mine, 1000.0 * c->rank, &it, &log, &err) == ML_OK);
    if (c->rank == 0) {
        ml_run_log_post(&log, &round);
        ml_run_log_close(&log);
    }
    ml_arena_release(&round);
    ml_timeline_free(mine);
}

static int count(const ml_json *doc, int pid, const char *name) {
    int n = 0;

    for (const ml_json *e = doc->child; e; e = e->next) {
        int64_t is = 0;
        n += ml_str_is(ml_json_get(e, "name")->text, name) &&
             ml_json_i64(ml_json_get(e, "pid"), &is) && is == pid;
    }
    return n;
}

static void a_trace_has_all_ranks(void) {
    const char *path = ml_test_path("trace_0.json");
    const ml_json *doc = NULL;
    ml_arena a;
    ml_file f = { 0 };
    ml_err err = { 0 };

    ml_ranks_run(3, log_together, NULL);
    ml_arena_init(&a, "trace");
    CHECK(ml_file_map(&f, path, &err) == ML_OK);
    CHECK(ml_json_parse(&doc, &a, f.bytes, path, &err) == ML_OK);
    for (int pid = 1; doc && pid <= 3; pid++) {
        CHECK(count(doc, pid, "process_name") == 1 && count(doc, pid, "thread_name") == 4);
        CHECK(count(doc, pid, "allgather") == 2 && count(doc, pid, "split") == 2);
        CHECK(count(doc, pid, "omitted ops") == 1);
        CHECK(count(doc, pid, "iteration") == (pid > 1));
    }
    ml_file_unmap(&f);
    ml_arena_release(&a);
}

static const ml_test tests[] = {
    { "one rank is a job", one_rank_is_a_job },
    { "ranks divide threads and memory of their host", ranks_divide_their_host },
    { "engines have ranks of their own, or those of the trainer", engines_have_ranks },
    { "heartbeats end with their ranks", heartbeats_end },
    { "one flag of heartbeats gives them times of their own", heartbeats_have_times },
    { "a silent rank is named while others wait", a_silent_rank_is_named },
    { "an owner that is busy elsewhere is ended by its heartbeats", a_busy_owner_is_told },
    { "a rank that runs but does not go on is named", a_rank_that_does_not_go_on_is_named },
    { "a rank may be busy for long, and others say that they wait",
      a_rank_may_be_busy_for_long },
    { "a chain of waits ends at the rank that does not wait", a_chain_of_waits_has_an_end },
    { "a trace has the spans of all ranks", a_trace_has_all_ranks },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
