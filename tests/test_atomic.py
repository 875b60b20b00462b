"""Files that appear whole, and what is no file: links, modes, devices, pipes, descriptors, parts of the dead."""

import fcntl
import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ctem.persistence import atomic
from ctem.persistence.atomic import check_target, replacing


def write(path, content=b"new"):
    with replacing(path) as file:
        file.write(content)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_usual_mode_and_an_old_one_keeps_its_own(tmp_path):
    write(tmp_path / "new")
    (tmp_path / "usual").touch()
    assert mode(tmp_path / "new") == mode(tmp_path / "usual")
    (tmp_path / "old").touch()
    (tmp_path / "old").chmod(0o640)
    write(tmp_path / "old")
    assert mode(tmp_path / "old") == 0o640
    assert (tmp_path / "old").read_bytes() == b"new"


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("there/file")
    (tmp_path / "dangling").symlink_to("there/made")
    for name, target in (("link", "file"), ("dangling", "made")):
        write(tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "there" / target).read_bytes() == b"new"


def test_a_file_without_write_permission_stays(tmp_path):
    (tmp_path / "kept").write_bytes(b"old")
    (tmp_path / "kept").chmod(0o444)
    for act in (write, check_target):
        with pytest.raises(OSError, match="it is read-only"):
            act(tmp_path / "kept")
    assert (tmp_path / "kept").read_bytes() == b"old"
    assert mode(tmp_path / "kept") == 0o444


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    found = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write(tmp_path / "pipe")
    reader.join(10)
    assert found == [b"new"]
    assert (tmp_path / "pipe").is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_device_stays_a_device():
    write("/dev/null")
    assert Path("/dev/null").is_char_device()


def test_a_descriptor_is_gone_on_with_not_begun_again(tmp_path):
    script = (
        "from ctem.persistence.atomic import replacing\nwith replacing('/dev/stdout') as f: f.write(b'new')"
    )
    (tmp_path / "log").write_bytes(b"old ")
    with (tmp_path / "log").open("ab") as log:
        subprocess.run([sys.executable, "-c", script], stdout=log, check=True)
    assert (tmp_path / "log").read_bytes() == b"old new"


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path):
    (tmp_path / "a").write_bytes(b"old")

    def fail():
        with replacing(tmp_path / "a") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_and_then_its_folder_are_synced_around_the_moment_when_it_takes_its_name(
    tmp_path, monkeypatch
):
    done, sync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda n: (done.append(stat.S_IFMT(os.fstat(n).st_mode)), sync(n))[1])
    monkeypatch.setattr(os, "replace", lambda *how: (done.append("named"), replace(*how))[1])
    write(tmp_path / "a")
    assert done == [stat.S_IFREG, "named", stat.S_IFDIR]


def test_parts_of_the_dead_go_and_parts_of_the_living_stay(tmp_path):
    (tmp_path / ".a.0123abcd.part").write_bytes(b"of a process that was killed")
    (tmp_path / ".a.note.part").write_bytes(b"not ours")
    with replacing(tmp_path / "a") as first:
        first.write(b"first")
        write(tmp_path / "a", b"second")
        assert (tmp_path / "a").read_bytes() == b"second"
    assert (tmp_path / "a").read_bytes() == b"first"
    assert sorted(os.listdir(tmp_path)) == [".a.note.part", "a"]


def test_a_part_that_another_process_takes_for_dead_before_it_is_locked_is_begun_again(tmp_path, monkeypatch):
    lock, taken = fcntl.flock, []

    def late(file, how):
        if how == fcntl.LOCK_EX and not taken:
            taken.append(True)
            atomic.forget_parts(tmp_path / "a")
        lock(file, how)

    monkeypatch.setattr(atomic.fcntl, "flock", late)
    write(tmp_path / "a", b"whole")
    assert taken
    assert (tmp_path / "a").read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["a"]


def test_four_writers_of_one_file_leave_one_whole_file(tmp_path):
    """Locks belong to open files, so threads meet as processes do."""

    def hammer(byte):
        for _ in range(150):
            write(tmp_path / "a", byte * 1000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(hammer, [b"1", b"2", b"3", b"4"]))
    found = (tmp_path / "a").read_bytes()
    assert found == found[:1] * 1000
    assert os.listdir(tmp_path) == ["a"]


def test_the_longest_name_can_be_written(tmp_path):
    name = "ü" * 127
    write(tmp_path / name)
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", ["folder", "absent/file"])
def test_what_cannot_be_written_is_an_error_beforehand(tmp_path, name):
    (tmp_path / "folder").mkdir()
    for act in (write, check_target):
        with pytest.raises(OSError, match=r"cannot be written \(a folder is there|there is no such folder"):
            act(tmp_path / name)
    assert os.listdir(tmp_path) == ["folder"]
