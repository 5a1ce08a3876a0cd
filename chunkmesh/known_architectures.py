"""Model classes that stage workers serve, for programs that must not import a stage worker.

A test holds these names equal to stage_worker.architectures. Pure.
"""

from __future__ import annotations

ARCHITECTURE_NAMES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
)
"""As architectures in config.json has them."""
