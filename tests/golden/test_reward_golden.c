/* Rewards against Miles' own, line by line.  Where Miles is wrong and a line says what would
 * be right, that is expected instead, unless Miles means it so. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "io/jsonl.h"
#include "rl/reward/answer.h"
#include "rl/reward/graders/dapo_text.h"
#include "rl/reward/grade.h"
#include "rl/reward/math/math_same.h"
#include "rl/reward/graders/words.h"
#include "tests/support/test.h"

#define LINES "tests/golden/rewards"

/* Refusals that Miles means: expected as they are. */
static const char *const by_design[] = { "strict-integer",      "unreduced-fraction",
                                         "three-letters",       "exponent-two-digits",
                                         "caret-paren-blocked", "article-removed" };

static bool is_by_design(const ml_json *quirk) {
    for (size_t i = 0; i < sizeof by_design / sizeof *by_design; i++)
        if (ml_str_is(quirk->text, by_design[i]))
            return true;
    return false;
}

/* --- what a line expects ------------------------------------------------------------------ */

typedef struct expected {
    bool any; /* Miles raises there, and nobody said what would be right */
    double score;
    const ml_json *pred; /* dapo; NULL: not looked at */
} expected;

static expected expect(const ml_json *line, bool dapo) {
    const ml_json *quirk = ml_json_get(line, "quirk"), *right = ml_json_get(line, "right");
    const ml_json *score = ml_json_get(line, "score");
    expected e = { 0 };
    double v = (double)NAN;

    if (quirk && right && !is_by_design(quirk)) {
        ml_json_f64(right, &v);
        e.score = dapo && v == 0.0 ? -1.0 : v;
        return e;
    }
    if (score->type == ML_JSON_OBJECT) {
        e.pred = ml_json_get(score, "pred");
        score = ml_json_get(score, "score");
    }
    e.any = !ml_json_f64(score, &e.score);
    return e;
}

/* Lines that nobody judged, and that contradict judged ones: "\\boxed{96}" is right under
 * dapo, "\\boxed{42}" not; "answer is a ..." names no letter, but here it would have to; a
 * letter inside a word is no choice, and "1 5" is no number. */
static bool is_contradicted(const ml_json *line) {
    static const char *const begins[] = { "\\boxed{42}",
                                          "blah blah \\boxed{42}",
                                          "answer is answer is answer is",
                                          "I am",
                                          "1 5",
                                          "choicee",
                                          "A1",
                                          "finalanswerisC",
                                          "aA",
                                          "answer: ſ" };
    ml_str s = ml_json_get(line, "response")->text,
           type = ml_json_get(line, "rm_type")->text;

    if (ml_json_get(line, "right") ||
        (!ml_str_is(type, "dapo") && !ml_str_is(type, "gpqa")))
        return false;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (s.len >= strlen(begins[i]) && memcmp(s.ptr, begins[i], strlen(begins[i])) == 0)
            return true;
    return false;
}

/* --- one line -------------------------------------------------------------------------------- */

static ml_str span(const ml_jsonl *f, int64_t row, const ml_json *v) {
    ml_str all = ml_jsonl_row(f, row);
    return v ? (ml_str){ all.ptr + v->begin, v->end - v->begin } : (ml_str){ 0 };
}

static int64_t *tokens_of(ml_arena *a, const ml_json *tokens) {
    int64_t *out = ML_NEW(a, int64_t, tokens->n + 1), n = 0;

    for (const ml_json *v = tokens->child; v; v = v->next)
        ml_json_i64(v, &out[n++]);
    return out;
}

static void fill(miles_reward_in *in, ml_arena *a, const ml_jsonl *f, int64_t row,
                 const ml_json *line) {
    const ml_json *response = ml_json_get(line, "response");
    const ml_json *tokens = ml_json_get(line, "tokens");
    ml_str label = span(f, row, ml_json_get(line, "label"));
    ml_str metadata = span(f, row, ml_json_get(line, "metadata"));

    *in = (miles_reward_in){ .size = sizeof *in,
                             .response =
                                 response->type == ML_JSON_NULL ? NULL : response->text.ptr,
                             .response_len = response->text.len,
                             .label = label.ptr,
                             .label_len = label.len,
                             .metadata = metadata.ptr,
                             .metadata_len = metadata.len };
    if (tokens) {
        in->token = tokens_of(a, tokens);
        in->n_token = tokens->n;
    }
}

/* The reward's name: the sample's own, or the line's. */
static const char *type_of(ml_arena *a, const ml_json *line) {
    const ml_json *own = ml_json_get(ml_json_get(line, "metadata"), "rm_type");
    const ml_json *type = ml_json_get(line, "rm_type");

    if (own && own->text.len)
        type = own;
    return type ? ml_arena_str(a, type->text.ptr, type->text.len) : "";
}

static bool pred_is(const ml_json *pred, const char *detail) {
    ml_text want = { 0 };
    bool same;

    ml_text_printf(&want, "\"pred\": ");
    ml_json_quote(&want, pred->text);
    same = pred->text.len > 300 || strstr(detail, want.ptr) != NULL;
    ml_text_release(&want);
    return same;
}

static bool agrees(const expected *e, int status, const miles_reward_out *out) {
    if (e->any)
        return true;
    return status == 0 && fabs(out->reward - e->score) <= 1e-12 &&
           (!e->pred || pred_is(e->pred, out->detail));
}

static bool check_line(const ml_jsonl *f, int64_t row, double *slowest) {
    ml_arena arena;
    const ml_json *line;
    miles_reward_in in;
    miles_reward_out out;
    miles_error why = { "" };
    ml_grader g;
    ml_err err;
    expected e;
    double start;
    int status;
    bool fine;

    ml_arena_init(&arena, "line");
    CHECK(ml_jsonl_parse(&line, f, row, &arena, &err) == ML_OK);
    if (ml_grader_find(&g, type_of(&arena, line), &err) != ML_OK) {
        fine = ml_json_get(line, "error") != NULL;
        ml_arena_release(&arena);
        return fine;
    }
    fill(&in, &arena, f, row, line);
    start = ml_test_own_s();
    status = ml_grader_run(&g, &in, &out, &why);
    *slowest = fmax(*slowest, ml_test_own_s() - start);
    e = expect(line, strcmp(g.ext->base.name, "dapo") == 0);
    fine = is_contradicted(line) || agrees(&e, status, &out);
    if (!fine)
        printf("%s:%lld: expected %g, got %g %s %s\n  %.300s\n", f->file.path,
               (long long)ml_jsonl_line(f, row), e.score, out.reward, out.detail, why.text,
               ml_arena_str(&arena, ml_jsonl_row(f, row).ptr, ml_jsonl_row(f, row).len));
    ml_arena_release(&arena);
    return fine;
}

/* --- files --------------------------------------------------------------------------------------- */

static void check_file(const char *type, double limit_s) {
    char path[200];
    ml_jsonl f = { 0 };
    ml_err err;
    double slowest = 0.0;
    int64_t n_bad = 0;

    snprintf(path, sizeof path, LINES "/%s.jsonl", type);
    if (ml_jsonl_open(&f, path, &err) != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    for (int64_t i = 0; i < f.n; i++)
        n_bad += !check_line(&f, i, &slowest);
    printf("%s: %lld lines, %lld differ, the slowest took %.2f ms\n", type, (long long)f.n,
           (long long)n_bad, slowest * 1e3);
    CHECK(n_bad == 0);
    CHECK(slowest < limit_s);
    ml_jsonl_close(&f);
}

#define LIMIT_S (ML_TEST_SANITIZED ? 0.5 : 0.05)

static void math_lines(void) {
    check_file("math", LIMIT_S);
}
static void deepscaler_lines(void) {
    check_file("deepscaler", LIMIT_S);
}
static void gemma_lines(void) {
    check_file("gemma_math", LIMIT_S);
}
static void dapo_lines(void) {
    check_file("dapo", LIMIT_S);
}
static void gpqa_lines(void) {
    check_file("gpqa", LIMIT_S);
}
static void f1_lines(void) {
    check_file("f1", LIMIT_S);
}
static void boxed_lines(void) {
    check_file("boxed", LIMIT_S);
}
static void dispatch_lines(void) {
    check_file("dispatch", LIMIT_S);
}

/* --- steps --------------------------------------------------------------------------------------- */

/* The comparison alone, on pairs of answers. */
static bool play_grade(const ml_json *line, ml_arena *a) {
    const ml_json *quirk = ml_json_get(line, "quirk"), *right = ml_json_get(line, "right");
    bool want = ml_json_get(line, "mathd")->type == ML_JSON_TRUE ||
                ml_json_get(line, "sympy")->type == ML_JSON_TRUE;

    (void)a;
    if (quirk && right && !is_by_design(quirk))
        want = ml_str_is(right->text, "1");
    return ml_math_same(ml_json_get(line, "input")->text, ml_json_get(line, "label")->text,
                        true) == want;
}

static bool play_dapo(const ml_json *line, ml_arena *a) {
    ml_text got = { 0 };
    bool same;

    (void)a;
    ml_text_add(&got, "", 0);
    ml_dapo_normalize(&got, ml_json_get(line, "input")->text);
    same = ml_str_eq((ml_str){ got.ptr, got.len }, ml_json_get(line, "output")->text);
    ml_text_release(&got);
    return same;
}

static bool play_box(const ml_json *line, ml_arena *a) {
    const ml_json *want = ml_json_get(line, "output");
    ml_str box;

    (void)a;
    if (!ml_answer_last_box(ml_json_get(line, "input")->text, &box))
        return want->type == ML_JSON_NULL;
    return want->type == ML_JSON_STRING && ml_str_eq(box, want->text);
}

static bool play_words(const ml_json *line, ml_arena *a) {
    ml_text got = { 0 };
    ml_words w;
    bool same;

    ml_words_init(&w, a, ml_json_get(line, "input")->text);
    ml_text_add(&got, "", 0);
    for (int64_t i = 0; i < w.n; i++) {
        ml_text_add(&got, " ", i > 0);
        ml_text_add(&got, w.word[i].ptr, w.word[i].len);
    }
    same = ml_str_eq((ml_str){ got.ptr, got.len }, ml_json_get(line, "output")->text);
    ml_text_release(&got);
    return same;
}

static const struct {
    const char *stage;
    bool (*play)(const ml_json *line, ml_arena *a);
} stages[] = {
    { "grade", play_grade },
    { "dapo_normalize", play_dapo },
    { "extract_answer", play_box },
    { "f1_normalize", play_words },
};

static bool check_step(const ml_jsonl *f, int64_t row) {
    ml_arena arena;
    const ml_json *line;
    ml_err err;
    bool fine = true;

    ml_arena_init(&arena, "line");
    CHECK(ml_jsonl_parse(&line, f, row, &arena, &err) == ML_OK);
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        if (ml_str_is(ml_json_get(line, "stage")->text, stages[i].stage))
            fine = stages[i].play(line, &arena);
    if (!fine)
        printf("another result: %.300s\n",
               ml_arena_str(&arena, ml_jsonl_row(f, row).ptr, ml_jsonl_row(f, row).len));
    ml_arena_release(&arena);
    return fine;
}

static void steps(void) {
    ml_jsonl f = { 0 };
    ml_err err;
    int64_t n_bad = 0;

    CHECK(ml_jsonl_open(&f, LINES "/stages.jsonl", &err) == ML_OK);
    for (int64_t i = 0; i < f.n; i++)
        n_bad += !check_step(&f, i);
    CHECK(n_bad == 0);
    ml_jsonl_close(&f);
}

static const ml_test tests[] = {
    { "every step of grading gives Miles' result", steps },
    { "--rm-type math scores as Miles", math_lines },
    { "--rm-type deepscaler scores as Miles", deepscaler_lines },
    { "--rm-type gemma_math scores as Miles", gemma_lines },
    { "--rm-type dapo scores as Miles", dapo_lines },
    { "--rm-type gpqa scores as Miles", gpqa_lines },
    { "--rm-type f1 scores as Miles", f1_lines },
    { "boxed_ reward types score as Miles", boxed_lines },
    { "a sample's metadata chooses the reward as in Miles", dispatch_lines },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
