#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/file.h"
#include "rl/record/run_log.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

static ml_err err;

/* ---- event files ---- */

static void checksum(void) {
    char zeros[32] = { 0 };

    CHECK(ml_crc32c("123456789", 9) == 0xE3069283u);      /* the check value of CRC-32C */
    CHECK(ml_crc32c(zeros, sizeof zeros) == 0x8A9136AAu); /* RFC 3720, B.4 */
    CHECK(ml_crc32c("", 0) == 0);
}

typedef struct seen {
    int n;
    int64_t step[20];
    float value[20];
    char tag[20][40];
} seen;

static void see(void *ud, const ml_event *e) {
    seen *s = ud;

    if (!e->tag.len || s->n == 20)
        return;
    s->step[s->n] = e->step;
    s->value[s->n] = e->value;
    snprintf(s->tag[s->n++], sizeof s->tag[0], "%.*s", (int)e->tag.len, e->tag.ptr);
}

static void events_are_read_back(void) {
    static const int64_t steps[] = { 0, 1, 127, 128, 1 << 20, -1 };
    const char *path = ml_test_path("events");
    ml_event_file f;
    seen s = { 0 };

    CHECK(ml_event_file_open(&f, path, NULL, NULL, &err) == ML_OK);
    for (int i = 0; i < 6; i++)
        ml_event_file_add(&f, &(ml_event){ .time_s = 1.5,
                                           .step = steps[i],
                                           .tag = ml_str_of(i % 2 ? "train/loss" : "x"),
                                           .value = (float)i / 3 });
    CHECK(ml_event_file_flush(&f, &err) == ML_OK);
    ml_event_file_close(&f);
    CHECK(ml_event_file_read(path, see, &s, &err) == ML_OK && s.n == 6);
    for (int i = 0; i < 6; i++)
        CHECK(s.step[i] == steps[i] && s.value[i] == (float)i / 3);
    CHECK(strcmp(s.tag[1], "train/loss") == 0);
}

static bool below(void *ud, const ml_event *e) {
    return e->step < *(const int *)ud;
}

/* A file cut anywhere gives the events before the cut, and can be gone on with. */
static void events_that_were_cut_off(void) {
    const char *path = ml_test_path("cut");
    int limit = 2;
    ml_event_file f;
    ml_file whole;

    CHECK(ml_event_file_open(&f, path, NULL, NULL, &err) == ML_OK);
    for (int i = 0; i < 3; i++)
        ml_event_file_add(&f, &(ml_event){ .step = i, .tag = ml_str_of("x") });
    ml_event_file_close(&f);
    CHECK(ml_file_map(&whole, path, &err) == ML_OK);
    for (size_t n = 0; n < whole.bytes.len; n += 7) {
        const char *part = ml_test_path("part");
        seen s = { 0 };
        CHECK(ml_file_replace(part, (ml_str){ whole.bytes.ptr, n }, &err) == ML_OK);
        CHECK(ml_event_file_open(&f, part, below, &limit, &err) == ML_OK);
        ml_event_file_add(&f, &(ml_event){ .step = 9, .tag = ml_str_of("new") });
        ml_event_file_close(&f);
        CHECK(ml_event_file_read(part, see, &s, &err) == ML_OK);
        CHECK(s.n >= 1 && s.n <= 3 && s.step[s.n - 1] == 9);
    }
    ml_file_unmap(&whole);
}

/* ---- traces ---- */

static int spans_of(const char *path) {
    const ml_json *doc;
    ml_file f;
    ml_arena a;
    int n = -1;

    ml_arena_init(&a, "trace");
    CHECK(ml_file_map(&f, path, &err) == ML_OK);
    if (ml_json_parse(&doc, &a, f.bytes, path, &err) == ML_OK)
        n = doc->n;
    else
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    ml_file_unmap(&f);
    ml_arena_release(&a);
    return n;
}

static void a_trace_is_always_whole(void) {
    const char *path = ml_test_path("trace.json");
    ml_trace_file t;

    CHECK(ml_trace_file_open(&t, path, &err) == ML_OK);
    CHECK(spans_of(path) == 0);
    for (int i = 0; i < 3; i++) {
        CHECK(ml_trace_file_spans(&t,
                                  &(ml_trace_span){ .name = "rollout",
                                                    .begin_s = i,
                                                    .end_s = i + 0.5,
                                                    .key = "rollout",
                                                    .value = i },
                                  1, &err) == ML_OK);
        CHECK(spans_of(path) == i + 1); /* as if it had been killed here */
    }
    ml_trace_file_close(&t);
}

/* ---- the whole log ---- */

static int32_t token[] = { 5, 6, 7, 8, 9 };
static uint8_t mask[] = { 1, 0, 1 };
static float logprob[] = { -0.5f, 0, -1.25f };
static uint64_t version[] = { 3, 3, 4 };

static ml_sample sample_of(int64_t index, double reward) {
    return (ml_sample){ .index = index,
                        .group = index / 2,
                        .row = -1,
                        .prompt = { "2+2", 3 },
                        .response = { "four\0!", 6 },
                        .label = { "4", 1 },
                        .token = token,
                        .n_token = 5,
                        .n_response = 3,
                        .mask = mask,
                        .logprob = logprob,
                        .version = version,
                        .reward = reward,
                        .has_reward = true,
                        .status = index % 2 ? ML_SAMPLE_TRUNCATED : ML_SAMPLE_COMPLETED };
}

/* Two data sets with an answer each. */
static void evaluate(ml_run_log *l, int64_t rollout) {
    static const char *const name[] = { "set", "other" };
    ml_eval_answers *first;
    ml_arena a;

    ml_arena_init(&a, "an evaluation");
    first = ML_NEW(&a, ml_eval_answers, 2);
    for (int i = 0; i < 2; i++) {
        const ml_sample **list = ML_NEW(&a, const ml_sample *, 1);
        ml_sample *s = ML_NEW(&a, ml_sample, 1);
        *s = sample_of(2 * rollout + i, i);
        list[0] = s;
        first[i] = (ml_eval_answers){ .set = name[i], .sample = list, .n = 1 };
    }
    first[0].next = &first[1];
    ml_run_log_answers(l, rollout, first, &a);
    CHECK(a.last == NULL); /* it was taken along */
}

static void one_round(ml_run_log *l, int64_t rollout) {
    const ml_sample **list;
    ml_metrics f;
    ml_arena a;

    ml_arena_init(&a, "round");
    ml_metrics_init(&f, &a);
    list = ML_NEW(&a, const ml_sample *, 2);
    for (int i = 0; i < 2; i++) {
        ml_sample *s = ML_NEW(&a, ml_sample, 1);
        *s = sample_of(2 * rollout + i, i);
        list[i] = s;
    }
    ml_metrics_add(&f, "rollout/", "raw_reward", 0.25 * (double)rollout);
    ml_run_log_samples(l, rollout, list, 2);
    ml_run_log_metrics(l, rollout, -1, &f);
    ml_metrics_init(&f, &a);
    ml_metrics_add(&f, "train/", "loss", (double)NAN);
    ml_run_log_metrics(l, rollout, 2 * rollout, &f);
    if (rollout % 2)
        CHECK(ml_run_log_settle(l, &err) == ML_OK); /* as before a save */
    ml_metrics_init(&f, &a);
    ml_metrics_add(&f, "eval/", "set", 1);
    ml_run_log_metrics(l, rollout, -1, &f);
    evaluate(l, rollout);
    ml_run_log_span(l, rollout, ML_SPAN_OTHER, "round", 0, 1);
    ml_run_log_event(l, rollout, "something happened");
    ml_run_log_post(l, &a);
    CHECK(ml_run_log_check(l, &err) == ML_OK);
}

static void rounds(int64_t from, int64_t to) {
    ml_run_log_opts o = { .dir = ml_test_dir(), .profile = true };
    ml_run_log l = { 0 };

    CHECK(ml_run_log_open(&l, &o, from, &err) == ML_OK);
    for (int64_t i = from; i < to; i++)
        one_round(&l, i);
    CHECK(ml_run_log_settle(&l, &err) == ML_OK);
    ml_run_log_close(&l);
}

static int n_found;

static bool look(void *ud, int64_t rollout, const char *set, const ml_sample *s) {
    (void)ud;
    CHECK(!set || strcmp(set, "set") == 0 || strcmp(set, "other") == 0);
    CHECK(s->index / 2 == rollout && s->n_token == 5 && s->n_response == 3);
    CHECK(memcmp(s->token, token, sizeof token) == 0);
    CHECK(s->mask && memcmp(s->mask, mask, sizeof mask) == 0);
    CHECK(s->logprob && memcmp(s->logprob, logprob, sizeof logprob) == 0);
    CHECK(s->version && s->version[2] == 4);
    CHECK(s->response.len == 6 && s->reward == (double)(s->index % 2));
    CHECK(s->status == (s->index % 2 ? ML_SAMPLE_TRUNCATED : ML_SAMPLE_COMPLETED));
    n_found++;
    return true;
}

static int found(ml_sample_query q) {
    n_found = 0;
    CHECK(ml_run_store_find(ml_test_path("run.db"), &q, look, NULL, &err) == ML_OK);
    return n_found;
}

#define ANY .least = (double)NAN, .most = (double)NAN

static void samples_are_found(void) {
    rounds(0, 4);
    CHECK(found((ml_sample_query){ .rollout = ML_ALL_ROLLOUTS, ANY }) == 8);
    CHECK(found((ml_sample_query){ .rollout = 2, ANY }) == 2);
    CHECK(found((ml_sample_query){ .rollout = 4, ANY }) == 0);
    CHECK(found((ml_sample_query){ .rollout = ML_ALL_ROLLOUTS, .truncated = true, ANY }) ==
          4);
    CHECK(found((ml_sample_query){ .rollout = ML_ALL_ROLLOUTS, .least = 0.5, .most = 2 }) ==
          4);
    CHECK(found((ml_sample_query){ .rollout = ML_ALL_ROLLOUTS, ANY, .n_skip = 5 }) == 3);
    CHECK(found((ml_sample_query){
              .rollout = ML_ALL_ROLLOUTS, ANY, .n_skip = 5, .n_most = 2 }) == 2);
}

static void answers_are_found(void) {
    rounds(0, 4);
    CHECK(found((ml_sample_query){ .evals = true, .rollout = ML_ALL_ROLLOUTS, ANY }) == 8);
    CHECK(found((ml_sample_query){ .evals = true, .rollout = 2, ANY }) == 2);
    CHECK(found((ml_sample_query){
              .evals = true, .set = "other", .rollout = ML_ALL_ROLLOUTS, ANY }) == 4);
    CHECK(found((ml_sample_query){
              .evals = true, .set = "no such", .rollout = ML_ALL_ROLLOUTS, ANY }) == 0);
    CHECK(found((ml_sample_query){
              .evals = true, .rollout = ML_ALL_ROLLOUTS, .least = 0.5, .most = 2 }) == 4);
    /* A run that goes on at round 3 evaluates again what was evaluated after round 2. */
    rounds(3, 4);
    CHECK(found((ml_sample_query){ .evals = true, .rollout = ML_ALL_ROLLOUTS, ANY }) == 6);
    CHECK(found((ml_sample_query){ .evals = true, .rollout = 2, ANY }) == 0);
}

/* A run that goes on drops what is newer than its checkpoint, and ends with the same rows. */
static void newer_rows_are_dropped(void) {
    char want[20000], got[20000];
    seen all = { 0 }, again = { 0 };
    ml_file f;

    rounds(0, 3);
    CHECK(ml_file_map(&f, ml_test_path("metrics.jsonl"), &err) == ML_OK);
    snprintf(want, sizeof want, "%.*s", (int)f.bytes.len, f.bytes.ptr);
    ml_file_unmap(&f);
    CHECK_HAS(want, "{\"rollout\": 1, \"step\": 2, \"train/loss\": null}\n");
    CHECK(ml_event_file_read(ml_test_path("tensorboard/events.out.tfevents.miles"), see,
                             &all, &err) == ML_OK);
    CHECK(all.n == 12);

    rounds(1, 3);
    CHECK(ml_file_map(&f, ml_test_path("metrics.jsonl"), &err) == ML_OK);
    snprintf(got, sizeof got, "%.*s", (int)f.bytes.len, f.bytes.ptr);
    ml_file_unmap(&f);
    /* The evaluation after round 0 is done again by the loop, which is not here. */
    CHECK(strlen(got) == strlen(want) - strlen("{\"rollout\": 0, \"eval/set\": 1}\n"));
    CHECK(ml_event_file_read(ml_test_path("tensorboard/events.out.tfevents.miles"), see,
                             &again, &err) == ML_OK);
    CHECK(again.n == 11 && again.step[again.n - 1] == 2);
    CHECK(found((ml_sample_query){ .rollout = ML_ALL_ROLLOUTS, ANY }) == 6);
    CHECK(spans_of(ml_test_path("trace_0.json")) == 4 + ML_TRACKS);
    CHECK(spans_of(ml_test_path("trace_1.json")) == 3 + ML_TRACKS);
}

static void tell(ml_timeline *to, const char *name, ml_track track, int n) {
    for (int i = 0; i < n; i++)
        ml_timeline_add(to, &(ml_time_span){ name, track, i, 5 + i, 6 + i }, 1);
}

/* Each track has at most its limit of spans; the rest is counted there. */
static void ops_are_in_the_trace(void) {
    ml_run_log_opts o = { .dir = ml_test_dir(),
                          .profile = true,
                          .ops = ml_timeline_new(3) };
    ml_run_log l = { 0 };
    ml_arena a;
    ml_file f;
    char got[5000];

    CHECK(ml_run_log_open(&l, &o, 0, &err) == ML_OK);
    ml_arena_init(&a, "round");
    tell(o.ops, "attn", ML_TRACK_ROLLOUT, 5);
    tell(o.ops, "attn backward", ML_TRACK_TRAIN, 3);
    ml_run_log_post(&l, &a);
    tell(o.ops, "linear", ML_TRACK_TRAIN, 1);
    ml_run_log_close(&l);
    CHECK(spans_of(ml_test_path("trace_0.json")) == 1 + ML_TRACKS + 3 + 1 + 3 + 1);
    CHECK(ml_file_map(&f, ml_test_path("trace_0.json"), &err) == ML_OK);
    snprintf(got, sizeof got, "%.*s", (int)f.bytes.len, f.bytes.ptr);
    ml_file_unmap(&f);
    CHECK_HAS(got, "\"tid\": 3, \"name\": \"attn\"");
    CHECK_HAS(got, "\"dur\": 1000000.000, \"args\": {\"layer\": 2}}");
    CHECK_HAS(got, "\"name\": \"omitted ops\"");
    CHECK_HAS(got, "{\"n\": 2}}");
    CHECK_HAS(got, "\"tid\": 2, \"name\": \"linear\"");
    ml_timeline_free(o.ops);
}

/* What cannot be written is told, not dropped. */
static void a_full_disk_is_told(void) {
    ml_run_log_opts o = { .dir = ml_test_dir() };
    struct rlimit limit = { 300000, 300000 };
    ml_run_log l = { 0 };
    ml_status st = ML_OK;

    CHECK(ml_run_log_open(&l, &o, 0, &err) == ML_OK);
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_IGN);
    for (int64_t i = 0; i < 20000 && st == ML_OK; i++) {
        ml_metrics f;
        ml_arena a;
        ml_arena_init(&a, "round");
        ml_metrics_init(&f, &a);
        for (int k = 0; k < 40; k++)
            ml_metrics_add(&f, "rollout/", "raw_reward", 0.3);
        ml_run_log_metrics(&l, i, -1, &f);
        ml_run_log_post(&l, &a);
        st = ml_run_log_check(&l, &err);
    }
    CHECK(st == ML_EIO);
    ml_run_log_close(&l);
}

static void nothing_is_wanted(void) {
    ml_run_log l = { 0 };
    ml_arena a;

    ml_arena_init(&a, "round");
    ml_run_log_event(&l, 0, "x");
    ml_run_log_post(&l, &a);
    CHECK(ml_run_log_settle(&l, &err) == ML_OK);
    ml_run_log_close(&l);
}

static const ml_test tests[] = {
    { "CRC-32C gives the published values", checksum },
    { "TensorBoard events are read back", events_are_read_back },
    { "a truncated event file is read and continued", events_that_were_cut_off },
    { "a trace file is valid JSON at any time", a_trace_is_always_whole },
    { "samples are found by query", samples_are_found },
    { "evaluation answers are found by query", answers_are_found },
    { "a resumed log drops rows newer than its checkpoint", newer_rows_are_dropped },
    { "the trace has the ops of each track and counts the rest", ops_are_in_the_trace },
    { "a log row that cannot be written is an error", a_full_disk_is_told },
    { "a run log without a directory writes nothing", nothing_is_wanted },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
