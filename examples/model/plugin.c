/* The plug-in's entry function. */
#include "family.h"

static const miles_family *const families[] = { &family_qwen3, &family_qwen3_moe,
                                                &family_qwen3_5, 0 };

miles_model_fn miles_model_entry;
__attribute__((visibility("default"))) const miles_model_plugin *miles_model_entry(void) {
    static const miles_model_plugin plugin = { sizeof plugin, MILES_MODEL_ABI_VERSION,
                                               families };
    return &plugin;
}
