/* miles from the outside: help, version, doctor. */
#include "tests/support/flag_words.h"

static void commands(void) {
    CHECK(ml_command_find("score") && !ml_command_find("scor") && !ml_command_find(""));
    CHECK(ml_command_near("scroe") == ml_command_find("score"));
    CHECK(ml_command_near("convret") == ml_command_find("convert"));
    CHECK(!ml_command_near("zzzzzzzz"));
    CHECK(ml_exit_code(ML_OK) == 0 && ml_exit_code(ML_EUSAGE) == 2);
    CHECK(ml_exit_code(ML_EPEER) == 3 && ml_exit_code(ML_EFORMAT) == 1);
}

static void program(void) {
    static char out[200000];

    CHECK(ml_test_miles(out, sizeof out, "--version") == 0);
    CHECK_HAS(out, "miles " ML_VERSION);
    CHECK(ml_test_miles(out, sizeof out, "") == 2);
    CHECK_HAS(out, "usage: miles");
    CHECK(ml_test_miles(out, sizeof out, "scor") == 2);
    CHECK_HAS(out, "did you mean 'score'?");
    CHECK(ml_test_miles(out, sizeof out, "bench") == 2);
    CHECK_HAS(out, "expected 'miles bench engine' or 'bench serve'");
    CHECK(ml_test_miles(out, sizeof out, "bench engine --help") == 0);
    CHECK_HAS(out, "usage: miles bench engine");
    CHECK(ml_test_miles(out, sizeof out, "score --help") == 0);
    CHECK_HAS(out, "--hf-checkpoint DIR");
    CHECK(ml_test_miles(out, sizeof out, "score " SCORE "--threads 0") == 2);
    CHECK_HAS(out, "miles score: --threads '0'");
    CHECK(ml_test_miles(out, sizeof out, "score --threads 0 --input i --output o") == 2);
    CHECK_HAS(out, "miles score: 2 errors:\n  --threads '0'");
    CHECK(ml_test_miles(out, sizeof out,
                        "score --dry-run --hf-checkpoint ./no/such --input x") == 1);
    CHECK_HAS(out, "./no/such");
    CHECK(ml_test_miles(out, sizeof out, "-V") == 0);
    CHECK_HAS(out, "miles " ML_VERSION);
    CHECK(ml_test_miles(out, sizeof out, "help") == 0);
    CHECK_HAS(out, "usage: miles <command>");
    CHECK(ml_test_miles(out, sizeof out, "help bench engine") == 0);
    CHECK_HAS(out, "usage: miles bench engine");
    CHECK(ml_test_miles(out, sizeof out, "help trian") == 2);
    CHECK_HAS(out, "unknown command 'trian'; did you mean 'train'?");
    CHECK(ml_test_miles(out, sizeof out, "help train") == 0);
    CHECK_HAS(out, "usage: miles train");
    CHECK(ml_test_miles(out, sizeof out, "score --help-all") == 0);
    CHECK_HAS(out, "--quantization");
    CHECK(ml_test_miles(out, sizeof out, "--help >/dev/full") == 1);
    CHECK_HAS(out, "standard output");
    CHECK(ml_test_miles(out, sizeof out, "--print-completion bash | bash -n") == 0);
}

static int count_lines(const char *text, const char *begin) {
    int n = 0;

    for (const char *at = text; (at = strstr(at, begin)) != NULL; at++)
        n++;
    return n;
}

/* --help has the flags one needs and a command line that the parser takes; --help-all all. */
static void short_help_and_long(void) {
    static char page[400000];
    char words[100];

    for (const ml_command *c = ml_commands; c->name; c++) {
        char line[1000];
        if (!c->first)
            continue;
        snprintf(words, sizeof words, "%s --help", c->name);
        CHECK(ml_test_miles(page, sizeof page, words) == 0);
        CHECK_HAS(page, c->example);
        CHECK(count_lines(page, "\n  --") >= 11 && count_lines(page, "\n  --") <= 25);
        CHECK(count_lines(page, "\n") < 100);
        CHECK_HAS(page, "--help-all lists ");
        snprintf(line, sizeof line, "%s", c->example + strlen("miles ") + strlen(c->name));
        for (char *at = line; *at; at++)
            *at = *at == '\\' || *at == '\n' ? ' ' : *at;
        if (parse(c->bit, line) != ML_OK)
            ml_test_fail(__FILE__, __LINE__, "%s: %s", c->example, wrong.ptr);
    }
    CHECK(ml_test_miles(page, sizeof page, "train --help-all") == 0);
    CHECK(count_lines(page, " --") > 1000);
    CHECK_HAS(page, "--swiglu");
}

static void doctor(void) {
    static char out[200000];

    CHECK(ml_test_miles(out, sizeof out, "doctor") == 0);
    CHECK_HAS(out, "kernels    c");
    CHECK_HAS(out, "GB available of");
    CHECK_HAS(out, "libsqlite3");
    CHECK(ml_test_miles(out, sizeof out,
                        "doctor train --zzzzzzzzzzzz --grad-reduce-in-bf16") == 2);
    CHECK_HAS(out, "\nmiles train\nflags      ERROR: unknown flag --zzzzzzzzzzzz");
    CHECK_HAS(out, "--grad-reduce-in-bf16 is not supported: ");
    CHECK_HAS(out, "--hf-checkpoint DIR is required");
    CHECK(ml_test_miles(out, sizeof out, "doctor no-such-command") == 2);
    CHECK_HAS(out, "unknown command 'no-such-command'");
    CHECK_HAS(out, "gpu        ");
    CHECK(ml_test_miles(out, sizeof out, "doctor tokenize --hf-checkpoint m") == 1);
    CHECK_HAS(out, "text       ERROR: ");
    CHECK_HAS(out, "miles tokenize would not start: 1 error");
    CHECK(ml_test_miles(out, sizeof out, "doctor bench engine --model-path m") == 1);
    CHECK_HAS(out, "model      ERROR: ");
}

static const ml_test tests[] = {
    { "commands are found by name and by near spelling", commands },
    { "miles answers --version, usage errors and a closed stdout", program },
    { "--help of each command parses and --help-all has all flags", short_help_and_long },
    { "miles doctor reports the machine and checks a command line", doctor },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
