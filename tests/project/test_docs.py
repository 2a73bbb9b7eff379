"""What README.md and docs/ say is there: strategies' pages, commands and options, links, documents' fields, exit codes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import typer.main

from memfit.apply import strategies
from memfit.cli.main import app
from memfit.core import errors
from memfit.core.results import Estimate, Plan, Result, Run, Verdict

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
HEADINGS = ("What happens", "When to use it", "What it costs here", "What it may break")
TEST_COMMAND = """<!-- test-command -->
```
python3 -m venv .venv && .venv/bin/pip install -e ".[test]" && .venv/bin/python -m pytest
```
<!-- /test-command -->"""
page = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def fenced(text: str, language: str = "") -> list[str]:
    """The insides of the fenced blocks in that language."""
    return [inside for kind, inside in re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M) if kind == language]


def calls(text: str) -> Iterator[list[str]]:
    """The words after `memfit` of every call in a fenced block or in a code span."""
    spans = re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
    lines = [line for block in fenced(text) for line in block.splitlines()]
    for line in [" ".join(span.split()) for span in spans] + lines:
        for call in re.findall(r"^(?:\$ )?memfit (.*)|&& \S*/memfit (.*)", line):
            yield shlex.split("".join(call), comments=True)


def anchors(text: str) -> set[str]:
    """What the headings of a page can be linked to by, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows(text: str, heading: str) -> set[str]:
    """The first code span of each row of the tables under a heading."""
    section = re.split(r"^## ", text.split(heading, 1)[1], flags=re.M)[0]
    return set(re.findall(r"^\| \[?`?([\w-]+)`?", section, re.M))


@page
def test_commands_and_options_exist(path: Path) -> None:
    command = typer.main.get_command(app)
    known = command.commands  # type: ignore[attr-defined]
    for name, *words in calls(path.read_text(encoding="utf-8")):
        if name.startswith("-"):
            continue
        assert name in known, f"memfit {name}"
        ours = words[: words.index("--")] if "--" in words else words
        options = {option for parameter in known[name].params for option in (*parameter.opts, *parameter.secondary_opts)}
        used = {word for word in ours if word.startswith("-") and word != "-"}
        assert used <= options | {"--help"}, f"memfit {name} {used - options}"


def test_every_command_is_in_the_readme() -> None:
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert known <= {words[0] for words in calls((ROOT / "README.md").read_text(encoding="utf-8")) if words}


@page
def test_links_resolve(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("name", sorted(strategies()))
def test_strategy_has_its_page(name: str) -> None:
    text = (ROOT / "docs" / "strategies" / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    assert tuple(re.findall(r"^## (.*)$", text, re.M)) == HEADINGS


@pytest.mark.parametrize("index", ["README.md", "docs/strategies/README.md"])
def test_tables_of_strategies_are_whole(index: str) -> None:
    table = re.findall(r"^\| \[`?([\w-]+)`?\]\(\S+\.md\) \|", (ROOT / index).read_text(encoding="utf-8"), re.M)
    assert sorted(table) == sorted(strategies())


def test_pages_of_strategies_are_of_real_ones() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "strategies").glob("*.md")} - {"README"}
    assert pages == set(strategies())


@pytest.mark.parametrize("result", [Estimate, Plan, Run, Verdict], ids=lambda result: result.schema)
def test_fields_of_documents_are_told(result: type[Result]) -> None:
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8").split(f"## `{result.schema}`", 1)[1].split("\n## ")[0]
    told = {word for span in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", span)}
    shown = {field.name for field in fields(result) if not field.metadata.get("hidden")}  # type: ignore[arg-type]
    assert shown <= told, shown - told


@pytest.mark.parametrize(("name", "heading"), [("README.md", "## Exit codes"), ("docs/json.md", "## Exit codes")])
def test_exit_codes_are_those_of_the_errors(name: str, heading: str) -> None:
    codes = {str(kind.code) for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "code")}
    assert rows((ROOT / name).read_text(encoding="utf-8"), heading) - {"code", "---"} == codes | {"0"}


def test_readme_has_the_test_command() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").count(TEST_COMMAND) == 1


def test_python_in_pages_compiles() -> None:
    for path in PAGES:
        for place, source in enumerate(fenced(path.read_text(encoding="utf-8"), "python")):
            compile(source, f"{path.name}, block {place}", "exec")
