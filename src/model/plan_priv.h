/* plan_priv.h - declarations shared by the files of a plan: plan_memory.c lays out the
 * memory and decides what is recomputed, plan.c runs the plan. */
#ifndef ML_MODEL_PLAN_PRIV_H
#define ML_MODEL_PLAN_PRIV_H

#include "model/expert_rounds.h"
#include "model/plan_dump.h"
#include "model/stage.h"

/* A value has a copy that forward writes and, if backward recomputes it, a second one. */
enum { ML_FIRST_COPY, ML_SECOND_COPY, ML_COPIES };

typedef struct ml_plan_store {
    size_t bytes, offset;
    int32_t first, last; /* lifetime, as indices of calls */
    bool shared;         /* by the sets: it is not needed between two runs */
} ml_plan_store;

typedef struct ml_plan_call {
    int32_t unit;       /* recompute unit: nodes recomputed together; ascending */
    bool again;         /* marked for recomputation before its unit's backward */
    bool rerun;         /* and a later call needs it */
    bool backward_runs; /* a gradient reaches this node */
    bool din_add[ML_OP_IN];
    bool has_din[ML_OP_IN];
    int32_t experts; /* the layer of experts it is a part of, or ML_NONE */
    bool redo;       /* backward computes it again if there are several rounds */
} ml_plan_call;

/* Experts of a layer on several ranks: the nodes send (SEND_ROWS) to back (RETURN_ROWS),
 * which run in rounds. */
typedef struct ml_plan_experts {
    int32_t home; /* the rows to send are made by nodes home .. send - 1 */
    int32_t send, back;
    int32_t group, n_expert; /* of the rows at home */
    int32_t *row;            /* of ml_expert_rows, for each set: backward needs forward's */
    int32_t *n_round;        /* [n_set] */
    uint64_t *slot_key; /* [n_set][slots] dropout keys of the rows at home; NULL: none */
} ml_plan_experts;

/* The nodes of a recompute unit, and the time at which its first node would be
 * recomputed. */
typedef struct ml_plan_unit {
    int32_t first, end, time;
} ml_plan_unit;

/* A CUDA graph of a forward, and its key: everything its work depends on other than the
 * contents of memory. */
typedef struct ml_plan_recording {
    int32_t n_token, n_seq, n_loss;
    float temperature;
    const void *weights, *head, *lora, *kv; /* their addresses */
    uint64_t lora_version;
    bool adapters; /* rows have their own */
    bool separate; /* as in ml_rows */
    void *work;    /* NULL: seen once, not captured yet */
} ml_plan_recording;

enum { ML_PLAN_RECORDINGS = 64 };

typedef struct ml_plan_params ml_plan_params; /* plan_params.c */

struct ml_plan {
    const ml_spec *whole;
    const ml_spec *spec;  /* its nodes are those of the plan; node numbers refer to it */
    ml_model_stage range; /* without ports if the plan has all nodes */
    ml_backend *be;
    ml_plan_opts opts;
    int32_t set; /* of the current run */
    ml_plan_store *store;
    int32_t n_store;
    int32_t *value_store[ML_COPIES]; /* [n_value] index into store, or ML_NONE */
    int32_t *grad_store;             /* [n_value] */
    int32_t *producer;               /* [n_value] the (first) node that computes it */
    int32_t *last_read;              /* [n_value] the last call that reads forward's copy */
    int32_t dentropy_store;
    ml_plan_call *call; /* [n_node] */
    ml_op_call *bound;  /* [n_node] bound calls of a forward; NULL: bound one by one */
    ml_plan_unit *unit;
    int32_t n_unit;
    int32_t head;  /* the last node: LMHEAD or, on several ranks, the merge of its logits;
                      ML_NONE: another stage has it */
    ml_err failed; /* of the communicator */
    struct {
        int32_t n_rank, rank;  /* of the expert group; one rank: its experts are not sent */
        const int32_t *number; /* of each node before the spec was rewritten */
        ml_plan_experts *layer;
        int32_t n;          /* layers */
        int32_t room;       /* rows of a round, at most */
        int32_t now, round; /* what is running */
        int32_t n_row;      /* rows of the round; while planning: room */
        bool redo;          /* backward is computing rounds again */
        int32_t *store;     /* [n_value] of values that only such rounds need, or ML_NONE */
        int32_t *start;     /* host copy of the start of each expert's rows */
        int64_t *count;     /* [3][ranks] */
        int32_t *table;     /* host copy of tables; NULL: the device is the host */
        uint64_t *key;      /* [room] dropout keys of a round's rows; NULL: none */
    } experts;
    ml_context_rows context; /* at capacity, for sizing */
    int64_t *block_size;     /* [2*n_context] of a SWAP_ROWS */
    ml_plan_stats stats;
    ml_plan_dump *dump; /* NULL: no dump */
    struct {
        ml_timeline *to; /* NULL: no timing */
        ml_track track;
        ml_time_span *span; /* [n] since the last wait */
        double *at_s;       /* [n+1] */
        int32_t n;
    } spans;
    ml_plan_params *params;         /* weights that are gathered; NULL: none */
    size_t set_bytes, shared_bytes; /* of a set of activations; of what sets share */
    size_t scratch_bytes;
    ml_buf act, scratch;
    ml_buf rows;    /* device copy of the batch's arrays, if the device is not the host */
    int32_t *stage; /* host staging buffer of rows */
    ml_plan_recording recording[ML_PLAN_RECORDINGS];
    int32_t n_recording, next_recording;
    ml_arena arena;
};

/* plan_comm.c: runs an op that the ranks do together, and its backward.  After an error
 * they do nothing. */
void ml_plan_comm_run(ml_plan *p, ml_op_id op, const ml_op_args *a);
void ml_plan_comm_back(ml_plan *p, ml_op_id op, const ml_op_args *a);
/* The rows of all DP groups, of which this rank has those of its own; s NULL: host memory. */
void ml_plan_gather_groups(ml_plan *p, ml_stream *s, const ml_tensor *all,
                           const ml_dp_rows *dp);

/* plan_experts.c.  Rewrites the spec for the rank's place in its expert group
 * (spec_experts.h); finds the layers of the result. */
void ml_plan_experts_place(ml_plan *p);
void ml_plan_experts_find(ml_plan *p);
void ml_plan_experts_view(const ml_plan *p, int32_t node, ml_tensor *t);
size_t ml_plan_experts_scratch(const ml_plan *p, int32_t node);
/* All nodes of a layer, in rounds. */
void ml_plan_experts_forward(ml_plan *p, int32_t layer, const ml_run *r);
void ml_plan_experts_backward(ml_plan *p, int32_t layer, const ml_run *r);
/* Recomputes a node: of a single round, its values; of several, what leaves the experts. */
void ml_plan_experts_again(ml_plan *p, int32_t node, const ml_run *r);
/* SEND_ROWS and RETURN_ROWS in the round that is running. */
void ml_plan_experts_run(ml_plan *p, ml_op_id op, const ml_op_args *a);
void ml_plan_experts_back(ml_plan *p, ml_op_id op, const ml_op_args *a);

/* plan.c: computes a node, for the first time or as recomputation; its backward. */
void ml_plan_run_node(ml_plan *p, int32_t node, bool forward, const ml_run *r);
void ml_plan_back_node(ml_plan *p, int32_t node, const ml_run *r, bool dentropy);

/* Grows a buffer of a plan's own, or one that plans have in turns. */
ml_status ml_plan_need(ml_plan *p, ml_buf *b, size_t bytes, ml_mem_kind kind, ml_err *err);
/* The address of a store; NULL before ml_plan_alloc. */
void *ml_plan_at(const ml_plan *p, int32_t store);

/* Where the gradient of weight k of a node is added. */
const ml_tensor *ml_plan_grad(const ml_plan *p, int32_t node, int k, const ml_run *r);
/* Whether it has no values yet (ml_run.unwritten). */
bool ml_plan_grad_unwritten(const ml_plan *p, int32_t node, int k, const ml_run *r);

/* plan_params.c: weights that ranks divide.  Layers are gathered one at a time. */
void ml_plan_params_plan(ml_plan *p);
ml_status ml_plan_params_alloc(ml_plan *p, ml_err *err);
/* Another plan may have grown the memory that they have in turns. */
void ml_plan_params_use(ml_plan *p);
void ml_plan_params_free(ml_plan *p);
/* The next need gathers, whatever was gathered before. */
void ml_plan_params_forget(ml_plan *p);
/* Before a node's op: its weights are gathered.  Nodes up to the result have the same
 * ones. */
int32_t ml_plan_params_need(ml_plan *p, int32_t node, const ml_run *r);
/* Before and after a node's backward, from the last node to the first. */
void ml_plan_params_back(ml_plan *p, int32_t node);
void ml_plan_params_backed(ml_plan *p, int32_t node, const ml_run *r);
/* The whole weight k of a node and its gradient, if it is gathered. */
bool ml_plan_params_weight(const ml_plan *p, int32_t node, int k, ml_tensor *out);
bool ml_plan_params_grad(const ml_plan *p, int32_t node, int k, ml_tensor *out);

/* plan_rows.c: bytes of a batch's arrays in device memory (0 on the host), and the batch
 * as ops read it there. */
size_t ml_plan_rows_bytes(const ml_plan *p);
/* What the rows of a batch point to, in host memory. */
typedef struct ml_sent_rows {
    ml_dp_rows dp;
    ml_context_rows context;
} ml_sent_rows;
ml_rows ml_plan_send_rows(const ml_plan *p, const ml_run *run, ml_sent_rows *sent);

/* The recording of a run of this kind, possibly not captured yet; NULL: the first run of
 * its kind, or of a kind that is not captured. */
ml_plan_recording *ml_plan_recording_of(ml_plan *p, const ml_run *r);
/* The rows a run is padded to, so that few different sizes are captured. */
int32_t ml_plan_rows_of(const ml_plan *p, const ml_run *r);
void ml_plan_forget(ml_plan *p); /* frees all recordings */

/* plan_spans.c: no-ops without a timeline.  A run has a begin and an end, and reports its
 * ops between them. */
void ml_plan_spans_begin(ml_plan *p);
void ml_plan_spans_node(ml_plan *p, int32_t node, ml_plan_pass pass);
void ml_plan_spans_replay(ml_plan *p);
void ml_plan_spans_end(ml_plan *p);

/* A value's shape for a batch, without data. */
ml_tensor ml_plan_value(const ml_plan *p, int32_t value, const ml_rows *r, int32_t n_page);
/* The same of its gradient. */
ml_tensor ml_plan_grad_value(const ml_plan *p, int32_t value, const ml_rows *r);
/* A batch at the plan's capacity, for sizing. */
ml_rows ml_plan_full_rows(const ml_plan *p);

/* The copy of a value that backward (or recomputation) of a node reads. */
int ml_plan_copy(const ml_plan *p, int32_t node, int32_t value);

/* Fills all of the above except buffers: units, lifetimes, offsets. */
void ml_plan_lay_out(ml_plan *p);
/* Gives every store its offset.  Stores that sets of activations need not keep may be
 * shared. */
void ml_plan_place(ml_plan *p);

#endif
