"""Workspaces of convolutions: cuDNN asked about cards that are not here, its cache, and what stands in for it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from memfit.hardware import catalogue, find_device
from memfit.hardware.cudnn import ConvolutionCall, answering, convolution_workspace
from memfit.hardware.cudnn.asking import Asking, CardOracle, oracle
from memfit.hardware.cudnn.backend import DOWN_CONVERT, NONDETERMINISTIC, TENSOR_CORE, Configuration, strides
from memfit.hardware.cudnn.bounds import layer_class, multiples, table_versions
from memfit.hardware.cudnn.finding import library_path, version_number, version_of_torch, version_text
from memfit.hardware.cudnn.properties import properties_json
from memfit.hardware.cudnn.question import DIRECTIONS
from memfit.hardware.cudnn.workspace import tried

PATH = library_path()
_here = Asking(PATH) if PATH is not None else None
needs_cudnn = pytest.mark.skipif(_here is None or not _here.ready(), reason="no cuDNN 9.8 or newer is installed")

CALL = ConvolutionCall("fwd", "float32", (32, 64, 56, 56), (64, 64, 3, 3), (32, 64, 56, 56), (1, 1), (1, 1), (1, 1))
ASKED_9_24 = [  # card, type, layout, x, w, stride, padding, direction, workspace of the engine that is tried first
    ("a100-40gb", "float32", "nchw", (64, 3, 224, 224), (64, 3, 7, 7), 2, 3, "fwd", 244093712),
    ("a100-40gb", "float32", "nchw", (64, 64, 56, 56), (256, 64, 1, 1), 1, 0, "dgrad", 256966672),
    ("a100-40gb", "float32", "nchw", (64, 256, 14, 14), (256, 256, 3, 3), 1, 1, "wgrad", 56361104),
    ("rtx3060", "float16", "nchw", (64, 3, 224, 224), (64, 3, 7, 7), 2, 3, "fwd", 75392),
    ("rtx3060", "bfloat16", "nchw", (128, 64, 27, 27), (192, 64, 5, 5), 1, 2, "dgrad", 48390160),
    ("rtx4060", "float32", "nhwc", (64, 512, 7, 7), (512, 512, 3, 3), 1, 1, "wgrad", 22283567),
    ("h200", "float16", "nhwc", (64, 512, 7, 7), (512, 512, 3, 3), 1, 1, "wgrad", 131),
    ("h200", "bfloat16", "nhwc", (64, 256, 14, 14), (256, 256, 3, 3), 1, 1, "dgrad", 131),
    ("t4", "float32", "nchw", (64, 3, 224, 224), (64, 3, 7, 7), 2, 3, "fwd", 75392),
    ("v100-16gb", "float32", "nhwc", (64, 512, 7, 7), (512, 512, 3, 3), 1, 1, "wgrad", 18432),
]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def layer(dtype: str, layout: str, x: tuple[int, ...], w: tuple[int, ...], stride: int, padding: int,
          direction: str) -> ConvolutionCall:
    y = (x[0], w[0], *((side + 2 * padding - kernel) // stride + 1 for side, kernel in zip(x[2:], w[2:], strict=True)))
    pair = (1, 1)
    return ConvolutionCall(direction, dtype, x, w, y, (stride,) * 2, (padding,) * 2, pair, layout == "nhwc")


@needs_cudnn
@pytest.mark.parametrize("row", ASKED_9_24, ids=[f"{row[0]} {row[1]} {row[-2]}" for row in ASKED_9_24])
def test_the_same_version_answers_to_the_byte(row: tuple) -> None:
    card, dtype, layout, x, w, stride, padding, direction, expected = row
    assert _here is not None
    if _here.version != 92400:
        pytest.skip(f"the answers are those of cuDNN 9.24.0; here is {_here.version}")
    call = layer(dtype, layout, x, w, stride, padding, direction)
    found = tried(_here.configurations(call, properties_json(find_device(card))) or (), call)
    assert found[0].workspace_bytes == expected


@needs_cudnn
def test_a_workspace_is_a_range_with_its_source_and_obeys_the_flags() -> None:
    device = find_device("a100-40gb")
    plain = convolution_workspace(CALL, device)
    assert plain.low_bytes <= plain.typical_bytes <= plain.high_bytes and "asked cuDNN 9." in plain.source
    assert plain.typical_bytes > 0.4 * CALL.tensors_bytes
    exact = convolution_workspace(replace(CALL, allow_tf32=False), device)
    assert exact.typical_bytes < 0.1 * plain.typical_bytes
    spike = convolution_workspace(CALL, device, benchmark=True)
    assert spike.typical_bytes >= plain.high_bytes
    other = convolution_workspace(CALL, device, cudnn=80902)
    assert "not the version that runs" in other.source or "table" in other.source
    assert other.high_bytes >= other.typical_bytes


@needs_cudnn
@pytest.mark.parametrize("sides", [2, 3])
def test_every_direction_type_and_layout_is_answered(sides: int) -> None:
    device, ones = find_device("rtx3060"), (1,) * sides
    sizes = (16,) * sides
    for direction, dtype, last in product(DIRECTIONS, ("float32", "float16", "bfloat16", "float64"), (False, True)):
        if dtype == "float64" and last:
            continue
        call = ConvolutionCall(direction, dtype, (4, 32, *sizes), (64, 16, *(3,) * sides), (4, 64, *sizes), ones, ones, ones,
                               last)
        assert call.groups == 2
        assert "asked" in convolution_workspace(call, device).source, (direction, dtype, last)


@needs_cudnn
def test_answers_are_kept_on_disk_and_read_without_a_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert PATH is not None
    card = properties_json(find_device("t4"))
    asking = Asking(PATH)
    assert asking.ready() and asking.version is not None
    first = CardOracle(asking, asking.version, card).configurations(CALL)
    asking.close()
    (file,) = tmp_path.glob("memfit/cudnn-*.jsonl")
    file.write_text(file.read_text() + '["cut short", [[1, 2')
    asking = Asking(Path("/nowhere/libcudnn.so"))
    again = CardOracle(asking, _here.version if _here and _here.version else 0, card)
    assert again.configurations(CALL) == first
    assert again.configurations(replace(CALL, deterministic=True)) == first
    assert again.configurations(replace(CALL, dtype="float16")) is None


@needs_cudnn
def test_a_crash_of_the_library_is_no_crash_of_ours() -> None:
    assert PATH is not None
    asking = Asking(PATH)
    card = properties_json(find_device("t4"))
    assert asking.configurations(CALL, card) and asking._child is not None
    asking._child.kill()
    asking._child.wait()
    assert asking.configurations(CALL, card) is None  # lost, and noticed
    assert asking.configurations(CALL, card)  # another child answers
    asking.close()


def test_without_cudnn_a_table_answers_and_without_a_row_bounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = find_device("rtx3060")
    monkeypatch.setenv("MEMFIT_CUDNN", "")
    assert oracle(device) is None
    found = convolution_workspace(CALL, device)
    assert answering(device) == found.source == "table of cuDNN 9.24"
    assert answering(device, 91002) == "table of cuDNN 9.10" == answering(device, 90100)
    assert answering(find_device("rtx5090"), 91002) == "table of cuDNN 9.24"  # which 9.10 was not asked about
    assert "table of cuDNN 9." in found.source and 0 < found.typical_bytes <= found.high_bytes
    no_library = tmp_path / "libcudnn.so.9"
    no_library.write_text("no library")
    monkeypatch.setenv("MEMFIT_CUDNN", str(no_library))
    assert convolution_workspace(CALL, device) == found
    unknown = replace(device, compute_capability=(13, 0))
    assert convolution_workspace(CALL, unknown).source == "bounds by class of layer"


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_table_and_bounds_are_ranges_for_every_class(direction: str) -> None:
    kernels = ((64, 64, 3, 3), (64, 64, 1, 1), (256, 128, 1, 1), (64, 3, 7, 7), (768, 3, 16, 16), (64, 1, 3, 3))
    capabilities = {device.compute_capability for device in catalogue().values() if device.compute_capability}
    for dtype, last, tf32, w in product(("float32", "float16", "bfloat16", "float64"), (False, True), (False, True), kernels):
        groups = 64 if w[1] == 1 else 1
        x = (8, w[1] * groups, 56, 56)
        call = ConvolutionCall(direction, dtype, x, w, (8, w[0], 56, 56), (1, 1), (1, 1), (1, 1), last, tf32)
        for capability in capabilities:
            found, source = multiples(call, capability, None)
            assert 0 <= found.low <= found.typical <= found.high <= 8, (layer_class(call), capability, found)
            assert source
    assert table_versions() == [91002, 92400]


def test_engines_that_are_not_tried() -> None:
    configs = [Configuration(1, 10, (TENSOR_CORE, DOWN_CONVERT)), Configuration(2, 20, (TENSOR_CORE,)),
               Configuration(3, 30, (NONDETERMINISTIC,)), Configuration(4, 40, ())]
    def kept(call: ConvolutionCall) -> list[int]:
        return [config.engine for config in tried(configs, call)]

    assert kept(CALL) == [2, 3, 4]
    assert kept(replace(CALL, allow_tf32=False)) == [3, 4]
    assert kept(replace(CALL, deterministic=True)) == [2, 4]
    assert kept(replace(CALL, allow_tf32=False, dtype="float16")) == [2, 3, 4]


def test_what_is_described_to_the_library() -> None:
    assert strides((2, 3, 4, 5), False) == (60, 20, 5, 1) and strides((2, 3, 4, 5), True) == (60, 1, 15, 3)
    assert strides((2, 3, 4, 5, 6), True) == (360, 1, 90, 18, 3)
    assert CALL.tensors_bytes == 4 * (2 * 32 * 64 * 56 * 56 + 64 * 64 * 9)
    assert ConvolutionCall.from_json(CALL.to_json()) == CALL
    for device in catalogue().values():
        if device.compute_capability and device.compute_capability > (5, 9):
            assert f'"multiProcessorCount": {device.multiprocessors}' in properties_json(device)
    with pytest.raises(ValueError, match="cannot be described"):
        properties_json(find_device("cpu"))
    with pytest.raises(ValueError, match="not a convolution"):
        replace(CALL, y=(1, 2, 3))


def test_versions() -> None:
    assert version_number("9.10.2.21") == 91002 and version_text(91002) == "9.10.2" and version_number("9") is None
    assert version_of_torch("2.6.0+cu124") == 90100 and version_of_torch("2.8.0") == 91002
    assert version_of_torch("2.x") is None and version_of_torch("1.13.1") is None
