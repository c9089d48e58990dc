/* Any bytes as a file of torch.save, or as a pickle.  What opens can be walked, written as JSON,
 * and every element of its tensors read. */
#include <stdint.h>
#include <stdlib.h>

#include "io/pickle_json.h"
#include "io/torch_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_tensor(const ml_torch_tensor *t) {
    unsigned char out[64 * 8];
    int64_t n = 1;

    for (int32_t i = 0; i < t->n_dim; i++)
        n *= t->shape[i];
    for (int64_t i = 0; i < n && i < 1 << 12; i += 64)
        ml_torch_read(t, i, n - i < 64 ? n - i : 64, out);
    if (n)
        ml_torch_read(t, n - 1, 1, out);
}

static void read_all(const ml_torch_file *f) {
    const ml_pickle *d = ml_pickle_items(f->root);
    ml_torch_tensor t;

    for (int32_t i = 0; d && i < d->n; i++)
        if (ml_torch_is_tensor(d->item[i]) &&
            ml_torch_tensor_of(&t, f, d->item[i], NULL) == ML_OK)
            read_tensor(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ml_str bytes = { (const char *)data, size };
    ml_torch_file *f = NULL;
    ml_pickle_doc doc;
    ml_text json = { 0 };
    ml_arena a;

    if (ml_torch_open_image(&f, bytes, "fuzz", NULL) == ML_OK)
        read_all(f);
    ml_torch_close(f);
    ml_arena_init(&a, "fuzz");
    if (ml_pickle_parse(&doc, &a, bytes, 0, "fuzz", NULL) == ML_OK && doc.root->depth < 8)
        (void)ml_pickle_json(&json, doc.root, "fuzz", NULL);
    ml_text_release(&json);
    ml_arena_release(&a);
    return 0;
}
