"""Which folders can take what memory does not hold."""

from __future__ import annotations

from pathlib import Path

from memfit.hardware.disks import filesystem_of, free_disk_bytes, offload_folder, why_unsuitable

MOUNTS = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 21 0:26 / /tmp rw,nosuid - tmpfs tmpfs rw
31 30 254:1 / /tmp/big\\040disk rw - xfs /dev/vdb rw
"""


def test_the_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    found = [filesystem_of(Path(one), mounts) for one in ("/home/user", "/tmp", "/tmp/a/b", "/tmp/big disk/a", "/tmpfile")]
    assert found == ["ext4", "tmpfs", "tmpfs", "xfs", "ext4"]
    assert filesystem_of(Path("/tmp"), tmp_path / "nothing") == ""


def test_a_folder_in_memory_or_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"21 1 0:26 / {tmp_path} rw - tmpfs tmpfs rw\n")
    assert "tmpfs: what is there is in memory" in str(why_unsuitable(tmp_path, mounts))
    mounts.write_text(f"21 1 254:0 / {tmp_path} rw - ext4 /dev/vda rw\n")
    assert why_unsuitable(tmp_path, mounts) is None
    assert "no folder that can be written to" in str(why_unsuitable(tmp_path / "none", mounts))
    assert free_disk_bytes(tmp_path / "none") == 0


def test_the_folder_is_that_of_temporary_files_unless_named() -> None:
    assert offload_folder("/data") == Path("/data") and offload_folder().is_dir()
