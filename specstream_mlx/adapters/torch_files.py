"""Names of the files of a PyTorch-side adapter directory."""

STREAM_CONFIG = "speculative_streaming.json"
STREAM_TENSORS = "speculative_streaming.safetensors"
LORA_CONFIG = "adapter_config.json"
LORA_TENSORS = "adapter_model.safetensors"
