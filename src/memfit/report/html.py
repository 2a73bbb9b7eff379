"""One self-contained HTML page, or a fragment for a notebook: no network, no scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memfit.core.files import write_atomic
from memfit.core.results import Estimate, Plan, Result, Run, Verdict
from memfit.report import figures, settings, tiles, wording
from memfit.report import format as words
from memfit.report.document import to_json

if TYPE_CHECKING:
    from jinja2 import Environment

Losses = Mapping[str, Sequence[float]]
_KINDS: dict[type[Result], str] = {Plan: "plan", Estimate: "estimate", Verdict: "verdict", Run: "run"}
_LOSSES_BELONG_TO = (Verdict, Run)


def page(results: Sequence[Result], title: str, *, losses: Losses | None = None) -> str:
    """A whole HTML document. `losses` (one value a step, under `plain`, `planned`, ...) are drawn beside the first
    verdict or run, or by themselves where there is neither."""
    widths = (figures.WIDE, figures.PHONE)
    drawn = figures.loss_figure(losses or {}, widths)
    owner = next((one for one in results if isinstance(one, _LOSSES_BELONG_TO)), None)
    sections = [_section(one, widths, drawn if one is owner else []) for one in results]
    loose = drawn if owner is None else []
    return _environment().get_template("page.html.j2").render(title=title, sections=sections, loose=loose)


def save_html(path: str | Path, results: Sequence[Result], title: str, *, losses: Losses | None = None) -> Path:
    """Write `page(...)` beside `path`, then rename; the path. Raises UsageError where it cannot be written."""
    written = Path(path)
    write_atomic(written, page(results, title, losses=losses))
    return written


def notebook(result: Result) -> str:
    """One result as a fragment that brings its own style, for `_repr_html_`."""
    section = _section(result, (figures.NOTEBOOK,), [])
    return _environment().get_template("notebook.html.j2").render(section=section)


def _section(result: Result, widths: figures.Widths, more: list[figures.Figure]) -> dict[str, Any]:
    """What a template is given of one result."""
    return {
        "kind": _KINDS.get(type(result), "other"),
        "result": result,
        "headline": wording.headline(result),
        "tiles": tiles.tiles(result),
        "figures": [*figures.figures(result, widths), *more],
        "json": to_json(result),
    }


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """Jinja with escaping on; imported here, so that tables in a terminal do not wait for it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("memfit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = (
        words.gib,
        words.seconds,
        words.ratio,
        words.percent,
        words.number,
        words.shape,
        settings.settings_text,
        settings.mix_text,
        wording.diffs,
        wording.run_facts,
        wording.chosen_index,
        wording.fate,
        wording.judged_bytes,
    )
    made.filters.update({function.__name__: function for function in shown})
    made.globals["fidelity"] = wording.FIDELITY
    return made
