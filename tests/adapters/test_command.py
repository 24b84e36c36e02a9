"""The adapter of commands of one's own: what they find in their environment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from drainfsm.adapter import AdapterContext
from drainfsm_adapters.command import CommandAdapter, this_node


def cordon(tmp_path: Path, nodes: tuple[str, ...]) -> str:
    context = AdapterContext(
        job_id="llm",
        epoch=lambda: 3,
        node_rank=0,
        node_count=1,
        grace_ms=30_000,
        options={"cordon": "echo $DRAINFSM_JOB $DRAINFSM_EPOCH $DRAINFSM_NODES"},
    )
    return asyncio.run(CommandAdapter(context).cordon(nodes, timeout_ms=10_000))


def test_the_nodes_of_the_notice_are_named(tmp_path: Path) -> None:
    assert cordon(tmp_path, ("a", "b")) == "llm 3 a b"


@pytest.mark.parametrize("variable", ["NODE_NAME", "SLURMD_NODENAME"])
def test_where_the_notice_names_none_it_is_this_node(
    tmp_path: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    assert cordon(tmp_path, ()) == f"llm 3 {this_node()}"
    monkeypatch.setenv(variable, "gpu-17")
    assert cordon(tmp_path, ()) == "llm 3 gpu-17"
