/* Any text as adapter_config.json: a configuration or a sentence, never a crash; its patterns
 * are tried on a module. */
#include <stddef.h>
#include <stdint.h>

#include "base/bug.h"
#include "model/peft_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char module[] = "model.layers.1.self_attn.q_proj";
    ml_peft_config c;
    ml_arena a;
    ml_err err = { 0 };
    bool target;
    int32_t rank;
    float scale;

    ml_arena_init(&a, "fuzz");
    if (ml_peft_config_parse(&c, &a, (ml_str){ (const char *)data, size }, "config",
                             &err) == ML_OK) {
        (void)ml_peft_is_target(&c, module, &target, &err);
        if (ml_peft_rank_of(&c, module, &rank, &err) == ML_OK)
            (void)ml_peft_scale_of(&c, module, rank, &scale, &err);
        (void)ml_peft_is_parameter(&c, module);
        ml_peft_config_close(&c);
    } else {
        ML_BUG_IF(err.msg[0] == 0);
    }
    ml_arena_release(&a);
    return 0;
}
