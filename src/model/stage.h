/* stage.h - a range of a spec's nodes, which one rank of a pipeline computes.
 *
 * Values that are live at the beginning of the range are received, those at its end are
 * sent on, also when the range itself does not read them; their gradients go the other way.
 * What a node makes of the batch alone, without inputs and weights (tables of rotary
 * angles), is not sent but made again.
 *
 * thread: any; no state. */
#ifndef ML_MODEL_STAGE_H
#define ML_MODEL_STAGE_H

#include "base/err.h"
#include "model/spec.h"

/* A value that crosses the border of a range. */
typedef struct ml_port {
    int32_t value;
    bool grad; /* a gradient comes back */
} ml_port;

typedef struct ml_model_stage {
    ml_spec spec;      /* the whole one's, with the nodes of the range alone */
    int32_t *number;   /* [spec.n_node] of each node in the whole spec */
    ml_port *in, *out; /* in the order of values; in the last stage there are no `out` */
    int32_t n_in, n_out;
    int32_t first_layer; /* its first decoder layer; ML_NONE: it has none */
    bool last;           /* it ends with the head */
} ml_model_stage;

/* The stage of nodes first .. end-1, in the arena. */
void ml_stage_init(ml_model_stage *out, ml_arena *a, const ml_spec *s, int32_t first,
                   int32_t end);

/* How layers are dealt out to the stages of a pipeline. */
typedef struct ml_stage_opts {
    int32_t n_stage;
    int32_t n_chunk; /* stages of each rank (interleaved schedule); 0: 1.  Stage c of rank r
                        is number c * n_stage + r of the model */
    int32_t n_first, n_last; /* layers of the first and of the last rank; 0: their share */
    bool count_embedding, count_loss; /* the embedding, the head count as a layer */
} ml_stage_opts;

/* layer [n_stage * n_chunk + 1]: stage i has layers layer[i] .. layer[i+1]-1.  Layers that do
 * not divide go to inner stages first, to the last stage last.  ML_EUSAGE: a stage would
 * be without layers. */
ml_status ml_stage_layers(int32_t *layer, int32_t n_layer, const ml_stage_opts *o,
                          ml_err *err);
/* stage [n_node]: the rank of the pipeline that computes each node.  What stands before and
 * after all layers belongs to the first and to the last stage.  ML_EUNSUP: two stages use
 * one parameter, other than a tied table, so that its gradient has no order. */
ml_status ml_stage_of_nodes(int32_t *stage, const ml_spec *s, const ml_stage_opts *o,
                            ml_err *err);

/* The nodes of a rank's chunk: the chunk-th run of nodes with its number.  False: it has no
 * such chunk. */
bool ml_stage_chunk(const int32_t *stage, int32_t n_node, int32_t rank, int32_t chunk,
                    int32_t *first, int32_t *end);

#endif
