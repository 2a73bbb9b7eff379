"""Rows that are not rebuilt, each with the reason."""

from __future__ import annotations

COMPILED = "torch.compile fuses what it measures; buffers that inductor chooses are not predicted"
EMBEDDING = "about 12 GiB of the figure are the same for every vocabulary and belong to no tensor of the module or its step"
LITGPT = "the model's code of that commit (lit_gpt, LoRA and adapter layers of its own) is not a package"
NF4 = "bitsandbytes' nf4 kernels are opaque without a GPU"
DATA = "the longest batch of a real data set decides, and is not published"
RECIPE = "settings by card are not published"

REASONS = {
    **dict.fromkeys(("P044", "P058", "P060", "P064", "P066", "P068"), COMPILED),
    **dict.fromkeys(("P304", "P305", "P306", "P307", "P308", "P310", "P311", "P312", "P313", "P314", "P316"), EMBEDDING),
    **dict.fromkeys(("P210", "P211", "P212", "P213", "P217", "P226"), LITGPT),
    **dict.fromkeys(("P219", "P220", "P221", "P222", "P225"), NF4),
    **dict.fromkeys(("P230", "P232", "P254", "P256", "P393", "P394", "P397"), DATA),
    "P234": "torchtune's own model code; the figure is that of building the model, not of a step",
    **dict.fromkeys(("P236", "P237", "P238"), f"{COMPILED}; {RECIPE}"),
    **dict.fromkeys(("P242", "P265"), "bitsandbytes' 8-bit optimizer is opaque without a GPU"),
    "P244": f"torchao's fp8 optimizer runs compiled: {COMPILED}",
    **dict.fromkeys(("P250", "P252"), "torchao's optimizer on the host copies on streams of its own, which are not traced"),
    **dict.fromkeys(("P389", "P390"), f"{COMPILED}; one of eight cards under DDP"),
    "X095": "one unpadded line of random length a batch",
    "X097": "one unpadded line of random length a batch",
}
