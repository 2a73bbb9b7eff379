"""Every form of the commands that run nothing, and the fields of their documents."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli_contract import TARGETS, Run, check_fields, target

from memfit.jobs.weights import sample_count
from memfit.plan import read_plan
from memfit.recipes import load
from memfit.simulate.cuda_replay import replay
from memfit.simulate.snapshots import load_snapshot

JOB = target("job")


def test_estimate(run: Run) -> None:
    document = check_fields(run("estimate", JOB, "--json").document)
    assert document["schema"] == "memfit.estimate/1" and document["target"] == JOB and document["device"] == "cpu"
    assert document["peak"]["low_bytes"] <= document["peak"]["allocated_bytes"] <= document["peak"]["high_bytes"]
    assert sum(document["at_peak"]["by_category"].values()) == document["peak"]["allocated_bytes"]
    text = run("estimate", JOB, "--device", "cpu", "--html", "page.html")
    assert text.code == 0 and text.err == "" and "PEAK: " in text.out and "Alive at the peak" in text.out
    assert "<svg" in Path("page.html").read_text()


def test_settings_reach_the_target(run: Run) -> None:
    words = ("estimate", JOB, "--set", "layers=1", "--json", "--set")
    small, large = (run(*words, f"batch={size}").document for size in (256, 512))
    assert small["peak"]["allocated_bytes"] < large["peak"]["allocated_bytes"]


def test_estimates_over_batch_sizes(run: Run) -> None:
    document = run("estimate", JOB, "--batch-sweep", "64,128, 256", "--json").document
    assert document["schema"] == "memfit.estimates/1" and document["largest_batch"] is None  # sought for cards only
    peaks = [check_fields(one)["peak"]["allocated_bytes"] for one in document["estimates"]]
    assert len(peaks) == 3 and peaks == sorted(peaks)
    alone = run("estimate", JOB, "--set", "batch=128", "--json").document
    assert alone["peak"] == document["estimates"][1]["peak"]
    lines = run("estimate", JOB, "--batch-sweep", "64,128").out.splitlines()
    assert sum("batch=" in line for line in lines) == 2


def test_estimate_for_a_card(run: Run) -> None:
    """Its document, a snapshot that is read back, and a trace with the same peak."""
    words = ("estimate", JOB, "--device", "rtx3060", "--snapshot", "a.pickle", "--trace", "a.json", "--json")
    document = check_fields(run(*words).document)
    peak = document["peak"]
    assert document["device"] == "rtx3060" and document["fits"] is True and document["capacity_bytes"] > 11 * 2**30
    assert peak["allocated_bytes"] <= peak["reserved_bytes"] < peak["process_bytes"] <= peak["high_bytes"]
    replayed = replay(load_snapshot(Path("a.pickle")))
    assert not replayed.difference and replayed.placed == replayed.allocations
    assert replayed.allocator.stats.peak_allocated_bytes == peak["allocated_bytes"]
    counters = [one for one in json.loads(Path("a.json").read_text())["traceEvents"] if one["ph"] == "C"]
    reserved = [one["args"]["reserved"] for one in counters if one["name"] == "allocator"]
    assert max(reserved) == peak["reserved_bytes"]


@pytest.mark.slow
def test_where_it_fits(run: Run) -> None:
    document = run("estimate", JOB, "--all-devices", "--json").document
    cards = {one["device"]: one for one in document["estimates"]}
    assert len(cards) >= 40 and all(one["fits"] for one in cards.values())
    alone = run("estimate", JOB, "--device", "h200", "--json").document
    assert cards["h200"]["peak"]["allocated_bytes"] == alone["peak"]["allocated_bytes"]


@pytest.mark.slow
def test_the_largest_batch_that_fits(run: Run) -> None:
    Path("cards.toml").write_text('[cards.small]\nlike = "rtx3060"\ncapacity = "1500MiB"\n')
    words = ("estimate", JOB, "--device", "cards.toml:small", "--set", "hidden=4096")
    largest = run(*words, "--batch-sweep", "64,4096", "--json").document["largest_batch"]
    assert largest > 4096
    assert run(*words, "--set", f"batch={largest}", "--json").document["fits"] is True
    assert run(*words, "--set", f"batch={largest * 33 // 32}", "--json").document["fits"] is False


def test_plan_and_its_files(run: Run) -> None:
    """A plan is written, read by every command that takes one, and says the same of the step."""
    made = check_fields(run("plan", JOB, "--budget", "40%", "-o", "plan.toml", "--json").document)
    assert made["schema"] == "memfit.plan/1" and made["fits"] is True and made["strategies"]
    budget_bytes = made["budget"]["device_bytes"]
    assert made["predicted"]["peak"]["high_bytes"] <= budget_bytes < made["baseline"]["peak"]["low_bytes"]
    again = check_fields(run("plan", JOB, "--plan", "plan.toml", "--html", "page.html", "--json").document)
    assert {**again, "took_s": 0} == {**made, "took_s": 0}
    under = run("estimate", JOB, "--plan", "plan.toml", "--json").document
    assert under["peak"] == made["predicted"]["peak"] and "under the plan plan.toml" in under["notes"][0]
    assert "<svg" in Path("page.html").read_text()


@pytest.mark.parametrize("name", ["plan.toml", "plan.json"])
def test_plan_files_of_both_kinds(run: Run, name: str) -> None:
    made = run("plan", JOB, "--budget", "60%", "-o", name, "--json").document
    read = read_plan(name)
    assert read.to_dict() == made
    read.save(f"again-{name}")
    assert ("schema = " in Path(f"again-{name}").read_text()) == name.endswith("toml")
    assert read_plan(f"again-{name}") == read
    assert run("plan", JOB, "--plan", name).code == 0


def test_a_plan_as_plain_pytorch_runs(run: Run) -> None:
    assert run("plan", JOB, "--budget", "60%", "-o", "plan.py").code == 0
    made: dict[str, object] = {}
    exec(compile(Path("plan.py").read_text(), "plan.py", "exec"), made)
    job = load(JOB)
    make_step: Any = made["make_step"]
    own = {"weight": job.weight or sample_count} if "weight" in inspect.signature(make_step).parameters else {}
    step = make_step(job.model, job.loss, job.optimizer, **own)
    first = float(step(job.batch))
    assert float(step(job.batch)) < first


def test_the_frontier_is_shown_whole(run: Run) -> None:
    words = ("plan", JOB, "--budget", "40%")
    points = run(*words, "--json").document["frontier"]

    def shown(text: str) -> int:
        table = text.split("From plain to smallest")[1].split("Limits")[0]
        return len(re.findall(r"\d+(?:\.\d+)?x ", table))

    thinned, whole = run(*words).out, run(*words, "--frontier").out
    assert len(points) > 12 and shown(whole) == len(points) > shown(thinned)
    assert "--frontier shows them" in thinned and "--frontier" not in whole


def test_the_largest_batch_fits(run: Run) -> None:
    words = ("plan", JOB, "--set", "layers=1", "--set", "hidden=64", "--budget", "1MiB")
    assert run(*words, "--json").document["largest_batch"] is None
    found = run(*words, "--largest-batch", "--json").document["largest_batch"]
    assert found > 1
    assert run(*words, "--set", f"batch={found}").code == 0
    assert "largest batch" in run(*words, "--largest-batch").out


def test_without_a_budget_it_is_what_is_free(run: Run) -> None:
    document = run("plan", JOB, "--set", "batch=8", "--json").document
    assert document["budget"]["device_bytes"] > 2**24
    assert any("free now" in note for note in document["notes"])


def test_fidelity_opens_and_closes_strategies(run: Run) -> None:
    words = ("plan", JOB, "--set", "batch=256", "--budget", "100%", "--fidelity")
    names = {level: {one["name"]: one["reason"] for one in run(*words, level, "--json").document["rejected"]}
             for level in ("bitwise", "resampled", "reduced")}
    assert "--fidelity" in names["bitwise"]["micro-batches"] and "--fidelity reduced" in names["resampled"]["autocast"]
    assert "--fidelity" not in names["reduced"].get("autocast", "")


def edited(path: str, *changes: tuple[str, str]) -> None:
    text = Path(path).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    Path(path).write_text(text)


@pytest.mark.parametrize(("change", "code", "said"), [
    (('schema = "memfit.plan/1"', 'schema = "memfit.plan/9"'), 2, "this memfit reads 'memfit.plan/1'"),
    (('memfit_version = "0.1.0"', 'memfit_version = "7.0.0"'), 2, "made by memfit 7.0.0"),
    (('device = "cpu"', 'device = "rtx3061"'), 2, "rtx3061"),
    (('name = "micro-batches"', 'name = "magic"'), 2, "magic"),
    (("count = N", "count = -4"), 2, "count is -4"),
    (("count = N", "count = ["), 2, "is not a plan file"),
    (("step_s", "step_seconds"), 2, "is no whole plan"),
    (("count = N", "count = 1"), 3, "with this plan"),
])
def test_edited_plans(run: Run, change: tuple[str, str], code: int, said: str) -> None:
    words = ("plan", JOB, "--set", "layers=1", "--set", "hidden=512", "--set", "batch=2048")
    chosen = re.search(r'"count": (\d+)', run(*words, "--budget", "40%", "-o", "plan.toml", "--json").out)
    assert chosen is not None  # how many is the time model's to say
    edited("plan.toml", (change[0].replace("count = N", f"count = {chosen[1]}"), change[1]))
    for command in ("plan", "train", "prove"):
        ended = run(command, *words[1:], "--plan", "plan.toml", "--json")
        assert ended.code == code and said in ended.line
        assert check_fields(ended.document)["schema"] == ("memfit.plan/1" if code == 3 else "memfit.error/1")


def test_plans_of_other_models_and_files_that_are_none(run: Run) -> None:
    run("plan", JOB, "--budget", "60%", "-o", "plan.toml")
    for command in ("plan", "train", "prove", "estimate"):
        ended = run(command, JOB, "--set", "layers=3", "--plan", "plan.toml")
        assert ended.code == 2 and "made for another model" in ended.line
        assert "cannot read the plan nowhere.toml" in run(command, JOB, "--plan", "nowhere.toml").line
        assert "is not a plan file" in run(command, JOB, "--plan", str(TARGETS)).line
    ended = run("plan", JOB, "--plan", "plan.toml", "--fidelity", "bitwise")
    assert ended.code in (0, 2) and (ended.code == 0 or "--fidelity is bitwise" in ended.line)


def test_a_plan_is_seen_anew_for_other_settings(run: Run) -> None:
    run("plan", JOB, "--budget", "40%", "-o", "plan.toml")
    ended = run("plan", JOB, "--set", "batch=4096", "--plan", "plan.toml", "--json")
    assert ended.code == 3 and ended.document["fits"] is False
    own = ended.document["predicted"]["peak"]["high_bytes"]
    assert 0 < ended.document["floor_bytes"] <= own > ended.document["budget"]["device_bytes"]
    smaller = run("plan", JOB, "--set", "batch=1", "--plan", "plan.toml", "--json")
    assert smaller.code == 0
    said = "micro-batches left out: the batch cannot be split"
    left_out = [note for note in smaller.document["notes"] if said in note]
    assert len(left_out) == ("micro-batches" in Path("plan.toml").read_text().split("[[rejected]]")[0])


@pytest.mark.parametrize(("name", "said"), [
    ("one_sample", "it has one sample"), ("with_names", "names is a list of 8 str values"),
])
def test_batches_that_cannot_be_split_are_no_errors(run: Run, name: str, said: str) -> None:
    ended = run("plan", target(name), "--budget", "1GiB", "--json")
    assert ended.code == 0 and ended.err == ""
    reasons = [one["reason"] for one in ended.document["rejected"] if one["name"] == "micro-batches"]
    assert len(reasons) == 1 and said in reasons[0]


def test_init_writes_a_target_that_works(run: Run) -> None:
    document = run("init", "my_job.py", "--json").document
    assert document == {"schema": "memfit.init/1", "path": "my_job.py", "target": "my_job.py:job"}
    assert run("estimate", "my_job.py:job", "--set", "batch=2").code == 0
    kept = Path("my_job.py").read_text()
    assert "my_job.py:job" in kept and "train_job.py" not in kept
    again = run("init", "my_job.py")
    assert again.code == 2 and "--force" in again.line
    Path("my_job.py").write_text("")
    assert run("init", "my_job.py", "--force").out.startswith("wrote my_job.py; try: memfit estimate my_job.py:job")
    assert Path("my_job.py").read_text() == kept


def test_a_step_that_cannot_be_traced_is_measured_when_allowed(run: Run) -> None:
    refused = run("estimate", target("through_numpy"))
    assert refused.code == 2 and "cannot be traced" in refused.line and "--measure" in refused.line
    ended = run("estimate", target("through_numpy"), "--measure", "--json")
    measured, traced = check_fields(ended.document), run("estimate", JOB, "--json").document
    assert measured["measured"] is True and traced["measured"] is False
    for peak in ("allocated_bytes", "low_bytes", "high_bytes"):
        assert abs(measured["peak"][peak] - traced["peak"]["allocated_bytes"]) < 2**16
    assert measured["at_peak"]["by_category"]["optimizer_state"] == traced["at_peak"]["by_category"]["optimizer_state"]
    assert "cannot be traced" in measured["notes"][0] and measured["step_s"] > 0
    assert "measured by one real step" not in run("estimate", JOB, "--measure").out


def test_devices_and_env(run: Run) -> None:
    devices = run("devices", "--json").document
    assert devices["schema"] == "memfit.devices/1"
    names = [one["name"] for one in devices["devices"]]
    assert names[0] == "cpu" and {"rtx3060", "rtx3060-8gb", "a100-40gb", "h200"} <= set(names) == {*names}
    assert all(name == name.lower() and " " not in name for name in names)
    assert "rtx3060-8gb" in run("devices").out
    facts = run("env", "--json").document
    assert facts["schema"] == "memfit.env/1" and {"memfit", "python", "torch", "memory_free_bytes"} <= set(facts)
    assert "python" in run("env").out


def test_help(run: Run) -> None:
    for words in ((), ("--help",)):
        ended = run(*words)
        assert ended.code == 0 and ended.err == ""
        for name in ("demo", "init", "estimate", "plan", "train", "evaluate", "prove", "exec", "devices", "env"):
            assert re.search(rf"^  {name} ", ended.out, re.MULTILINE)
        assert "..." not in ended.out.split("Commands:")[1]
    assert "--largest-batch" in run("plan", "--help").out
    assert re.fullmatch(r"memfit \d+\.\d+\.\d+\n", run("--version").out)


def test_what_a_target_prints_stays_off_stdout(run: Run) -> None:
    """Printed from Python and beneath it."""
    ended = run("plan", target("loud"), "--budget", "1GiB", "--json")
    assert ended.code == 0 and json.loads(ended.out)["schema"] == "memfit.plan/1"
    assert "a line of the target" in ended.err and "a line beneath Python" in ended.err
