"""Bad input: one clear line on stderr, exit code 2 or 3, and with `--json` one document."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_contract import TARGETS, Run, check_fields, target

import memfit.plan  # noqa: F401 - the room, of which functions are replaced here

JOB = target("job")
PLAIN = ("--budget", "1GiB")


def check(run: Run, code: int, words: tuple[str, ...], said: tuple[str, ...]) -> None:
    """Both forms of the command end in the same way, and say all of `said`."""
    plain = run(*words)
    assert plain.code == code
    assert "Traceback" not in plain.err
    for text in said:
        assert text in plain.line
    as_json = run(*words, "--json")
    assert as_json.code == code
    assert as_json.line == plain.line
    document = check_fields(as_json.document)
    if code == 3:
        assert document["schema"] == "memfit.plan/1" and document["fits"] is False
    else:
        assert document["schema"] == "memfit.error/1" and document["code"] == code
        assert document["message"] in plain.line and plain.out == ""


USAGE: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("bogus",), ("No such command 'bogus'", "memfit --help")),
    (("plan",), ("Missing argument 'TARGET'", "memfit plan --help")),
    (("plan", JOB, "--nope"), ("No such option: --nope",)),
    (("plan", JOB, "two"), ("two",)),
    (("train", JOB, "--steps", "0"), ("--steps",)),
    (("train", JOB, "--steps", "many"), ("--steps",)),
    (("train", JOB, "--steps", "2", "--epochs", "1"), ("--steps and --epochs",)),
    (("prove", JOB, "--steps", "-3"), ("--steps",)),
    (("exec",), ("nothing to run", "memfit exec -- python train.py")),
    (("exec", "--", "no-such-program-here"), ("no-such-program-here",)),
]


@pytest.mark.parametrize(("words", "said"), [case for case in USAGE if case[0][0] != "exec"])
def test_usage(run: Run, words: tuple[str, ...], said: tuple[str, ...]) -> None:
    check(run, 2, words, said)


@pytest.mark.parametrize(("words", "said"), [case for case in USAGE if case[0][0] == "exec"])
def test_usage_of_exec(run: Run, words: tuple[str, ...], said: tuple[str, ...]) -> None:
    assert run(*words).code == 2
    ended = run("exec", "--json", *words[1:])
    assert ended.code == 2 and check_fields(ended.document)["code"] == 2
    assert all(text in ended.line for text in said)


@pytest.mark.parametrize(("name", "said"), [
    ("vit-mimi", ("no recipe 'vit-mimi'", "did you mean vit-mini")),
    (target("jop"), ("no function 'jop'", "did you mean job")),
    (target("NUMBER"), ("NUMBER", "int, not a function")),
    (str(TARGETS), ("names no function",)),
    ("nowhere.py:job", ("no file nowhere.py",)),
    (target("raises"), ("KeyError: 'no such column'", "cli_targets.py, line")),
    (target("exits"), ("SystemExit", "cli_targets.py, line")),
    (target("no_job"), ("gave int, not a Job",)),
], ids=lambda one: one[-12:] if isinstance(one, str) else "")
@pytest.mark.parametrize("command", ["plan", "estimate", "train", "prove"])
def test_targets(run: Run, command: str, name: str, said: tuple[str, ...]) -> None:
    check(run, 2, (command, name), said)


@pytest.mark.parametrize(("name", "said"), [
    ("vector_loss", ("shape [8, 4], not a scalar",)),
    ("number_loss", ("gave float, not a tensor",)),
    ("no_graph", ("the loss has no graph",)),
    ("frozen", ("no trainable parameter",)),
    ("foreign_optimizer", ("parameters that are not the model's",)),
    ("closure_optimizer", ("LBFGS", "needs no closure")),
    ("no_optimizer", ("not a torch.optim.Optimizer",)),
    ("raising_loss", ("KeyError: 'no such column'", "cli_targets.py, line")),
    ("raising_model", ("ValueError: no such width", "cli_targets.py, line")),
    ("exiting_loss", ("sys.exit(3)",)),
    ("wrong_width", ("cannot be traced", "addmm", "[8, 4] X [5, 4]")),
])
@pytest.mark.parametrize("command", [("estimate",), ("plan", *PLAIN), ("train", *PLAIN)], ids=lambda one: one[0])
def test_jobs(run: Run, command: tuple[str, ...], name: str, said: tuple[str, ...]) -> None:
    check(run, 2, (command[0], target(name), *command[1:]), said)


@pytest.mark.parametrize(("size", "said"), [
    ("8 gigs", "unknown unit 'gigs'"), ("8G", "write 8GiB"), ("-1GiB", "not a positive size"),
    ("0", "not a positive size"),
    ("0GiB", "not a positive size"), ("140%", "more than the plain step needs"), ("0%", "not a positive share"),
    ("-5%", "not a positive share"), ("lots", "not a size"), ("", "not a size"), ("1e400GiB", ""),
    ("nan", "not a size"),
])
@pytest.mark.parametrize("command", ["plan", "train", "prove", "evaluate"])
def test_sizes(run: Run, command: str, size: str, said: str) -> None:
    check(run, 2, (command, JOB, "--budget", size), (said,))


@pytest.mark.parametrize(("words", "said"), [
    (("--host-budget", "8G"), "write 8GiB"),
    (("--host-budget", "40%"), "is a share"),
    (("--disk-budget", "40%"), "is a share"),
    (("--fidelity", "exact"), "unknown fidelity 'exact'"),
    (("--device", "no-such-card"), "no-such-card"),
    (("--device", "cuda"), "CUDA"),
    (("--set", "batch"), "key=value"),
    (("--set", "bathc=2"), "known settings: batch, hidden, layers, seed"),
    (("--set", "hidden=wide"), "hidden is 'wide', not a whole number"),
    (("--budget", "1GiB", "--plan", "plan.toml"), "--plan and --budget"),
])
@pytest.mark.parametrize("command", ["plan", "train", "prove"])
def test_shared_options(run: Run, command: str, words: tuple[str, ...], said: str) -> None:
    check(run, 2, (command, JOB, *words), (said,))


@pytest.mark.parametrize(("words", "said"), [
    (("--snapshot", "a.pickle"), "add --device"),
    (("--trace", "a.json", "--device", "cpu"), "add --device"),
    (("--trace", "a.json", "--device", "rtx3060", "--batch-sweep", "1,2"), "leave out --batch-sweep"),
    (("--snapshot", "no/such/../\0/a.pickle", "--all-devices"), "leave out --all-devices"),
    (("--all-devices", "--device", "cpu"), "both given"),
    (("--all-devices", "--batch-sweep", "1,2"), "both given"),
    (("--batch-sweep", "1,x"), "write it as 1,2,4"),
    (("--batch-sweep", ""), "write it as 1,2,4"),
    (("--batch-sweep", "0,1"), "below 1"),
    (("--device", "rtx306"), "did you mean rtx3060"),
])
def test_estimate_options(run: Run, words: tuple[str, ...], said: str) -> None:
    check(run, 2, ("estimate", JOB, *words), (said,))


@pytest.mark.parametrize("command", ["train", "prove", "evaluate"])
def test_cards_are_planned_for_and_do_not_run(run: Run, command: str) -> None:
    check(run, 2, (command, JOB, "--device", "rtx3060"), ("rtx3060", "memfit plan"))
    assert run("plan", JOB, "--device", "rtx3060", "--budget", "11GiB", "-o", "plan.toml").code == 0
    check(run, 2, (command, JOB, "--plan", "plan.toml"), ("nothing runs there",))


@pytest.mark.parametrize(("variable", "text", "said"), [
    ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:many", ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb", "many")),
    ("PYTORCH_ALLOC_CONF", "expandable_segment:True", ("PYTORCH_ALLOC_CONF", "expandable_segment")),
    ("CUBLAS_WORKSPACE_CONFIG", "4096", ("CUBLAS_WORKSPACE_CONFIG", "'4096'")),
])
def test_settings_that_do_not_parse(run: Run, monkeypatch: pytest.MonkeyPatch, variable: str, text: str,
                                    said: tuple[str, ...]) -> None:
    monkeypatch.setenv(variable, text)
    check(run, 2, ("estimate", JOB, "--device", "rtx3060"), said)


def test_a_card_that_does_not_hold_its_context(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("cards.toml").write_text('[cards.tiny]\nlike = "rtx3060"\ncapacity = "200MiB"\n')
    check(run, 2, ("estimate", JOB, "--device", "cards.toml:tiny"), ("tiny holds 200 MiB", "CUDA context"))


def test_a_budget_below_the_parameters_names_the_floor(run: Run) -> None:
    """And the stated floor is a budget that fits."""
    words = ("plan", JOB, "--set", "batch=2", "--set", "hidden=8192", "--budget")
    check(run, 3, (*words, "2KiB"), ("does not fit 2.0 KiB: the smallest", "(give --budget ", "optimizer state"))
    floor = run(*words, "2KiB", "--json").document["floor_bytes"]
    assert run(*words, str(floor)).code == 0
    for command in ("train", "prove"):
        check(run, 3, (command, *words[1:], "2KiB"), ("does not fit 2.0 KiB",))


def test_plain_text_shows_the_plan_that_does_not_fit(run: Run) -> None:
    ended = run("plan", JOB, "--set", "batch=64", "--budget", "2KiB", "-o", "plan.toml")
    assert "DOES NOT FIT" in ended.out and "Strategies of the smallest plan" in ended.out
    assert not Path("plan.toml").exists()


@pytest.mark.parametrize(("words", "said"), [
    (("plan", JOB, *PLAIN, "-o", "plan.yaml"), "-o plan.yaml"),
    (("plan", JOB, *PLAIN, "-o", "file/plan.toml"), "cannot write file/plan.toml"),
    (("plan", JOB, *PLAIN, "--html", "file/page.html"), "cannot write file/page.html"),
    (("estimate", JOB, "--html", "file/page.html"), "cannot write file/page.html"),
    (("train", JOB, *PLAIN, "--steps", "1", "--out", "file"), "cannot write"),
    (("train", JOB, *PLAIN, "--steps", "1", "--out", "file/run"), "cannot write"),
    (("train", JOB, *PLAIN, "--steps", "1", "--out", "/proc/no-such-folder"), "cannot write"),
    (("train", JOB, *PLAIN, "--resume", "nowhere"), "nowhere has no checkpoint"),
    (("init", "file/job.py"), "cannot write file/job.py"),
    (("init", "job"), "memfit init job.py"),
])
def test_folders_that_cannot_be_written(run: Run, words: tuple[str, ...], said: str) -> None:
    """A file stands in the folder's place: root may write to a folder whose mode forbids it."""
    Path("file").write_text("")
    check(run, 2, words, (said,))


@pytest.mark.slow
@pytest.mark.parametrize(("words", "said"), [
    (("train", JOB, *PLAIN, "--epochs", "1"), "--epochs needs data"),
    (("evaluate", JOB), "has no evaluation"),
])
def test_what_only_the_worker_sees(run: Run, words: tuple[str, ...], said: str) -> None:
    ended = run(*words, "--json")
    assert ended.code == 2 and check_fields(ended.document)["schema"] == "memfit.error/1"
    assert said in ended.line


def test_ctrl_c_while_planning(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["memfit.plan"], "make_plan", interrupt)
    ended = run("plan", JOB, "--json")
    assert ended.code == 130 and check_fields(ended.document)["code"] == 130
    assert ended.line == "memfit: interrupted\n"


def test_a_fault_of_ours_is_one_line_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*args: object, **options: object) -> None:
        raise ZeroDivisionError("not seen\nbefore")

    monkeypatch.setattr(sys.modules["memfit.plan"], "make_plan", fault)
    check(run, 1, ("plan", JOB), ("internal error: ZeroDivisionError: not seen", "MEMFIT_DEBUG=1"))
    monkeypatch.setenv("MEMFIT_DEBUG", "1")
    assert "Traceback" in run("plan", JOB).err


def test_memory_refused_to_planning_itself_is_no_fault_of_ours(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: 8 bytes")

    monkeypatch.setattr(sys.modules["memfit.plan"], "make_plan", refuse)
    check(run, 4, ("plan", JOB), ("was refused memory",))
