"""Where agents are found: sockets, the newest one first, and what run.json says."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from drainfsm.errors import ConfigError
from drainfsm.runtime import paths
from drainfsm.runtime.paths import RunInfo, control_link, control_links


@pytest.fixture(autouse=True)
def _runtime_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))


def test_sockets_have_short_names_whatever_the_job_is_called(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["directory"] * 30)
    path = paths.agent_socket(deep, job="j" * 64, node_rank=65_535)
    assert len(str(path)) <= paths.UNIX_PATH_BYTES_MAX
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_runtime_directory_with_a_long_name_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path.joinpath(*["directory"] * 12)
    deep.mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    assert str(paths.socket_dir()).startswith("/tmp/drainfsm-")


def test_jobs_of_one_name_in_two_state_directories_are_two(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    with control_link(tmp_path / "s", here, job="job", node_rank=0):
        assert len(control_links(here, job="job")) == 1
        assert control_links(there, job="job") == []
        assert control_links(here, job="other") == []


def test_agents_are_found_by_node_rank(tmp_path: Path) -> None:
    with (
        control_link(tmp_path / "s10", tmp_path, job="job", node_rank=10),
        control_link(tmp_path / "s2", tmp_path, job="job", node_rank=2),
    ):
        links = control_links(tmp_path, job="job")
        assert [link.readlink().name for link in links] == ["s2", "s10"]
    assert control_links(tmp_path, job="job") == []


def test_the_newest_agent_takes_over_and_the_old_one_leaves_it_alone(tmp_path: Path) -> None:
    old = control_link(tmp_path / "old", tmp_path, job="job", node_rank=0)
    with old:
        new = control_link(tmp_path / "new", tmp_path, job="job", node_rank=0)
        new.__enter__()
    (link,) = control_links(tmp_path, job="job")
    assert link.readlink().name == "new"
    new.__exit__(None, None, None)


def test_a_state_directory_may_have_any_name() -> None:
    assert control_links(Path(os.fsdecode(b"/nowhere/\xff")), job="job") == []


def test_agents_are_found_whatever_variables_they_were_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login has XDG_RUNTIME_DIR, and a cron job, a service or ``docker exec`` has not."""
    login = os.environ["XDG_RUNTIME_DIR"]
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    socket = paths.agent_socket(tmp_path, job="job", node_rank=0)
    with control_link(socket, tmp_path, job="job", node_rank=0):
        monkeypatch.setenv("XDG_RUNTIME_DIR", login)
        (link,) = control_links(tmp_path, job="job")
        assert link.parent == socket.parent
        paths.socket_dir().mkdir(exist_ok=True)
        assert paths.sockets_of(os.getpid(), os.environ) == paths.moved(Path(login, "j.sock")) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root finds the agents of others")
def test_root_finds_the_agent_of_whom_the_state_directory_belongs_to(tmp_path: Path) -> None:
    somebody = 60_000 + os.getpid() % 5_000
    theirs = Path(f"/tmp/drainfsm-{somebody}")
    theirs.mkdir(mode=0o700)
    try:
        os.chown(theirs, somebody, -1)
        link = paths.control_link_path(tmp_path, job="job", node_rank=0)
        (theirs / link.name).symlink_to("s")
        assert control_links(tmp_path, job="job") == []
        (tmp_path / "job").mkdir()
        os.chown(tmp_path / "job", somebody, -1)
        assert control_links(tmp_path, job="job") == [theirs / link.name]
    finally:
        shutil.rmtree(theirs)


def test_a_folder_of_somebody_else_is_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with control_link(tmp_path / "s", tmp_path, job="job", node_rank=0):
        monkeypatch.setattr(os, "getuid", lambda: Path("/proc/self").stat().st_uid + 1)
        assert control_links(tmp_path, job="job") == []


def test_a_socket_directory_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    base = paths.socket_dir().parent
    paths.socket_dir().rmdir()
    (base / "drainfsm").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="somebody else"):
        paths.socket_dir()


def test_run_json_is_read_back_and_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    info = RunInfo(job_id="job", epoch=3, pid=7, nats_url="nats://t@h:1", coordinator="h:2")
    assert paths.read_run_info(tmp_path, "job") is None
    paths.write_run_info(tmp_path, info)
    assert paths.read_run_info(tmp_path, "job") == info
    path = paths.run_info_path(tmp_path, "job")
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("{")
    assert paths.read_run_info(tmp_path, "job") is None


def test_a_runtime_directory_of_somebody_else_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(theirs))
    monkeypatch.setattr(os, "getuid", lambda: theirs.stat().st_uid + 1)
    assert paths._short(os.getuid()) == Path(f"/tmp/drainfsm-{os.getuid()}")


def test_where_tmp_cannot_be_written_tmpdir_is_used(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(tempfile.mkdtemp(prefix="d-", dir="/tmp"))
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", str(own))
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "/tmp")
    assert paths.socket_dir() == own / f"drainfsm-{os.getuid()}"


def test_no_place_for_a_socket_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(paths, "_short", lambda uid: Path("/proc/nowhere"))
    with pytest.raises(ConfigError, match="no place for the agent's socket"):
        paths.socket_dir()
