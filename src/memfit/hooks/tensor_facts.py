"""What can be said of a tensor that has no memory yet, without computing it."""

from __future__ import annotations

from typing import Any

import torch

PROPERTIES = ("shape", "dtype", "device", "ndim", "requires_grad", "grad_fn", "is_leaf", "layout", "is_cuda", "is_cpu",
              "is_meta", "is_sparse", "is_quantized", "is_nested", "is_mkldnn", "is_xpu", "is_mps", "_version")

FACTS: frozenset[Any] = frozenset({
    *(getattr(torch.Tensor, name).__get__ for name in PROPERTIES),
    torch.Tensor.__len__, torch.Tensor.__hash__, torch.Tensor.size, torch.Tensor.dim, torch.Tensor.ndimension,
    torch.Tensor.numel, torch.Tensor.nelement, torch.Tensor.element_size, torch.Tensor.get_device,
    torch.Tensor.is_floating_point, torch.Tensor.is_complex, torch.Tensor.untyped_storage, torch.numel,
    torch.is_floating_point, torch.is_complex,
})
