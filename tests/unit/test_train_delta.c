/* miles train that publishes what changed: the same bytes as with whole files, whatever happens
 * to deltas and engines. */
#include <stdio.h>
#include <stdlib.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/file.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"
#include "tests/support/toy_run.h"

enum { ROUNDS = 6 };

/* Flags for engines that follow deltas, each run with a copy of its own. */
static const char *deltas(const char *more) {
    static char out[1500];
    static int n;
    char copy[20];

    snprintf(copy, sizeof copy, "copy_%d", n++);
    snprintf(out, sizeof out,
             "--update-weight-transfer-mode disk-delta "
             "--update-weight-local-checkpoint-dir %s --log-level info %s",
             ml_test_path(copy), more);
    return out;
}

static bool there(const char *dir, const char *name) {
    char line[1200];

    snprintf(line, sizeof line, "ls %s/rollout_weights/%s >/dev/null 2>&1", dir, name);
    return system(line) == 0;
}

static void the_same_bytes_as_whole(void) {
    const char *here = ml_test_path("here"), *two = ml_test_path("two"),
               *one = ml_test_path("one"), *async = ml_test_path("async"),
               *three = ml_test_path("three");
    char out[40000];

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, ROUNDS, "", out, sizeof out) == 0);
    CHECK(ml_toy_run("train", two, ROUNDS, deltas("--rollout-num-engines 2"), out,
                     sizeof out) == 0);
    CHECK_HAS(out, "engines start with the weights they have");
    CHECK_HAS(out, "weight_v000001 is a delta of ");
    CHECK_HAS(out, "weight_v000002 is complete"); /* smaller than two deltas of all of it */
    ml_toy_run_same(here, two, ROUNDS);
    CHECK(!there(two, "weight_v000001") && there(two, "weight_v000005"));
    snprintf(
        out, sizeof out,
        "grep -q '\"perf/update_weights_density\": 0[.].*wire_bytes\"' %s/timing.jsonl",
        two);
    CHECK(system(out) == 0);
    CHECK(ml_toy_run("train", one, ROUNDS,
                     deltas("--rollout-num-engines 1 --update-weight-delta-encoding "
                            "overwrite --update-weight-delta-checksum blake3 "
                            "--update-weight-buffer-size 20000"),
                     out, sizeof out) == 0);
    ml_toy_run_same(here, one, ROUNDS);
    CHECK(there(one, "weight_v*/model-00003-of-*.safetensors"));
    CHECK(ml_toy_run("train-async", async, ROUNDS, "--dtype bf16", out, sizeof out) == 0);
    CHECK(ml_toy_run("train-async", three, ROUNDS,
                     deltas("--rollout-num-engines 2 --update-weight-delta-checksum "
                            "adler32 --dtype bf16"),
                     out, sizeof out) == 0);
    ml_toy_run_same(async, three, ROUNDS);
}

/* --- a hook that spoils each second delta ---------------------------------------------- */

static const char spoiler[] =
    "#include <stdio.h>\n"
    "#include <miles/plugin.h>\n"
    "static int run(const miles_event *e, miles_error *err) {\n"
    "    char path[2000];\n"
    "    static int n;\n"
    "    FILE *f;\n"
    "    (void)err;\n"
    "    snprintf(path, sizeof path, \"%s/model-00000-of-00001.safetensors\", e->what);\n"
    "    f = fopen(path, \"r+b\");\n"
    "    if (f && n++ % 2 == 0 && fseek(f, -1, SEEK_END) == 0)\n"
    "        fputc(fgetc(f) ^ 85, f);\n"
    "    if (f)\n"
    "        fclose(f);\n"
    "    return 0;\n"
    "}\n"
    "static const miles_hook spoil = { { sizeof spoil, MILES_HOOK, \"spoil\", 0, \"\" }, "
    "run "
    "};\n"
    "static const miles_extension *const rows[] = { &spoil.base, 0 };\n"
    "static const miles_plugin plugin = { sizeof plugin, MILES_ABI_VERSION, rows };\n"
    "const miles_plugin *miles_plugin_entry(void) { return &plugin; }\n";

static void damaged_deltas_are_followed_by_all(void) {
    const char *here = ml_test_path("here"), *there_ = ml_test_path("there");
    char out[40000], more[1200];

    ml_toy_run_inputs();
    ml_toy_file("spoiler.c", spoiler);
    snprintf(more, sizeof more, "cc -shared -fPIC -Iinclude -o %s %s",
             ml_test_path("spoiler.so"), ml_test_path("spoiler.c"));
    CHECK(system(more) == 0);
    CHECK(ml_toy_run("train", here, ROUNDS, "", out, sizeof out) == 0);
    snprintf(more, sizeof more,
             "--rollout-num-engines 2 --custom-update-weight-post-write-path %s:spoil",
             ml_test_path("spoiler.so"));
    CHECK(ml_toy_run("train", there_, ROUNDS, deltas(more), out, sizeof out) == 0);
    CHECK_HAS(out, "weight_v000001/model-00000-of-00001.safetensors");
    CHECK_HAS(out, "publishing all weights instead");
    CHECK_HAS(out, "weight_v000002 is complete");
    ml_toy_run_same(here, there_, ROUNDS);
}

/* --- lives ------------------------------------------------------------------------------ */

/* The next run finds the copy and the versions of the one before it. */
static void runs_go_on(void) {
    const char *here = ml_test_path("here"), *parts = ml_test_path("parts");
    char out[40000], more[1500];

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, ROUNDS, "", out, sizeof out) == 0);
    snprintf(more, sizeof more, "%s", deltas("--rollout-num-engines 2"));
    CHECK(ml_toy_run("train", parts, 3, more, out, sizeof out) == 0);
    CHECK(ml_toy_run("train", parts, ROUNDS, more, out, sizeof out) == 0);
    CHECK_HAS(out, "weight_v000001 is a delta of "); /* to the checkpoint, not to the run */
    ml_toy_run_same(here, parts, ROUNDS);
}

static void what_cannot_be_meant_is_said(void) {
    static const struct {
        const char *flags, *sentence;
    } cases[] = {
        { "--update-weight-transfer-mode p2p --rollout-num-engines 1", "use broadcast" },
        { "--update-weight-transfer-mode disk-delta", "add --rollout-external or" },
        { "--update-weight-transfer-mode disk-delta --rollout-num-engines 1",
          "needs --update-weight-local-checkpoint-dir" },
        { "--update-weight-local-checkpoint-dir x", "remove them" },
        { "--update-weight-delta-encoding overwrite", "remove them" },
        { "--update-weight-delta-checksum md5", "xxh3-128" },
    };
    char out[16000];

    ml_toy_run_inputs();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(ml_toy_run("train", ml_test_path("save"), 2, cases[i].flags, out,
                         sizeof out) == 2);
        CHECK_HAS(out, cases[i].sentence);
    }
}

/* A directory with files of the user's is refused, and they stay. */
static void files_of_the_user_stay(void) {
    char out[40000], flags[1500];

    ml_toy_run_inputs();
    CHECK(ml_dir_make(ml_test_path("home"), NULL) == ML_OK);
    CHECK(ml_file_replace(ml_test_path("home/thesis.tex"), ml_str_of("x"), NULL) == ML_OK);
    snprintf(flags, sizeof flags,
             "--update-weight-transfer-mode disk-delta --rollout-num-engines 1 "
             "--update-weight-local-checkpoint-dir %s",
             ml_test_path("home"));
    CHECK(ml_toy_run("train", ml_test_path("save"), 2, flags, out, sizeof out) == 3);
    CHECK_HAS(out, "home contains thesis.tex, which miles did not write");
    CHECK(access(ml_test_path("home/thesis.tex"), F_OK) == 0);
    CHECK(access(ml_test_path("home/model.safetensors"), F_OK) != 0);
}

static const ml_test tests[] = {
    { "weight deltas give the bytes of whole weights", the_same_bytes_as_whole, 300 },
    { "a damaged delta is followed by whole weights", damaged_deltas_are_followed_by_all,
      300 },
    { "a delta directory with the user's files is refused", files_of_the_user_stay },
    { "a resumed run continues its deltas", runs_go_on, 300 },
    { "miles train refuses contradictory delta flags", what_cannot_be_meant_is_said },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
