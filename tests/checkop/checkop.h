/* checkop.h - the test harness of ops, and the interface of a suite of cases.
 *
 * A suite is one op: how to build its i-th case (attributes, shapes, inputs), and an f64
 * reference forward.  For each case the harness runs forward and backward at every level
 * and several thread counts, on guarded memory with poisoned outputs, and requires equal
 * bits; compares with the f64 forward and its central differences; splits batches into
 * rows; tests special values; compares a hash of all results with the committed one, so
 * that every machine must produce the same bits.  On a GPU (--device cuda, or cuda-f32)
 * two runs take the place of the levels, it has its own bounds, and there are no hashes.
 *
 * To add an op: write tests/checkop/<topic>.c with a `const ck_suite`, declare it below
 * and add it to `suites` in checkop.c, add its tolerances to `bounds` there, then run
 * `checkop --write-hashes`. */
#ifndef ML_TESTS_CHECKOP_CHECKOP_H
#define ML_TESTS_CHECKOP_CHECKOP_H

#include "backend/backend.h"
#include "base/arena.h"

typedef struct ck_suite ck_suite;
typedef struct ck_env ck_env;

/* One case.  in[] and w[] have the initial contents; out[] has shapes, and data only
 * where forward reads it (KV pages).  Everything is allocated in the arena. */
typedef struct ck_case {
    ml_arena *arena;
    const ck_suite *suite;
    char name[80];
    uint64_t random; /* state of the case's random generator */
    ml_op_attr attr;
    ml_rows rows;
    ml_tensor in[ML_OP_IN], out[ML_OP_OUT], w[ML_OP_W];
    ml_tensor given; /* given selections, or absent */
    bool exact;      /* weights and outputs are f32 on every backend */
    bool exact_grad; /* so are the cotangents */
    ml_grad_format grad_format;
    /* Filled by the harness: cotangents, and the initial contents of added gradients. */
    ml_tensor dout[ML_OP_OUT], din[ML_OP_IN], dw[ML_OP_W];
} ck_case;

/* The f64 view of a case: values row-major in any layout; the suite fills out. */
typedef struct ck_ref {
    double *in[ML_OP_IN], *w[ML_OP_W], *out[ML_OP_OUT];
} ck_ref;

struct ck_suite {
    ml_op_id op;
    int n_case;
    void (*build)(ck_case *c, int i); /* fills name, attr, rows, tensors */
    /* Inputs that were rounded to bf16 become numbers that the op does not round; NULL: they are. */
    void (*settle)(ck_case *c);
    /* Fills what refers to other arguments, which have their data; NULL: nothing does. */
    void (*bind)(const ck_case *c, ml_op_args *a);
    void (*forward)(const ck_case *c, ck_ref *r);
    unsigned ref_out;  /* bit i: forward fills r->out[i], which is compared */
    unsigned grad_out; /* bit i: out[i] has a cotangent */
    bool frozen;       /* weights have no gradient */
    bool device_only;  /* the CPU has no such kernels */
    bool rounds; /* forward rounds its input: there are no differences to compare with */
    unsigned row_out; /* bit i: row t of out[i] depends on row t of in[] only; 0: none */
    void (*also)(ck_env *e, const ck_case *c); /* further checks, or NULL */
};

extern const ck_suite ck_embed, ck_rmsnorm, ck_rope_table, ck_rope, ck_add, ck_glu,
    ck_moe_route, ck_moe_gather, ck_moe_combine, ck_attn, ck_lmhead, ck_linear,
    ck_moe_linear, ck_linear_codes, ck_linear_fp8, ck_linear_fp8_back, ck_moe_linear_codes,
    ck_moe_linear_fp8, ck_moe_linear_wide, ck_head_linear, ck_join, ck_pick, ck_conv,
    ck_rates, ck_recur, ck_row_gate, ck_scale, ck_moe_scale, ck_layernorm, ck_index,
    ck_attn_chosen, ck_moe_weigh, ck_merge, ck_split, ck_order, ck_col_scale, ck_tanh,
    ck_cutoff, ck_match_rms, ck_stream_mix, ck_hyper_coef, ck_compress, ck_lora,
    ck_lora_experts;

/* ---- building cases (build.c) ---- */

__attribute__((format(printf, 2, 3))) void ck_name(ck_case *c, const char *fmt, ...);

/* Integers from the case's own generator: the same on all machines. */
uint32_t ck_random(ck_case *c);
int32_t ck_below(ck_case *c, int32_t n);
float ck_uniform(ck_case *c, float amp); /* in [-amp, amp) */

/* Sequences of these lengths (up to the first 0, at most n_max), starting at position 0.
 * ck_scatter_pages then places their KV pages randomly in a pool with `spare` more pages;
 * it returns the size of the pool. */
void ck_page_rows(ck_case *c, const int32_t *len, int32_t n_max);
int32_t ck_scatter_pages(ck_case *c, int32_t spare);

/* Shapes without data: f32 row-major, unless the caller changes dtype or layout. */
ml_tensor ck_vec(int64_t n);
ml_tensor ck_mat(int64_t n, int64_t m);
ml_tensor ck_cube(int64_t e, int64_t n, int64_t m);

/* Allocates t and fills it with uniform values in [-amp, amp); panel padding is zero. */
void ck_fill(ck_case *c, ml_tensor *t, float amp);
/* n integers in [0, below). */
int32_t *ck_ints(ck_case *c, int64_t n, int32_t below);

/* The offset, in elements, of element (e, i, j) of a tensor [.., N, K]. */
int64_t ck_offset(const ml_tensor *t, int64_t e, int64_t i, int64_t j);
/* A tensor's values in f64, row-major. */
double *ck_values(ml_arena *a, const ml_tensor *t);
/* A matrix or stack in f32 panels with t's values. */
ml_tensor ck_widened(ck_case *c, const ml_tensor *t);
/* Rounds f32 to bf16: a tensor; all initial contents of a case. */
void ck_round_tensor(const ml_tensor *t);
void ck_round(ck_case *c);
/* A copy of a case with special values (zeros, denormals, huge, inf, NaN) as inputs. */
ck_case ck_special(const ck_case *c);
/* Row t of a case as a separate case, for outputs in suite->row_out. */
ck_case ck_row(const ck_case *c, int32_t t);

/* LINEAR whose input is rounded to FP8 (linear.c). */
void ck_forward_rounded(const ck_case *c, ck_ref *r);

/* ---- FP8 on tensor cores (wgmma_model.c) ---- */

/* Codes of a row of ML_FP8_BLOCKWISE, and the scale of each 128 of them. */
typedef struct ck_fp8_row {
    uint8_t *code;
    float *scale;
} ck_fp8_row;

/* A row of inputs, rounded; output `row` of a weight in panels, or of a member of a stack. */
ck_fp8_row ck_fp8_input(ml_arena *a, const float *x, int64_t k);
ck_fp8_row ck_fp8_weight(ml_arena *a, const ml_tensor *w, int64_t member, int64_t row);
/* Their product over k inputs, as Hopper's tensor cores compute it. */
float ck_wgmma_dot(const ck_fp8_row *x, const ck_fp8_row *w, int64_t k);

/* ---- running cases (run.c) ---- */

#define CK_ALL (-1)

typedef struct ck_mode {
    int backend; /* index into env->backend */
    bool backward;
    bool add;     /* gradients are added to the case's din and dw */
    bool end;     /* tensors end at an unreadable page instead of between canaries */
    bool special; /* NaN is a valid result */
    int in_place; /* out[0] aliases this input; CK_ALL: none */
    int only;     /* the only gradient computed: input, or ML_OP_IN + weight; or CK_ALL */
} ck_mode;

typedef struct ck_result {
    ml_tensor out[ML_OP_OUT], din[ML_OP_IN], dw[ML_OP_W];
} ck_result;

struct ck_env {
    ml_backend *backend; /* [n_backend] the first is level c with one thread */
    int n_backend;
    uint64_t seed;
    const ck_case *now; /* the current case, for failure messages */
    int now_backend;
    int n_fail; /* failures of the current case */
};

/* Runs forward and, if requested, backward; results are copies in the case's arena. */
void ck_run(ck_env *e, const ck_case *c, ck_mode m, ck_result *r);

/* The same on a device with its own memory (device.c). */
void ck_run_device(ck_env *e, const ck_case *c, ck_mode m, ck_result *r);

/* Whether the device has a kernel for a case; if not, err has the reason. */
bool ck_device_takes(ck_env *e, const ck_case *c, ml_err *err);

/* Prints the failure and the command that reproduces it; the case continues. */
__attribute__((format(printf, 2, 3))) void ck_fail(ck_env *e, const char *fmt, ...);

/* ---- context parallelism (pieces.c) ---- */

/* Bits: the inputs that have a row for each key, the outputs that have one for each token. */
typedef struct ck_pieces_of {
    unsigned key_in, row_out;
} ck_pieces_of;

/* Ranks that have pieces of the sequences: rows have the bits of whole sequences, gradients of keys
 * and weights add up to theirs. */
void ck_check_pieces(ck_env *e, const ck_case *c, ck_pieces_of of);

/* ---- comparing (compare.c) ---- */

/* Equal bits, all NaNs being equal; a failure reports the tensor and the first
 * difference. */
bool ck_same(ck_env *e, const char *what, const ml_tensor *a, const ml_tensor *b);
void ck_same_result(ck_env *e, const char *what, const ck_result *a, const ck_result *b);
/* FNV-1a over all tensors of a result, continued from h. */
uint64_t ck_hash(uint64_t h, const ck_result *r);

/* ---- comparison with the reference (ref.c) ---- */

/* Largest error relative to the largest value of a tensor. */
typedef struct ck_bound {
    double forward, backward;
    const char *why;
} ck_bound;

void ck_check_forward(ck_env *e, const ck_case *c, const ck_result *r,
                      const ck_bound *bound);
void ck_check_backward(ck_env *e, const ck_case *c, const ck_result *r,
                       const ck_bound *bound);
/* Gradients added to the case's din and dw must equal their contents plus the gradients
 * alone. */
void ck_check_add(ck_env *e, const ck_case *c, const ck_result *alone, const ck_result *sum,
                  const ck_bound *bound);

/* ---- the committed hashes (hash.c) ---- */

typedef struct ck_hashes ck_hashes;

/* The lines of the file; none if the file does not exist. */
ck_hashes *ck_hashes_read(ml_arena *a, const char *path);
void ck_hashes_check(ck_env *e, const ck_hashes *h, const char *name, uint64_t hash);
void ck_hashes_set(ck_hashes *h, const char *name, uint64_t hash);
/* Keeps the line of a case that was not run. */
void ck_hashes_keep(ck_hashes *h, const ck_hashes *from, const char *name);
bool ck_hashes_write(const ck_hashes *h, const char *path);

#endif
