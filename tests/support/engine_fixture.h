/* engine_fixture.h - an engine on a tiny model, and a recorder of its outputs. */
#ifndef ML_TESTS_SUPPORT_ENGINE_FIXTURE_H
#define ML_TESTS_SUPPORT_ENGINE_FIXTURE_H

#include "engine/engine.h"

#define ML_FIXTURE_MODEL "tests/golden/data/qwen3"
enum { ML_FIXTURE_VOCAB = 83, ML_FIXTURE_CONTEXT = 128 };

typedef struct ml_engine_fixture {
    ml_arena arena;
    ml_spec spec;
    ml_checkpoint *checkpoint;
    ml_backend be;
    ml_weights w; /* version 1 */
    ml_engine *e;
    ml_engine_opts o; /* change before ml_engine_fixture_start */
    int32_t eos[1];
} ml_engine_fixture;

/* Failures end the test.  ml_engine_fixture_start opens the engine. */
void ml_engine_fixture_open(ml_engine_fixture *b, const char *model);
void ml_engine_fixture_start(ml_engine_fixture *b);
void ml_engine_fixture_close(ml_engine_fixture *b);

/* A request whose answer has max_new tokens.  All prompts share a prefix. */
ml_gen_request ml_fixture_request(int32_t n_prompt, int32_t max_new);

/* All updates of a request, accumulated. */
typedef struct ml_received {
    int32_t id[ML_FIXTURE_CONTEXT];
    float logprob[ML_FIXTURE_CONTEXT];
    uint64_t version[ML_FIXTURE_CONTEXT];
    int32_t n, n_end, matched, n_preempt, n_cached;
    ml_finish finish;
    char message[200];
} ml_received;

/* The ml_gen_fn that accumulates them; its ud is a zeroed ml_received. */
void ml_receive(void *received, const ml_gen_update *u);

#endif
