"""A rank without torch, for tests of launchers and agents: it counts, saves a file, and misbehaves.

    drainfsm run … -- python -m drainfsm_kit.toy_launcher 2 python -m drainfsm_kit.toy_rank

Misbehaviour is given as ``RANK@STEP``, where -1 means every rank.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import socket
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from drainfsm.core.events import CheckpointRestored
from drainfsm.core.manifest import Entry
from drainfsm.core.orders import SaveOrder
from drainfsm.core.state import periodic_id
from drainfsm.core.words import Verification
from drainfsm.runtime.rank.attach import attach_session
from drainfsm.runtime.rank.session import RankSession
from drainfsm.store import PosixStore, open_store
from drainfsm.store.generations import generation_prefix
from drainfsm_kit import crashing

FOREVER_S = 1e6
CONNECT_S = 60.0
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
TOY_PORT = "TOY_PORT"
"""Environment variable: where the ranks meet after every step, as in a collective."""


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    rank = int(os.environ.get("RANK", "0"))
    crashing.install(f"rank{rank}")
    if options.absent == rank:
        time.sleep(FOREVER_S)
    session: RankSession = attach_session()
    meeting = Meeting(session) if os.environ.get(TOY_PORT) else None
    saver = Saver(session, options)
    for step in range(saver.restore(), options.steps):
        _misbehave(options, session, step)
        time.sleep(options.step_s)
        if meeting is not None:
            meeting.wait()
        if options.trace:
            with (options.trace / f"rank{session.rank}").open("a") as trace:
                trace.write(f"{session.epoch} {step}\n")
        if options.every and (step + 1) % options.every == 0:
            with session.between_steps():
                saver.periodic(step)
        if session.step_done(step):
            break
    session.close()
    time.sleep(options.exit_s)
    return int(options.exit_code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--stage-s", type=float, default=0.0)
    parser.add_argument("--save-s", type=float, default=0.0, help="from staged to durable")
    parser.add_argument("--exit-s", type=float, default=0.0, help="from the last step to the exit")
    parser.add_argument("--every", type=int, default=0, help="a periodic save every so many steps")
    parser.add_argument("--durably", action="store_true", help="by way of the store's writer")
    parser.add_argument("--size", type=int, default=100, help="bytes that each rank saves")
    parser.add_argument("--trace", type=Path, help="directory for the steps that were done")
    parser.add_argument("--exit-code", type=int, default=0)
    parser.add_argument("--absent", type=int, help="this rank never attaches")
    parser.add_argument("--hang", default="", help="RANK@STEP: never ends this step")
    parser.add_argument("--die", default="", help="RANK@STEP@CODE: exits there, once")
    parser.add_argument("--phase", default="", help="RANK@STEP@NAME@SECONDS[@EXPECTED_SECONDS]")
    parser.add_argument("--save-fails", default="", help="text: every save fails with it")
    parser.add_argument("--save-dies", type=int, help="this rank exits while it saves")
    parser.add_argument("--save-lies", action="store_true", help="reports a file that is not there")
    return parser


def _misbehave(options: argparse.Namespace, session: RankSession, step: int) -> None:
    if _meant(options.hang, session.rank, step):
        time.sleep(FOREVER_S)
    if _meant(options.die, session.rank, step) and os.environ.get(RESTARTS, "0") == "0":
        os._exit(int(options.die.split("@")[2]))
    if _meant(options.phase, session.rank, step):
        name, seconds, *expected = options.phase.split("@")[2:]
        with session.phase(name, expected_s=float(expected[0]) if expected else None):
            time.sleep(float(seconds))


def _meant(option: str, rank: int, step: int) -> bool:
    if not option:
        return False
    who, when = (int(part) for part in option.split("@")[:2])
    return who in (-1, rank) and when == step


class Saver:
    """Writes one small file a save."""

    def __init__(self, session: RankSession, options: argparse.Namespace) -> None:
        self._session = session
        self._options = options
        self._root = Path(unquote(urlsplit(session.store_url).path))
        session.on_save(self._save)
        session.declare_size(options.size)

    def restore(self) -> int:
        """First step to train."""
        target = self._session.restore_target
        if target is None:
            return 0
        file = self._file(target.generation_id)
        name = f"{generation_prefix(target.generation_id)}{file.name}"
        step = int((open_store(self._session.store_url).get(name) or b"").split()[0])
        if step != target.step:
            raise AssertionError(f"{file} holds step {step}, the record says {target.step}")
        restored = CheckpointRestored(
            generation_id=target.generation_id,
            manifest_digest=target.manifest_digest,
            step=step,
            restore_ms=1,
            verification=Verification.SIZES,
        )
        self._session.report_restored(restored)
        return step + 1

    def periodic(self, step: int) -> None:
        session = self._session
        generation = periodic_id(epoch=session.epoch, step=step, restart=session.restart)
        self._session.report_save_began(generation, step)
        self._write(generation, step)

    def _save(self, order: SaveOrder) -> None:
        if self._options.save_dies == self._session.rank:
            os._exit(1)
        self._write(order.generation_id, order.step)

    def _file(self, generation: str) -> Path:
        return self._root / "generations" / generation / f"rank{self._session.rank}"

    def _write(self, generation: str, step: int) -> None:
        began = time.monotonic()
        if self._options.save_fails:
            raise OSError(self._options.save_fails)
        data = f"{step} ".encode().ljust(self._options.size, b".")
        time.sleep(self._options.stage_s)
        self._session.report_staged(generation, len(data))
        time.sleep(self._options.save_s)
        file = self._file(generation)
        prefix = generation_prefix(generation)
        store = open_store(self._session.store_url)
        if isinstance(store, PosixStore):
            store.directory(prefix)
        if self._options.durably:
            with store.writer(f"{prefix}{file.name}") as stream:
                stream.write(data)
        elif not self._options.save_lies:
            file.write_bytes(data)
        entry = Entry(
            name=file.name,
            size_bytes=len(data),
            checksum=f"sha256:{hashlib.sha256(data).hexdigest()}",
            rank=self._session.rank,
        )
        durable_ms = round((time.monotonic() - began) * 1_000)
        self._session.report_durable(generation, [entry], durable_ms)


class Meeting:
    """All ranks wait for each other: what a collective does to the one that is late."""

    def __init__(self, session: RankSession) -> None:
        address = ("127.0.0.1", int(os.environ[TOY_PORT]))
        self._is_host = session.rank == 0
        if self._is_host:
            with socket.create_server(address, backlog=session.world_size) as server:
                server.settimeout(CONNECT_S)
                self._peers = [server.accept()[0] for _ in range(session.world_size - 1)]
        else:
            self._peers = [_connect(address)]

    def wait(self) -> None:
        if not self._is_host:
            self._peers[0].sendall(b"x")
        for peer in self._peers:
            if not peer.recv(1):
                sys.exit(1)  # a peer has died
        if self._is_host:
            for peer in self._peers:
                peer.sendall(b"x")


def _connect(address: tuple[str, int]) -> socket.socket:
    give_up = time.monotonic() + CONNECT_S
    while time.monotonic() < give_up:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(address)
        time.sleep(0.01)
    raise TimeoutError(f"nobody listens at {address}")


if __name__ == "__main__":
    sys.exit(main())
