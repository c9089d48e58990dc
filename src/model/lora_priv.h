/* lora_priv.h - declarations shared by the files of an adapter: lora_layout.c decides which
 * parameters it has and what they are called, lora_files.c reads and writes them, lora.c
 * binds them. */
#ifndef ML_MODEL_LORA_PRIV_H
#define ML_MODEL_LORA_PRIV_H

#include "io/safetensors.h"
#include "model/lora.h"

#define ML_LORA_PREFIX "base_model.model."

typedef enum ml_lora_side { ML_LORA_A, ML_LORA_B } ml_lora_side;

/* How files name the matrices of a site. */
typedef enum ml_lora_form {
    ML_LORA_OWN,   /* MODULE.lora_A.weight; of each expert */
    ML_LORA_OUTER, /* EXPERTS.gate_proj.lora_A.weight [1,..], shared by the experts */
    ML_LORA_WHOLE, /* in the matrix of a larger layer of the checkpoint (qkv_proj) */
    ML_LORA_STACK, /* of all experts, as PEFT writes target_parameters */
    ML_LORA_FORMS
} ml_lora_form;

/* The module of a site in a form, as PEFT's configuration names it; NULL: it has no such
 * form. */
const char *ml_lora_module(ml_arena *a, const ml_spec *base, const ml_lora_layer *l,
                           ml_lora_form form);

/* One side of a site as a parameter.  nested: of a STACK, EXPERTS.base_layer.lora_A instead
 * of EXPERTS.lora_A. */
ml_param ml_lora_param(ml_arena *a, const ml_spec *base, const ml_lora_layer *l,
                       ml_lora_form form, ml_lora_side side, int32_t rank, bool nested);

/* The tensor of member e of a parameter in files, written to buf, and its shape. */
const char *ml_lora_tensor_name(const ml_param *p, int32_t e, char *buf, size_t cap);
int32_t ml_lora_tensor_shape(const ml_param *p, int64_t shape[3]);

/* The parameter of the adapter's spec that has the same place in files, or ML_NONE; the same,
 * appended if there is none. */
int32_t ml_lora_find_param(const ml_lora *l, const ml_param *p);
int32_t ml_lora_add_param(ml_lora *l, const ml_param *p);

/* lora_files.c: an adapter without parameters. */
void ml_lora_begin(ml_lora *l, const ml_spec *base, ml_backend *be);

/* lora_head.c: adds the head of a reward model as a parameter, the last one; returns it.
 * Merging copies its values. */
int32_t ml_lora_add_head(ml_lora *l, const ml_spec *base);
void ml_lora_merge_head(const ml_lora *l, ml_weights *w);

/* lora.c: binds weights and gradients, when links and weights are there. */
void ml_lora_bind(ml_lora *l);
/* A parameter of a set as a stack of matrices. */
ml_tensor ml_lora_stack(const ml_weights *w, int32_t param);

/* lora_ranks.c: copies the part that l has from whole matrices. */
void ml_lora_take_part(ml_lora *l, const ml_weights *whole);

#endif
