"""Operator calls to time: for each operator and dtype a few sizes, with the work that a trace would count for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from memfit.jobs.flops import flop_formula, flops_of

aten: Any = torch.ops.aten
_NUMBERS = (2**12, 2**15, 2**18, 2**20)  # elements of a tensor: 16 KiB to 4 MiB of float32, which stay in a cache
_COLUMNS = 512


@dataclass(frozen=True)
class Probe:
    """One operator at one size; `arguments()` makes what it is called with."""

    key: str
    func: Any
    arguments: Callable[[], tuple[Any, ...]]
    keywords: Mapping[str, Any] = field(default_factory=dict)


def work_of(func: Any, args: tuple[Any, ...], out: Any) -> tuple[int, int]:
    """Floating-point operations and bytes moved of a call, counted as a trace counts them."""
    flops = flops_of(flop_formula(func), args, {}, out)
    tensors = [*_flat(args), *_flat((out,))]
    return flops, sum(t.numel() * t.element_size() for t in tensors)


def probes() -> Iterator[Probe]:
    """All of them, each operator's from small to large."""
    for dtype in (torch.float32, torch.bfloat16):
        yield from _dense(dtype)
        for number in _NUMBERS:
            yield from _elementwise(dtype, number)
    for number in _NUMBERS:
        yield from _float32_only(number)


def _elementwise(dtype: torch.dtype, number: int) -> Iterator[Probe]:
    for name, func in _BINARY.items():
        yield _probe(name, dtype, func, lambda: (_some(number, dtype), _some(number, dtype)))
    for name, (func, rest) in _UNARY.items():
        yield _probe(name, dtype, func, lambda rest=rest: (_some(number, dtype), *rest))
    for name, (func, rest) in _BACKWARD.items():
        yield _probe(name, dtype, func, lambda rest=rest: (_some(number, dtype), _some(number, dtype), *rest))
    other = torch.bfloat16 if dtype == torch.float32 else torch.float32
    yield Probe(f"_to_copy:{_named(dtype)}", aten._to_copy.default, lambda: (_some(number, dtype),), {"dtype": other})
    rows = max(1, number // _COLUMNS)
    yield _probe("sum", dtype, aten.sum.dim_IntList, lambda: (_some(number, dtype).view(rows, -1), [0], True))
    yield _probe("_softmax", dtype, aten._softmax.default, lambda: (_some(number, dtype).view(rows, -1), -1, False))
    yield _probe("native_layer_norm", dtype, aten.native_layer_norm.default, lambda: _layer_norm(rows, number, dtype))
    yield _probe("native_layer_norm_backward", dtype, aten.native_layer_norm_backward.default,
                 lambda: _layer_norm_backward(rows, number, dtype))


def _float32_only(number: int) -> Iterator[Probe]:
    dtype, rows = torch.float32, max(1, number // _COLUMNS)
    yield _probe("lerp_", dtype, aten.lerp_.Scalar, lambda: (_some(number), _some(number), 0.1))
    yield _probe("addcmul_", dtype, aten.addcmul_.default, lambda: (_some(number), _some(number), _some(number)))
    yield _probe("addcdiv_", dtype, aten.addcdiv_.default, lambda: (_some(number), _some(number), _some(number)))
    yield _probe("bernoulli_", dtype, aten.bernoulli_.float, lambda: (_some(number), 0.9))
    yield _probe("_log_softmax", dtype, aten._log_softmax.default, lambda: (_some(number).view(rows, -1), 1, False))
    yield _probe("_softmax_backward_data", dtype, aten._softmax_backward_data.default, lambda: (
        _some(number).view(rows, -1), _some(number).view(rows, -1), -1, torch.float32))
    yield _probe("_log_softmax_backward_data", dtype, aten._log_softmax_backward_data.default, lambda: (
        _some(number).view(rows, -1), _some(number).view(rows, -1), 1, torch.float32))
    yield _probe("native_batch_norm", dtype, aten.native_batch_norm.default, lambda: _batch_norm(number))
    yield _probe("native_batch_norm_backward", dtype, aten.native_batch_norm_backward.default,
                 lambda: _batch_norm_backward(number))
    yield _probe("max_pool2d_with_indices", dtype, aten.max_pool2d_with_indices.default,
                 lambda: (_planes(number), [3, 3], [2, 2], [1, 1]))
    yield _probe("embedding_dense_backward", dtype, aten.embedding_dense_backward.default, lambda: (
        _some(number).view(rows, -1), torch.arange(rows) % 997, 1000, -1, False))
    yield Probe("_fused_adamw_:float32", aten._fused_adamw_.default, lambda: _fused_adam(number), _FUSED)


def _dense(dtype: torch.dtype) -> Iterator[Probe]:
    for m, k, n in _PRODUCTS:
        yield _probe("mm", dtype, aten.mm.default, lambda m=m, k=k, n=n: (_some(m * k, dtype).view(m, k),
                                                                         _some(n * k, dtype).view(n, k).t()))
        yield _probe("addmm", dtype, aten.addmm.default, lambda m=m, k=k, n=n: (
            _some(n, dtype), _some(m * k, dtype).view(m, k), _some(n * k, dtype).view(n, k).t()))
    for b, m, k, n in _BATCHED:
        yield _probe("bmm", dtype, aten.bmm.default, lambda b=b, m=m, k=k, n=n: (
            _some(b * m * k, dtype).view(b, m, k), _some(b * n * k, dtype).view(b, n, k).transpose(1, 2)))
        yield _probe("baddbmm", dtype, aten.baddbmm.default, lambda b=b, m=m, k=k, n=n: (
            _some(b * m * n, dtype).view(b, m, n), _some(b * m * k, dtype).view(b, m, k),
            _some(b * n * k, dtype).view(b, n, k).transpose(1, 2)))
    for shape in _ATTENTION:
        yield _probe("_scaled_dot_product_flash_attention_for_cpu", dtype, _FLASH, lambda s=shape: _heads(s, dtype))
        yield _probe("_scaled_dot_product_flash_attention_for_cpu_backward", dtype, _FLASH_BACKWARD,
                     lambda s=shape: _attention_backward(s, dtype))
    for convolution in _CONVOLUTIONS if dtype == torch.float32 else _FEW_CONVOLUTIONS:
        yield _probe("convolution", dtype, aten.convolution.default, lambda c=convolution: _convolution(c, dtype))
        yield _probe("convolution_backward", dtype, aten.convolution_backward.default,
                     lambda c=convolution: _convolution_backward(c, dtype))


_BINARY = {"add": aten.add.Tensor, "mul": aten.mul.Tensor, "div": aten.div.Tensor}
_UNARY: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "relu": (aten.relu.default, ()), "gelu": (aten.gelu.default, ()), "silu": (aten.silu.default, ()),
    "tanh": (aten.tanh.default, ()), "sigmoid": (aten.sigmoid.default, ()), "sqrt": (aten.sqrt.default, ()),
    "pow": (aten.pow.Tensor_Scalar, (3.0,)), "clone": (aten.clone.default, ()), "fill_": (aten.fill_.Scalar, (0.5,)),
    "exp": (aten.exp.default, ()),
}
_BACKWARD: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "threshold_backward": (aten.threshold_backward.default, (0,)), "gelu_backward": (aten.gelu_backward.default, ()),
    "silu_backward": (aten.silu_backward.default, ()), "tanh_backward": (aten.tanh_backward.default, ()),
}
_FUSED = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8, "amsgrad": False,
          "maximize": False}
_FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
# Rows, inner and columns: as layers of small and usual transformers have them, for few and for many tokens.
_PRODUCTS = (
    (16, 16, 16), (32, 64, 64), (128, 64, 256), (1024, 64, 256), (4096, 64, 256), (256, 256, 256), (16, 768, 768),
    (128, 768, 768), (256, 768, 768), (256, 768, 3072), (256, 3072, 768), (768, 256, 3072), (400, 384, 1536), (1576, 384, 384),
    (1576, 384, 1536), (384, 1576, 1536), (2048, 768, 768), (1024, 768, 3072), (768, 2048, 768), (256, 768, 16384))
_BATCHED = ((8, 16, 16, 16), (16, 64, 64, 64), (48, 64, 256, 64), (48, 256, 64, 256), (96, 128, 64, 128), (192, 128, 64, 128),
            (192, 128, 128, 64), (12, 256, 64, 256))
_ATTENTION = ((4, 2, 16, 16), (8, 4, 65, 16), (64, 4, 65, 16), (1, 6, 197, 64), (8, 6, 197, 64), (4, 12, 256, 64))
# samples, channels in, height and width, channels out, kernel, stride, groups
_CONVOLUTIONS = (
    (2, 8, 16, 8, 3, 1, 1), (4, 32, 64, 32, 3, 1, 1), (16, 32, 64, 32, 3, 1, 1), (32, 32, 64, 32, 3, 1, 1),
    (8, 3, 64, 32, 3, 1, 1),
    (4, 3, 224, 64, 7, 2, 1), (1, 64, 56, 64, 3, 1, 1), (8, 64, 56, 64, 3, 1, 1), (8, 64, 56, 256, 1, 1, 1),
    (8, 256, 56, 64, 1, 1, 1), (8, 256, 14, 256, 3, 1, 1), (2, 256, 14, 1024, 1, 1, 1), (8, 1024, 14, 256, 1, 1, 1),
    (8, 512, 7, 512, 3, 1, 1), (8, 2048, 7, 512, 1, 1, 1), (8, 64, 56, 64, 3, 1, 64), (8, 256, 14, 256, 3, 1, 256),
    (8, 3, 224, 384, 16, 16, 1))
_FEW_CONVOLUTIONS = ((16, 32, 64, 32, 3, 1, 1), (8, 64, 56, 256, 1, 1, 1), (8, 256, 14, 256, 3, 1, 1))


def _probe(name: str, dtype: torch.dtype, func: Any, arguments: Callable[[], tuple[Any, ...]]) -> Probe:
    return Probe(f"{name}:{_named(dtype)}", func, arguments)


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _some(number: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values that no kernel has a short cut for."""
    return torch.full((number,), 0.7, dtype=dtype)


def _layer_norm(rows: int, number: int, dtype: torch.dtype) -> tuple[Any, ...]:
    x = _some(number, dtype).view(rows, -1)
    width = x.shape[1]
    return x, [width], _some(width, dtype), _some(width, dtype), 1e-5


def _layer_norm_backward(rows: int, number: int, dtype: torch.dtype) -> tuple[Any, ...]:
    x, shape, weight, bias, eps = _layer_norm(rows, number, dtype)
    out, mean, deviation = aten.native_layer_norm.default(x, shape, weight, bias, eps)
    return out, x, shape, mean, deviation, weight, bias, [True, True, True]


def _planes(number: int) -> torch.Tensor:
    return _some(number).view(-1, 16, 16, 16) if number < 2**18 else _some(number).view(-1, 64, 32, 32)


def _batch_norm(number: int) -> tuple[Any, ...]:
    x = _planes(number)
    mean, deviation, weight, bias = (_some(x.shape[1]) for _ in range(4))
    return x, weight, bias, mean, deviation, True, 0.1, 1e-5


def _batch_norm_backward(number: int) -> tuple[Any, ...]:
    x, weight, _, mean, deviation, *_ = _batch_norm(number)
    return x.clone(), x, weight, mean, deviation, mean.clone(), deviation.clone(), True, 1e-5, [True, True, True]


def _heads(shape: tuple[int, int, int, int], dtype: torch.dtype) -> tuple[Any, ...]:
    number = shape[0] * shape[1] * shape[2] * shape[3]
    return tuple(_some(number, dtype).view(shape) for _ in range(3))


def _attention_backward(shape: tuple[int, int, int, int], dtype: torch.dtype) -> tuple[Any, ...]:
    query, key, value = _heads(shape, dtype)
    out, logsumexp = _FLASH(query, key, value)
    return out.clone(), query, key, value, out, logsumexp, 0.0, False


def _convolution(c: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    samples, inside, side, outside, kernel, stride, groups = c
    x = _some(samples * inside * side * side, dtype).view(samples, inside, side, side)
    weight = _some(outside * (inside // groups) * kernel * kernel, dtype).view(outside, inside // groups, kernel, kernel)
    padding = 0 if kernel == stride else kernel // 2
    return x, weight, None, [stride, stride], [padding, padding], [1, 1], False, [0, 0], groups


def _convolution_backward(c: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    x, weight, _, *rest = _convolution(c, dtype)
    out = aten.convolution.default(x, weight, None, *rest)
    return out, x, weight, None, *rest, [c[1] > 3, True, False]


def _fused_adam(number: int) -> tuple[Any, ...]:
    return (*([_some(number)] for _ in range(4)), [], [torch.tensor(3.0)])


def _flat(tree: Any) -> Iterator[torch.Tensor]:
    for value in tree:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flat(value)
