#include "tests/support/engine_fixture.h"

#include <stdio.h>

#include "tests/support/must.h"

void ml_engine_fixture_open(ml_engine_fixture *b, const char *model) {
    *b = (ml_engine_fixture){ .eos = { 2 } };
    ml_arena_init(&b->arena, "test");
    MUST(ml_spec_open(&b->spec, model, &err));
    MUST(ml_checkpoint_open(&b->checkpoint, model, &err));
    ml_spec_keep_kv(&b->spec, ml_weights_kv_dtype(&b->spec, b->checkpoint, ML_WEIGHT_AUTO));
    MUST(ml_backend_cpu_open(&b->be, 2, NULL, &err));
    MUST(ml_weights_load(&b->w, &b->spec, b->checkpoint, ML_WEIGHT_AUTO, &b->be, &b->arena,
                         &err));
    b->w.version = 1;
    b->o = (ml_engine_opts){ .context = ML_FIXTURE_CONTEXT,
                             .max_running = 4,
                             .max_waiting = 8,
                             .chunk = 32,
                             .max_top = 8,
                             .eos = b->eos,
                             .n_eos = 1 };
}

void ml_engine_fixture_start(ml_engine_fixture *b) {
    MUST(ml_engine_open(&b->e, &b->spec, &b->w, &b->be, &b->o, &err));
}

void ml_engine_fixture_close(ml_engine_fixture *b) {
    ml_engine_close(b->e);
    ml_weights_close(&b->w);
    ml_backend_close(&b->be);
    ml_checkpoint_close(b->checkpoint);
    ml_spec_close(&b->spec);
    ml_arena_release(&b->arena);
}

ml_gen_request ml_fixture_request(int32_t n_prompt, int32_t max_new) {
    static int32_t numbers[ML_FIXTURE_CONTEXT];

    for (int32_t i = 0; i < ML_FIXTURE_CONTEXT; i++)
        numbers[i] = (i * 7 + 5) % ML_FIXTURE_VOCAB;
    return (ml_gen_request){ .prompt = numbers,
                             .n_prompt = n_prompt,
                             .max_new = max_new,
                             .draw = { .temperature = 1, .top_p = 1, .repetition = 1 },
                             .ignore_eos = true,
                             .score_from = -1 };
}

void ml_receive(void *received, const ml_gen_update *u) {
    ml_received *h = received;
    for (int32_t i = 0; i < u->answer.n; i++) {
        h->id[h->n] = u->answer.id[i];
        h->logprob[h->n] = u->answer.logprob[i];
        h->version[h->n++] = u->answer.version[i];
    }
    h->finish = u->finish;
    h->matched = u->matched;
    h->n_preempt = u->n_preempt;
    h->n_cached = u->n_cached;
    h->n_end += u->finish != ML_FINISH_NOT;
    snprintf(h->message, sizeof h->message, "%.*s", (int)u->message.len, u->message.ptr);
}
