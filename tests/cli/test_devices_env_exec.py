"""`memfit devices`, `env` and `exec`: their documents and their exit codes, through the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from memfit.cli import devices_command, env_command
from memfit.hardware import catalogue
from memfit.launch import find_mimalloc


def memfit(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "memfit", *words], capture_output=True, text=True, check=False)


def document(*words: str) -> dict[str, Any]:
    done = memfit(*words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_devices_lists_this_machine_and_every_card() -> None:
    listed = document("devices", "--json")
    assert listed["schema"] == "memfit.devices/1"
    by_name = {one["name"]: one for one in listed["devices"]}
    assert listed["devices"][0]["name"] == "cpu" and set(catalogue()) <= set(by_name)
    for one in listed["devices"]:
        assert {"name", "title", "kind", "capacity_bytes", "compute_capability", "bandwidth_bytes_per_s", "rates",
                "link_bytes_per_s", "sources"} <= set(one)
    assert by_name["rtx3060"]["compute_capability"] == [8, 6] and by_name["cpu"]["link_bytes_per_s"] is None


def test_the_table_of_devices_fits_and_its_names_can_be_copied() -> None:
    _, _, text = devices_command.run()
    lines = text.splitlines()
    assert all(len(line) <= 100 for line in lines)
    words = {word for line in lines for word in line.split()}
    assert set(catalogue()) <= words and "cpu" in words


def test_env_tells_what_a_bug_report_needs_without_importing_torch() -> None:
    facts = document("env", "--json")
    assert facts["schema"] == "memfit.env/1"
    assert facts["python"] == ".".join(map(str, sys.version_info[:3])) and facts["packages"]["torch"] == facts["torch"]
    assert 0 < facts["memory_free_bytes"] <= facts["memory_total_bytes"] and facts["cores"] >= 1
    assert facts["container_limit_bytes"] is None or facts["container_limit_bytes"] > 0
    assert (facts["worker_allocator"] == "mimalloc") == (find_mimalloc() is not None)
    source = ("import sys; from memfit.cli import devices_command, env_command; env_command.run(); "
              "devices_command.run(); sys.exit('torch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", source], check=False)
    assert done.returncode == 0


def test_the_cuda_version_that_torch_was_built_for_is_read_not_imported() -> None:
    torch = pytest.importorskip("torch")
    assert env_command.torch_cuda() == torch.version.cuda
    assert all(len(line) <= 100 for line in env_command.run()[2].splitlines())


@pytest.mark.parametrize("code", [0, 7])
def test_exec_passes_the_exit_code_on(code: int) -> None:
    assert memfit("exec", "--", sys.executable, "-c", f"raise SystemExit({code})").returncode == code


def test_exec_with_json_keeps_stdout_for_the_document() -> None:
    done = memfit("exec", "--json", "--", sys.executable, "-c", "print('from the script')")
    told = json.loads(done.stdout)
    assert told["schema"] == "memfit.exec/1" and told["returncode"] == done.returncode == 0
    assert "from the script" in done.stderr


@pytest.mark.parametrize("words", [(), ("--", "no-such-program-here")])
def test_exec_of_nothing_is_bad_usage(words: tuple[str, ...]) -> None:
    done = memfit("exec", "--json", *words)
    assert done.returncode == 2 and json.loads(done.stdout)["code"] == 2
