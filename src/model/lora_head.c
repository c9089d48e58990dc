/* The head of a reward model is trained whole, with the adapter: PEFT's modules_to_save. */
#include <string.h>

#include "model/lora_priv.h"

int32_t ml_lora_add_head(ml_lora *l, const ml_spec *base) {
    l->head_of = base->node[base->n_node - 1].w[0];
    l->spec.param[l->spec.n_param] = base->param[l->head_of];
    l->spec.param[l->spec.n_param].name = ML_LORA_PREFIX ML_REWARD_HEAD ".weight";
    l->head = l->spec.n_param++;
    return l->head;
}

/* Copies the head from one set to the other. */
static void copy_head(ml_weights *to, int32_t param, const ml_weights *from, int32_t head,
                      const ml_param *p) {
    ml_arena a;
    float *v;

    ml_arena_init(&a, "the head of a reward model");
    v = ML_NEW(&a, float, p->shape[0] * p->shape[1]);
    ml_weights_unpack(from, head, 0, 0, p->shape[0], ML_F32, v);
    ml_weights_pack(to, param, 0, 0, p->shape[0], v);
    ml_arena_release(&a);
}

void ml_lora_take_head(ml_lora *l, ml_weights *w, bool own) {
    if (l->head == ML_NONE)
        return;
    if (!own)
        copy_head(&l->weights, l->head, w, l->head_of, &l->spec.param[l->head]);
    w->t[l->head_of] = l->weights.t[l->head];
}

void ml_lora_merge_head(const ml_lora *l, ml_weights *w) {
    if (l->head != ML_NONE)
        copy_head(w, l->head_of, &l->weights, l->head, &l->spec.param[l->head]);
}
