import dataclasses
import json
import math
from html.parser import HTMLParser

import pytest

from memfit.core.errors import UsageError
from memfit.core.results import Result
from memfit.report import notebook, page, save_html, to_json

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Outline(HTMLParser):
    """Tags that are open and every attribute, so that a test can ask for balance and for references."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [
            value or "" for name, value in attrs if name in {"src", "href", "xlink:href", "srcset", "data"}
        ]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def whole(verdict, plan, run, estimate) -> str:
    losses = {"plain": [2.3, 2.0], "planned": [2.3, 2.0, math.nan, 1.5]}
    return page([verdict, plan, run, estimate], "a <model> & more", losses=losses)


def test_the_page_is_whole_and_refers_to_nothing_outside(whole):
    outline = Outline(whole)
    assert outline.open == [] and outline.references == []
    assert "script" not in outline.tags and "link" not in outline.tags
    assert "http:" not in whole and "https:" not in whole and "url(" not in whole and "@import" not in whole
    assert len(outline.ids) == len(set(outline.ids))


def test_names_are_escaped(whole):
    assert "encoder.layer.3.&lt;lambda&gt;&amp;co" in whole
    assert "<lambda>" not in whole and "<make>" not in whole and "<reduced>" not in whole and "<model>" not in whole
    assert "if a &lt; b:" in whole


def test_the_page_tells_what_the_terminal_tells(whole):
    for said in ("FITS", "3.85x less than plain", "SAME RESULT, WITHIN BUDGET", "encoder.layer.0-11 (12 modules)",
                 "why checkpoint", "(this plan)", "Largest tensors", "Loss", "a note &amp; more"):  # fmt: skip
        assert said in whole


def test_each_picture_is_there_for_a_screen_and_for_a_phone(whole):
    assert whole.count('class="mf-wide"') == whole.count('class="mf-narrow"') == 8
    assert whole.count("<svg") == 16


def test_losses_without_a_run_stand_by_themselves(plan):
    assert "Loss over the steps" in page([plan], "x", losses={"planned": [1.0, 0.5]})
    assert "Loss over the steps" not in page([plan], "x")


def test_a_bare_plan_and_an_empty_page(bare):
    shown = page([bare], "nothing")
    assert "DOES NOT FIT" in shown and "<svg" not in shown and Outline(shown).open == []
    assert Outline(page([], "empty")).open == []


@pytest.mark.parametrize("kind", ["plan", "bare", "estimate", "verdict", "run"])
def test_a_notebook_gets_a_fragment_with_its_own_style(kind, request):
    shown = notebook(request.getfixturevalue(kind))
    assert "<html" not in shown and "<body" not in shown and "<style>" in shown
    rules = shown.split("<style>")[1].split("</style>")[0].strip().splitlines()
    assert all(rule.startswith(".memfit") for rule in rules)  # nothing else in the notebook is restyled
    assert Outline(shown).open == []


def test_other_results_are_shown_as_their_document():
    @dataclasses.dataclass(frozen=True)
    class Pack(Result):
        schema = "memfit.pack/1"
        file_bytes: int

    assert "PACK" in page([Pack(5)], "packed") and "file_bytes" in notebook(Pack(5))


def test_the_file_is_written_whole_or_refused(tmp_path, plan):
    assert save_html(tmp_path / "a" / "report.html", [plan], "x").read_text() == page([plan], "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        save_html(tmp_path / "file" / "report.html", [plan], "x")


def test_json_is_strict(run):
    text = to_json(dataclasses.replace(run, loss_last=math.nan, evaluation={"loss": math.inf}))
    document = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert document["loss_last"] is None and document["evaluation"] == {"loss": None}
    assert document["schema"] == "memfit.run/1" and text.endswith("}\n")
