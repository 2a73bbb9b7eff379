"""Published CUDA measurements, rebuilt from their configurations: one file a source, each with `cases()`.

Nothing here knows a measured value. A case says which job was measured, on which card, with which versions, and which of
the prediction's figures the source reports.
"""

from __future__ import annotations

from cuda_rows import attention, cs336, gpumemnet, hf_bert_large, hf_training, liger, rasbt, single, torchao_rows, unbuilt, xmem
from cuda_rows.common import Case

FAMILIES = (cs336, attention, hf_training, rasbt, torchao_rows, hf_bert_large, gpumemnet, liger, single, xmem)


def all_cases() -> dict[str, Case]:
    """Every case by the id of its row."""
    return {case.row: case for family in FAMILIES for case in family.cases()}


def reasons() -> dict[str, str]:
    """Rows that are not rebuilt, each with the reason."""
    return unbuilt.REASONS
