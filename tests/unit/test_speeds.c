/* The time of ops from the speeds of a GPU, and the files that have them. */
#include <math.h>
#include <string.h>

#include "backend/sizes.h"
#include "run/speeds.h"
#include "tests/support/must.h"
#include "tests/support/round_speeds.h"
#include "tests/support/test.h"

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-9 * fabs(b);
}

/* --- ops --------------------------------------------------------------------- */

static ml_tensor matrix(int64_t rows, int64_t cols, ml_dtype dtype) {
    return (ml_tensor){ .dtype = dtype, .n_dim = 2, .shape = { rows, cols } };
}

static void products(void) {
    ml_speeds s = ml_round_speeds();
    ml_op_attr attr = { 0 };
    ml_op_args a = { .attr = &attr,
                     .in = { matrix(1000, 900, ML_BF16) },
                     .out = { matrix(1000, 1000, ML_BF16) },
                     .w = { matrix(1000, 900, ML_BF16) } };
    ml_op_work w = ml_op_work_of(ML_OP_LINEAR, ML_PASS_FORWARD, &a, 100);

    /* 1.8 GFLOP; k 900 of 1000; 100 tiles are 10 full waves: 1.8e9 / 90e12 s, and 1 us. */
    CHECK(near(ml_op_work_flops(&w), 1.8e9));
    CHECK(near(ml_op_seconds(&s, ML_OP_LINEAR, ML_PASS_FORWARD, &w), 20e-6 + 1e-6));
    /* 11 tiles are two waves of 10. */
    a.in[0] = matrix(100, 900, ML_BF16);
    a.w[0] = matrix(1100, 900, ML_BF16);
    w = ml_op_work_of(ML_OP_LINEAR, ML_PASS_FORWARD, &a, 100);
    CHECK(near(ml_op_seconds(&s, ML_OP_LINEAR, ML_PASS_FORWARD, &w),
               2.0 * 100 * 1100 * 900 / (90e12 * 11 / 20) + 1e-6));
    /* One row: reading the weights takes longer. */
    a.in[0] = matrix(1, 900, ML_BF16);
    w = ml_op_work_of(ML_OP_LINEAR, ML_PASS_FORWARD, &a, 100);
    CHECK(near(ml_op_seconds(&s, ML_OP_LINEAR, ML_PASS_FORWARD, &w),
               2.0 * (900 + 1100 * 900 + 1100) / 1e12 + 1e-6));
    /* Backward: gradients of input and weight. */
    a.in[0] = a.din[0] = matrix(100, 900, ML_BF16);
    w = ml_op_work_of(ML_OP_LINEAR, ML_PASS_BACKWARD, &a, 100);
    CHECK(w.n_product == 2);
    CHECK(near(ml_op_work_flops(&w), 4.0 * 100 * 1100 * 900));
    CHECK(near(w.bytes, 8.0 * 1100 * 900));
}

static void rows_of_bytes(void) {
    ml_speeds s = ml_round_speeds();
    ml_op_attr attr = { 0 };
    ml_op_args a = { .attr = &attr,
                     .in = { matrix(1000, 500, ML_BF16), matrix(1000, 500, ML_BF16) },
                     .out = { matrix(1000, 500, ML_BF16) } };
    ml_op_work w = ml_op_work_of(ML_OP_ADD, ML_PASS_FORWARD, &a, 100);

    CHECK(near(w.bytes, 3e6));
    CHECK(near(ml_op_seconds(&s, ML_OP_ADD, ML_PASS_FORWARD, &w), 3e-6 + 1e-6));
}

static void attention(void) {
    ml_op_attr attr = { .attn = {
                            .n_head = 4, .n_kv = 2, .head_dim = 64, .value_dim = 64 } };
    ml_op_args a = { .attr = &attr, .in = { matrix(10, 256, ML_BF16) } };
    ml_op_work w = ml_op_work_of(ML_OP_ATTN, ML_PASS_FORWARD, &a, 9);

    /* Rows of a sequence of 9 have 5 keys, on the average: scores and values. */
    CHECK(near(ml_op_work_flops(&w), 10 * 4 * 5 * 2.0 * (64 + 64)));
    w = ml_op_work_of(ML_OP_ATTN, ML_PASS_BACKWARD, &a, 9);
    CHECK(near(ml_op_work_flops(&w), 10 * 4 * 5 * 2.0 * 7 * 64));
    /* A window of 3: rows have 1, 2, 3, 3, ... keys. */
    attr.attn.window = 3;
    w = ml_op_work_of(ML_OP_ATTN, ML_PASS_FORWARD, &a, 9);
    CHECK(near(ml_op_work_flops(&w), 10 * 4 * (24 / 9.0) * 2.0 * 128));
}

/* --- files ------------------------------------------------------------------- */

static void refuses(const char *text, const char *why) {
    ml_speeds s;
    ml_err err = { 0 };

    CHECK(ml_speeds_parse(&s, ml_str_of(text), "file.json", &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, why);
}

static void bad_files(void) {
    ml_speeds s;
    ml_err err = { 0 };

    refuses("{\"kind\": \"x\"}",
            "file.json: expected a positive number for \"memory_bytes\", "
            "which is missing");
    refuses("{\"memory_bytes\": -1}", "expected a positive number for \"memory_bytes\";");
    refuses("{\"memory_bytes\": 1, ", "file.json:1:");
    CHECK(ml_speeds_open(&s, "h2000", &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, "--device-kind 'h2000' is not known: use h200, or the path");
    CHECK(ml_speeds_open(&s, "no/such.json", &err) == ML_EIO);
    CHECK_HAS(err.msg, "no/such.json");
}

/* The file of the tree and the one that is compiled in. */
static void known_kind(void) {
    ml_speeds s, t;

    MUST(ml_speeds_open(&s, "h200", &err));
    MUST(ml_speeds_open(&t, "share/speeds/h200.json", &err));
    CHECK(memcmp(&s, &t, sizeof s) == 0);
    CHECK(s.op[ML_OP_LINEAR][0].flops > s.op[ML_OP_MOE_LINEAR][0].flops);
    CHECK(s.op[ML_OP_GLU][0].bytes == s.op[ML_OP_SCALE][0].bytes);
}

/* --- the backend of sizes ---------------------------------------------------------- */

static void only_sizes(void) {
    ml_backend be;
    ml_buf buf;
    ml_err why = { 0 };

    MUST(ml_backend_sizes_open(&be, &(ml_sizes_opts){ "h200", 1000, 100, false }, &err));
    CHECK(be.act == ML_BF16 && be.linear == ML_ROWS && !be.dev->host);
    CHECK(be.dev->available(be.dev) == 900 && be.dev->used(be.dev) == 100);
    CHECK(be.dev->alloc(be.dev, &buf, 10, ML_MEM_ACT, &why) == ML_EUNSUP);
    CHECK_HAS(why.msg, "a planned h200 has no memory");
    for (int i = 0; i < ML_OP_COUNT; i++)
        CHECK(be.ops->forward[i] && be.ops->backward[i]);
    CHECK(ml_cuda_has_op(ML_OP_ATTN) && !ml_cuda_has_op(ML_OP_GATHER_COLS));
    ml_backend_close(&be);
}

static const ml_test tests[] = {
    { "a product takes FLOPs over the rate of useful tiles, or its bytes", products },
    { "an op without products takes its bytes over the rate of memory", rows_of_bytes },
    { "attention counts the keys of causal rows and of windows", attention },
    { "a file without a speed is refused with the key, an unknown kind with the known ones",
      bad_files },
    { "the speeds of a known kind are those of its file", known_kind },
    { "a backend of sizes has all ops and no memory", only_sizes },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
