#include "tensor/device.h"

#include "base/bug.h"

static _Thread_local int n_seal;

const char *ml_mem_name(ml_mem_kind kind) {
    static const char *const names[ML_MEM_KINDS] = {
        [ML_MEM_WEIGHT] = "weights",     [ML_MEM_GRAD] = "gradients",
        [ML_MEM_ACT] = "activations",    [ML_MEM_SCRATCH] = "scratch",
        [ML_MEM_KV] = "keys and values", [ML_MEM_OPTIM] = "optimizer state",
    };
    return names[kind];
}

void ml_mem_seal(void) {
    n_seal++;
}

void ml_mem_unseal(void) {
    ML_BUG_IF(n_seal < 1);
    n_seal--;
}

bool ml_mem_sealed(void) {
    return n_seal > 0;
}
