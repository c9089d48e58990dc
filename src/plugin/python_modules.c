/* share/python at build time. */
#include "plugin/python_modules.h"

#define MODULE(symbol, file)                                                               \
    __asm__(".pushsection .rodata\n"                                                       \
            ".global ml_python_" #symbol "\n"                                              \
            ".hidden ml_python_" #symbol "\n"                                              \
            "ml_python_" #symbol ":\n"                                                     \
            ".incbin \"share/python/" file "\"\n"                                          \
            ".byte 0\n"                                                                    \
            ".popsection\n");                                                              \
    extern const char ml_python_##symbol[]

MODULE(miles, "miles/__init__.py");
MODULE(miles_adapters, "miles/adapters/__init__.py");
MODULE(miles_adapters_episode, "miles/adapters/episode.py");
MODULE(miles_adapters_openenv, "miles/adapters/openenv.py");
MODULE(miles_adapters_verifiers, "miles/adapters/verifiers.py");
MODULE(miles_adapters_verifiers_v0, "miles/adapters/verifiers_v0.py");
MODULE(miles_adapters_verifiers_v1, "miles/adapters/verifiers_v1.py");
MODULE(miles_backends, "miles/backends/__init__.py");
MODULE(miles_backends_training_utils, "miles/backends/training_utils/__init__.py");
MODULE(miles_backends_training_utils_cp_utils, "miles/backends/training_utils/cp_utils.py");
MODULE(miles_backends_training_utils_loss_hub,
       "miles/backends/training_utils/loss_hub/__init__.py");
MODULE(miles_backends_training_utils_loss_hub_logit_processors,
       "miles/backends/training_utils/loss_hub/logit_processors.py");
MODULE(miles_backends_training_utils_loss_hub_math_utils,
       "miles/backends/training_utils/loss_hub/math_utils.py");
MODULE(miles_backends_training_utils_parallel, "miles/backends/training_utils/parallel.py");
MODULE(miles_host, "miles/host.py");
MODULE(miles_rollout, "miles/rollout/__init__.py");
MODULE(miles_rollout_base_types, "miles/rollout/base_types.py");
MODULE(miles_rollout_data_source, "miles/rollout/data_source.py");
MODULE(miles_rollout_filter_hub, "miles/rollout/filter_hub/__init__.py");
MODULE(miles_rollout_filter_hub_base_types, "miles/rollout/filter_hub/base_types.py");
MODULE(miles_rollout_filter_hub_dynamic_sampling_filters,
       "miles/rollout/filter_hub/dynamic_sampling_filters.py");
MODULE(miles_rollout_fully_async_data_buffer, "miles/rollout/fully_async_data_buffer.py");
MODULE(miles_rollout_generate_hub, "miles/rollout/generate_hub/__init__.py");
MODULE(miles_rollout_generate_hub_agentic_tool_call,
       "miles/rollout/generate_hub/agentic_tool_call.py");
MODULE(miles_rollout_generate_hub_single_turn, "miles/rollout/generate_hub/single_turn.py");
MODULE(miles_rollout_generate_utils, "miles/rollout/generate_utils/__init__.py");
MODULE(miles_rollout_generate_utils_generate_endpoint_utils,
       "miles/rollout/generate_utils/generate_endpoint_utils.py");
MODULE(miles_rollout_generate_utils_openai_endpoint_utils,
       "miles/rollout/generate_utils/openai_endpoint_utils.py");
MODULE(miles_rollout_inference_rollout, "miles/rollout/inference_rollout/__init__.py");
MODULE(miles_rollout_inference_rollout_compatibility,
       "miles/rollout/inference_rollout/compatibility.py");
MODULE(miles_rollout_inference_rollout_inference_rollout_common,
       "miles/rollout/inference_rollout/inference_rollout_common.py");
MODULE(miles_rollout_inference_rollout_inference_rollout_eval,
       "miles/rollout/inference_rollout/inference_rollout_eval.py");
MODULE(miles_rollout_rm_hub, "miles/rollout/rm_hub/__init__.py");
MODULE(miles_rollout_rm_hub_deepscaler, "miles/rollout/rm_hub/deepscaler.py");
MODULE(miles_rollout_rm_hub_f1, "miles/rollout/rm_hub/f1.py");
MODULE(miles_rollout_rm_hub_gpqa, "miles/rollout/rm_hub/gpqa.py");
MODULE(miles_rollout_rm_hub_math_dapo_utils, "miles/rollout/rm_hub/math_dapo_utils.py");
MODULE(miles_rollout_rm_hub_math_utils, "miles/rollout/rm_hub/math_utils.py");
MODULE(miles_rollout_session, "miles/rollout/session/__init__.py");
MODULE(miles_rollout_session_v2, "miles/rollout/session/v2/__init__.py");
MODULE(miles_rollout_session_v2_picker_hub,
       "miles/rollout/session/v2/picker_hub/__init__.py");
MODULE(miles_rollout_session_v2_postprocessor_hub,
       "miles/rollout/session/v2/postprocessor_hub/__init__.py");
MODULE(miles_rollout_sglang_rollout, "miles/rollout/sglang_rollout.py");
MODULE(miles_training, "miles/training.py");
MODULE(miles_utils, "miles/utils/__init__.py");
MODULE(miles_utils_async_utils, "miles/utils/async_utils.py");
MODULE(miles_utils_http_utils, "miles/utils/http_utils.py");
MODULE(miles_utils_lora, "miles/utils/lora.py");
MODULE(miles_utils_misc, "miles/utils/misc.py");
MODULE(miles_utils_processing_utils, "miles/utils/processing_utils.py");
MODULE(miles_utils_tracking_utils, "miles/utils/tracking_utils.py");
MODULE(miles_utils_types, "miles/utils/types.py");
MODULE(miles_worker, "miles_worker.py");

const ml_python_module ml_python_modules[] = {
    { "miles", ml_python_miles },
    { "miles.adapters", ml_python_miles_adapters },
    { "miles.adapters.episode", ml_python_miles_adapters_episode },
    { "miles.adapters.openenv", ml_python_miles_adapters_openenv },
    { "miles.adapters.verifiers", ml_python_miles_adapters_verifiers },
    { "miles.adapters.verifiers_v0", ml_python_miles_adapters_verifiers_v0 },
    { "miles.adapters.verifiers_v1", ml_python_miles_adapters_verifiers_v1 },
    { "miles.backends", ml_python_miles_backends },
    { "miles.backends.training_utils", ml_python_miles_backends_training_utils },
    { "miles.backends.training_utils.cp_utils",
      ml_python_miles_backends_training_utils_cp_utils },
    { "miles.backends.training_utils.loss_hub",
      ml_python_miles_backends_training_utils_loss_hub },
    { "miles.backends.training_utils.loss_hub.logit_processors",
      ml_python_miles_backends_training_utils_loss_hub_logit_processors },
    { "miles.backends.training_utils.loss_hub.math_utils",
      ml_python_miles_backends_training_utils_loss_hub_math_utils },
    { "miles.backends.training_utils.parallel",
      ml_python_miles_backends_training_utils_parallel },
    { "miles.host", ml_python_miles_host },
    { "miles.rollout", ml_python_miles_rollout },
    { "miles.rollout.base_types", ml_python_miles_rollout_base_types },
    { "miles.rollout.data_source", ml_python_miles_rollout_data_source },
    { "miles.rollout.filter_hub", ml_python_miles_rollout_filter_hub },
    { "miles.rollout.filter_hub.base_types",
      ml_python_miles_rollout_filter_hub_base_types },
    { "miles.rollout.filter_hub.dynamic_sampling_filters",
      ml_python_miles_rollout_filter_hub_dynamic_sampling_filters },
    { "miles.rollout.fully_async_data_buffer",
      ml_python_miles_rollout_fully_async_data_buffer },
    { "miles.rollout.generate_hub", ml_python_miles_rollout_generate_hub },
    { "miles.rollout.generate_hub.agentic_tool_call",
      ml_python_miles_rollout_generate_hub_agentic_tool_call },
    { "miles.rollout.generate_hub.single_turn",
      ml_python_miles_rollout_generate_hub_single_turn },
    { "miles.rollout.generate_utils", ml_python_miles_rollout_generate_utils },
    { "miles.rollout.generate_utils.generate_endpoint_utils",
      ml_python_miles_rollout_generate_utils_generate_endpoint_utils },
    { "miles.rollout.generate_utils.openai_endpoint_utils",
      ml_python_miles_rollout_generate_utils_openai_endpoint_utils },
    { "miles.rollout.inference_rollout", ml_python_miles_rollout_inference_rollout },
    { "miles.rollout.inference_rollout.compatibility",
      ml_python_miles_rollout_inference_rollout_compatibility },
    { "miles.rollout.inference_rollout.inference_rollout_common",
      ml_python_miles_rollout_inference_rollout_inference_rollout_common },
    { "miles.rollout.inference_rollout.inference_rollout_eval",
      ml_python_miles_rollout_inference_rollout_inference_rollout_eval },
    { "miles.rollout.rm_hub", ml_python_miles_rollout_rm_hub },
    { "miles.rollout.rm_hub.deepscaler", ml_python_miles_rollout_rm_hub_deepscaler },
    { "miles.rollout.rm_hub.f1", ml_python_miles_rollout_rm_hub_f1 },
    { "miles.rollout.rm_hub.gpqa", ml_python_miles_rollout_rm_hub_gpqa },
    { "miles.rollout.rm_hub.math_dapo_utils",
      ml_python_miles_rollout_rm_hub_math_dapo_utils },
    { "miles.rollout.rm_hub.math_utils", ml_python_miles_rollout_rm_hub_math_utils },
    { "miles.rollout.session", ml_python_miles_rollout_session },
    { "miles.rollout.session.v2", ml_python_miles_rollout_session_v2 },
    { "miles.rollout.session.v2.picker_hub",
      ml_python_miles_rollout_session_v2_picker_hub },
    { "miles.rollout.session.v2.postprocessor_hub",
      ml_python_miles_rollout_session_v2_postprocessor_hub },
    { "miles.rollout.sglang_rollout", ml_python_miles_rollout_sglang_rollout },
    { "miles.training", ml_python_miles_training },
    { "miles.utils", ml_python_miles_utils },
    { "miles.utils.async_utils", ml_python_miles_utils_async_utils },
    { "miles.utils.http_utils", ml_python_miles_utils_http_utils },
    { "miles.utils.lora", ml_python_miles_utils_lora },
    { "miles.utils.misc", ml_python_miles_utils_misc },
    { "miles.utils.processing_utils", ml_python_miles_utils_processing_utils },
    { "miles.utils.tracking_utils", ml_python_miles_utils_tracking_utils },
    { "miles.utils.types", ml_python_miles_utils_types },
    { "miles_worker", ml_python_miles_worker },
    { 0 },
};
