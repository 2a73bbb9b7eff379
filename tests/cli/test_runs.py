"""Commands that train: their documents, exit codes, files, and ends that are not the planned one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_contract import Run, check_fields, target

import memfit.prove  # noqa: F401 - the room, of which a function is replaced here
from memfit.core.results import Side, Verdict

PLAIN = ("--budget", "1GiB")
VERDICT = Verdict(
    within_budget=True, same_result=True, fidelity="bitwise", max_rel_loss_diff=0.0, max_rel_param_diff=0.0,
    buffers_equal=True, grad_set_equal=True, enforced=True, plain=Side(8 << 20, 0.1, False),
    planned=Side(2 << 20, 0.1, True), budget_bytes=4 << 20)


def micro_batches(run: Run, name: str, count: int) -> str:
    """A plan file with micro-batches for the target."""
    document = run("plan", target(name), *PLAIN, "--json").document
    split = {"name": "micro-batches", "settings": {"count": count}, "fidelity": "reordered", "why": ""}
    document["strategies"] = [split]
    Path("split.json").write_text(json.dumps(document))
    return "split.json"


def log_of(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "log.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_and_its_files(run: Run) -> None:
    ended = run("train", target("epochs"), *PLAIN, "--epochs", "2", "--enforce", "--out", "run", "--json")
    document = check_fields(ended.document)
    assert ended.code == 0 and ended.err == ""
    assert document["schema"] == "memfit.run/1" and document["steps"] == 8 and document["within_budget"] is True
    assert document["enforced"] is sys.platform.startswith("linux") and set(document["evaluation"]) == {"accuracy"}
    assert [entry["step"] for entry in log_of("run") if "loss" in entry] == list(range(1, 9))
    assert "<svg" in Path("run/report.html").read_text() and "memfit.plan/1" in Path("run/plan.toml").read_text()
    assert sorted(path.name for path in Path("run/checkpoints").iterdir()) == ["step-00000004", "step-00000008"]


@pytest.mark.slow
def test_resume_goes_on_under_the_runs_own_plan(run: Run) -> None:
    words = ("train", target("job"), "--set", "batch=256")
    first = run(*words, "--budget", "60%", "--steps", "3", "--out", "run")
    assert first.code == 0 and "WITHIN BUDGET" in first.out and first.err == ""
    document = run(*words, "--resume", "run", "--steps", "5", "--json").document
    assert document["steps"] == 5 and document["step_s_median"] > 0
    assert document["plan"]["strategies"] and document["budget_bytes"] < 2**24
    assert [entry["step"] for entry in log_of("run")] == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_nan_keeps_the_state_before_it(run: Run) -> None:
    ended = run("train", target("epochs"), *PLAIN, "--set", "nan_at=2", "--epochs", "1", "--out", "run", "--json")
    assert ended.code == 2 and check_fields(ended.document)["schema"] == "memfit.error/1"
    assert "the loss is nan at step 3" in ended.line and "step 2 is kept in" in ended.line
    assert [path.name for path in Path("run/checkpoints").iterdir()] == ["step-00000002"]


@pytest.mark.slow
def test_what_is_left_out_of_windows_is_noted(run: Run) -> None:
    """A micro-batch without labels and a batch of one are no errors."""
    plan = micro_batches(run, "epochs", 2)
    words = ("train", target("epochs"), "--set", "ignored=true", "--set", "last=1", "--epochs", "1")
    ended = run(*words, "--plan", plan, "--json")
    notes = ended.document["notes"]
    assert ended.code == 0 and ended.document["steps"] == 4 and ended.document["loss_last"] is not None
    assert sum("micro-batches without a label are left out" in note for note in notes) == 1
    assert sum("left out where a batch cannot be split: it has one sample" in note for note in notes) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("words", "code", "said"), [
    (("--enforce",), 4, "out of memory"),
    ((), 6, "above its budget of 32.0 MiB"),
], ids=["enforced", "watched"])
def test_memory_that_no_trace_sees(run: Run, words: tuple[str, ...], code: int, said: str) -> None:
    """The system refuses it, or the run finishes and is told to be above its budget."""
    if code == 4 and not sys.platform.startswith("linux"):
        pytest.skip("this system enforces no limit")
    ended = run("train", target("hoarding"), "--budget", "32MiB", "--steps", "2", *words, "--json")
    document = check_fields(ended.document)
    assert ended.code == code and document["schema"] == "memfit.run/1" and document["within_budget"] is False
    assert document["error"]["code"] == code and said in document["error"]["message"]
    assert document["error"]["message"] in ended.line


def started(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "memfit", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition: Any, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
def test_ctrl_c_in_the_middle_of_a_run(run: Run) -> None:
    """The step is finished and saved, one line says so, and the run goes on from there."""
    words = ("train", target("epochs"), "--set", "batches=500", "--set", "pause_s=0.02")
    process = started(*words, *PLAIN, "--steps", "400", "--out", "run", "--json")
    wait_for(lambda: Path("run/log.jsonl").exists() and len(Path("run/log.jsonl").read_text().splitlines()) >= 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    document = check_fields(json.loads(out))
    done = len(log_of("run"))
    assert document["code"] == 130 and f"interrupted after step {done}; step {done} is saved" in document["message"]
    assert err.count("\n") == 1 and "--resume" in err and "Traceback" not in err
    resumed = run(*words, "--resume", "run", "--steps", str(done + 2), "--json")
    assert resumed.code == 0 and resumed.document["steps"] == done + 2
    assert [entry["step"] for entry in log_of("run") if "loss" in entry] == list(range(1, done + 3))


@pytest.mark.slow
def test_evaluate(run: Run) -> None:
    ended = run("evaluate", target("epochs"), "--budget", "100%", "--json")
    document = ended.document
    assert set(document) == {"schema", "target", "metrics", "rss_peak_bytes", "budget_bytes", "within_budget",
                             "enforced", "took_s", "notes", "predicted", "measured", "outputs", "folding", "collected_shape"}
    assert document["measured"]["peak_bytes"] == pytest.approx(document["predicted"]["peak_bytes"], rel=0.02)
    assert document["outputs"]["kept"] == "reduced" and document["folding"] is None
    assert ended.code == 0 and document["schema"] == "memfit.evaluation/1" and document["within_budget"] is True
    assert 0 <= document["metrics"]["accuracy"] <= 1 and 0 < document["budget_bytes"] < 2**20


@pytest.mark.slow
def test_evaluate_refuses_outputs_that_do_not_fit_and_streams_them_to_a_file(run: Run) -> None:
    words = ("evaluate", target("epochs"), "--samples", "1000")
    refused = run(*words, "--collect", "host", "--host-budget", "1KiB")
    assert refused.code == 3 and "1000 samples" in refused.err and "Traceback" not in refused.err
    kept = run(*words, "--collect", "out.npy", "--json")
    assert kept.code == 0 and kept.document["collected_shape"][0] == 1000 and kept.document["outputs"]["kept"] == "out.npy"
    assert Path("out.npy").stat().st_size > kept.document["outputs"]["collected_bytes"]
    text = run(*words)
    assert text.code == 0 and "without a graph" in text.out and "about 30 % is often said" in text.out
    assert run(*words, "--collect", "out.csv").code == 2


@pytest.mark.slow
def test_prove(run: Run) -> None:
    ended = run("prove", target("job"), "--budget", "60%", "--steps", "2", "--html", "page.html", "--json")
    document = check_fields(ended.document)
    assert ended.code == 0 and ended.err == "" and document["schema"] == "memfit.verdict/1"
    assert document["same_result"] is True and document["within_budget"] is True and document["demo"] is None
    assert document["planned"]["peak_bytes"] < document["plain"]["peak_bytes"]
    assert "<svg" in Path("page.html").read_text()


@pytest.mark.slow
def test_prove_tells_another_result(run: Run) -> None:
    ended = run("prove", target("each_time_another"), *PLAIN, "--fidelity", "bitwise", "--steps", "1", "--no-enforce", "--json")
    document = check_fields(ended.document)
    assert ended.code == 5 and document["same_result"] is False and document["enforced"] is False
    assert document["error"]["code"] == 5 and "not bitwise" in ended.line


@pytest.mark.parametrize(("verdict", "code"), [
    (VERDICT, 0),
    (replace(VERDICT, planned=Side(2 << 20, 0.1, False), within_budget=False), 4),
    (replace(VERDICT, same_result=False), 5),
    (replace(VERDICT, within_budget=False), 6),
])
def test_exit_codes_of_a_verdict(run: Run, monkeypatch: pytest.MonkeyPatch, verdict: Verdict, code: int) -> None:
    """Plain that dies is expected; the planned side must live, give the same, and stay within the budget."""
    monkeypatch.setattr(sys.modules["memfit.prove"], "prove_target", lambda *args, **options: verdict)
    ended = run("prove", target("job"), "--set", "batch=8", *PLAIN, "--json")
    document = check_fields(ended.document)
    assert ended.code == code and document.get("error", {"code": 0})["code"] == code
    assert (ended.err == "") if code == 0 else (document["error"]["message"] in ended.line)
    text = run("prove", target("job"), "--set", "batch=8", *PLAIN)
    assert text.code == code and "plain against planned" in text.out and ("memfit: " in text.err) is (code != 0)


@pytest.mark.slow
def test_the_demo_tells_its_story(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a small target: the same commands, documents and report as on the real one."""
    from memfit.cli import demo_command

    monkeypatch.setattr(demo_command, "TARGET", target("epochs"))
    monkeypatch.setattr(demo_command, "BUDGET", "1GiB")
    monkeypatch.setattr(demo_command, "COMPARED", 1)
    ended = run("demo", "--steps", "3", "--out", "demo.html", "--json")
    document = check_fields(ended.document)
    assert ended.code == 0 and ended.err == ""
    assert set(document["demo"]) == {"accuracy", "loss_first", "loss_last", "report"}
    assert document["demo"]["report"] == "demo.html" and "<svg" in Path("demo.html").read_text()


def test_exec_passes_on_the_exit_code_and_what_is_printed(run: Run) -> None:
    python = (sys.executable, "-c")
    ended = run("exec", "--", *python, "print('said'); raise SystemExit(7)")
    assert (ended.code, ended.out, ended.err) == (7, "said\n", "")
    ended = run("exec", "--json", "--", *python, "print('said'); raise SystemExit(7)")
    assert (ended.code, ended.err) == (7, "said\n")
    document = ended.document
    assert document["schema"] == "memfit.exec/1" and document["returncode"] == 7
    assert document["command"][0] == sys.executable
    ended = run("exec", *python, "import sys; print(sys.argv[1:])", "--json", "--help", "--", "-x")
    assert (ended.code, ended.out) == (0, "['--json', '--help', '--', '-x']\n")
