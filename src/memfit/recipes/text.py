"""Text: BERT (classification, masked language model), GPT-2 and Llama (causal language model) of transformers.

All take: `batch` passages of `seq` tokens, `vocab`, `dropout`, `optimizer` by name with `lr`, `seed` of weights and
order, and `data`, a text file or folder (default: Python's own documentation and library sources).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from memfit.core.errors import UsageError
from memfit.jobs.job import Job
from memfit.jobs.weights import label_count, sample_count, shifted_label_count
from memfit.recipes import making
from memfit.recipes.corpus import Corpus, classified_text, running_text
from memfit.recipes.passages import Causal, Labelled, Masked
from memfit.recipes.sampling import Batch, Evaluation, Examples, Sampler, accuracy
from memfit.recipes.tokens import BYTES_VOCABULARY, Tokenizer

EVALUATED = 64
"""Held-out passages that an evaluation reads at most."""


def bert_mini(
    batch: int = 32, seq: int = 128, task: str = "classification", classes: int = 4, vocab: int = 4096,
    dropout: float = 0.1, optimizer: str = "adamw", lr: float = 5e-4, seed: int = 0, data: str | None = None,
) -> Job:
    """A small BERT on words: hidden 256, 4 layers, 4 heads. `task` is `classification` or `mlm`."""
    config = _bert_config(seq, vocab, classes, dropout, hidden=256, layers=4, heads=4)
    return _bert(config, task, classes, batch, seq, optimizer, lr, seed, data)


def bert_base(
    batch: int = 16, seq: int = 128, task: str = "classification", classes: int = 4, vocab: int = 30522,
    dropout: float = 0.1, optimizer: str = "adamw", lr: float = 5e-5, seed: int = 0, data: str | None = None,
) -> Job:
    """BERT-base: hidden 768, 12 layers, 12 heads. `task` is `classification` or `mlm`."""
    config = _bert_config(seq, vocab, classes, dropout, hidden=768, layers=12, heads=12)
    return _bert(config, task, classes, batch, seq, optimizer, lr, seed, data)


def gpt_mini(
    batch: int = 16, seq: int = 256, vocab: int = BYTES_VOCABULARY, dropout: float = 0.1, optimizer: str = "adamw",
    lr: float = 1e-3, seed: int = 0, data: str | None = None,
) -> Job:
    """A small GPT-2 on bytes: hidden 256, 4 layers, 4 heads, head tied to the embedding."""
    config = _gpt_config(seq, vocab, dropout, hidden=256, layers=4, heads=4)
    return _causal(partial(GPT2LMHeadModel, config), batch, seq, vocab, optimizer, lr, seed, data)


def gpt2(
    batch: int = 4, seq: int = 256, vocab: int = 50257, dropout: float = 0.1, optimizer: str = "adamw",
    lr: float = 1e-4, seed: int = 0, data: str | None = None,
) -> Job:
    """GPT-2 small: hidden 768, 12 layers, 12 heads, head tied to the embedding."""
    config = _gpt_config(seq, vocab, dropout, hidden=768, layers=12, heads=12)
    return _causal(partial(GPT2LMHeadModel, config), batch, seq, vocab, optimizer, lr, seed, data)


def llama_mini(
    batch: int = 8, seq: int = 256, vocab: int = 8192, dropout: float = 0.0, optimizer: str = "adamw",
    lr: float = 1e-3, seed: int = 0, data: str | None = None,
) -> Job:
    """A small Llama on words: hidden 256, 4 layers, 8 heads over 4 key-value heads. `dropout` is of attention."""
    making.whole(seq=seq, vocab=vocab)
    making.fraction(dropout=dropout)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=max(seq, 512), attention_dropout=dropout, use_cache=False)
    return _causal(partial(LlamaForCausalLM, config), batch, seq, vocab, optimizer, lr, seed, data)


def _bert_config(
    seq: int, vocab: int, classes: int, dropout: float, *, hidden: int, layers: int, heads: int
) -> BertConfig:
    making.whole(seq=seq, vocab=vocab, classes=classes)
    making.fraction(dropout=dropout)
    config = BertConfig(
        vocab_size=vocab, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * hidden, max_position_embeddings=max(seq, 512), hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout, problem_type="single_label_classification")
    config.num_labels = classes
    return config


def _gpt_config(seq: int, vocab: int, dropout: float, *, hidden: int, layers: int, heads: int) -> GPT2Config:
    making.whole(seq=seq, vocab=vocab)
    making.fraction(dropout=dropout)
    config = GPT2Config(
        vocab_size=vocab, n_embd=hidden, n_layer=layers, n_head=heads, n_positions=max(seq, 1024), use_cache=False,
        bos_token_id=None, eos_token_id=None, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout)
    config.loss_type = "ForCausalLM"  # what the model takes anyway, with a warning that it was not told
    return config


def _bert(
    config: BertConfig, task: str, classes: int, batch: int, seq: int, optimizer: str, lr: float, seed: int,
    data: str | None,
) -> Job:
    making.whole(batch=batch)
    making.whole(seq=seq, least=8)
    tokenizer = Tokenizer(config.vocab_size)
    piece_bytes = tokenizer.bytes_per_token * (seq - Labelled.edges)
    if task == "classification":
        sources, found = classified_text(data, classes)
        rows: Examples = Labelled(Corpus(sources, piece_bytes, found), tokenizer, seq)
        return _job(partial(BertForSequenceClassification, config), rows, batch, optimizer, lr, seed,
                    sample_count, measure_labels)
    if task == "mlm":
        rows = Masked(Corpus(running_text(data), piece_bytes), tokenizer, seq)
        return _job(partial(BertForMaskedLM, config), rows, batch, optimizer, lr, seed, label_count, measure_labels)
    raise UsageError(f"task is {task!r}", "known: classification, mlm")


def _causal(
    build: Callable[[], nn.Module], batch: int, seq: int, vocab: int, optimizer: str, lr: float, seed: int,
    data: str | None,
) -> Job:
    making.whole(batch=batch)
    making.whole(seq=seq, least=8)
    tokenizer = Tokenizer(vocab)
    rows = Causal(Corpus(running_text(data), tokenizer.bytes_per_token * seq), tokenizer, seq)
    return _job(build, rows, batch, optimizer, lr, seed, shifted_label_count, measure_next)


def _job(
    build: Callable[[], nn.Module], rows: Examples, batch: int, optimizer: str, lr: float, seed: int,
    weight: Callable[[Batch], float], measure: Callable[[nn.Module, Batch], tuple[float, Mapping[str, float]]],
) -> Job:
    sampler = Sampler(rows, batch, seed)
    return Job(
        making.seeded(seed, build), loss, sampler.first(), making.optimizer(optimizer, lr), data=sampler,
        evaluate=Evaluation(sampler, measure, EVALUATED, perplexity=measure is measure_next), weight=weight)


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The model's own loss: mean cross entropy over the labels that are not -100."""
    return model(**batch).loss


def measure_labels(model: nn.Module, batch: Batch) -> tuple[float, Mapping[str, float]]:
    """Accuracy and loss over the batch's labels."""
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    return accuracy(model(**inputs).logits, batch["labels"])


def measure_next(model: nn.Module, batch: Batch) -> tuple[float, Mapping[str, float]]:
    """Loss of the next token."""
    return shifted_label_count(batch), {"loss": float(loss(model, batch))}
