"""The rule of equality at each fidelity, on folders written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from memfit.core.fidelity import Fidelity
from memfit.prove.compare import Comparison, compare
from memfit.prove.recording import BUFFERS, FIRST_BUFFERS, GRADIENTS, PARAMETERS, STATES
from memfit.train.tensor_files import write_tensors

torch.manual_seed(0)
BIG, SMALL = torch.randn(1000), torch.randn(1000) * 1e-9
NORMAL = {
    GRADIENTS: {"w": BIG, "tiny": SMALL}, PARAMETERS: {"w": BIG}, STATES: {"w.exp_avg": BIG},
    FIRST_BUFFERS: {"mean": BIG, "count": torch.tensor(3)}, BUFFERS: {"mean": BIG, "count": torch.tensor(7)},
}


def judged(
    tmp_path: Path, fidelity: str, losses: tuple[float, ...] = (1.0, 0.5), **changed: dict[str, torch.Tensor]
) -> Comparison:
    planned = {**NORMAL, **{f"{name}.safetensors": tensors for name, tensors in changed.items()}}
    for side, files in (("plain", NORMAL), ("planned", planned)):
        (tmp_path / side).mkdir()
        for name, tensors in files.items():
            write_tensors(tmp_path / side / name, tensors)
    return compare(tmp_path / "plain", tmp_path / "planned", (1.0, 0.5), losses, Fidelity(fidelity))


@pytest.mark.parametrize("fidelity", [one.value for one in Fidelity])
def test_equal_sides_are_the_same(tmp_path: Path, fidelity: str) -> None:
    seen = judged(tmp_path, fidelity)
    assert seen.same_result and seen.grad_set_equal and seen.buffers_equal and seen.max_rel_param_diff == 0


@pytest.mark.parametrize(("file", "name"), [
    ("gradients", "tiny"), ("parameters", "w"), ("states", "w.exp_avg"), ("first_buffers", "mean"),
    ("buffers", "mean")])
def test_one_bit_breaks_bitwise(tmp_path: Path, file: str, name: str) -> None:
    tensors = {key: value.clone() for key, value in NORMAL[f"{file}.safetensors"].items()}
    tensors[name][0] = torch.nextafter(tensors[name][0], torch.tensor(9.0))
    seen = judged(tmp_path, "bitwise", **{file: tensors})
    assert not seen.same_result and "not equal to the bit" in seen.differences[0]


@pytest.mark.parametrize(("changed", "same"), [
    ({"gradients": {"w": BIG * (1 + 5e-6), "tiny": SMALL}}, True),
    ({"gradients": {"w": BIG * (1 + 5e-5), "tiny": SMALL}}, False),
    ({"gradients": {"w": BIG, "tiny": SMALL * 1.5}}, True),  # far below the whole gradient: noise
    ({"gradients": {"w": BIG}}, False),
    ({"gradients": {"w": BIG, "tiny": SMALL, "extra": BIG}}, False),
    ({"gradients": {"w": BIG * float("nan"), "tiny": SMALL}}, False),
    ({"first_buffers": {"mean": BIG * (1 + 5e-7), "count": torch.tensor(3)}}, True),
    ({"first_buffers": {"mean": BIG * (1 + 5e-6), "count": torch.tensor(3)}}, False),
    ({"first_buffers": {"mean": BIG, "count": torch.tensor(4)}}, False),
    ({"parameters": {"w": BIG * 2}}, True),  # drift is reported, not judged
    ({"losses": (1 + 5e-6, 0.5)}, True), ({"losses": (1 + 5e-5, 0.5)}, False),
    ({"losses": (1.0, 0.5 * (1 + 5e-5))}, True), ({"losses": (1.0, 0.5 * (1 + 5e-4))}, False),
    ({"losses": (1.0,)}, False)])
@pytest.mark.parametrize("fidelity", ["reordered", "resampled"])
def test_the_first_step_is_judged_closely_and_later_losses_loosely(
    tmp_path: Path, fidelity: str, changed: dict, same: bool
) -> None:
    seen = judged(tmp_path, fidelity, **changed)
    assert seen.same_result is same and bool(seen.differences) is not same


def test_reduced_needs_the_loss_to_one_percent_at_each_step(tmp_path: Path) -> None:
    other = {"gradients": {"w": BIG * 1.3, "tiny": SMALL}}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert judged(tmp_path / "a", "reduced", losses=(1.009, 0.496), **other).same_result
    assert not judged(tmp_path / "b", "reduced", losses=(1.0, 0.494), **other).same_result


def test_a_step_that_both_sides_left_out_is_no_difference(tmp_path: Path) -> None:
    nothing = float("nan")
    for side in ("plain", "planned"):
        (tmp_path / side).mkdir()
        for name, tensors in NORMAL.items():
            write_tensors(tmp_path / side / name, tensors)
    folders = (tmp_path / "plain", tmp_path / "planned")
    both = compare(*folders, (nothing, 0.5), (nothing, 0.5), Fidelity("bitwise"))
    assert both.same_result and both.max_rel_loss_diff == 0
    assert not compare(*folders, (1.0, 0.5), (nothing, 0.5), Fidelity("reordered")).same_result
    assert not compare(*folders, (nothing, 0.5), (1.0, 0.5), Fidelity("reordered")).same_result
