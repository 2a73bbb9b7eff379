"""Configurations of published models, written out (as on their model cards), and models made from them.

Keys that are not given have the defaults of the configuration's class in the version of transformers that is installed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # name: (configuration, class, fields)
    "pythia-410m": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
        "vocab_size": 50304, "tie_word_embeddings": False}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {}),
    "gpt2-large": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "distilgpt2": ("GPT2Config", "GPT2LMHeadModel", {"n_layer": 6}),
    "cerebras-gpt-111m": ("GPT2Config", "GPT2LMHeadModel", {
        "n_embd": 768, "n_layer": 10, "n_head": 12, "n_inner": 3072, "n_positions": 2048, "activation_function": "gelu",
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "scale_attn_weights": True}),
    "opt-125m": ("OPTConfig", "OPTForCausalLM", {"hidden_size": 768}),
    "opt-350m": ("OPTConfig", "OPTForCausalLM", {
        "hidden_size": 1024, "word_embed_proj_dim": 512, "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096,
        "do_layer_norm_before": False}),
    "bert-base": ("BertConfig", "BertLMHeadModel", {}),
    "bert-large": ("BertConfig", "BertForSequenceClassification", {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}),
    "albert-base-v2": ("AlbertConfig", "AlbertForMaskedLM", {
        "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "distilbert-base": ("DistilBertConfig", "DistilBertForMaskedLM", {"tie_weights_": True}),
    "biogpt": ("BioGptConfig", "BioGptForCausalLM", {}),
    "gpt-neo-125m": ("GPTNeoConfig", "GPTNeoForCausalLM", {
        "hidden_size": 768, "num_layers": 12, "num_heads": 12, "attention_types": [[["global", "local"], 6]]}),
    "t5-small": ("T5Config", "T5ForConditionalGeneration", {"n_positions": 512, "decoder_start_token_id": 0}),
    "deepseek-r1-distill-qwen-1.5b": ("Qwen2Config", "Qwen2ForCausalLM", {
        "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
        "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 131072, "max_window_layers": 21,
        "tie_word_embeddings": False}),
}


def make(name: str, attention: str | None = None, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The model with random weights, in training mode; `attention` is `eager`, `sdpa` or the library's own choice."""
    import transformers

    configuration, model_class, fields = MODELS[name]
    config = getattr(transformers, configuration)(**fields)
    options: dict[str, Any] = {} if attention is None else {"attn_implementation": attention}
    model = getattr(transformers, model_class)._from_config(config, torch_dtype=dtype, **options)
    return model.train()


def vocabulary(name: str) -> int:
    """How many tokens the model knows."""
    import transformers

    configuration, _, fields = MODELS[name]
    return getattr(transformers, configuration)(**fields).vocab_size
