"""A plan as plain PyTorch: a module with `make_step(...)`, whose step does what a session does, to the last bit."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from memfit.apply.conflicts import check
from memfit.apply.order import ordered
from memfit.apply.registry import strategy
from memfit.core.strategy import Choice, CodePart
from memfit.jobs import Job, weights


def plan_code(choices: Sequence[Choice], job: Job) -> str:
    """Python source that needs torch only. Where a strategy has no plain form, a text that names it instead.

    The source defines `make_step(model, loss, optimizer, ...)`, which gives `step(batch) -> loss` (detached). It takes
    `scheduler` if the job has one, and `weight` if the job's own function weighs its batches.
    """
    check(choices)
    parts: list[CodePart] = []
    for choice in ordered(choices):
        part = strategy(choice.name).code(choice.settings)
        if part is None:
            return _needs_memfit(choice, choices)
        parts.append(part)
    return _module(parts, choices, job)


def _needs_memfit(choice: Choice, choices: Sequence[Choice]) -> str:
    return (f"# {choice.name} has no form in plain PyTorch: this plan ({_names(choices)}) needs memfit.\n"
            "# Save it with plan.save(\"plan.toml\") and train with memfit.apply(plan, job).\n")


def _names(choices: Sequence[Choice]) -> str:
    return ", ".join(choice.name for choice in choices) or "plain"


def _module(parts: Sequence[CodePart], choices: Sequence[Choice], job: Job) -> str:
    count = max((part.micro_batches for part in parts), default=1)
    imports, bodies = _imports([part.prelude for part in parts])
    weigh, arguments = _weight(job) if count > 1 else ("", "")
    arguments += ", scheduler" if job.scheduler_source is not None else ""
    head = f'"""The training step under this plan: {_names(choices)}. Plain PyTorch."""'
    return "\n\n\n".join(filter(None, [
        f"{head}\n\n{imports}", *bodies, weigh, _make_step(parts, count, job, arguments)])) + "\n"


def _imports(preludes: Sequence[str]) -> tuple[str, list[str]]:
    """Import lines of all preludes, once each, and what is left of each prelude."""
    lines: set[str] = {"import torch"}
    bodies: list[str] = []
    for prelude in preludes:
        kept: list[str] = []
        for line in prelude.splitlines():
            if line.startswith(("import ", "from ")) and not line.startswith("from __future__"):
                lines.add(line)
            else:
                kept.append(line)
        bodies.append("\n".join(kept).strip())
    return "from __future__ import annotations\n\n" + "\n".join(sorted(lines)), [body for body in bodies if body]


def _weight(job: Job) -> tuple[str, str]:
    """The function that weighs a part: its source if it is one of ours, else an argument of `make_step`."""
    function = job.weight or weights.sample_count
    if getattr(function, "__module__", "") != weights.__name__:
        return "", ", weight"
    return _WEIGHTS[function.__name__], ""


def _make_step(parts: Sequence[CodePart], count: int, job: Job, arguments: str) -> str:
    setup = [line for part in parts for line in part.setup.splitlines()]
    contexts = [part.context for part in parts if part.context]
    body = _step_lines(count, contexts, job)
    lines = [f"def make_step(model, loss, optimizer{arguments}):",
             '    """`step(batch)` trains once and gives the mean loss; call `make_step` once, before training."""',
             *(f"    {line}" if line else "" for line in setup), "",
             "    def step(batch):", *(f"        {line}" for line in body), "", "    return step"]
    return "\n".join(lines)


def _step_lines(count: int, contexts: Sequence[str], job: Job) -> list[str]:
    zero = "optimizer.zero_grad(set_to_none=True)"
    forward = ["value = loss(model, {batch})"]
    if contexts:
        forward = [f"with {', '.join(contexts)}:", "    value = loss(model, {batch})"]
    before_backward = [zero] if job.zero_grad == "before_backward" else []
    if count > 1:
        inner = [*(line.format(batch="parts[index]") for line in forward), "if share != 1.0:", "    value = value * share",
                 *(["if total is None:", f"    {zero}"] if before_backward else []), "value.backward()",
                 "total = value.detach() if total is None else total + value.detach()", "del value"]
        run = [f"parts = split(batch, {count})", "total = None", "for index, share in shares(parts, weight):",
               *(f"    {line}" for line in inner)]
    else:
        run = [*(line.format(batch="batch") for line in forward), *before_backward, "value.backward()",
               "total = value.detach()", "del value"]
    clip = [f"torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group[\"params\"]], {job.clip_norm!r})"]
    return [*([zero] if job.zero_grad == "before_forward" else []), *run, *(clip if job.clip_norm is not None else []),
            "optimizer.step()", *(["scheduler.step()"] if job.scheduler_source is not None else []),
            *([zero] if job.zero_grad == "after_step" else []), "return total"]


_COUNTED = '''
def weight(part):
    """{what}"""
    return float((part["labels"]{cut} != -100).sum().item())
'''.strip()

_WEIGHTS = {
    "sample_count": inspect.cleandoc('''
        def weight(part):
            """Number of samples."""
            return float(count_samples(part))
    '''),
    "label_count": _COUNTED.format(what="Labels that are not -100.", cut=""),
    "shifted_label_count": _COUNTED.format(
        what="Labels that are not -100, without the first of each row: the model shifts them.", cut="[..., 1:]"),
}
