"""LoRA of Miles: functions of user code see a run without it."""

LORA_ADAPTER_NAME = "miles_lora"


def is_lora_enabled(args):
    return bool(getattr(args, "lora_rank", 0) or getattr(args, "lora_adapter_path", None))


def lora_rollout_enabled(args):
    return False
