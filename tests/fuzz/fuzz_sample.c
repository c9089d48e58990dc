/* Any text as a recorded sample and as the held samples of a snapshot: refused with a sentence, or
 * samples that can be trained on and gone on with.  What is read back after it was written is
 * the same. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/bug.h"
#include "rl/rollout/group.h"
#include "rl/rollout/partial_buffer.h"
#include "rl/learn/train_rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_VOCAB = 50, N_ROW = 9, MAX_NEW = 4 };

/* --- recordings ------------------------------------------------------------------ */

static ml_status read(ml_sample *out, ml_arena *a, ml_str text, ml_err *err) {
    const ml_json *doc;
    ml_status st = ml_json_parse(&doc, a, text, "text", err);

    if (st == ML_OK)
        st = ml_sample_read(out, a, doc, text, "text", err);
    return st == ML_OK ? ml_sample_check(out, N_VOCAB, "text", err) : st;
}

static void use(const ml_sample *s, ml_arena *a) {
    ml_sample copy;
    int64_t sum = 0;
    ml_train_rows rows = ml_train_rows_of(a, &s, 1);

    ML_BUG_IF(s->n_response < 0 || s->n_response >= s->n_token);
    ml_sample_copy(&copy, a, s);
    for (int i = 0; i < ML_N_ROUTING; i++)
        for (int64_t k = 0; k < s->routed[i].n * s->routed[i].width; k++)
            sum += copy.routed[i].row[k];
    for (int32_t t = 0; t < s->n_response; t++)
        sum += rows.train[0].mask[t] + (s->version ? (int64_t)(s->version[t] & 1) : 0);
    ML_BUG_IF(sum == INT64_MIN);
}

static void check_recording(ml_str text) {
    ml_sample s, again;
    ml_text line = { 0 };
    ml_err err = { 0 };
    ml_arena a;

    ml_arena_init(&a, "recording");
    if (read(&s, &a, text, &err) != ML_OK) {
        ML_BUG_IF(!err.msg[0]);
    } else {
        use(&s, &a);
        ml_sample_write(&line, &s);
        ML_BUG_IF(read(&again, &a, (ml_str){ line.ptr, line.len }, &err) != ML_OK);
        ML_BUG_IF(s.n_token != again.n_token || s.n_response != again.n_response);
        ML_BUG_IF(memcmp(s.token, again.token, (size_t)s.n_token * sizeof *s.token) != 0);
        ML_BUG_IF(s.status != again.status || s.n_turn != again.n_turn);
    }
    ml_text_release(&line);
    ml_arena_release(&a);
}

/* --- held samples ---------------------------------------------------------------- */

/* Draws one token, then the answer has ended. */
static ml_status submit(ml_gen *g, const ml_gen_request *r, ml_gen_fn *fn, void *ud,
                        uint64_t *ticket, ml_err *err) {
    static const int32_t id[] = { 1 };
    static const float logprob[] = { -1 };
    static const uint64_t version[] = { 1 };
    ml_gen_update u = { .finish = ML_FINISH_TOKEN,
                        .answer = {
                            .n = 1, .id = id, .logprob = logprob, .version = version } };

    (void)g;
    (void)err;
    ML_BUG_IF(r->max_new < 1 || r->n_prompt < 1);
    for (int32_t i = 0; i < r->n_prompt; i++)
        ML_BUG_IF(r->prompt[i] < 0 || r->prompt[i] >= N_VOCAB);
    *ticket = 1;
    fn(ud, &u);
    return ML_OK;
}

static const ml_tokenizer *tokenizer(void) {
    static const char json[] =
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2}, "
        "\"merges\": []}}";
    static ml_tokenizer *t;

    ML_BUG_IF(!t && ml_tokenizer_parse(&t, ml_str_of(json), "tokenizer", NULL) != ML_OK);
    return t;
}

static void go_on(const ml_sample *held) {
    static ml_gen gen = { .submit = submit };
    static ml_gen_ctx gen_ctx = { .gen = &gen, .context = 1 << 20 };
    static ml_sampling how = { .max_new = MAX_NEW };
    static ml_group_set set; /* once: it has an encoder, which takes time to make */
    ml_gen_group *g;
    ml_arena a;

    ml_arena_init(&a, "flights");
    if (!gen_ctx.tokenizer) {
        gen_ctx.tokenizer = tokenizer();
        ml_group_set_init(&set, &gen_ctx, &how, NULL);
    }
    g = ml_group_set_add(&set, (ml_group){ .n_sample = 1 }, &a);
    ML_BUG_IF(ml_gen_group_resume(g, held, held->index & 1, NULL) != ML_OK);
    ml_group_list_remove(&set.groups, g);
    ML_BUG_IF(g->task[0]->sample.n_response > MAX_NEW);
    use(&g->task[0]->sample, &a);
    ml_arena_release(&a);
}

static void check_held(ml_str text) {
    static const ml_partial_buffer_bounds bounds = { N_VOCAB, N_ROW, MAX_NEW };
    ml_text state = { 0 };
    ml_err err = { 0 };
    ml_partial_buffer held;
    const ml_sample *s;

    ml_text_printf(&state, "{\"held\": [");
    ml_text_add(&state, text.ptr, text.len);
    ml_text_printf(&state, "]}");
    ml_partial_buffer_init(&held, 1);
    if (ml_partial_buffer_load(&held, (ml_str){ state.ptr, state.len }, &bounds, "state",
                               &err) == ML_OK)
        while ((s = ml_partial_buffer_take(&held))) {
            ML_BUG_IF(s->row < -1 || s->row >= N_ROW);
            go_on(s);
        }
    else
        ML_BUG_IF(!err.msg[0]);
    ml_partial_buffer_release(&held);
    ml_text_release(&state);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ml_str text = { (const char *)data, size };

    check_recording(text);
    check_held(text);
    return 0;
}
