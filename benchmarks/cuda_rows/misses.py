"""Why a prediction is off by more than 5 %, by the kind of what is predicted."""

from __future__ import annotations


def explained(row: dict[str, str]) -> str:
    """The known reason, else that there is none."""
    if "not recorded" in row["note"] and float(row["error_percent"]) < 0:
        return "gradients of the last step may have lived through the forward: the place of zero_grad is not recorded"
    if row["group"] == "convolutions":
        return "which convolution engines the run's cuDNN chose, and what its kernels took, is not known"
    if row["reads"] == "process":
        return "context and kernels of that driver and version: within the interval only"
    if "rounded" in row["note"] or "about" in row["note"]:
        return "the figure is rounded, and its script is not published"
    return "not explained"
