/* Any bytes as a torch distributed checkpoint: 4 bytes of length, .metadata, then __0_0.distcp.
 * What opens has elements that can all be read. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/bug.h"
#include "io/dcp.h"
#include "io/quant.h"
#include "tests/fuzz/memory_dir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct { char dir[64], metadata[96], chunks[96]; } at;

static void remove_all(void) {
    unlink(at.metadata);
    unlink(at.chunks);
    rmdir(at.dir);
}

static void prepare(void) {
    make_memory_dir(at.dir);
    snprintf(at.metadata, sizeof at.metadata, "%s/.metadata", at.dir);
    snprintf(at.chunks, sizeof at.chunks, "%s/__0_0.distcp", at.dir);
    atexit(remove_all);
}

static void read_some(const ml_st_tensor *t) {
    float out[64];
    int64_t n = 1;

    for (int32_t i = 0; i < t->n_dim; i++)
        n *= t->shape[i];
    for (int64_t i = 0; i < n && i < 1 << 10; i += 64)
        ml_quant_read(t->quant, i, 1, n - i < 64 ? n - i : 64, out);
    if (n)
        ml_quant_read(t->quant, n - 1, 1, 1, out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ml_st_file *f = NULL;
    size_t n;

    if (!at.dir[0])
        prepare();
    if (size < 4)
        return 0;
    n = data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16;
    n = n < size - 4 ? n : size - 4;
    put_file(at.metadata, data + 4, n);
    put_file(at.chunks, data + 4 + n, size - 4 - n);
    if (ml_dcp_weights_open(&f, at.dir, NULL) == ML_OK)
        for (int32_t i = 0; i < f->n; i++)
            read_some(&f->tensor[i]);
    ml_st_close(f);
    return 0;
}
