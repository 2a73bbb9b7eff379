"""CUDA's autocast on fake CPU tensors: its own lists of operators, its cache of cast weights, and `torch.autocast("cuda")`.

The lists are those of `aten/src/ATen/autocast_mode.h`. Products and convolutions, which the CPU casts down, too, keep the
CPU's kernels: those cast and cache in the same way.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from unittest import mock

import torch
from torch.amp.autocast_mode import autocast

from memfit.trace.cuda.registering import AUTOCAST, Overrides, without_autocast

_LOWER = (
    "prelu", "addmv", "addr", "mv", "einsum", "chain_matmul", "linalg_multi_dot", "lstm_cell", "gru_cell", "rnn_tanh_cell",
    "rnn_relu_cell", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
)
_FLOAT = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh", "tan",
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm", "group_norm",
    "rms_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss",
    "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss",
    "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp",
    "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d",
    "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)
_FLOAT_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)
_WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)
_KEPT = ("aten::conv1d.padding", "aten::conv2d.padding", "aten::conv3d.padding", "aten::_native_multi_head_attention",
         "aten::_addmm_activation", "aten::mkldnn_rnn_layer")  # the CPU's list has these in place of `convolution`
Kernel = Callable[..., Any]


@contextmanager
def cuda_autocast(overrides: Overrides) -> Iterator[None]:
    """Inside, autocast for `cuda` and for `cpu` both mean CUDA's policy, and gradient scalers for `cuda` act."""
    casts, only_on_cpu = _Casts(), _only_on_cpu()
    for names, make in ((_LOWER, casts.lower), (_FLOAT, _upper), (_FLOAT_RESULT, _float_result), (_WIDEST, _widest)):
        for name in names:
            overload = _overload(name)
            if overload is not None and _has(name, "AutocastCUDA"):
                overrides.add(name, make(overload), AUTOCAST)
    for name in only_on_cpu:
        overrides.add(name, torch.library.fallthrough_kernel, AUTOCAST)
    with _autocast_for_cuda(casts), mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", _available):
        yield


class _Casts:
    """Weights that were cast down, until the outermost autocast ends."""

    def __init__(self) -> None:
        self.depth = 0
        self._known: dict[int, tuple[Any, torch.Tensor]] = {}

    def lower(self, overload: Any) -> Kernel:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            dtype = torch.get_autocast_dtype("cpu")
            with without_autocast():
                args = tuple(_each(arg, lambda t: self._cast(t, dtype)) for arg in args)
                return overload(*args, **kwargs)

        return kernel

    def clear(self) -> None:
        self._known.clear()

    def _cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if not _eligible(tensor) or tensor.dtype == dtype:
            return tensor
        if not (tensor.dtype is torch.float32 and tensor.requires_grad and tensor.is_leaf and not tensor._is_view()
                and torch.is_autocast_cache_enabled()):
            return tensor.to(dtype)
        kept = self._known.get(id(tensor))
        if kept is None or kept[0]() is not tensor:
            kept = self._known[id(tensor)] = weakref.ref(tensor), tensor.to(dtype)
        return kept[1]


def _upper(overload: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            args = tuple(_each(arg, _to_float) for arg in args)
            return overload(*args, **{name: _each(value, _to_float) for name, value in kwargs.items()})

    return kernel


def _float_result(overload: Any) -> Kernel:
    arguments = [argument.name for argument in overload._schema.arguments]
    place = arguments.index("dtype")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            given = args[place] if len(args) > place else kwargs.get("dtype")
            if given is None and _eligible(args[0]):
                args, kwargs = args[:place], {**kwargs, "dtype": torch.float32}
            return overload(*args, **kwargs)

    return kernel


def _widest(overload: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            found = [tensor for tensor in _tensors(args) if _eligible(tensor)]
            if any(tensor.dtype is torch.float32 for tensor in found):
                args = tuple(_each(arg, _to_float) for arg in args)
            return overload(*args, **kwargs)

    return kernel


@contextmanager
def _autocast_for_cuda(casts: _Casts) -> Iterator[None]:
    begin, enter, leave = autocast.__init__, autocast.__enter__, autocast.__exit__
    before: list[tuple[bool, torch.dtype]] = []

    def init(self: Any, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True,
             cache_enabled: bool | None = None) -> None:
        if device_type in ("cuda", "cpu"):
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        begin(self, device_type, dtype, enabled, cache_enabled)

    def entered(self: Any) -> Any:
        casts.depth += 1
        before.append((torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")))
        made = enter(self)
        if self.device == "cpu":  # what code that asks for the state of `cuda` shall see
            torch.set_autocast_enabled("cuda", self._enabled)
            torch.set_autocast_dtype("cuda", self.fast_dtype)
        return made

    def left(self: Any, *failure: Any) -> Any:
        casts.depth -= 1
        enabled, dtype = before.pop()
        torch.set_autocast_enabled("cuda", enabled)
        torch.set_autocast_dtype("cuda", dtype)
        if casts.depth == 0:
            casts.clear()
        return leave(self, *failure)

    with (mock.patch.object(autocast, "__init__", init), mock.patch.object(autocast, "__enter__", entered),
          mock.patch.object(autocast, "__exit__", left)):
        yield


@lru_cache(maxsize=1)
def _only_on_cpu() -> tuple[str, ...]:
    """Operators that autocast leaves alone on a card, and not on the CPU."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::") and name not in _KEPT]
    return tuple(name[6:] for name in names if _has(name[6:], AUTOCAST) and not _has(name[6:], "AutocastCUDA"))


def _overload(name: str) -> Any:
    packet, _, which = name.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    return getattr(found, which or "default", None) if found is not None else None


def _has(name: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key))


def _available() -> bool:
    return False  # the opposite of "definitely not available"


def _eligible(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64


def _to_float(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float32) if _eligible(tensor) else tensor


def _each(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return [_each(one, change) for one in value]
    return value


def _tensors(values: Any) -> list[torch.Tensor]:
    return [one for value in values for one in (value if isinstance(value, (list, tuple)) else (value,))
            if isinstance(one, torch.Tensor)]
