/* Any bytes as a recorded rollout of torch.save: its samples can be checked. */
#include <stdint.h>

#include "rl/sample_torch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ml_torch_file *f = NULL;
    ml_sample *sample;
    int64_t n = 0;
    ml_arena a;

    ml_arena_init(&a, "fuzz");
    if (ml_torch_open_image(&f, (ml_str){ (const char *)data, size }, "fuzz", NULL) ==
            ML_OK &&
        ml_samples_of_torch(&sample, &n, &a, f, "fuzz", NULL) == ML_OK)
        for (int64_t i = 0; i < n; i++)
            (void)ml_sample_check(&sample[i], 1000, "fuzz", NULL);
    ml_torch_close(f);
    ml_arena_release(&a);
    return 0;
}
