/* The order of prompts against CPython's and Miles': every case is played on a data set of
 * its own, whose prompts are their row numbers.
 *
 * The files of tests/golden/rl that begin with miles_ are recordings of Miles;
 * tools/gen_data_golden.py writes the others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rl/data/data_source.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

#define CASES "tests/golden/rl"

/* One case: its file and line, for messages; a data set; a source; what was got last. */
typedef struct play {
    const ml_jsonl *file;
    int64_t i;
    ml_dataset ds;
    ml_data_source *source;
    ml_group *got;
    int64_t n_got;
} play;

static void expect(const play *p, bool ok, const char *what) {
    if (!ok)
        ml_test_fail(__FILE__, __LINE__, "%s:%lld: %s", p->file->file.path,
                     (long long)ml_jsonl_line(p->file, p->i), what);
}

static int64_t number(const ml_json *obj, const char *key) {
    int64_t n = -1;
    if (!ml_json_i64(ml_json_get(obj, key), &n))
        ml_test_fail(__FILE__, __LINE__, "no integer \"%s\"", key);
    return n;
}

static bool start(play *p, int64_t n_row, const ml_data_source_opts *opts) {
    const char *path = ml_test_path("rows.jsonl");
    ml_text rows = { 0 };
    ml_err err = { 0 };
    bool ok;

    for (int64_t i = 0; i < n_row; i++)
        ml_text_printf(&rows, "{\"input\": \"%lld\"}\n", (long long)i);
    ok = !ml_file_replace(path, (ml_str){ rows.ptr, rows.len }, &err) &&
         !ml_dataset_open(&p->ds, &(ml_dataset_opts){ .path = path }, &err) &&
         !ml_data_source_new(&p->source, &p->ds, opts, &err);
    expect(p, ok, err.msg);
    ml_text_release(&rows);
    return ok;
}

static void end(play *p) {
    ml_data_source_free(p->source);
    ml_dataset_close(&p->ds);
    free(p->got);
}

static void get(play *p, int64_t n) {
    free(p->got);
    p->got = calloc((size_t)n, sizeof *p->got);
    p->n_got = ml_data_source_get(p->source, p->got, n);
}

/* The row's number, by way of the prompt that was written for it. */
static int64_t prompt_number(const play *p, const ml_group *g) {
    ml_prompt prompt;
    ml_arena a;
    ml_err err;
    int64_t n = -1;

    ml_arena_init(&a, "a prompt");
    if (!ml_dataset_prompt(&prompt, &p->ds, g->row, &a, &err))
        n = strtoll(ml_arena_str(&a, prompt.text.ptr, prompt.text.len), NULL, 10);
    ml_arena_release(&a);
    return n;
}

/* --- dataset_shuffle ------------------------------------------------------------ */

static void go_to_epoch(play *p, int64_t epoch) {
    char state[200];
    ml_err err = { 0 };

    snprintf(state, sizeof state,
             "{\"sample_offset\": 0, \"epoch_id\": %lld, \"sample_group_index\": 0, "
             "\"sample_index\": 0, \"metadata\": {}, \"rows\": %lld}",
             (long long)epoch, (long long)p->ds.rows.n);
    expect(p, !ml_data_source_load(p->source, ml_str_of(state), "state", &err), err.msg);
}

static void play_shuffle(play *p, const ml_json *args, const ml_json *out) {
    ml_data_source_opts opts = { .shuffle = true,
                                 .seed = number(args, "seed"),
                                 .n_samples_per_prompt = 1 };
    const ml_json *epochs = ml_json_get(args, "epochs"), *order;

    if (!start(p, number(args, "num_rows"), &opts))
        return;
    order = ml_json_get(out, "orders")->child;
    for (const ml_json *e = epochs->child; e; e = e->next, order = order->next) {
        int64_t epoch = 0, want, k = 0;
        ml_json_i64(e, &epoch);
        go_to_epoch(p, epoch);
        get(p, p->ds.rows.n);
        expect(p, p->n_got == order->n, "another number of rows");
        for (const ml_json *row = order->child; row && k < p->n_got; row = row->next, k++)
            expect(p, ml_json_i64(row, &want) && prompt_number(p, &p->got[k]) == want,
                   "another order");
    }
}

/* --- data_source ---------------------------------------------------------------- */

static void check_groups(const play *p, const ml_json *groups) {
    const ml_group *g = p->got;

    expect(p, p->n_got == groups->n, "another number of groups");
    if (p->n_got != groups->n)
        return;
    for (const ml_json *want = groups->child; want; want = want->next, g++) {
        int64_t index = g->first_index, k;
        expect(p, prompt_number(p, g) == number(want, "row"), "another row");
        expect(p, g->group_index == number(want, "group_index"), "another group_index");
        expect(p, g->n_sample == ml_json_get(want, "indices")->n, "another group size");
        for (const ml_json *i = ml_json_get(want, "indices")->child; i; i = i->next)
            expect(p, ml_json_i64(i, &k) && k == index++, "another sample index");
    }
}

static void check_state(const play *p, const ml_json *want) {
    static const char *const keys[] = { "sample_offset", "epoch_id", "sample_group_index",
                                        "sample_index" };
    ml_text text = { 0 };
    const ml_json *state;
    ml_arena a;
    ml_err err;

    ml_arena_init(&a, "state");
    ml_data_source_save(p->source, &text);
    expect(p, !ml_json_parse(&state, &a, (ml_str){ text.ptr, text.len }, "state", &err),
           "a state that is no JSON");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        expect(p, number(state, keys[i]) == number(want, keys[i]), keys[i]);
    expect(p, ml_data_source_n_buffered(p->source) == number(want, "buffer"), "buffer");
    ml_arena_release(&a);
    ml_text_release(&text);
}

static void play_source(play *p, const ml_json *args, const ml_json *out) {
    ml_data_source_opts opts = {
        .shuffle = ml_json_get(args, "rollout_shuffle")->type == ML_JSON_TRUE,
        .seed = number(args, "rollout_seed"),
        .n_samples_per_prompt = (int32_t)number(args, "n_samples_per_prompt"),
    };
    const ml_json *result = ml_json_get(out, "results")->child;

    if (!start(p, number(args, "num_rows"), &opts))
        return;
    for (const ml_json *op = ml_json_get(args, "ops")->child; op;
         op = op->next, result = result->next) {
        int64_t n = number(op, "n");
        if (ml_str_is(ml_json_get(op, "op")->text, "get")) {
            get(p, n);
            check_groups(p, ml_json_get(result, "groups"));
            check_state(p, ml_json_get(result, "state"));
        } else {
            ml_data_source_add(p->source, p->got, n < p->n_got ? n : p->n_got);
            expect(p, ml_data_source_n_buffered(p->source) == number(result, "buffer"),
                   "buffer");
        }
    }
}

/* --- files ---------------------------------------------------------------------- */

typedef void player(play *p, const ml_json *args, const ml_json *out);

static void play_file(const char *path, player *fn) {
    ml_jsonl f;
    ml_err err;

    if (ml_jsonl_open(&f, path, &err)) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    CHECK(f.n > 0);
    for (int64_t i = 0; i < f.n; i++) {
        play p = { .file = &f, .i = i };
        const ml_json *c;
        ml_arena a;
        ml_arena_init(&a, "a case");
        if (ml_jsonl_parse(&c, &f, i, &a, &err))
            ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        else
            fn(&p, ml_json_get(c, "args"), ml_json_get(c, "out"));
        end(&p);
        ml_arena_release(&a);
    }
    ml_jsonl_close(&f);
}

static void shuffles_of_cpython(void) {
    play_file(CASES "/dataset_shuffle.jsonl", play_shuffle);
}

static void shuffles_of_miles(void) {
    play_file(CASES "/miles_dataset_shuffle.jsonl", play_shuffle);
}

static void sources_of_cpython(void) {
    play_file(CASES "/data_source.jsonl", play_source);
}

static void sources_of_miles(void) {
    play_file(CASES "/miles_data_source.jsonl", play_source);
}

static const ml_test tests[] = {
    { "a shuffle gives the order of CPython's random module", shuffles_of_cpython },
    { "a shuffle gives the order of Miles' dataset", shuffles_of_miles },
    { "a data source gives the groups of its Python model", sources_of_cpython },
    { "a data source gives the groups of Miles' data source", sources_of_miles },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
