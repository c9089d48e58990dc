/* Engines that cannot be started, or not again. */
#include "gen/supervisor.h"

#include <string.h>

#include "gen/remote.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

static void sorry_engines_are_named(void) {
    static const char *const sorry[] = { "sh", "-c", "echo no memory at all >&2; exit 3",
                                         NULL };
    ml_supervisor_opts o = { .program = "/bin/sh",
                             .argv = sorry,
                             .log_dir = ml_test_dir(),
                             .n = 2,
                             .restart = true,
                             .check_s = 1,
                             .timeout_s = 1 };
    ml_supervisor *f = NULL;
    ml_err err = { 0 };

    CHECK(ml_supervisor_open(&f, &o, &err) == ML_EPEER && !f);
    CHECK_HAS(err.msg, "exited with status 3: no memory at all; ");
    CHECK_HAS(err.msg, "see its log ");
    o.program = "/nowhere/miles";
    CHECK(ml_supervisor_open(&f, &o, &err) == ML_EPEER && !f);
    CHECK_HAS(err.msg, "exited with status 127");
}

/* It served once; then it never does again: who waits for it is told. */
static void one_that_stays_away_is_given_up(void) {
    const char *const once[] = { "sh", "-c",
                                 "test ! -e \"$0\" || { echo never again >&2; exit 1; }; "
                                 ": >\"$0\"; echo at http://127.0.0.1:9; exec sleep 0.1",
                                 ml_test_path("served"), NULL };
    ml_supervisor_opts o = { .program = "/bin/sh",
                             .argv = once,
                             .log_dir = ml_test_dir(),
                             .n = 1,
                             .restart = true,
                             .check_s = 100,
                             .timeout_s = 1 };
    const char *url;
    ml_supervisor *f = NULL;
    ml_gen *gen = NULL;
    ml_err err = { 0 };

    CHECK(ml_supervisor_open(&f, &o, &err) == ML_OK);
    url = ml_supervisor_url(f, 0);
    CHECK(strcmp(url, "http://127.0.0.1:9") == 0);
    CHECK(ml_remote_open(
              &gen,
              &(ml_remote_opts){ .url = &url, .n_url = 1, .retry_s = 0.05, .connect_s = 1 },
              &err) == ML_OK);
    ml_supervisor_serve(f, gen);
    CHECK(gen->load(gen, "/nowhere", 1, ML_SWITCH_RECOMPUTE, &err) == ML_EPEER);
    CHECK_HAS(err.msg, "engine 0 exited with status 1: never again; ");
    ml_supervisor_serve(f, NULL);
    gen->close(gen);
    ml_supervisor_close(f);
}

static const ml_test tests[] = {
    { "an engine that exits at start is reported with its log", sorry_engines_are_named },
    { "an engine that never serves again is given up", one_that_stays_away_is_given_up },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
