/* choices.h - what a model chose for the tokens of samples (experts), as rows of a micro-batch.
 *
 * Samples bring choices that their rollout, or an earlier pass, has made; a forward takes them
 * instead of choosing.  What is computed from them, weights of experts and all gradients, is
 * today's.
 *
 * thread: the trainer's. */
#ifndef ML_TRAIN_ROUTING_REPLAY_H
#define ML_TRAIN_ROUTING_REPLAY_H

#include "model/plan.h"
#include "train/packing.h"

/* Of a sample.  A token's row has all layers' choices. */
typedef struct ml_token_routing {
    const int32_t *given; /* [n_given][layers][top_k] of its first tokens, to be taken; one
                             that begins with -1, and further tokens, choose */
    int32_t n_given;
    int32_t *record; /* [n_token][layers][top_k] where scoring writes them; NULL: nowhere */
} ml_token_routing;

struct ml_train_sample;

typedef struct ml_routing_replay {
    struct {
        int32_t n_layer, top_k;  /* zeros: nothing is given or recorded */
        int32_t *given, *chosen; /* as ml_run has them */
    } of[ML_N_ROUTING];
} ml_routing_replay;

/* For micro-batches of n_token rows; routes [ML_N_ROUTING] are those that samples may bring. */
void ml_routing_replay_init(ml_routing_replay *c, ml_arena *a, const ml_spec *s,
                            const bool *routes, int32_t n_token);
size_t ml_routing_replay_bytes(const ml_spec *s, const bool *routes, int64_t n_token);

/* The choices that samples of a bin bring, which stand in rows one after the other. */
void ml_routing_replay_give(ml_routing_replay *c, ml_run *run,
                            const struct ml_train_sample *s, const ml_bin *bin);
/* Where the samples want theirs recorded: before and after the forward. */
void ml_routing_replay_ask(ml_routing_replay *c, ml_run *run,
                           const struct ml_train_sample *s, const ml_bin *bin);
void ml_routing_replay_record(const ml_routing_replay *c, const ml_run *run,
                              const struct ml_train_sample *s, const ml_bin *bin);

/* Rows of `width` numbers, made by somebody else: is each a choice this model can make? */
ml_status ml_routing_replay_check(const ml_spec *s, ml_routing_kind route,
                                  const int32_t *row, int32_t n, int64_t width,
                                  ml_err *err);

#endif
