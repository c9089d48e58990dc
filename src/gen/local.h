/* local.h - an in-process engine as an ml_gen, with a thread of its own.
 *
 * submit checks and copies a request on the caller's thread; the engine's thread moves it
 * into the queue between steps.  The engine's thread also runs all other operations on the
 * engine, between steps, while the caller waits.
 *
 * thread: as in gen.h.  The engine's thread owns the backend from open to close. */
#ifndef ML_GEN_LOCAL_H
#define ML_GEN_LOCAL_H

#include "engine/engine.h"
#include "gen/embedder.h"
#include "model/lora.h"

typedef struct ml_local_opts {
    ml_engine_opts engine;
    const ml_spec *spec;
    ml_backend *be;
    /* The weights: the caller's; if NULL, loaded from the checkpoint in dir; if that is
     * NULL too, random (dummy) weights. */
    const ml_weights *weights;
    const char *dir;
    ml_weight_dtype dtype;
    uint64_t seed, version; /* of dummy weights; of the first loaded or dummy ones */
    /* NULL, or which adapters requests may use: the spec has LORA ops for them, and the
     * weights are loaded or dummy.  Must outlive the generator. */
    const ml_lora_limits *lora;
    int32_t embed_tokens; /* of the longest input of ml_local_embed; 0: there is none */
} ml_local_opts;

/* With engine.comm, all ranks of the group call this.  The generator of the first rank works
 * for all of them (gen/rank_group.h); the engines of the others follow it, and of their
 * generators only close may be called: it returns when the first rank has closed its own.
 * The options are those of the first rank, except for spec, weights and backend.  When a
 * rank is lost, all requests are aborted and new ones are refused. */
ml_status ml_local_open(ml_gen **out, const ml_local_opts *o, ml_err *err);

/* On the other ranks, instead: the engine runs in the caller's thread.  Returns when the
 * first rank closes its generator, or when the ranks can no longer work together. */
ml_status ml_local_follow(const ml_local_opts *o, ml_err *err);

/* Switches to weights in memory, which must stay valid until the next switch; returns when
 * they are in use.  On several ranks each switches to the set that it was opened with: the
 * engine is paused while their owners change values and versions.  ML_EUSAGE: FINISH while
 * paused with requests in flight: a deadlock. */
ml_status ml_local_switch(ml_gen *g, const ml_weights *w, ml_switch how, ml_err *err);

/* Free memory while generation is idle, and allocate it again; requests in flight wait.
 * Loaded and dummy weights are restored from their source; the caller's stay untouched. */
void ml_local_release(ml_gen *g, bool kv, bool weights);
ml_status ml_local_take(ml_gen *g, bool kv, bool weights, ml_err *err);

/* Where an adapter comes from: a directory, or tensors over TCP (json: SGLang's request to
 * load an adapter from a group); NULL both: there is none. */
typedef struct ml_adapter_source {
    const char *dir, *json;
    /* A new version of an adapter in use: generation has this version from then on, and
     * requests in flight are treated so.  0: a new adapter. */
    uint64_t version;
    ml_switch how;     /* RECOMPUTE or INEXACT_KV */
    const char *crc64; /* the checksum that the base weights must have, or NULL */
} ml_adapter_source;

/* Puts an adapter into a slot, which requests name as 1 + slot (ml_gen_request.adapter), or
 * empties the slot.  Without a version no request may use the slot.  An error leaves the slot
 * as it was. */
ml_status ml_local_set_adapter(ml_gen *g, int32_t slot, const ml_adapter_source *from,
                               ml_err *err);

/* Embeddings (gen/embedder.h), computed between steps. */
typedef struct ml_embed_request {
    const ml_embed_input *in; /* [n] */
    int32_t n;
    ml_pooling pooling;
    int32_t width;
    float *out; /* [n][width] */
} ml_embed_request;

ml_status ml_local_embed(ml_gen *g, const ml_embed_request *q, ml_err *err);

/* SGLang's requests for weights over the network (gen/weight_link.h). */
typedef enum ml_group_op {
    ML_GROUP_INIT,    /* /init_weights_update_group */
    ML_GROUP_DESTROY, /* /destroy_weights_update_group */
    ML_GROUP_BEGIN, /* /begin_weight_update: the next updates are used together, at the end */
    ML_GROUP_UPDATE, /* /update_weights_from_distributed */
    ML_GROUP_END,    /* /end_weight_update */
} ml_group_op;

/* json: the body of the request.  version 0: the current version + 1.  Returns when it is
 * done, and the weights are in use after UPDATE (outside BEGIN and END) and END.  An error
 * leaves the weights as they were.  On several ranks each gets its own part. */
ml_status ml_local_group_do(ml_gen *g, ml_group_op op, const char *json, uint64_t version,
                            ml_switch how, ml_err *err);

#endif
