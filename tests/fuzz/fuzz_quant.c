/* Any bytes as a quantized checkpoint: a config.json up to the first byte 0, then a safetensors
 * file.  A checkpoint that opens has tensors whose elements can all be read. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bug.h"
#include "io/quant.h"
#include "tests/fuzz/memory_dir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct { char dir[64], config[96], model[96]; } at;

static void remove_all(void) {
    unlink(at.config);
    unlink(at.model);
    rmdir(at.dir);
}

static void prepare(void) {
    make_memory_dir(at.dir);
    snprintf(at.config, sizeof at.config, "%s/config.json", at.dir);
    snprintf(at.model, sizeof at.model, "%s/model.safetensors", at.dir);
    atexit(remove_all);
}

static void read_all(const ml_st_tensor *t) {
    float out[64];
    int64_t n = 1;

    for (int32_t i = 0; i < t->n_dim; i++)
        n *= t->shape[i];
    for (int64_t i = 0; i < n && i < 1 << 16; i += 64)
        ml_quant_read(t->quant, i, 1, n - i < 64 ? n - i : 64, out);
    ml_quant_read(t->quant, n - 1, 1, 1, out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    ml_checkpoint *c = NULL;
    ml_err err = { 0 };

    if (!at.dir[0])
        prepare();
    if (!end)
        return 0;
    put_file(at.config, data, (size_t)(end - data));
    put_file(at.model, end + 1, size - (size_t)(end - data) - 1);
    if (ml_checkpoint_open(&c, at.dir, &err) != ML_OK)
        return 0;
    for (int64_t i = 0; i < c->n_tensor; i++)
        if (c->tensor[i].t.quant)
            read_all(&c->tensor[i].t);
    ml_checkpoint_close(c);
    return 0;
}
