/* checkop.h - the test harness of ops: what a suite of cases must bring.
 *
 * A suite is one op: how to build its i-th case (attributes, shapes, inputs) and what
 * the op means, as an f64 forward.  The harness does the rest, for each case: runs
 * forward and backward at every level and several thread counts on guarded memory with
 * poisoned outputs and demands equal bits; compares with the f64 forward and its central
 * differences; splits batches into rows; feeds special values; compares a hash of all
 * results with the committed one, so that every machine meets the same bits.  On a GPU
 * (--device cuda, or cuda-f32) the levels are two runs, the bounds its own, and no hashes.
 *
 * To add an op: write tests/checkop/<topic>.c with a `const ck_suite`, name it below and
 * in `suites` in checkop.c, give its tolerances in `bounds` there, then run
 * `checkop --write-hashes`. */
#ifndef ML_TESTS_CHECKOP_CHECKOP_H
#define ML_TESTS_CHECKOP_CHECKOP_H

#include "backend/backend.h"
#include "base/arena.h"

typedef struct ck_suite ck_suite;
typedef struct ck_env ck_env;

/* One case.  in[] and w[] hold the contents to start from; out[] has shapes, and data
 * only where forward finds contents there (KV pages).  Everything is in the arena. */
typedef struct ck_case {
    ml_arena *arena;
    const ck_suite *suite;
    char name[80];
    uint64_t random; /* state of the case's generator */
    ml_op_attr attr;
    ml_rows rows;
    ml_tensor in[ML_OP_IN], out[ML_OP_OUT], w[ML_OP_W];
    ml_tensor given; /* choices, or nothing */
    bool exact;      /* weights and outputs are f32 on every backend */
    /* Filled by the harness: cotangents, and what gradients are added to. */
    ml_tensor dout[ML_OP_OUT], din[ML_OP_IN], dw[ML_OP_W];
} ck_case;

/* The f64 view of a case: values row-major whatever the layout; out to be filled. */
typedef struct ck_ref {
    double *in[ML_OP_IN], *w[ML_OP_W], *out[ML_OP_OUT];
} ck_ref;

struct ck_suite {
    ml_op_id op;
    int n_case;
    void (*build)(ck_case *c, int i); /* name, attr, rows, tensors */
    void (*forward)(const ck_case *c, ck_ref *r);
    unsigned ref_out;  /* bit i: forward fills r->out[i], to be compared */
    unsigned grad_out; /* bit i: out[i] has a cotangent */
    bool frozen;       /* no gradient of the weights */
    unsigned row_out;  /* bit i: row t of out[i] needs row t of in[] alone; 0: no such op */
    void (*also)(ck_env *e, const ck_case *c); /* further checks, or NULL */
};

extern const ck_suite ck_embed, ck_rmsnorm, ck_rope_table, ck_rope, ck_add, ck_glu,
    ck_moe_route, ck_moe_gather, ck_moe_combine, ck_attn, ck_lmhead, ck_linear,
    ck_moe_linear, ck_head_linear, ck_join, ck_pick, ck_conv, ck_rates, ck_recur,
    ck_row_gate, ck_scale, ck_moe_scale, ck_layernorm, ck_index, ck_attn_chosen;

/* ---- building cases (build.c) ---- */

__attribute__((format(printf, 2, 3))) void ck_name(ck_case *c, const char *fmt, ...);

/* Integers from an own generator: the same on all machines. */
uint32_t ck_random(ck_case *c);
int32_t ck_below(ck_case *c, int32_t n);
float ck_uniform(ck_case *c, float amp); /* in [-amp, amp) */

/* Sequences of these lengths (up to the first 0, at most n_max) from position 0 on; their pages
 * then come to random places of a pool with some to spare, whose size is returned. */
void ck_page_rows(ck_case *c, const int32_t *len, int32_t n_max);
int32_t ck_scatter_pages(ck_case *c, int32_t spare);

/* Shapes without data: f32 rows, unless the caller changes dtype or layout. */
ml_tensor ck_vec(int64_t n);
ml_tensor ck_mat(int64_t n, int64_t m);
ml_tensor ck_cube(int64_t e, int64_t n, int64_t m);

/* Gives t memory and uniform values in [-amp, amp); padding of panels is zero. */
void ck_fill(ck_case *c, ml_tensor *t, float amp);
/* n integers in [0, below). */
int32_t *ck_ints(ck_case *c, int64_t n, int32_t below);

/* Where element (e, i, j) of a tensor [.., N, K] lies, in elements. */
int64_t ck_offset(const ml_tensor *t, int64_t e, int64_t i, int64_t j);
/* A tensor's values in f64, row-major. */
double *ck_values(ml_arena *a, const ml_tensor *t);
/* Rounds f32 to bf16: a tensor, and everything that a case starts from. */
void ck_round_tensor(const ml_tensor *t);
void ck_round(ck_case *c);
/* A copy of a case with special values (zeros, denormals, huge, inf, NaN) for inputs. */
ck_case ck_special(const ck_case *c);
/* Row t of a case as a case of its own, as suite->row_out promises. */
ck_case ck_row(const ck_case *c, int32_t t);

/* ---- running cases (run.c) ---- */

#define CK_ALL (-1)

typedef struct ck_mode {
    int backend; /* index into the environment's */
    bool backward;
    bool add;     /* gradients are added to the case's din and dw */
    bool end;     /* tensors end at an unreadable page instead of between canaries */
    bool special; /* NaN is a legitimate result */
    int in_place; /* out[0] is the memory of this input, unless CK_ALL: none */
    int only;     /* the one gradient wanted: input, or ML_OP_IN + weight; or CK_ALL */
} ck_mode;

typedef struct ck_result {
    ml_tensor out[ML_OP_OUT], din[ML_OP_IN], dw[ML_OP_W];
} ck_result;

struct ck_env {
    ml_backend *backend; /* [n_backend] the first is level c with one thread */
    int n_backend;
    uint64_t seed;
    const ck_case *now; /* what runs, for failure lines */
    int now_backend;
    int n_fail; /* of the current case */
};

/* Runs forward and, if asked, backward; results are copies in the case's arena. */
void ck_run(ck_env *e, const ck_case *c, ck_mode m, ck_result *r);

/* The same on a device with memory of its own (device.c). */
void ck_run_device(ck_env *e, const ck_case *c, ck_mode m, ck_result *r);

/* Whether the device has a kernel for a case; else err says why not. */
bool ck_device_takes(ck_env *e, const ck_case *c, ml_err *err);

/* Prints what failed and how to run it again; the case goes on. */
__attribute__((format(printf, 2, 3))) void ck_fail(ck_env *e, const char *fmt, ...);

/* ---- comparing (compare.c) ---- */

/* Equal bits, NaN as a class; a failure names the tensor and the first difference. */
bool ck_same(ck_env *e, const char *what, const ml_tensor *a, const ml_tensor *b);
void ck_same_result(ck_env *e, const char *what, const ck_result *a, const ck_result *b);
/* FNV-1a over all tensors of a result, continued from h. */
uint64_t ck_hash(uint64_t h, const ck_result *r);

/* ---- meaning (ref.c) ---- */

/* Largest error relative to the largest value of a tensor. */
typedef struct ck_bound {
    double forward, backward;
    const char *why;
} ck_bound;

void ck_check_forward(ck_env *e, const ck_case *c, const ck_result *r,
                      const ck_bound *bound);
void ck_check_backward(ck_env *e, const ck_case *c, const ck_result *r,
                       const ck_bound *bound);
/* Gradients added to the case's din and dw are those plus the gradients alone. */
void ck_check_add(ck_env *e, const ck_case *c, const ck_result *alone, const ck_result *sum,
                  const ck_bound *bound);

/* ---- the committed hashes (hash.c) ---- */

typedef struct ck_hashes ck_hashes;

/* The file's lines, or no lines where there is no file yet. */
ck_hashes *ck_hashes_read(ml_arena *a, const char *path);
void ck_hashes_check(ck_env *e, const ck_hashes *h, const char *name, uint64_t hash);
void ck_hashes_set(ck_hashes *h, const char *name, uint64_t hash);
/* The line of a case that did not run this time. */
void ck_hashes_keep(ck_hashes *h, const ck_hashes *from, const char *name);
bool ck_hashes_write(const ck_hashes *h, const char *path);

#endif
