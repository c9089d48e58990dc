/* routing_replay.h - routing replay: routing records of samples as rows of a micro-batch.
 *
 * Samples carry the selection (experts, or keys of the indexer) that their rollout or an
 * earlier pass recorded; a forward uses it instead of selecting.  Everything computed
 * from the selection, expert weights and gradients included, uses the current model.
 *
 * thread: the trainer's. */
#ifndef ML_TRAIN_ROUTING_REPLAY_H
#define ML_TRAIN_ROUTING_REPLAY_H

#include "model/plan.h"
#include "train/packing.h"

/* Routing of a sample.  A token's row contains the selection of all layers. */
typedef struct ml_token_routing {
    const int32_t *given; /* [n_given][layers][top_k] of its first tokens, to be
                             replayed; a row that begins with -1, and further tokens,
                             select for themselves */
    int32_t n_given;
    int32_t *record; /* [n_token][layers][top_k] where scoring records the selection;
                        NULL: not recorded */
} ml_token_routing;

struct ml_train_sample;
struct ml_micro;

typedef struct ml_routing_replay {
    struct {
        int32_t n_layer, top_k;  /* zeros: nothing is replayed or recorded */
        int32_t *given, *chosen; /* as in ml_run */
    } of[ML_N_ROUTING];
} ml_routing_replay;

/* For micro-batches of n_token rows; routes [ML_N_ROUTING] are the kinds that samples may
 * carry. */
void ml_routing_replay_init(ml_routing_replay *c, ml_arena *a, const ml_spec *s,
                            const bool *routes, int32_t n_token);
size_t ml_routing_replay_bytes(const ml_spec *s, const bool *routes, int64_t n_token);

/* Copies the routing records of the rows of a micro-batch of these samples. */
void ml_routing_replay_load(struct ml_micro *m, ml_run *run,
                            const struct ml_train_sample *s, const ml_bin *bin);
/* Records the selection for samples that request it: call before and after the forward.
 * Rows of other ranks (context parallel) are recorded as 0.  add: to the layers that an
 * earlier forward of the samples has recorded. */
void ml_routing_replay_bind(ml_routing_replay *c, ml_run *run,
                            const struct ml_train_sample *s, const ml_bin *bin);
void ml_routing_replay_record(const struct ml_micro *m, const ml_run *run,
                              const struct ml_train_sample *s, const ml_bin *bin, bool add);

/* Validates rows of `width` numbers from outside: each must be a selection this model can
 * make. */
ml_status ml_routing_replay_check(const ml_spec *s, ml_routing_kind route,
                                  const int32_t *row, int32_t n, int64_t width,
                                  ml_err *err);

#endif
