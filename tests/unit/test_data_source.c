/* The order in which prompts are handed out, and how it is saved. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rl/data/data_source.h"
#include "tests/support/log_text.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/toy_model.h"

/* A data set of n prompts. */
static ml_dataset numbered(int n) {
    ml_text rows = { 0 };
    ml_dataset_opts o = { .path = ml_test_path("prompts.jsonl") };
    ml_dataset ds;

    for (int i = 0; i < n; i++)
        ml_text_printf(&rows, "{\"input\": \"%d\"}\n", i);
    ml_toy_file("prompts.jsonl", rows.ptr);
    ml_text_release(&rows);
    MUST(ml_dataset_open(&ds, &o, &err));
    return ds;
}

static ml_data_source *source_of(const ml_dataset *ds, bool shuffle, int64_t seed,
                                 int32_t n) {
    ml_data_source_opts o = { .shuffle = shuffle, .seed = seed, .n_samples_per_prompt = n };
    ml_data_source *s;

    MUST(ml_data_source_new(&s, ds, &o, &err));
    return s;
}

static void source_options(void) {
    ml_data_source_opts o = { .n_samples_per_prompt = 0 };
    ml_data_source *s;
    ml_err err;

    CHECK(ml_data_source_new(&s, NULL, &o, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "0 samples per prompt");
    o = (ml_data_source_opts){ .seed = INT64_MIN, .n_samples_per_prompt = 1 };
    CHECK(ml_data_source_new(&s, NULL, &o, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "shuffle seed -9223372036854775808");
}

/* Groups out of epoch 1 with seed 42 are those of random.Random(43). */
static void epochs(void) {
    static const int64_t want[20] = { 7, 3, 2, 8, 5, 6, 9, 4, 0, 1,
                                      8, 1, 5, 6, 9, 7, 3, 2, 4, 0 };
    ml_dataset ds = numbered(10);
    ml_data_source *s = source_of(&ds, true, 42, 4);
    ml_group g[20];

    CHECK(ml_data_source_get(s, g, 0) == 0);
    CHECK(ml_data_source_get(s, g, 7) == 7);
    CHECK(ml_data_source_get(s, g + 7, 7) == 7);
    CHECK(ml_data_source_get(s, g + 14, 6) == 6);
    for (int64_t i = 0; i < 20; i++) {
        CHECK(g[i].row == want[i] && g[i].group_index == i);
        CHECK(g[i].first_index == 4 * i && g[i].n_sample == 4);
    }
    ml_data_source_free(s);
    ml_dataset_close(&ds);
}

/* --- mixing ---------------------------------------------------------------------- */

static ml_dataset two_files(void) {
    static char path[1000];
    ml_dataset_opts o = { .path = path };
    ml_text rows = { 0 };
    ml_dataset ds;

    for (int i = 0; i < 5; i++)
        ml_text_printf(&rows, "{\"input\": \"%d\"}\n", i);
    ml_toy_file("few.jsonl", rows.ptr);
    for (int i = 5; i < 12; i++)
        ml_text_printf(&rows, "{\"input\": \"%d\"}\n", i);
    ml_toy_file("many.jsonl", rows.ptr);
    ml_text_release(&rows);
    snprintf(path, sizeof path, "%s,", ml_test_path("few.jsonl"));
    snprintf(path + strlen(path), sizeof path - strlen(path), "%s",
             ml_test_path("many.jsonl"));
    MUST(ml_dataset_open(&ds, &o, &err));
    return ds;
}

/* Of any number of groups each file has its share, to within one; in its epochs every row comes
 * once.  Restored anywhere, the rows are the same. */
static void weights_mix_files(void) {
    static const double weight[] = { 3, 1 };
    ml_data_source_opts o = { .shuffle = true,
                              .seed = 7,
                              .n_samples_per_prompt = 2,
                              .weight = weight,
                              .n_weight = 2 };
    ml_dataset ds = two_files();
    ml_data_source *s, *again;
    ml_group g[100], h[100];
    int64_t first = 0, seen[17] = { 0 };

    MUST(ml_data_source_new(&s, &ds, &o, &err));
    for (int64_t i = 0; i < 100; i += 4)
        CHECK(ml_data_source_get(s, g + i, 4) == 4);
    for (int64_t i = 0; i < 100; i++) {
        first += g[i].row < 5;
        CHECK(fabs((double)first - 0.75 * (double)(i + 1)) <= 1);
        CHECK(g[i].group_index == i && g[i].first_index == 2 * i);
        seen[g[i].row]++;
        if (g[i].row < 5 && first % 5 == 0)
            for (int row = 0; row < 5; row++)
                CHECK(seen[row] == first / 5);
    }
    ml_data_source_free(s);
    for (int64_t cut = 0; cut <= 40; cut += 5) {
        ml_text state = { 0 };
        MUST(ml_data_source_new(&s, &ds, &o, &err));
        for (int64_t i = 0; i < cut; i += 5)
            CHECK(ml_data_source_get(s, h + i, 5) == 5);
        ml_data_source_save(s, &state);
        MUST(ml_data_source_new(&again, &ds, &o, &err));
        MUST(ml_data_source_load(again, (ml_str){ state.ptr, state.len }, "state", &err));
        CHECK(ml_data_source_get(again, h + cut, 10) == 10);
        for (int64_t i = 0; i < cut + 10; i++)
            CHECK(h[i].row == g[i].row && h[i].group_index == i);
        ml_text_release(&state);
        ml_data_source_free(s);
        ml_data_source_free(again);
    }
    ml_dataset_close(&ds);
}

static void weights_must_fit(void) {
    static const double weight[] = { 3, 0, 1 };
    static const struct {
        int32_t n;
        const char *says;
    } cases[] = { { 1, "has 1 numbers; expected one for each of the 2 files" },
                  { 2, "many.jsonl is 0; expected a number above 0" },
                  { 3, "has 3 numbers" } };
    ml_dataset ds = two_files();

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ml_data_source_opts o = { .n_samples_per_prompt = 1,
                                  .weight = weight,
                                  .n_weight = cases[i].n };
        ml_data_source *s;
        ml_err err;
        CHECK(ml_data_source_new(&s, &ds, &o, &err) == ML_EUSAGE);
        CHECK_HAS(err.msg, cases[i].says);
    }
    ml_dataset_close(&ds);
}

/* --- the curriculum ---------------------------------------------------------------- */

/* Rows whose pass rate before the run is row / 10, and whose difficulty is 100 - row. */
static ml_dataset graded(int n) {
    ml_text rows = { 0 };
    ml_dataset_opts o = { .path = ml_test_path("graded.jsonl") };
    ml_dataset ds;

    for (int i = 0; i < n; i++)
        ml_text_printf(&rows,
                       "{\"input\": \"%d\", \"rate\": %g, \"metadata\": {\"hard\": %d}}\n",
                       i, i / 10.0, 100 - i);
    ml_toy_file("graded.jsonl", rows.ptr);
    ml_text_release(&rows);
    MUST(ml_dataset_open(&ds, &o, &err));
    return ds;
}

static ml_data_source_opts curriculum_of(ml_prompt_order order, int64_t batch) {
    return (ml_data_source_opts){ .seed = 3,
                                  .n_samples_per_prompt = 4,
                                  .curriculum = { .order = order,
                                                  .floor = 0.01,
                                                  .newest = 0.5,
                                                  .pass_rate_key = "rate",
                                                  .difficulty_step = 0.5,
                                                  .difficulty_sensitivity = 2,
                                                  .difficulty_goal = 0.5,
                                                  .replay_times = 2,
                                                  .batch = batch } };
}

/* Draws are proportional to the weights, within four standard deviations; a result changes
 * them. */
static void draws_by_pass_rate(void) {
    enum { N = 20000 };
    ml_dataset ds = graded(11);
    ml_data_source_opts o = curriculum_of(ML_PROMPTS_HARD, 1);
    static const double sum[] = { 55 + 0.1, 165 + 2 }; /* with floors, as below */

    for (int k = 0; k < 2; k++) {
        ml_data_source *s;
        ml_group g[1];
        int64_t seen[11] = { 0 };
        o.curriculum.order = k ? ML_PROMPTS_LEARNABLE : ML_PROMPTS_HARD;
        MUST(ml_data_source_new(&s, &ds, &o, &err));
        for (int i = 0; i < N; i++) {
            CHECK(ml_data_source_get(s, g, 1) == 1);
            CHECK(g->group_index == i && g->first_index == 4 * i);
            seen[g->row]++;
        }
        for (int row = 0; row < 11; row++) {
            double w = k ? row * (10 - row) : 10 - row, share;
            share = (w > 0 ? w : k ? 1 : 0.1) / sum[k];
            CHECK(fabs((double)seen[row] - share * N) < 4 * sqrt(share * N));
        }
        ml_data_source_free(s);
    }
    ml_dataset_close(&ds);
}

/* Also with as few rows as a rollout has prompts. */
static void draws_each_once(void) {
    for (int n = 1; n <= 11; n++) {
        ml_dataset ds = graded(11);
        ml_data_source_opts o = curriculum_of(ML_PROMPTS_LEARNABLE, n);
        ml_data_source *s;
        ml_group g[11];

        MUST(ml_data_source_new(&s, &ds, &o, &err));
        for (int i = 0; i < 20; i++) {
            CHECK(ml_data_source_get(s, g, n) == n);
            for (int a = 0; a < n; a++)
                for (int b = 0; b < a; b++)
                    CHECK(g[a].row != g[b].row);
        }
        ml_data_source_free(s);
        ml_dataset_close(&ds);
    }
}

/* The target begins at the least difficulty and moves by half of the range times tanh(2 (p -
 * 1/2)); prompts are those closest to it. */
static void follows_difficulty(void) {
    ml_dataset ds = graded(11); /* difficulties 90 to 100 */
    ml_data_source_opts o = curriculum_of(ML_PROMPTS_DIFFICULTY, 2);
    ml_data_source *s;
    ml_curriculum *c;
    ml_group g[2];

    o.curriculum.difficulty_key = "hard";
    MUST(ml_data_source_new(&s, &ds, &o, &err));
    c = ml_data_source_curriculum(s);
    CHECK(ml_data_source_get(s, g, 2) == 2 && g[0].row == 10 && g[1].row == 9);
    ml_curriculum_record(c, 10, 4, 4);
    CHECK(ml_curriculum_stats_of(c).target == 90);
    ml_curriculum_record(c, 9, 4, 4);
    CHECK(fabs(ml_curriculum_stats_of(c).target - (90 + 5 * tanh(1))) < 1e-12);
    CHECK(ml_data_source_get(s, g, 2) == 2 && g[0].row == 6); /* 94 of 93.81 */
    CHECK(g[1].row == 7);
    ml_curriculum_record(c, 6, 1, 4);
    ml_curriculum_record(c, 7, 0, 4);
    CHECK(fabs(ml_curriculum_stats_of(c).target - (90 + 5 * tanh(1) - 5 * tanh(0.75))) <
          1e-12);
    for (int i = 0; i < 8; i++)
        ml_curriculum_record(c, 0, 0, 4);
    CHECK(ml_curriculum_stats_of(c).target == 90);
    ml_data_source_free(s);
    ml_dataset_close(&ds);
}

/* Every other group is a prompt that was failed, the oldest first; no prompt of the epoch is
 * skipped, and one that fails again and again is left alone. */
static void replays_failed(void) {
    ml_dataset ds = numbered(20);
    ml_data_source_opts o = curriculum_of(ML_PROMPTS_IN_SEQUENCE, 4);
    ml_data_source *s;
    ml_curriculum *c;
    ml_group g[4];

    o.curriculum.pass_rate_key = NULL;
    o.curriculum.replay_share = 0.5;
    MUST(ml_data_source_new(&s, &ds, &o, &err));
    c = ml_data_source_curriculum(s);
    CHECK(ml_data_source_get(s, g, 4) == 4 && g[3].row == 3);
    ml_curriculum_record(c, 0, 0, 4);
    ml_curriculum_record(c, 1, 1, 4);
    ml_curriculum_record(c, 2, 0, 4);
    ml_curriculum_record(c, 3, 0, 4);
    CHECK(ml_data_source_get(s, g, 4) == 4);
    CHECK(g[0].row == 0 && g[1].row == 2 && g[2].row == 4 && g[3].row == 5);
    for (int i = 0; i < 4; i++)
        CHECK(g[i].group_index == 4 + i);
    ml_curriculum_record(c, 0, 0, 4);
    ml_curriculum_record(c, 2, 4, 4);
    ml_curriculum_record(c, 3, 1, 4); /* a result of another group of that prompt */
    CHECK(ml_data_source_get(s, g, 4) == 4);
    CHECK(g[0].row == 0 && g[1].row == 6 && g[3].row == 8);
    ml_curriculum_record(c, 0, 0, 4); /* the second replay */
    CHECK(ml_curriculum_stats_of(c).n_failed == 0);
    CHECK(ml_curriculum_stats_of(c).n_replays == 3);
    ml_data_source_free(s);
    ml_dataset_close(&ds);
}

/* Restored after any rollout, prompts and states are the same; files may be mixed. */
static void curriculum_resumes(void) {
    static const double weight[] = { 2, 1 };
    ml_dataset ds = two_files();

    for (int k = 0; k < 4 * 7; k++) {
        ml_data_source_opts o = curriculum_of((ml_prompt_order)(k % 4), 3);
        ml_data_source *whole, *again;
        ml_text state = { 0 }, restored = { 0 };
        int stop = k / 4;
        o.curriculum.pass_rate_key = NULL;
        o.curriculum.replay_share = 0.3;
        o.weight = k % 3 ? weight : NULL;
        o.n_weight = k % 3 ? 2 : 0;
        MUST(ml_data_source_new(&whole, &ds, &o, &err));
        MUST(ml_data_source_new(&again, &ds, &o, &err));
        for (int i = 0; i < 8; i++) {
            ml_group a[3], b[3];
            if (i == stop) {
                ml_data_source_save(whole, &state);
                MUST(ml_data_source_load(again, (ml_str){ state.ptr, state.len }, "s",
                                         &err));
                ml_data_source_save(again, &restored);
                CHECK(strcmp(state.ptr, restored.ptr) == 0);
            }
            CHECK(ml_data_source_get(whole, a, 3) == 3);
            CHECK(i < stop || ml_data_source_get(again, b, 3) == 3);
            for (int j = 0; j < 3; j++) {
                int32_t passed = (int32_t)((a[j].row * 7 + i) % 5);
                CHECK(i < stop ||
                      (a[j].row == b[j].row && a[j].group_index == b[j].group_index));
                ml_curriculum_record(ml_data_source_curriculum(whole), a[j].row, passed, 4);
                if (i >= stop)
                    ml_curriculum_record(ml_data_source_curriculum(again), b[j].row, passed,
                                         4);
            }
        }
        ml_text_release(&state);
        ml_text_release(&restored);
        ml_data_source_free(whole);
        ml_data_source_free(again);
    }
    ml_dataset_close(&ds);
}

static void curriculum_refuses(void) {
    static const struct {
        const char *state, *says;
    } bad[] = {
        { "{}", "\"target\" of the curriculum's state is missing or not valid" },
        { "{\"target\": 1, \"passed\": 0, \"groups\": 0, \"replays\": 0, \"rows\": [[1]]}",
          "\"rows\"" },
        { "{\"target\": 1, \"passed\": 0, \"groups\": 0, \"replays\": 0, \"rows\": "
          "[[1, 2, 0, 1.5]]}",
          "\"rows\"" },
        { "{\"target\": 1, \"passed\": 0, \"groups\": 0, \"replays\": 0, \"rows\": [], "
          "\"recent\": [-1]}",
          "\"recent\"" },
    };
    ml_dataset ds = graded(3);
    ml_data_source_opts o = curriculum_of(ML_PROMPTS_HARD, 2);
    ml_data_source *s;
    ml_err why;

    o.curriculum.pass_rate_key = "nothing";
    CHECK(ml_data_source_new(&s, &ds, &o, &why) == ML_EFORMAT);
    CHECK_HAS(why.msg, "graded.jsonl:1: \"nothing\" is neither in the row nor");
    o.curriculum.pass_rate_key = "hard";
    CHECK(ml_data_source_new(&s, &ds, &o, &why) == ML_EFORMAT);
    CHECK_HAS(why.msg, "is 100; expected a pass rate from 0 to 1");
    CHECK(ml_data_source_new(&s, NULL, &o, &why) == ML_EUSAGE);
    CHECK_HAS(why.msg, "--prompt-sampling");
    o.curriculum.pass_rate_key = "rate";
    MUST(ml_data_source_new(&s, &ds, &o, &err));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ml_text state = { 0 };
        ml_text_printf(&state,
                       "{\"sample_offset\": 1, \"epoch_id\": 2, \"sample_group_index\": 3, "
                       "\"sample_index\": 4, \"metadata\": {}, \"rows\": 3, "
                       "\"curriculum\": %s}",
                       bad[i].state);
        CHECK(ml_data_source_load(s, (ml_str){ state.ptr, state.len }, "st", &why) ==
              ML_EFORMAT);
        CHECK_HAS(why.msg, bad[i].says);
        ml_text_release(&state);
    }
    ml_data_source_free(s);
    ml_dataset_close(&ds);
}

static void gives_back(void) {
    ml_dataset ds = numbered(5);
    ml_data_source *s = source_of(&ds, false, 0, 2);
    ml_group g[5], again[5];

    CHECK(ml_data_source_get(s, g, 3) == 3);
    ml_data_source_add(s, g + 1, 2);
    ml_data_source_add(s, g, 1);
    CHECK(ml_data_source_n_buffered(s) == 3);
    CHECK(ml_data_source_get(s, again, 1) == 1 && again[0].row == 1);
    CHECK(ml_data_source_n_buffered(s) == 2);
    CHECK(ml_data_source_get(s, again, 4) == 4);
    CHECK(again[0].group_index == 2 && again[1].group_index == 0);
    CHECK(again[2].group_index == 3 && again[2].first_index == 6 && again[3].row == 4);
    CHECK(ml_data_source_n_buffered(s) == 0);
    ml_data_source_free(s);
    ml_dataset_close(&ds);
}

static void goes_without_data(void) {
    ml_data_source *s = source_of(NULL, true, 1, 3);
    ml_group g[2];

    CHECK(ml_data_source_get(s, g, 2) == 2);
    CHECK(g[1].row == -1 && g[1].group_index == 1 && g[1].first_index == 3);
    ml_data_source_free(s);
}

/* Stopped after any number of requests and restored, the source goes on as if nothing had
 * happened; the saved line is restored to the same line. */
static void resumes_anywhere(void) {
    ml_dataset ds = numbered(7);

    for (int stop = 0; stop < 12; stop++) {
        ml_data_source *whole = source_of(&ds, true, 9, 2),
                       *fresh = source_of(&ds, true, 9, 2);
        ml_text state = { 0 }, again = { 0 };
        ml_err err;

        for (int i = 0; i < 12; i++) {
            ml_group a[3], b[3];
            if (i == stop) {
                ml_data_source_save(whole, &state);
                CHECK(!ml_data_source_load(fresh, (ml_str){ state.ptr, state.len }, "s",
                                           &err));
                ml_data_source_save(fresh, &again);
                CHECK(strcmp(state.ptr, again.ptr) == 0);
            }
            CHECK(ml_data_source_get(whole, a, 3) == 3);
            if (i < stop)
                continue;
            CHECK(ml_data_source_get(fresh, b, 3) == 3);
            for (int k = 0; k < 3; k++)
                CHECK(a[k].row == b[k].row && a[k].group_index == b[k].group_index &&
                      a[k].first_index == b[k].first_index);
        }
        ml_text_release(&state);
        ml_text_release(&again);
        ml_data_source_free(whole);
        ml_data_source_free(fresh);
    }
    ml_dataset_close(&ds);
}

static void loads_states(void) {
    static const char good[] =
        "{\"sample_offset\": 1, \"epoch_id\": 2, \"sample_group_index\": "
        "3, \"sample_index\": 4, \"metadata\": {\"k\": [1.0]}, \"rows\": 8}";
    static const struct {
        const char *state, *message;
    } bad[] = {
        { "", "state.json:1:1: expected a value" },
        { "[]", "\"sample_offset\" of the data source's state is missing" },
        { "{\"sample_offset\": -1}",
          "\"sample_offset\" of the data source's state is out of range" },
        { "{\"sample_offset\": 1.0}", "is out of range" },
        { "{\"sample_offset\": \"1\"}", "is a string; expected a count" },
        { "{\"sample_offset\": 1, \"epoch_id\": 4611686018427387904}", "\"epoch_id\"" },
        { "{\"sample_offset\": 1, \"epoch_id\": 2, \"sample_group_index\": 3, "
          "\"sample_index\": 4, "
          "\"rows\": 3}",
          "\"metadata\" of the data source's state is missing" },
    };
    ml_dataset ds = numbered(3);
    ml_data_source *s = source_of(&ds, false, 0, 1);
    ml_text log = { 0 }, state = { 0 };
    ml_group g;
    ml_err err;

    ml_log_to_text(&log);
    CHECK(!ml_data_source_load(s, ml_str_of(good), "state.json", &err));
    CHECK_HAS(log.ptr, "state.json: saved with 8 prompts, but the data now has 3");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(ml_data_source_load(s, ml_str_of(bad[i].state), "state.json", &err));
        CHECK_HAS(err.msg, bad[i].message);
    }
    ml_data_source_save(s, &state); /* what was loaded before, untouched by the failures */
    CHECK_HAS(state.ptr,
              "{\"sample_offset\": 1, \"epoch_id\": 2, \"sample_group_index\": 3, "
              "\"sample_index\": 4, \"metadata\": {\"k\": [1.0]}, \"rows\": 3}");
    CHECK(ml_data_source_get(s, &g, 1) == 1);
    CHECK(g.row == 1 && g.group_index == 3 && g.first_index == 4);
    ml_text_release(&log);
    ml_text_release(&state);
    ml_data_source_free(s);
    ml_dataset_close(&ds);
}

static const ml_test tests[] = {
    { "a data source with bad options is refused", source_options },
    { "each epoch is shuffled as Miles shuffles it", epochs },
    { "groups that are given back come first", gives_back },
    { "a data source without data gives numbered groups", goes_without_data },
    { "a restored data source continues after any request", resumes_anywhere },
    { "a data source loads Miles' states and refuses broken ones", loads_states },
    { "weights mix the files of a data set", weights_mix_files },
    { "weights must fit the files", weights_must_fit },
    { "prompts are drawn by their pass rates", draws_by_pass_rate },
    { "no prompt is drawn twice for a rollout", draws_each_once },
    { "a target difficulty follows the pass rate", follows_difficulty },
    { "failed prompts are replayed, and none is skipped for them", replays_failed },
    { "a curriculum continues after any rollout", curriculum_resumes },
    { "a curriculum refuses wrong rows and states", curriculum_refuses },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
