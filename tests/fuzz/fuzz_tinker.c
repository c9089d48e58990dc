/* Any bytes as a request of a pass of miles tinker: a request or a sentence, never a crash. */
#include <stdint.h>

#include "base/bug.h"
#include "tinker/losses.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ml_str body = { (const char *)data, size }, id;
    ml_pass_request p;
    ml_pass_loss l;
    ml_err err = { 0 };
    int64_t seq;
    ml_status st = ml_pass_address(body, &id, &seq, &err);
    ml_arena a;

    ml_arena_init(&a, "fuzz");
    if (st == ML_OK)
        st = ml_pass_read(&p, &a, body, &err);
    if (st == ML_OK)
        st = ml_pass_check(&p, 1000, 4096, &err);
    if (st == ML_OK)
        st = ml_pass_loss_of(&l, &p, &err);
    for (int32_t i = 0; st == ML_OK && i < p.n_column; i++) {
        float *x = ML_NEW(&a, float, p.column[i].n), *d = ML_NEW(&a, float, p.column[i].n);
        ml_pass_loss_at(&l, &p.column[i], x, d);
    }
    ML_BUG_IF(st != ML_OK && !err.msg[0]);
    ml_arena_release(&a);
    return 0;
}
