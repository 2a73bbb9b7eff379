import dataclasses
import math
import xml.etree.ElementTree as ElementTree

import pytest

from memfit.core.results import FrontierPoint, Timeline
from memfit.report import figures, svg
from memfit.report.svg import series
from memfit.report.svg.scale import byte_ticks, ticks

MIB = 2**20
WIDTHS = (figures.WIDE, figures.NOTEBOOK, figures.PHONE)


def words(picture: str) -> str:
    return " ".join(ElementTree.fromstring(picture).itertext())


def frame(picture: str) -> tuple[float, float]:
    _, _, width, height = map(float, ElementTree.fromstring(picture).attrib["viewBox"].split())
    return width, height


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["plan", "estimate", "verdict", "run"])
def test_pictures_are_well_formed_named_and_of_their_width(kind, width, request):
    drawn = figures.figures(request.getfixturevalue(kind), (width,))
    assert drawn
    for figure in drawn:
        root = ElementTree.fromstring(figure.variants[0])
        assert root.attrib["role"] == "img" and root[0].tag == "title" and root[1].tag == "desc"
        assert root.attrib["aria-labelledby"].split() == [root[0].attrib["id"], root[1].attrib["id"]]
        assert root[0].text and root[1].text
        assert frame(figure.variants[0])[0] == width


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_placed_outside(plan, width):
    for figure in figures.figures(plan, (width,)):
        wide, high = frame(figure.variants[0])
        for one in ElementTree.fromstring(figure.variants[0]).iter():
            x, y = float(one.attrib.get("x", 0)), float(one.attrib.get("y", 0))
            assert 0 <= x <= wide and 0 <= y <= high
            assert x + float(one.attrib.get("width", "0").rstrip("%")) <= wide + 1 or one.tag == "svg"


def test_the_peak_is_marked_with_phase_module_and_operator(plan):
    picture = svg.timeline(plan.timeline, budget_bytes=140 * MIB, plain=plan.baseline_timeline)
    said = words(picture)
    assert "Peak 130.0 MiB in backward" in said and "encoder.layer.3.<lambda>&co, aten.bmm.default" in said
    assert "budget 140.0 MiB" in said and "plain 500.0 MiB" in said and "4 x (forward, backward)" in said
    assert "workspace" not in said  # holds nothing
    mark = list(ElementTree.fromstring(picture).iter("circle"))[-1]
    assert 0 < float(mark.attrib["cx"]) < 900


def test_a_long_module_name_is_shortened_to_the_picture(plan):
    at = dataclasses.replace(plan.timeline.at_peak, module="stem." + "block." * 60 + "last")
    picture = svg.timeline(dataclasses.replace(plan.timeline, at_peak=at), width=figures.PHONE)
    (shown,) = [t.text for t in ElementTree.fromstring(picture).iter("text") if t.text and "…" in t.text]
    assert shown.startswith("stem.") and shown.endswith("last") and len(shown) < 60


def test_thinning_keeps_the_peak(plan):
    long = Timeline(tuple(range(50_000)), {"activations": tuple(7 if i == 31_337 else i % 5 for i in range(50_000))},
                    (("forward", 0),), 31_337, 7)  # fmt: skip
    kept = series.thinned(long, 300)
    assert 31_337 in kept and len(kept) <= 602 and kept == sorted(set(kept))
    assert len(svg.timeline(long)) < 60_000


def test_layers_stack_to_the_total(plan):
    kept = list(range(len(plan.timeline.x)))
    stacked = series.layers(plan.timeline, kept)
    assert [layer.name for layer in stacked] == ["parameters", "activations"]
    assert list(stacked[-1].above) == series.totals(plan.timeline)


def test_the_frontier_marks_the_choice_the_budget_and_plain(plan):
    said = words(svg.frontier(plan.frontier, chosen=plan.frontier[2], budget_bytes=140 * MIB, floor_bytes=120 * MIB))
    assert "130.0 MiB, 1.31x" in said and "budget 140.0 MiB" in said and "a bound, not simulated" in said
    assert "this plan" in said and "nothing fits" in said


def test_a_choice_that_is_no_point_of_the_frontier_is_drawn_too(plan):
    own = figures.chosen_point(dataclasses.replace(plan, frontier=plan.frontier[:1]))
    assert own and "130.0 MiB, 1.31x" in words(svg.frontier(plan.frontier[:1], chosen=own))


def test_nothing_to_draw(bare):
    empty = Timeline((), {"activations": ()}, (), 0, 0)
    assert svg.timeline(empty) == svg.frontier(()) == svg.losses({}) == svg.peaks([]) == ""
    assert svg.breakdown({}) == svg.breakdown({"peak": {}}) == svg.losses({"plain": [math.nan]}) == ""
    assert figures.figures(bare, (900,)) == []
    assert figures.figures(dataclasses.replace(bare, timeline=empty, baseline_timeline=empty), (900,)) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_single_values(width):
    one = Timeline((5,), {"activations": (MIB,), "other<": (3,)}, (), 5, MIB)
    assert "Peak 1.0 MiB" in words(svg.timeline(one, width=width))
    assert words(svg.frontier([FrontierPoint(MIB, 1.0, (), True)], width=width))
    assert words(svg.losses({"planned": [2.0]}, width=width))
    assert words(svg.losses({"planned": [2.0, math.inf, 1.0], "plain": []}, width=width))
    assert "1.0 MiB" in words(svg.peaks([("measured", MIB)], budget_bytes=MIB // 2, width=width))


def test_ticks_are_round_and_inside():
    assert ticks(0, 1, 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert [label for _, label in byte_ticks(0, 1.3 * 2**30, 6)] == [
        "0",
        "0.25 GiB",
        "0.5 GiB",
        "0.75 GiB",
        "1 GiB",
        "1.25 GiB",
    ]
    assert all(10 <= value <= 40 * MIB for value, _ in byte_ticks(10, 40 * MIB, 6))
