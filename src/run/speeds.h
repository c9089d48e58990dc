/* speeds.h - the speeds of one kind of GPU and of the links between them, and from them
 * the time of an op.
 *
 * A file share/speeds/<kind>.json has the numbers; that of each kind is compiled in.  The
 * time of a call is
 *
 *     products + max(FLOPs / rate, bytes / rate) + launch
 *
 * A product [m, n, k] runs at the rate of its op times the shares of useful work: of the
 * k loop beside its start and end (k / (k + k_overhead)), of the last wave of tiles, and,
 * with experts, of their partly filled tiles.  It is never faster than its operands can be
 * read and written.
 *
 * thread: any; no state. */
#ifndef ML_RUN_SPEEDS_H
#define ML_RUN_SPEEDS_H

#include "base/err.h"
#include "model/plan.h"

typedef enum ml_link_kind { ML_LINK_NODE, ML_LINK_NETWORK, ML_LINKS } ml_link_kind;

typedef struct ml_op_speed {
    double flops;      /* per second */
    double bytes;      /* per second */
    double k_overhead; /* of a product: what its start and end cost, in steps of k */
    double row_cost;   /* attention: the same, in keys */
} ml_op_speed;

typedef struct ml_speeds {
    char kind[64];       /* "h200" */
    char name[64];       /* "NVIDIA H200" */
    double memory_bytes; /* that programs can use */
    double base_bytes;   /* of the driver and libraries, before a model is loaded */
    double comm_bytes;   /* of the communication library, per group of ranks */
    double n_sm, tile;   /* streaming multiprocessors, rows and columns of a tile */
    double launch_s;     /* of a kernel */
    double micro_s;      /* of a micro-batch beside its ops: rows in, log-probs out, loss */
    double step_s;       /* of a train step beside its micro-batches */
    double optimizer_bytes;         /* per second */
    ml_op_speed op[ML_OP_COUNT][2]; /* forward, backward */
    struct {
        double bytes; /* per second, of one GPU, in one direction */
        double latency_s;
    } link[ML_LINKS];
    bool overlap; /* collectives of weights run beside compute */
} ml_speeds;

/* kind: a name that is compiled in, or the path of a file (it has a slash or ends in
 * .json).  ML_EUSAGE: there is no such kind; the message lists them. */
ml_status ml_speeds_open(ml_speeds *out, const char *kind, ml_err *err);
/* The same from text. */
ml_status ml_speeds_parse(ml_speeds *out, ml_str text, const char *path, ml_err *err);

/* What a call computes and moves. */
typedef struct ml_op_work {
    struct {
        double m, n, k;
        double groups; /* of rows: experts, each with its own weight; 1: dense */
    } product[3];
    int n_product;
    double flops; /* outside of products */
    double bytes; /* outside of products */
    double keys;  /* of a row, on the average: attention */
} ml_op_work;

/* seq_len: tokens of a sequence, on the average. */
ml_op_work ml_op_work_of(ml_op_id op, ml_plan_pass pass, const ml_op_args *a,
                         double seq_len);
double ml_op_work_flops(const ml_op_work *w); /* products included */
double ml_op_seconds(const ml_speeds *s, ml_op_id op, ml_plan_pass pass,
                     const ml_op_work *w);

/* A collective in which a rank sends and receives `bytes` over a link, in n messages. */
double ml_link_seconds(const ml_speeds *s, ml_link_kind link, double bytes, double n);

#endif
