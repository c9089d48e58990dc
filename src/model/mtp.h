/* mtp.h - the multi-token prediction (MTP) module of a model, as a spec of its own.
 *
 * At position p it reads the trunk's hidden state h of p (after the final norm) and token
 * p + 1, and predicts token p + 2.  Embedding and LM head are the trunk's: the module's set
 * of weights refers to the tensors of the trunk's set, which must outlive it, and has no
 * gradients of them.  Node 0 of the spec stands for the trunk: plans have the nodes from
 * ML_MTP_FIRST on, and their only input port is h.  EAGLE-3 heads (eagle3.h) are modules, too:
 * their h is that of three layers, and for rows that they draft plans begin at a later node.
 *
 * thread: any; no state. */
#ifndef ML_MODEL_MTP_H
#define ML_MODEL_MTP_H

#include "model/plan.h"

enum { ML_MTP_FIRST = 1 };

/* The module of the model in dir.  ML_EUNSUP: its family has none. */
ml_status ml_mtp_open(ml_spec *out, const char *dir, ml_err *err);

/* The parts of its parameters that a set has, [n_param] in the arena: all but the trunk's. */
const ml_shard_range *ml_mtp_parts(const ml_spec *m, ml_layout linear, ml_arena *a);

/* Loads the module's own weights, and shares the trunk's. */
ml_status ml_mtp_load(ml_weights *out, const ml_spec *m, const ml_checkpoint *c,
                      ml_weight_dtype dtype, const ml_spec *trunk, const ml_weights *of,
                      ml_backend *be, ml_arena *a, ml_err *err);
/* The trunk's number of parameter i of a module, which is the trunk's. */
int32_t ml_mtp_trunk_param(const ml_spec *m, int32_t i, const ml_spec *trunk);
/* Lets the set refer to these weights of the trunk. */
void ml_mtp_share(ml_weights *w, const ml_spec *m, const ml_spec *trunk,
                  const ml_weights *of);

/* Lets a plan of the trunk keep what the module reads. */
void ml_mtp_keep(ml_plan_opts *o, const ml_spec *m, const ml_spec *trunk);

/* The latest forward of a trunk. */
typedef struct ml_trunk_rows {
    const ml_spec *spec;
    const ml_plan *plan;
    const ml_rows *rows;
} ml_trunk_rows;

/* Copies what the module reads of n rows of the trunk, from row `from` on, to the input port
 * of a module's plan, from row `to` on. */
void ml_mtp_take_trunk(const ml_plan *module, const ml_spec *m, const ml_rows *rows,
                       int32_t to, ml_trunk_rows of, int32_t from, int32_t n,
                       ml_backend *be);

/* Copies n rows of a trunk's hidden states, from row `from` on, to the input port of a
 * module's plan, from row `to` on. */
void ml_mtp_take(const ml_plan *module, const ml_rows *rows, int32_t to,
                 const ml_tensor *hidden, int32_t from, int32_t n, ml_backend *be);

#endif
