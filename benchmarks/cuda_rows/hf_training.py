"""Training tables of the Hugging Face documentation and pull requests on scaled dot product attention.

The script: random ids without a mask, `zero_grad`, `loss = outputs.logits.sum()`, backward, no optimizer; `outputs` (keys
and values of causal models included) lives until the next step has its own. Its MB are 1e6 bytes. Rows are written as
`row batch x length attention`; each model's library is the release that first had its table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

import memfit
from cuda_rows import hf_models
from cuda_rows.common import Case, NoOptimizer, Remembering, own_card, token_ids


@dataclass(frozen=True)
class Table:
    model: str
    dtype: torch.dtype
    device: str
    library: str
    torch: str
    rows: str


TABLES = (
    Table("pythia-410m", torch.float16, own_card("rtx3080ti-laptop"), "4.42.4", "2.2.1",
          "P072 1x128 sdpa, P074 1x256 sdpa, P075 1x512 eager, P077 1x1024 eager, P079 1x2048 eager, P083 2x256 eager, "
          "P086 2x512 sdpa, P087 2x1024 eager, P088 2x1024 sdpa, P090 4x128 eager, P094 4x512 eager, P096 4x1024 sdpa"),
    Table("gpt2-large", torch.float16, own_card("rtx3080ti-laptop"), "4.42.4", "2.2.1",
          "P097 1x128 eager, P103 1x1024 eager, P104 1x1024 sdpa, P105 2x128 eager, P106 2x128 sdpa, P107 2x256 eager, "
          "P108 2x256 sdpa, P109 2x512 eager, P110 2x512 sdpa, P112 4x128 eager, P113 4x128 sdpa, P114 4x256 eager, "
          "P115 4x256 sdpa, P116 4x512 eager, P117 4x512 sdpa, P118 4x1024 sdpa"),
    Table("opt-350m", torch.float16, "l40s", "4.46.3", "2.4.0",
          "P119 1x128 eager, P120 1x128 sdpa, P121 1x256 eager, P123 1x512 eager, P124 1x512 sdpa, P129 2x128 eager, "
          "P130 2x128 sdpa, P131 2x256 eager, P133 2x512 eager, P134 2x512 sdpa, P135 2x1024 eager, P136 2x1024 sdpa, "
          "P140 4x128 sdpa, P143 4x512 eager, P148 8x128 sdpa, P149 8x256 eager"),
    Table("bert-base", torch.float32, "a100-80gb", "4.41.2", "2.2",
          "P155 1x256 eager, P157 1x512 eager, P158 1x512 sdpa, P159 2x256 eager, P161 2x512 eager"),
    Table("albert-base-v2", torch.float16, "a100-80gb", "4.45.2", "2.3",
          "P163 1x256 eager, P167 2x256 eager, P168 2x256 sdpa, P169 2x512 eager, P170 2x512 sdpa, P171 4x256 eager, "
          "P173 4x512 eager"),
    Table("distilbert-base", torch.float16, own_card("rtx2060-8gb"), "4.46.3", "2.3.1",
          "P175 1x128 eager, P180 2x128 sdpa, P182 2x256 sdpa, P183 4x128 eager, P184 4x128 sdpa, P187 8x128 eager, "
          "P188 8x128 sdpa, P189 8x256 eager, P190 8x256 sdpa"),
    Table("biogpt", torch.float16, own_card("rtx2060-8gb"), "4.46.3", "2.3.1",
          "P193 1x256 eager, P195 2x128 eager, P196 2x128 sdpa, P198 2x256 sdpa, P199 4x128 eager, P200 4x128 sdpa, "
          "P201 4x256 eager, P202 4x256 sdpa"),
)


def job(model: str, dtype: torch.dtype, batch: int, length: int, attention: str) -> memfit.Job:
    return memfit.Job(lambda: Remembering(hf_models.make(model, attention, dtype)),
                      lambda remembering, ids: remembering(input_ids=ids).logits.sum(), token_ids(batch, length),
                      NoOptimizer, zero_grad="before_forward")


def cases() -> list[Case]:
    found = []
    for table in TABLES:
        for row in table.rows.split(", "):
            name, shape, attention = row.split()
            batch, length = map(int, shape.split("x"))
            found.append(Case(name, table.device, _builder(table, batch, length, attention), library=table.library,
                              torch=table.torch))
    return found


def _builder(table: Table, batch: int, length: int, attention: str) -> Callable[[], memfit.Job]:
    return lambda: job(table.model, table.dtype, batch, length, attention)
