/* Any bytes as a GGUF file.  What opens has elements that can all be read and, if they can be
 * made, files of a Hugging Face checkpoint that parse. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/bug.h"
#include "base/gguf_files.h"
#include "base/json.h"
#include "io/gguf_weights.h"
#include "io/quant.h"
#include "tests/fuzz/memory_dir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct { char dir[64], model[96]; } at;

static void remove_all(void) {
    unlink(at.model);
    rmdir(at.dir);
}

static void prepare(void) {
    make_memory_dir(at.dir);
    snprintf(at.model, sizeof at.model, "%s/model.gguf", at.dir);
    atexit(remove_all);
}

static void read_some(const ml_st_tensor *t) {
    float out[64];
    int64_t n = 1;

    for (int32_t i = 0; i < t->n_dim; i++)
        n *= t->shape[i];
    for (int64_t i = 0; i < n && i < 1 << 12; i += 64)
        ml_quant_read(t->quant, i, 1, n - i < 64 ? n - i : 64, out);
    ml_quant_read(t->quant, n - 1, 1, 1, out);
}

static void make_files(const char *data, size_t size) {
    ml_gguf *g = NULL;

    if (ml_gguf_parse(&g, (ml_str){ data, size }, "fuzz", NULL) != ML_OK)
        return;
    for (const char *const *f = ml_gguf_file_names; *f; f++) {
        ml_text text = { 0 };
        ml_arena a;
        const ml_json *root;
        ml_arena_init(&a, "fuzz");
        if (ml_gguf_file(&text, g, *f, NULL) == ML_OK)
            (void)ml_json_parse(&root, &a, (ml_str){ text.ptr, text.len }, *f, NULL);
        ml_arena_release(&a);
        ml_text_release(&text);
    }
    ml_gguf_free(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ml_st_file *f = NULL;

    if (!at.dir[0])
        prepare();
    put_file(at.model, data, size);
    if (ml_gguf_weights_open(&f, at.model, 0, NULL) == ML_OK)
        for (int32_t i = 0; i < f->n; i++)
            if (f->tensor[i].quant)
                read_some(&f->tensor[i]);
    ml_st_close(f);
    make_files((const char *)data, size);
    return 0;
}
