/* Samples that come from outside: recordings and snapshots that do not fit the model or the
 * run. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "io/torch_write.h"
#include "rl/rollout/group.h"
#include "rl/rollout/partial_buffer.h"
#include "rl/sample_torch.h"
#include "tests/support/log_text.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/toy_model.h"
#include "tests/support/toy_text.h"

enum { N_VOCAB = 83, MAX_NEW = 6 };

/* --- reading ---------------------------------------------------------------------- */

static ml_status read(ml_sample *s, ml_arena *a, const char *text, ml_err *err) {
    const ml_json *doc;
    ml_status st = ml_json_parse(&doc, a, ml_str_of(text), "file", err);

    if (st == ML_OK)
        st = ml_sample_read(s, a, doc, ml_str_of(text), "file", err);
    return st == ML_OK ? ml_sample_check(s, N_VOCAB, "file", err) : st;
}

static void what_does_not_fit_is_refused(void) {
    static const struct {
        const char *text, *why;
    } bad[] = {
        { "{\"index\": 5, \"tokens\": [1, 83]}",
          "sample 5 has token 83; the largest token id is" },
        { "{\"tokens\": [2147483647]}", "token 2147483647" },
        { "{\"tokens\": [-1]}", "expected token ids" },
        { "{\"tokens\": [1, 2, 3], \"response_length\": 3}",
          "less than the number of tokens" },
        { "{\"tokens\": [1, 2, 3], \"response_length\": 4294967297}", "response_length" },
        { "{\"tokens\": [1, 2], \"n_turn\": 4294967297}", "n_turn" },
        { "{\"tokens\": [1, 2], \"response_length\": 1, \"weight_versions\": "
          "[\"18446744073709551617\"]}",
          "at most 18 digits" },
        { "{\"tokens\": [1, 2], \"response_length\": 1, \"rollout_log_probs\": [null]}",
          "\"rollout_log_probs\" is not a number" },
        { "{\"tokens\": [1, 2], \"response_length\": 1, \"teacher_log_probs\": [1e39]}",
          "\"teacher_log_probs\" is not a number" },
    };
    ml_sample s;
    ml_arena a;

    ml_arena_init(&a, "test");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ml_err err = { 0 };
        CHECK(read(&s, &a, bad[i].text, &err) == ML_EFORMAT);
        CHECK_HAS(err.msg, bad[i].why);
        CHECK_HAS(err.msg, "file");
    }
    MUST(read(&s, &a,
              "{\"tokens\": [0, 82, 7], \"response_length\": 2, \"loss_mask\": [0, 1], "
              "\"rollout_log_probs\": [null, -1]}",
              &err));
    ml_arena_release(&a);
}

/* --- files of torch --------------------------------------------------------------- */

#define ROLLOUTS "tests/golden/rollouts/"

static double number(const ml_json *doc, const char *key) {
    double x = (double)NAN;
    ml_json_f64(ml_json_get(doc, key), &x);
    return x;
}

static void check_floats(const float *v, int32_t n, const ml_json *want) {
    CHECK((v != NULL) == (want->type == ML_JSON_ARRAY));
    CHECK(!v || want->n == n);
    for (const ml_json *e = v ? want->child : NULL; e; e = e->next) {
        double x = 0;
        CHECK(ml_json_f64(e, &x) && (double)*v++ == x);
    }
}

/* The sample is what values.json has for it. */
static void check_sample(const ml_sample *s, const ml_json *want) {
    const ml_json *reward = ml_json_get(want, "reward"),
                  *routed = ml_json_get(want, "rollout_routed_experts");
    const int32_t *id = s->token;

    CHECK(s->index == (int64_t)number(want, "index"));
    CHECK(s->group == (int64_t)number(want, "group_index"));
    CHECK(s->n_response == (int32_t)number(want, "response_length"));
    CHECK(ml_json_get(want, "tokens")->n == s->n_token);
    for (const ml_json *e = ml_json_get(want, "tokens")->child; e; e = e->next) {
        int64_t x = -1;
        CHECK(ml_json_i64(e, &x) && x == *id++);
    }
    CHECK(s->reward == (reward->type == ML_JSON_OBJECT ? number(reward, "score")
                                                       : number(want, "reward")));
    check_floats(s->logprob, s->n_response, ml_json_get(want, "rollout_log_probs"));
    check_floats(s->teacher_logprob, s->n_response, ml_json_get(want, "teacher_log_probs"));
    CHECK(ml_str_is(ml_json_get(want, "status")->text, ml_sample_status_name(s->status)));
    CHECK((ml_json_get(want, "remove_sample")->type == ML_JSON_TRUE) == s->remove);
    CHECK((ml_json_get(want, "loss_mask")->type == ML_JSON_ARRAY) == (s->mask != NULL));
    CHECK((routed->type == ML_JSON_ARRAY) == (s->routed[0].n > 0));
    CHECK(!s->routed[0].n || routed->n == s->routed[0].n * s->routed[0].width);
    id = s->routed[0].row;
    for (const ml_json *e = id ? routed->child : NULL; e; e = e->next) {
        int64_t x = -1;
        CHECK(ml_json_i64(e, &x) && x == *id++);
    }
}

static void check_file(const char *path, const ml_json *values) {
    const ml_json *want = values->child;
    ml_sample *sample;
    ml_arena a;
    int64_t n = 0;

    ml_arena_init(&a, "test");
    MUST(ml_samples_load(&sample, &n, &a, path, &err));
    CHECK(n == 4 && values->n == 4);
    for (int64_t i = 0; i < n; i++, want = want->next)
        check_sample(&sample[i], want);
    CHECK(sample[0].version && sample[0].version[2] == 3 && !sample[2].version);
    CHECK(sample[0].mask && sample[0].mask[1] == 0 && sample[0].mask[2] == 1);
    CHECK_HAS(sample[0].metadata.ptr, "\"tags\": [\"a\", null]");
    CHECK(ml_str_is(sample[0].label, "\"4\"") && !sample[2].label.len);
    CHECK(sample[1].n_part == 3 && sample[3].rollout == 9);
    ml_arena_release(&a);
}

static void torch_files_are_read(void) {
    const ml_sample *all[4];
    const ml_json *values;
    ml_sample *sample;
    ml_file f = { 0 };
    ml_arena a;
    int64_t n;

    ml_arena_init(&a, "test");
    MUST(ml_file_map(&f, ROLLOUTS "values.json", &err));
    MUST(ml_json_parse_python(&values, &a, f.bytes, "values.json", &err));
    check_file(ROLLOUTS "miles.pt", values);
    check_file(ROLLOUTS "legacy.pt", values);
    MUST(ml_samples_load(&sample, &n, &a, ROLLOUTS "miles.pt", &err));
    for (int i = 0; i < 4; i++)
        all[i] = &sample[i];
    MUST(ml_samples_save_torch(ml_test_path("ours.pt"), 12, all, n, &err));
    check_file(ml_test_path("ours.pt"), values);
    ml_file_unmap(&f);
    ml_arena_release(&a);
}

static void other_torch_files_are_refused(void) {
    ml_text pickle = { 0 };
    ml_err err = { 0 };
    ml_sample *sample;
    ml_arena a;
    int64_t n;

    ml_arena_init(&a, "test");
    CHECK(ml_samples_load(&sample, &n, &a, "tests/golden/formats/bin/rollout_state.pt",
                          &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "a recorded rollout");
    ml_pickle_begin(&pickle);
    ml_pickle_dict(&pickle);
    ml_pickle_key(&pickle, "samples");
    ml_pickle_list(&pickle);
    ml_pickle_put_int(&pickle, (int64_t)1 << 40);
    ml_pickle_list_end(&pickle);
    ml_pickle_dict_end(&pickle);
    ml_pickle_end(&pickle);
    CHECK(ml_torch_write(ml_test_path("x.pt"), (ml_str){ pickle.ptr, pickle.len }, &err) ==
          ML_OK);
    CHECK(ml_samples_load(&sample, &n, &a, ml_test_path("x.pt"), &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "record 1 is an int; expected a dict");
    ml_text_release(&pickle);
    ml_arena_release(&a);
}

/* --- going on --------------------------------------------------------------------- */

/* A generator that draws token 7 as often as it may, at once. */
typedef struct stub {
    ml_gen gen;
    int n_asked;
} stub;

static ml_status draw(ml_gen *g, const ml_gen_request *r, ml_gen_fn *fn, void *ud,
                      uint64_t *ticket, ml_err *err) {
    int32_t id[MAX_NEW];
    float logprob[MAX_NEW];
    uint64_t version[MAX_NEW];
    ml_gen_update u = {
        .finish = ML_FINISH_LENGTH,
        .answer = { .n = r->max_new, .id = id, .logprob = logprob, .version = version }
    };

    (void)err;
    CHECK(r->max_new > 0 && r->max_new <= MAX_NEW);
    for (int32_t i = 0; i < r->max_new && i < MAX_NEW; i++) {
        id[i] = 7;
        logprob[i] = -1;
        version[i] = 2;
    }
    ((stub *)g)->n_asked++;
    *ticket = 1;
    fn(ud, &u);
    return ML_OK;
}

typedef struct fixture {
    ml_toy_text text;
    stub stub;
    ml_gen_ctx gen_ctx;
    ml_sampling how;
    ml_partial_buffer held;
    ml_group_set set;
} fixture;

static void open_fixture(fixture *w) {
    ml_toy_model(ml_toy_chatml);
    *w = (fixture){ .stub = { .gen = { .submit = draw } }, .how = { .max_new = MAX_NEW } };
    ml_toy_text_open(&w->text);
    w->gen_ctx =
        (ml_gen_ctx){ .gen = &w->stub.gen, .tokenizer = w->text.tokenizer, .context = 100 };
    ml_partial_buffer_init(&w->held, 1);
    ml_group_set_init(&w->set, &w->gen_ctx, &w->how, NULL);
}

static void close_fixture(fixture *w) {
    ml_group_set_release(&w->set);
    ml_partial_buffer_release(&w->held);
    ml_toy_text_close(&w->text);
}

static ml_status load(fixture *w, const char *sample, ml_err *err) {
    static const ml_partial_buffer_bounds bounds = { N_VOCAB, 10, MAX_NEW };
    char state[2000];

    snprintf(state, sizeof state, "{\"held\": [%s]}", sample);
    return ml_partial_buffer_load(&w->held, ml_str_of(state), &bounds, "state.json", err);
}

/* A held answer of so many tokens, with its routes, a mask and a reward. */
static const char *held_answer(int n, const char *status) {
    static char text[2000];
    ml_text t = { 0 };

    ml_text_printf(&t, "{\"index\": 3, \"row\": 2, \"status\": \"%s\", \"reward\": 1, ",
                   status);
    ml_text_printf(&t, "\"response_length\": %d, \"tokens\": [1, 2", n);
    for (int i = 0; i < n; i++)
        ml_text_printf(&t, ", %d", 10 + i);
    ml_text_printf(&t, "], \"weight_versions\": [\"1\"], \"rollout_log_probs\": [");
    for (int i = 0; i < n; i++)
        ml_text_printf(&t, "%s-%d", i ? ", " : "", i + 1);
    ml_text_printf(&t, "], \"loss_mask\": [");
    for (int i = 0; i < n; i++)
        ml_text_printf(&t, "%s%d", i ? ", " : "", i != 0);
    ml_text_printf(&t, "]}");
    snprintf(text, sizeof text, "%s", t.ptr);
    ml_text_release(&t);
    return text;
}

static const ml_sample *resume(fixture *w, const char *sample) {
    ml_gen_group *g =
        ml_group_set_add(&w->set, (ml_group){ .n_sample = 1 }, &w->text.arena);

    MUST(load(w, sample, &err));
    MUST(ml_gen_group_resume(g, ml_partial_buffer_take(&w->held), false, &err));
    CHECK(ml_gen_group_state(g) == ML_GROUP_DONE);
    return &g->task[0]->sample;
}

/* The limit was 9 or more when the answer was begun. */
static void a_longer_answer_is_cut(void) {
    static const char *const status[] = { "aborted", "completed" };

    for (int i = 0; i < 2; i++) {
        fixture w;
        const ml_sample *s;
        ml_text log = { 0 };

        open_fixture(&w);
        ml_log_to_text(&log);
        s = resume(&w, held_answer(9, status[i]));
        CHECK_HAS(log.ptr, "state.json: 1 unfinished responses are longer than "
                           "--rollout-max-response-len 6");
        CHECK(w.stub.n_asked == 0 && s->status == ML_SAMPLE_TRUNCATED && !s->has_reward);
        CHECK(s->n_response == MAX_NEW && s->n_token == 2 + MAX_NEW);
        CHECK(s->token[7] == 15 && s->logprob[5] == -6 && s->version[5] == 1);
        CHECK(s->mask[0] == 0 && s->mask[5] == 1 && s->response.len > 0);
        close_fixture(&w);
        ml_text_release(&log);
    }
}

static void a_full_answer_has_ended(void) {
    fixture w;
    const ml_sample *s;

    open_fixture(&w);
    s = resume(&w, held_answer(MAX_NEW, "aborted"));
    CHECK(w.stub.n_asked == 0 && s->status == ML_SAMPLE_TRUNCATED);
    close_fixture(&w);
}

static void a_shorter_answer_goes_on(void) {
    fixture w;
    const ml_sample *s;

    open_fixture(&w);
    s = resume(&w, held_answer(4, "aborted"));
    CHECK(w.stub.n_asked == 1 && s->n_response == MAX_NEW && s->token[7] == 7);
    CHECK(s->version[3] == 1 && s->version[4] == 2 && s->mask[4] == 1);
    close_fixture(&w);
}

static void held_samples_are_checked(void) {
    static const struct {
        const char *sample, *why;
    } bad[] = {
        { "{\"index\": 4, \"tokens\": [1, 99]}", "state.json: sample 4 has token 99" },
        { "{\"index\": 4, \"tokens\": [1, 2], \"response_length\": 1}",
          "sample 4 of \"held\" lacks \"rollout_log_probs\" or \"weight_versions\"" },
        { "{\"tokens\": [1, 2], \"response_length\": 1, \"rollout_log_probs\": [-1]}",
          "\"weight_versions\"" },
        { "7", "expected an object" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ml_err err = { 0 };
        fixture w;
        open_fixture(&w);
        CHECK(load(&w, bad[i].sample, &err) == ML_EFORMAT);
        CHECK_HAS(err.msg, bad[i].why);
        close_fixture(&w);
    }
}

/* A data set that has become shorter: the sample goes on, and cannot be asked again. */
static void a_row_that_is_gone(void) {
    fixture w;

    open_fixture(&w);
    MUST(load(&w, "{\"row\": 10, \"tokens\": [1, 2]}", &err));
    CHECK(ml_partial_buffer_take(&w.held)->row == -1);
    close_fixture(&w);
}

static const ml_test tests[] = {
    { "a recorded sample that does not fit the model is refused",
      what_does_not_fit_is_refused },
    { "recordings of torch.save are read and written", torch_files_are_read },
    { "files of torch.save without samples are refused", other_torch_files_are_refused },
    { "a held answer over the limit is cut", a_longer_answer_is_cut },
    { "a held answer at the limit has ended", a_full_answer_has_ended },
    { "a held answer below the limit continues", a_shorter_answer_goes_on },
    { "held samples of a snapshot are checked", held_samples_are_checked },
    { "a held sample whose row is gone continues", a_row_that_is_gone },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
