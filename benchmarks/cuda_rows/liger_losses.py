"""Liger-Kernel's benchmark, continued: losses (reference implementations) and the embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import memfit
from cuda_rows.common import Case, NoOptimizer, script_job

A100, H100, H100_PCIE, B200 = "a100-80gb", "h100-sxm", "h100-pcie", "b200"
LLAMA3_VOCABULARY = 128_256
# The same bytes are missing at every batch size: two heads, and hidden states and targets of the runs with batch 2 and 4.
LEFT_OVER = "the process still holds tensors of earlier, compiled runs: 2004 MiB of heads and 80 KiB a position of inputs"


class Distributions(nn.Module):
    """What a leaf becomes by (log-)softmax, made before the measurement, and a target of the same shape."""

    def __init__(self, tokens: int, vocabulary: int, into: str, target: str) -> None:
        super().__init__()
        self.leaf = nn.Parameter(torch.empty(tokens, vocabulary))
        self.register_buffer("input", getattr(self.leaf, into)(dim=-1))
        self.register_buffer("target", getattr(torch.empty(tokens, vocabulary), target)(dim=-1))


def kl_div(subject: Any) -> torch.Tensor:
    return F.kl_div(subject.input, subject.target, reduction="batchmean")


def total_variation(subject: Any) -> torch.Tensor:
    distance = torch.abs(subject.input - subject.target) / 2.0
    return torch.sum(distance) / subject.input.size(0)


def jensen_shannon(subject: Any) -> torch.Tensor:
    log_q, log_p = subject.input.to(torch.float), subject.target.to(torch.float)
    log_p, log_q = log_p.view(-1, log_p.size(-1)), log_q.view(-1, log_q.size(-1))
    middle = torch.lerp(torch.exp(log_q), torch.exp(log_p), 0.5)
    kl = nn.KLDivLoss(reduction="none", log_target=True)
    loss = 0.5 * kl(torch.log(middle), log_p).sum(dim=-1) + (1 - 0.5) * kl(torch.log(middle), log_q).sum(dim=-1)
    return (loss / log_q.shape[0]).sum().to(torch.float)


def distance(tokens: int, vocabulary: int, of: Callable[[Any], torch.Tensor], into: str, target: str) -> memfit.Job:
    def body(subject: Any, _: Any) -> None:
        y = of(subject)
        y.backward(retain_graph=True)

    return script_job(lambda: Distributions(tokens, vocabulary, into, target), body, keeps_gradients=True)


class Head(nn.Module):
    """Hidden states as a leaf, and the language model head twice: the measured one and the other implementation's."""

    def __init__(self, shape: tuple[int, ...], vocabulary: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.empty(*shape, dtype=torch.bfloat16))
        self.head, self.other = (nn.Linear(shape[-1], vocabulary, bias=False, dtype=torch.bfloat16) for _ in range(2))


def head_cross_entropy(head: Any, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(head.head(head.x), target)


def head_orpo(head: Any, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the chosen half, and the log odds ratio of chosen and rejected."""
    logits = head.head(head.x)
    half = logits.shape[0] // 2
    chosen_loss = F.cross_entropy(logits[:half].view(-1, logits.shape[-1]), target[:half].view(-1))
    log_probabilities = F.log_softmax(logits, dim=-1).mean(dim=-1)
    chosen, rejected = log_probabilities[:half], log_probabilities[half:]
    odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
    return chosen_loss - (0.1 * F.logsigmoid(odds)).mean()


def plain(make: Callable[[], nn.Module], loss: Callable[[Any, Any], torch.Tensor], batch: Any) -> memfit.Job:
    """A scalar loss and its backward; gradients add up."""
    return memfit.Job(make, loss, batch, lambda parameters: NoOptimizer(parameters, keeps_gradients=True),
                      zero_grad="before_forward")


def head_orpo_fp32(head: Any, target: torch.Tensor) -> torch.Tensor:
    """The same in fp32, over the logs of the targets' probabilities; the logits live until the loss is there."""
    half = target.shape[0] // 2
    outputs = head.x @ head.head.weight.t()
    logits = outputs.float()
    chosen_loss = F.cross_entropy(logits[:half].view(-1, logits.shape[-1]), target[:half].view(-1))
    mask = target != -100
    labels = torch.where(target == -100, 0, target)
    each = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
    log_probabilities = (each * mask).sum(-1) / mask.sum(-1)
    chosen, rejected = log_probabilities[:half], log_probabilities[half:]
    odds = (chosen - rejected) - (torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected)))
    return chosen_loss - (0.1 * F.logsigmoid(odds)).mean()


class Logits(nn.Module):
    def __init__(self, tokens: int, vocabulary: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.empty(tokens, vocabulary))


def cross_entropy(vocabulary: int) -> memfit.Job:
    return plain(lambda: Logits(16384, vocabulary), lambda model, target: F.cross_entropy(model.logits, target),
                 torch.zeros(16384, dtype=torch.int64))


def fused_linear(tokens: int) -> memfit.Job:
    return plain(lambda: Head((tokens, 4096), LLAMA3_VOCABULARY), head_cross_entropy, torch.zeros(tokens, dtype=torch.int64))


def orpo(batch: int, length: int, loss: Callable[[Any, Any], torch.Tensor]) -> memfit.Job:
    return plain(lambda: Head((batch, length, 4096), LLAMA3_VOCABULARY), loss, torch.zeros(batch, length, dtype=torch.int64))


def cases() -> list[Case]:
    found = [Case(row, A100, lambda v=v: cross_entropy(v), torch="2.4") for row, v in (("P300", 32768), ("P302", 131072))]
    found += [Case(row, A100, lambda n=n: fused_linear(n), torch="2.5") for row, n in (("P320", 8192), ("P321", 16384))]
    found += [Case(row, A100, lambda b=b: orpo(b, 4096, head_orpo), torch="2.5", unlike=LEFT_OVER)
              for row, b in (("P366", 2), ("P367", 4))]
    found.append(Case("P373", A100, lambda: orpo(16, 1024, head_orpo_fp32), torch="2.5",
                      note="the benchmark's second version of the loss, by the length of its texts", unlike=LEFT_OVER))
    found += [Case(row, H100_PCIE, lambda v=v: distance(16384, v, kl_div, "log_softmax", "softmax"), torch="2.4")
              for row, v in (("P354", 4096), ("P355", 8192), ("P356", 16384), ("P357", 32768), ("P358", 65536))]
    found.append(Case("P361", H100_PCIE, lambda: distance(8192, 8192, jensen_shannon, "log_softmax", "log_softmax"),
                      torch="2.5"))
    found += [Case(row, H100, lambda v=v: distance(16384, v, total_variation, "softmax", "softmax"), torch="2.6")
              for row, v in (("P379", 4096), ("P380", 8192), ("P381", 16384), ("P383", 65536), ("P384", 131072))]
    found += [Case(row, B200, lambda n=n: distance(n, LLAMA3_VOCABULARY, jensen_shannon, "log_softmax", "log_softmax"),
                   torch="2.8") for row, n in (("P387", 4096), ("P388", 8192))]
    return found
