"""Jobs of sizes that fit no card here, for what is timed without memory."""

from __future__ import annotations

import torch

from memfit.jobs import Job


def llama_7b() -> Job:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
                         num_attention_heads=32, use_cache=False)
    ids = torch.zeros(1, 2048, dtype=torch.long)
    return Job(lambda: LlamaForCausalLM(config), lambda model, batch: model(**batch).loss,
               {"input_ids": ids, "labels": ids.clone()}, lambda parameters: torch.optim.AdamW(parameters))
