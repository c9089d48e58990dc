/* Any bytes as run.db: every sample that is found lies within its own arrays, or a sentence.
 * The store may also be opened for writing, as a run that resumes does. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "rl/record/run_store.h"
#include "tests/fuzz/memory_dir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct { char dir[64], file[96], journal[112]; } at;

static void remove_all(void) {
    unlink(at.file);
    unlink(at.journal);
    rmdir(at.dir);
}

static void prepare(void) {
    make_memory_dir(at.dir);
    snprintf(at.file, sizeof at.file, "%s/run.db", at.dir);
    snprintf(at.journal, sizeof at.journal, "%s-journal", at.file);
    atexit(remove_all);
}

static bool look(void *ud, int64_t rollout, const char *set, const ml_sample *s) {
    uint64_t *sum = ud;

    *sum += set ? strlen(set) : 0;

    ML_BUG_IF(s->n_response < 0 || s->n_response > s->n_token);
    for (int32_t i = 0; i < s->n_token; i++)
        *sum += (uint64_t)s->token[i];
    for (int32_t i = 0; i < s->n_response; i++) {
        *sum += s->mask ? s->mask[i] : 0;
        *sum += s->version ? (uint64_t)s->version[i] : 0;
        *sum += s->logprob && s->logprob[i] > 0;
    }
    for (size_t i = 0; i < s->response.len; i++)
        *sum += (uint64_t)s->response.ptr[i];
    *sum += (uint64_t)rollout;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ml_sample_query q = { .rollout = -1, .least = (double)NAN, .most = (double)NAN };
    ml_run_store *s = NULL;
    ml_err err = { 0 };
    uint64_t sum = 0;

    if (!at.dir[0])
        prepare();
    put_file(at.file, data, size);
    if (ml_run_store_find(at.file, &q, look, &sum, &err) != ML_OK)
        ML_BUG_IF(!strstr(err.msg, "run.db"));
    err = (ml_err){ 0 };
    if (ml_run_store_open(&s, at.file, 1, &err) != ML_OK)
        ML_BUG_IF(!strstr(err.msg, "run.db"));
    else
        ml_run_store_close(s);
    unlink(at.journal);
    return 0;
}
