"""Turns a model folder into one with eight-bit weights, and into what these weights stand for.

And models of a shape whose weights are multiplied in eight bits.
"""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import safetensors.torch
import torch

from tests.narrow_models import NUM_EXPERTS
from tests.tiny_models import FAMILIES, edit_config

LARGEST = 448.0
"""Of float8_e4m3fn."""
WHOLE_BLOCKS: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "head_dim": 64,
    "initializer_range": 0.06,  # as trained ones: larger weights multiply rounding
}


def whole_blocks(family: str) -> dict[str, Any]:
    """Return changes that make a family's matrices ones of whole blocks, and its experts all used.

    Rounding may choose another one of two experts, and then nothing bounds what comes of it.
    """
    changes = {**WHOLE_BLOCKS, "num_attention_heads": 4, "num_key_value_heads": 2}
    if FAMILIES[family].get("moe_intermediate_size"):
        changes |= {"moe_intermediate_size": 128, "num_experts_per_tok": NUM_EXPERTS}
    if family.startswith("Deepseek"):
        del changes["head_dim"], changes["num_key_value_heads"]
        changes |= {"topk_group": 4, "kv_lora_rank": 128, "v_head_dim": 64, "n_shared_experts": 1}
        if FAMILIES[family]["q_lora_rank"]:
            changes["q_lora_rank"] = 128
    return changes


def quantise(source: pathlib.Path, fp8: pathlib.Path, plain: pathlib.Path, block: int) -> None:
    """Write source with its layers' matrices in eight bits to fp8, and their values to plain."""
    tensors = safetensors.torch.load((source / "model.safetensors").read_bytes())
    stored, values = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if "_proj" in name and tensor.dim() == 2:
            stored[name], stored[f"{name}_scale_inv"], values[name] = _by_block(tensor, block)
    for folder, content in ((fp8, stored), (plain, values)):
        shutil.copytree(source, folder, dirs_exist_ok=True)
        safetensors.torch.save_file(content, folder / "model.safetensors", {"format": "pt"})
    settings = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [block, block]}
    edit_config(fp8, quantization_config=settings)


def _by_block(tensor: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return eight-bit numbers, the scale of each block, and the values they stand for."""
    stored = torch.empty(tensor.shape, dtype=torch.float8_e4m3fn)
    values = torch.empty_like(tensor)
    rows, columns = (range(0, size, block) for size in tensor.shape)
    scales = torch.empty(len(rows), len(columns))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            here = (slice(row, row + block), slice(column, column + block))
            scale = tensor[here].abs().max() / LARGEST
            stored[here] = (tensor[here] / scale).to(torch.float8_e4m3fn)
            values[here] = stored[here].float() * scale
            scales[i, j] = scale
    return stored, scales, values
