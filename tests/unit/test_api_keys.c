/* The keys of clients: their file, and the arithmetic of their limits. */
#include "serve/api_keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

static const bool all[ML_N_LIMIT] = { true, true, true };

static ml_status read_text(ml_api_keys *out, const char *text, ml_err *err) {
    static const int64_t defaults[ML_N_LIMIT] = { [ML_LIMIT_CONCURRENT] = 7 };
    const char *path = ml_test_path("keys");

    CHECK(ml_file_replace(path, ml_str_of(text), err) == ML_OK);
    CHECK(chmod(path, 0600) == 0);
    return ml_api_keys_read(out, path, "--api-key-file", defaults, all, err);
}

static void lines_of_a_file(void) {
    ml_api_keys k;
    ml_err err;

    CHECK(read_text(&k, "#one-key", &err) == ML_OK); /* no comment: no blank after # */
    CHECK(k.n == 1 && strcmp(k.key[0].name, "default") == 0);
    CHECK(ml_api_keys_find(&k, ml_str_of("#one-key")) == &k.key[0]);
    ml_api_keys_release(&k);
    CHECK(read_text(&k,
                    "# comment\n\n  a name=x requests-per-minute=6\r\n"
                    "b\ttokens-per-minute=9 concurrent=2\n",
                    &err) == ML_OK);
    CHECK(k.n == 2 && strcmp(k.key[1].name, "key2") == 0);
    CHECK(k.key[0].limit[ML_LIMIT_REQUESTS] == 6 && k.key[0].limit[ML_LIMIT_TOKENS] == 0);
    CHECK(k.key[0].limit[ML_LIMIT_CONCURRENT] == 7); /* the default */
    CHECK(k.key[1].limit[ML_LIMIT_TOKENS] == 9 && k.key[1].limit[ML_LIMIT_CONCURRENT] == 2);
    CHECK(ml_api_keys_find(&k, ml_str_of("b")) == &k.key[1]);
    CHECK(!ml_api_keys_find(&k, ml_str_of("name=x")) &&
          !ml_api_keys_find(&k, ml_str_of("")));
    ml_api_keys_release(&k);
}

static void bad_lines(void) {
    static const struct {
        const char *text, *why;
    } cases[] = {
        { "", "has no key" },
        { "a\nb name=default\n", "line 2: the same name" },
        { "a\n\na\n", "line 3: the same key" },
        { "a name=admin\n", "is not admin" },
        { "a name=\"x\"\n", "line 1: a name has" },
        { "a rate=3\n", "line 1: unknown setting" },
        { "a concurrent=-1\n", "line 1: concurrent must be" },
        { "a requests-per-minute=9999999999999\n", "requests-per-minute must be" },
        { "a\nk\x80\n", "line 2: a key must have" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ml_api_keys k;
        ml_err err;
        CHECK(read_text(&k, cases[i].text, &err) == ML_EUSAGE);
        CHECK_HAS(err.msg, cases[i].why);
        CHECK(!k.key && k.n == 0);
    }
}

static void requests_refill(void) {
    ml_api_key k = { .limit = { [ML_LIMIT_REQUESTS] = 6 } };
    double retry_s;

    for (int i = 0; i < 6; i++)
        CHECK(ml_api_key_admit(&k, 100, &retry_s) == -1);
    CHECK(ml_api_key_admit(&k, 100, &retry_s) == ML_LIMIT_REQUESTS);
    CHECK(fabs(retry_s - 10) < 1e-9); /* one in ten seconds */
    CHECK(ml_api_key_admit(&k, 109.9, &retry_s) == ML_LIMIT_REQUESTS);
    CHECK(ml_api_key_admit(&k, 110.001, &retry_s) == -1);
    CHECK(ml_api_key_admit(&k, 110.001, &retry_s) == ML_LIMIT_REQUESTS);
    for (int i = 0; i < 6; i++) /* not more than a minute's worth is saved */
        CHECK(ml_api_key_admit(&k, 1e6, &retry_s) == -1);
    CHECK(ml_api_key_admit(&k, 1e6, &retry_s) == ML_LIMIT_REQUESTS);
    CHECK(k.n_running == 13 && k.n_limited[ML_LIMIT_REQUESTS] == 4);
}

static void tokens_can_be_owed(void) {
    ml_api_key k = { .limit = { [ML_LIMIT_TOKENS] = 60 } };
    double retry_s;

    CHECK(ml_api_key_admit(&k, 5, &retry_s) == -1);
    ml_api_key_charge(&k, 5, 20, 0);
    ml_api_key_charge(&k, 5, 0, 70); /* 30 more than there were */
    CHECK(ml_api_key_admit(&k, 5, &retry_s) == ML_LIMIT_TOKENS);
    CHECK(fabs(retry_s - 31) < 1e-9);
    CHECK(ml_api_key_admit(&k, 36.001, &retry_s) == -1);
    CHECK(k.n_prompt == 20 && k.n_answer == 70);
}

static void running_requests_count(void) {
    ml_api_key k = { .limit = { [ML_LIMIT_CONCURRENT] = 1 } };
    double retry_s;

    CHECK(ml_api_key_admit(&k, 1, &retry_s) == -1);
    CHECK(ml_api_key_admit(&k, 1, &retry_s) == ML_LIMIT_CONCURRENT && k.n_running == 1);
    ml_api_key_done(&k);
    CHECK(ml_api_key_admit(&k, 1, &retry_s) == -1);
}

static void put(void *ud, const char *name, const char *value) {
    ml_text_printf(ud, "%s: %s\n", name, value);
}

static void headers(void) {
    ml_api_key k = { .limit = { [ML_LIMIT_REQUESTS] = 60, [ML_LIMIT_CONCURRENT] = 3 } };
    ml_text t = { 0 };
    double retry_s;

    CHECK(ml_api_key_admit(&k, 1, &retry_s) == -1);
    ml_api_key_headers(&k, 1, put, &t);
    CHECK(strcmp(t.ptr, "x-ratelimit-limit-requests: 60\n"
                        "x-ratelimit-remaining-requests: 59\n"
                        "x-ratelimit-reset-requests: 1.000s\n") == 0);
    ml_text_release(&t);
}

static const ml_test tests[] = {
    { "a key file has a line for each key", lines_of_a_file },
    { "a bad line of a key file is named", bad_lines },
    { "a rate of requests refills to a minute's worth", requests_refill },
    { "tokens beyond the rate are owed", tokens_can_be_owed },
    { "running requests count towards the limit of concurrent ones",
      running_requests_count },
    { "replies name the limits of requests in OpenAI's headers", headers },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
