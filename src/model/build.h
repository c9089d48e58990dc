/* build.h - how a family emits the rows of its spec.
 *
 * Each function appends one op (and the parameters it names), checks widths and
 * returns the new value.  Names are given as printf formats relative to the current
 * scope: inside a layer "self_attn.q_proj.weight" becomes
 * "model.layers.3.self_attn.q_proj.weight".
 *
 * thread: one; used only while a spec is being opened. */
#ifndef ML_MODEL_BUILD_H
#define ML_MODEL_BUILD_H

#include "io/hf_config.h"
#include "model/spec.h"

typedef struct ml_builder {
    ml_spec *spec;
    ml_hf_config *config;
    int32_t layer; /* ML_NONE outside layers */
    int32_t cap_param, cap_value, cap_node;
    int32_t rope_table[4]; /* values of the tables made so far */
    const ml_rope *rope_of[4];
    int32_t n_rope;
} ml_builder;

/* A family: one file in specs/, one row in specs.c. */
typedef struct ml_family {
    const char *model_type;   /* config.json's model_type */
    const char *architecture; /* config.json's architectures[0] */
    void (*build)(ml_builder *b);
    const char *const *ignored; /* its keys that change nothing here, NULL at the end */
} ml_family;

extern const ml_family *const ml_families[]; /* NULL at the end */

void ml_build_begin_layer(ml_builder *b, int32_t layer);
void ml_build_end_layer(ml_builder *b);

/* Shapes of linear weights are [n_out, width of x]. */
typedef struct ml_linear_opts {
    const char *name; /* without ".weight" */
    int64_t n_out;
    bool bias;
    ml_shard shard;
} ml_linear_opts;

int32_t ml_build_embed(ml_builder *b, const char *name, float scale);
int32_t ml_build_linear(ml_builder *b, int32_t x, ml_linear_opts o);
int32_t ml_build_norm(ml_builder *b, int32_t x, const char *name, float eps, int32_t width,
                      bool plus_one);
int32_t ml_build_rope(ml_builder *b, int32_t x, const ml_rope *rope, int32_t head_dim,
                      bool interleaved);
int32_t ml_build_attn(ml_builder *b, int32_t q, int32_t k, int32_t v, int32_t head_dim,
                      int32_t window, float scale, float softcap);
int32_t ml_build_add(ml_builder *b, int32_t x, int32_t y);
/* up ML_NONE: gate holds both halves. */
int32_t ml_build_glu(ml_builder *b, int32_t gate, int32_t up, ml_act act);

/* A softmax top-k mixture of gated experts, stacked per projection. */
typedef struct ml_moe_opts {
    const char *router, *experts; /* "mlp.gate", "mlp.experts" */
    int32_t n_expert, top_k;
    int64_t n_inner;
    bool renorm;
    ml_act act;
} ml_moe_opts;
int32_t ml_build_moe(ml_builder *b, int32_t x, ml_moe_opts o);

/* Ends the model: final head over x.  Tied: the embedding is the head and `name` is unused. */
void ml_build_head(ml_builder *b, int32_t x, const char *name, bool tied, float softcap);

int64_t ml_build_width(const ml_builder *b, int32_t value);

#endif
