"""Gradient accumulation: the batch goes through in parts, and the optimizer steps once for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import CodePart, Settings, Undo
from memfit.core.trace import Trace
from memfit.jobs import Job, batches


class MicroBatches:
    """`count` parts of as equal size as possible; each part's loss counts by its weight (the job's)."""

    name = "micro-batches"
    settings: tuple[str, ...] = ("count",)
    takes = frozenset({"batch"})
    after: tuple[str, ...] = ()
    conflicts: Mapping[str, str] = {}

    def excluded(self, job: Job, target: Device) -> str | None:
        reason = batches.why_unsplittable(job.batch)
        return f"the batch cannot be split: {reason}" if reason else None

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        """Adapted where samples meet in the model (BatchNorm), resampled where it draws random numbers."""
        if settings.get("count") == 1:
            return Fidelity.BITWISE
        if batch_coupled(job.model):
            return Fidelity.ADAPTED
        drawn = job.draws_random or draws_random(job.model)
        return Fidelity.RESAMPLED if drawn else Fidelity.REORDERED

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        """Counts 2, 4, 8, ... that make the largest part smaller, up to one sample a part; two where BatchNorm
        would see a single one."""
        samples = batches.size(job.batch)
        least = 2 if batch_coupled(job.model) else 1
        sizes: set[int] = set()
        found: list[Settings] = []
        for count in _counts(samples):
            largest = -(-samples // count)
            if largest not in sizes and samples // count >= least:
                sizes.add(largest)
                found.append({"count": count})
        return found

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        count = settings.get("count")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise UsageError(f"micro-batches: count is {count!r}", "give a whole number from 1 up")
        reason = self.excluded(job, _ANY) if count > 1 else None
        if reason:
            raise UsageError(f"micro-batches: {reason}", "turn it into tensors, or train it whole")
        samples = batches.size(job.batch) if count > 1 else count
        if count > samples:
            raise UsageError(f"micro-batches: count is {count}, and the batch has {samples} samples",
                             f"give at most {samples}")
        undo.push(_Restore(job, job.rules.micro_batches))
        job.rules.micro_batches = count

    def code(self, settings: Settings) -> CodePart:
        return CodePart(prelude=_SPLIT if settings["count"] > 1 else "", micro_batches=settings["count"])


def batch_coupled(model: nn.Module) -> list[str]:
    """Paths of modules in which the samples of a batch meet, or whose running statistics count batches."""
    return [path for path, module in model.named_modules() if _couples(module)]


def draws_random(model: nn.Module) -> list[str]:
    """Paths of modules that draw random numbers now: dropout and its like, by module, by attribute or by config. A probability
    that only a functional call holds is seen by a trace (`job.draws_random`)."""
    return [path for path, module in model.named_modules() if module.training and _draws(module)]


def _couples(module: nn.Module) -> bool:
    statistics = getattr(module, "running_mean", None)
    if isinstance(module, _BatchNorm):
        return module.training or statistics is None
    return module.training and statistics is not None and bool(getattr(module, "track_running_stats", True))


def _draws(module: nn.Module) -> bool:
    own = "drop" in type(module).__name__.lower() or "StochasticDepth" in type(module).__name__
    if isinstance(module, (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)):
        return True
    values = vars(module)
    if own and any(_positive(values.get(name)) for name in ("p", "drop_prob", "rate", "drop_rate")):
        return True
    if any("drop" in name.lower() and _positive(value) for name, value in values.items()):
        return True
    config = values.get("config")
    settings = vars(config) if hasattr(config, "__dict__") else {}
    return any(_positive(value) for name, value in settings.items() if _drops_in_attention(name))


def _drops_in_attention(name: str) -> bool:
    """Config entries that models read in forward; other dropout is a module of its own."""
    return "layerdrop" in name or ("drop" in name and ("attention" in name or "attn" in name))


def _positive(value: object) -> bool:
    return isinstance(value, float) and value > 0


def _counts(samples: int) -> list[int]:
    counts = (2 << power for power in range(samples.bit_length()))
    return [*(count for count in counts if count < samples), samples]


class _Restore:
    def __init__(self, job: Job, count: int) -> None:
        self._job, self._count = job, count

    def __call__(self) -> None:
        self._job.rules.micro_batches = self._count


_ANY = Device("any", "cpu", 0, {}, 1.0)

_SPLIT = '''
import collections
import copy
import dataclasses


def tensors(batch):
    """Every tensor of a batch: nested dicts, lists, tuples, dataclasses and Hugging Face encodings."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif hasattr(batch, "values"):
        yield from (tensor for value in batch.values() for tensor in tensors(value))
    elif isinstance(batch, (list, tuple)):
        yield from (tensor for value in batch for tensor in tensors(value))
    elif dataclasses.is_dataclass(batch):
        yield from tensors([getattr(batch, field.name) for field in dataclasses.fields(batch)])


def map_tensors(batch, change):
    """The same batch with every tensor replaced by `change(tensor)`."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if hasattr(batch, "items"):
        copied = copy.copy(batch)
        if hasattr(batch, "data"):
            copied.data = dict(batch.data)
        for key, value in batch.items():
            copied[key] = map_tensors(value, change)
        return copied
    if isinstance(batch, (list, tuple)):
        parts = [map_tensors(value, change) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if dataclasses.is_dataclass(batch):
        copied = copy.copy(batch)
        for field in dataclasses.fields(batch):
            object.__setattr__(copied, field.name, map_tensors(getattr(batch, field.name), change))
        return copied
    return batch


def count_samples(batch):
    """The commonest first dimension among the batch's tensors."""
    sizes = collections.Counter(tensor.shape[0] for tensor in tensors(batch) if tensor.dim() > 0)
    return max(sizes, key=lambda size: (sizes[size], size))


def split(batch, count):
    """`count` parts of as equal size as possible, the larger ones first."""
    samples = count_samples(batch)
    count = min(count, samples)
    start, parts = 0, []
    for part in range(count):
        stop = start + samples // count + (part < samples % count)
        parts.append(map_tensors(batch, lambda t: t[start:stop] if t.dim() > 0 and t.shape[0] == samples else t))
        start = stop
    return parts


def shares(parts, weight):
    """`(part, its share of the whole)` for the parts that count."""
    if len(parts) == 1:
        return [(0, 1.0)]
    counted = [weight(part) for part in parts]
    if sum(counted) <= 0:
        return [(0, 1.0)]
    return [(index, one / sum(counted)) for index, one in enumerate(counted) if one > 0]
'''.strip()

STRATEGY = MicroBatches()
