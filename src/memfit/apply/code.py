"""A plan as plain PyTorch: a module with `make_step(...)`, whose step does what a session does, to the last bit."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

from memfit.apply.conflicts import check
from memfit.apply.order import ordered
from memfit.apply.registry import strategy
from memfit.core.strategy import Choice, CodePart
from memfit.jobs import Job, weights


def plan_code(choices: Sequence[Choice], job: Job) -> str:
    """Python source that needs torch only. Where a strategy has no plain form, a text that names it instead.

    The source defines `make_step(model, loss, optimizer, ...)`, which gives `step(batch) -> loss` (detached). It takes
    `scheduler` if the job has one, and `weight` if the job's own function weighs its batches, or if the job has none
    and its batch has labels: then several could be right, and are there to choose from.
    """
    check(choices)
    parts: list[CodePart] = []
    for choice in ordered(choices):
        part = strategy(choice.name).code(choice.settings)
        if part is None:
            return _needs_memfit(choice, choices)
        parts.append(part)
    for choice, part in zip(ordered(choices), parts, strict=True):
        if part.in_backward and job.clip_norm is not None:
            return _needs_memfit(choice, choices, " for a job that clips")
    return _module(parts, choices, job)


def _needs_memfit(choice: Choice, choices: Sequence[Choice], where: str = "") -> str:
    return (f"# {choice.name} has no form in plain PyTorch{where}: this plan ({_names(choices)}) needs memfit.\n"
            "# Save it with plan.save(\"plan.toml\") and train with memfit.apply(plan, job).\n")


def _names(choices: Sequence[Choice]) -> str:
    return ", ".join(choice.name for choice in choices) or "plain"


def _module(parts: Sequence[CodePart], choices: Sequence[Choice], job: Job) -> str:
    count = max((part.micro_batches for part in parts), default=1)
    weigh, arguments = _weight(job) if count > 1 else ("", "")
    arguments += ", scheduler" if job.scheduler_source is not None else ""
    imports, bodies = _split_imports([part.prelude for part in parts])
    code = "\n\n\n".join(filter(None, [*bodies, weigh, _make_step(parts, count, job, arguments)]))
    head = f'"""The training step under this plan: {_names(choices)}. Plain PyTorch."""'
    return f"{head}\n\nfrom __future__ import annotations\n\n{_used(imports, code)}\n\n\n{code}\n"


def _split_imports(preludes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Import lines of all preludes, once each, and what is left of each prelude."""
    imports, bodies = ["import torch"], []
    for prelude in preludes:
        lines = prelude.splitlines()
        found = [line for line in lines if line.startswith(("import ", "from "))]
        imports.extend(line for line in found if line not in imports)
        bodies.append("\n".join(line for line in lines if line not in found).strip())
    return imports, [body for body in bodies if body]


def _used(imports: Sequence[str], code: str) -> str:
    """The imports whose name the code uses: the standard library's, then torch's."""
    kept = [line for line in imports if re.search(rf"\b{line.split()[-1].split('.')[0]}\b", code)]
    lines = [line for line in kept if line.startswith("import ")]
    names: dict[str, list[str]] = {}
    for line in kept:
        if line.startswith("from "):
            module, _, name = line.removeprefix("from ").partition(" import ")
            names.setdefault(module, []).append(name)
    lines += [f"from {module} import {', '.join(sorted(names[module]))}" for module in names]
    lines.sort(key=lambda line: (line.startswith("from "), line))
    ours = [line for line in lines if line.split()[1].startswith("torch")]
    return "\n\n".join("\n".join(group) for group in ([line for line in lines if line not in ours], ours) if group)


def _weight(job: Job) -> tuple[str, str]:
    """The function that weighs a part, as source, where it is one of ours and known; else an argument of `make_step`.

    Which of ours fits a job without a weight is seen from its loss only (`probe_weight`), and the job may be fake.
    """
    known = [job.weight] if job.weight is not None else weights.candidates(job.batch)
    names = [one.__name__ for one in known if getattr(one, "__module__", "") == weights.__name__]
    if len(names) == 1:
        return _WEIGHTS[names[0]].format(name="weight"), ""
    written = [_WEIGHTS[name].format(name=name) for name in names]
    return "\n\n\n".join([*written, _CHOOSE.format(names=", ".join(names))] if names else []), ", weight"


def _make_step(parts: Sequence[CodePart], count: int, job: Job, arguments: str) -> str:
    setup = [line for part in parts for line in part.setup.splitlines()]
    contexts = [part.context for part in parts if part.context]
    scaler = next((part.scaler for part in parts if part.scaler), "")
    setup += [f"scaler = {scaler}"] if scaler else []
    body = _step_lines(count, contexts, job, bool(scaler), next((part.in_backward for part in parts if part.in_backward), ""))
    lines = [f"def make_step(model, loss, optimizer{arguments}):",
             '    """`step(batch)` trains once and gives the mean loss; call `make_step` once, before training."""',
             *(f"    {line}" if line else "" for line in setup), "",
             "    def step(batch):", *(f"        {line}" for line in body), "", "    return step"]
    return "\n".join(lines)


def _step_lines(count: int, contexts: Sequence[str], job: Job, scaled: bool, in_backward: str) -> list[str]:
    zero = "optimizer.zero_grad(set_to_none=True)"
    backward = "scaler.scale(value).backward()" if scaled else "value.backward()"
    forward = ["value = loss(model, {batch})"]
    if contexts:
        forward = [f"with {', '.join(contexts)}:", "    value = loss(model, {batch})"]
    before_backward = [zero] if job.zero_grad == "before_backward" else []
    if count > 1:
        inner = [*(line.format(batch="parts[index]") for line in forward),
                 "if share != 1.0:", "    value = value * share",
                 *(["if total is None:", f"    {zero}"] if before_backward else []),
                 *([f"{in_backward}.waiting = index != counted[-1][0]"] if in_backward else []), backward,
                 "total = value.detach() if total is None else total + value.detach()", "del value"]
        counted = "shares(parts, weight)"
        run = [f"parts = split(batch, {count})", *([f"counted = {counted}"] if in_backward else []), "total = None",
               f"for index, share in {'counted' if in_backward else counted}:", *(f"    {line}" for line in inner),
               *(line.format(step=in_backward) for line in _LEFT if in_backward)]
    else:
        run = [*(line.format(batch="batch") for line in forward), *before_backward, backward,
               "total = value.detach()", "del value"]
    clip = ['held = [p for group in optimizer.param_groups for p in group["params"]]',
            f"torch.nn.utils.clip_grad_norm_(held, {job.clip_norm!r})"]
    return [*([zero] if job.zero_grad == "before_forward" else []), *run,
            *(["scaler.unscale_(optimizer)"] if scaled else []), *(clip if job.clip_norm is not None else []),
            *_update_lines(scaled, job.scheduler_source is not None),
            *([zero] if job.zero_grad == "after_step" else []), "return total"]


def _update_lines(scaled: bool, scheduled: bool) -> list[str]:
    if not scaled:
        return ["optimizer.step()", *(["scheduler.step()"] if scheduled else [])]
    step = ["scaler.step(optimizer)  # unless a gradient is not finite", "scaler.update()"]
    if not scheduled:
        return step
    return ["before = scaler.get_scale()", *step, "if scaler.get_scale() >= before:", "    scheduler.step()"]


_LEFT = ("for group in optimizer.param_groups:  # parameters that the last part did not reach",
         '    for parameter in group["params"]:', "        if parameter.grad is not None:",
         "            {step}(optimizer, group, parameter)")

_COUNTED = '''
def {{name}}(part):
    """{what}"""
    labels = part["labels"] if hasattr(part, "__getitem__") else part.labels
    return float((labels{cut} != -100).sum().item())
'''.strip()

_WEIGHTS = {
    "sample_count": inspect.cleandoc('''
        def {name}(part):
            """Number of samples."""
            return float(count_samples(part))
    '''),
    "label_count": _COUNTED.format(what="Labels that are not -100.", cut=""),
    "shifted_label_count": _COUNTED.format(
        what="Labels that are not -100, without the first of each row: the model shifts them.", cut="[..., 1:]"),
}

_CHOOSE = '''
# The job names no weight. Give make_step the first of {names}
# for which the weighted mean of the parts' losses is the loss of the whole batch.
'''.strip()
