/* Any bytes as what the dashboard and a run read from each other: metrics.jsonl, requests to
 * the run and their record, the text of a sample. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "dash/advice.h"
#include "dash/turn_split.h"
#include "rl/record/control.h"
#include "tests/fuzz/memory_dir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct { char dir[64], metrics[96], requests[96], record[96]; } at;

static void remove_all(void) {
    unlink(at.metrics);
    unlink(at.requests);
    unlink(at.record);
    rmdir(at.dir);
}

static void prepare(void) {
    make_memory_dir(at.dir);
    snprintf(at.metrics, sizeof at.metrics, "%s/metrics.jsonl", at.dir);
    snprintf(at.requests, sizeof at.requests, "%s/control.requests", at.dir);
    snprintf(at.record, sizeof at.record, "%s/control.jsonl", at.dir);
    atexit(remove_all);
}

static void read_series(void) {
    ml_advice advice[ML_ADVICE_MOST];
    ml_series_set s;

    ml_series_open(&s, at.dir);
    for (int64_t i = 0; i < s.n; i++) {
        int64_t index[16], n = ml_series_thin(s.series[i].at, s.series[i].n, 16, index);
        for (int64_t k = 0; k < n; k++)
            ML_BUG_IF(index[k] < 0 || index[k] >= s.series[i].n);
    }
    ML_BUG_IF(ml_advice_find(advice, &s, &(ml_advice_facts){ .live = true }) >
              ML_ADVICE_MOST);
    ml_series_close(&s);
}

/* A learning rate that is carried out is one. */
static void read_requests(const uint8_t *data, size_t size) {
    ml_control_orders o = { 0 };
    ml_control *c = NULL;
    ml_err err = { 0 };

    put_file(at.record, data, size);
    ML_BUG_IF(ml_control_open(&c, at.dir, NULL, 1, &err) != ML_OK);
    put_file(at.requests, data, size);
    for (int64_t rollout = 1; rollout < 4; rollout++)
        ML_BUG_IF(ml_control_poll(c, rollout, rollout % 2, &o, &err) != ML_OK ||
                  !(o.lr >= 0 && isfinite(o.lr)));
    ml_control_close(c);
    unlink(at.record);
}

static void count_turn(void *ud, const ml_turn_text *t) {
    *(size_t *)ud += t->role.len + t->content.len;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t n = 0;

    if (!at.dir[0])
        prepare();
    put_file(at.metrics, data, size);
    read_series();
    read_requests(data, size);
    if (ml_conversation_split((ml_str){ (const char *)data, size }, count_turn, &n))
        ML_BUG_IF(
            n > size + 9 * size); /* a role that is not in the text has at most 9 letters */
    return 0;
}
