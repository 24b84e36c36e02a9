"""What may be imported from drainfsm: names and types, and that the documents keep to them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from drainfsm.core.events import EVENT_TYPES
from drainfsm_kit.api_page import MODULES, PAGE, page, public_names

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

PUBLIC = {
    "drainfsm": "Checkpoint OwnCheckpoint Session __version__ attach errors",
    "drainfsm.frameworks": "Drained",
    "drainfsm.frameworks.accelerate": "Loop drain",
    "drainfsm.frameworks.composer": "drain",
    "drainfsm.frameworks.dcp": "drain",
    "drainfsm.frameworks.deepspeed": "DeepSpeedCheckpoint drain",
    "drainfsm.frameworks.lightning": "drain",
    "drainfsm.frameworks.megatron": "drain",
    "drainfsm.frameworks.ray": "drain",
    "drainfsm.frameworks.torchtitan": "drain",
    "drainfsm.frameworks.transformers": "drain",
    "drainfsm.marking": "mark_mlflow mark_tensorboard mark_wandb",
    "drainfsm.machine": (
        "AbortSave Accumulation Allowances AnyEffect AnyInput Attempt Cause "
        "CheckpointCommitted CheckpointFailed CheckpointRestored CordonNodes CordonOutcome "
        "Drain DrainMachine Effect FormWorld HealthyStepReached "
        "HoldRanks LeaveRanks MemoryShortage MissingRank NodeExit "
        "NodePosition Notice NoticeClass Phase PublishManifest ReceiveNotice Record "
        "RecordRequeue ReleaseTo ReportCordon ReportDurable ReportExited "
        "ReportFenced ReportPositions ReportPublished ReportQuiesced ReportRanksLost "
        "ReportSaveFailed ReportStaged ReportVerified RequeueRecord RequeueRecorded "
        "RestoreRefused ResumeTraining Sample SourceRecovered SourceUnknown StartAttempt "
        "StartSave State Tick Verification VerifyEntries WithdrawNotice"
    ),
    "drainfsm.adapter": (
        "Adapter AdapterContext AdapterFactory Cause Cordon Departure GROUP Interpreter JobStatus "
        "LastRequeuer Notice NoticeClass NoticeSink NoticeSource Requeuer StatusDisplay Staying "
        "adapter_names load_adapter options_name"
    ),
    "drainfsm.log": "Connection Journal NatsServer Record Stored connect journals read_journal",
    "drainfsm.views": (
        "AttemptLog AttemptProjection AttemptReplay AttemptReport JobProjection Line Projection "
        "Report Status Totals by_attempt replay_job report_jobs"
    ),
    "drainfsm.testing": (
        "AmbiguousStore MemoryStore PutAnswer RecordingSink Scenario broken_rules check_adapter "
        "context_for watching"
    ),
    "drainfsm.testing.strategies": "durations_ms good_input inputs notices",
    "drainfsm.testing.metadata": (
        "AlibabaMetadataServer AwsMetadataServer AzureMetadataServer Fault GcpMetadataServer "
        "MetadataServer TencentMetadataServer"
    ),
}
"""Whoever takes a name away from here breaks somebody's code: see docs/api.md, "What you can rely
on", and deprecate it first. New names are added here and to the changelog."""


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_these(module: str) -> None:
    assert sorted(public_names(module)) == sorted(PUBLIC[module].split())


def test_every_kind_of_event_is_public() -> None:
    kinds = {kind.__name__ for kind in EVENT_TYPES}
    assert kinds <= set(public_names("drainfsm.log.events"))


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_can_be_imported_and_is_in_the_directory(module: str) -> None:
    code = f"from {module} import *\nimport {module} as m\nassert set({public_names(module)}) <= "
    code += "set(dir(m))" if module != "drainfsm.errors" else "set(vars(m))"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_a_name_that_is_not_there_is_no_attribute() -> None:
    import drainfsm

    with pytest.raises(AttributeError, match="has no attribute 'atach'"):
        getattr(drainfsm, "atach")  # noqa: B009


def test_the_page_of_the_api_is_what_the_code_says() -> None:
    from specs.generate import MARK

    assert PAGE.read_text(encoding="utf-8") == page(MARK), "run `make generate`"


# --- the documents ------------------------------------------------------------------------------


def _imports() -> Iterator[tuple[str, str, str]]:
    """Page, module and name (empty: the module itself) of every import of ours in a document."""
    for document in DOCUMENTS:
        blocks = re.findall(
            r"^```python\n(.*?)^```", document.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
        for node in (node for block in blocks for node in ast.walk(ast.parse(block))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("drainfsm"):
                yield from ((document.name, str(node.module), alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (
                    (document.name, alias.name, "")
                    for alias in node.names
                    if alias.name.startswith("drainfsm")
                )


def test_the_documents_import_public_names_only() -> None:
    found = list(_imports())
    assert len({module for _, module, _ in found}) > 3
    for where, module, name in found:
        if where == "adapter-helpers.md" and module.startswith("drainfsm_adapters."):
            continue  # that page says how far they can be relied on
        assert module in MODULES, f"{where} imports {module}, which is not public"
        as_module = f"{module}.{name}" in MODULES
        assert not name or as_module or name in public_names(module), f"{where}: {module}.{name}"


def test_the_documents_send_nobody_into_modules_that_are_not_public() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "drainfsm").rglob("*.py")]
    loggers = set(re.findall(r'getLogger\("([\w.]+)"\)', "".join(sources)))
    for document in DOCUMENTS:
        named = re.findall(r"`(drainfsm(?:\.\w+)+)`", document.read_text(encoding="utf-8"))
        for name in set(named) - loggers - {"drainfsm.toml"}:
            assert _is_public(name), f"{document.name}: {name}"


def _is_public(dotted: str) -> bool:
    module = max((m for m in MODULES if f"{dotted}.".startswith(f"{m}.")), key=len)
    rest = dotted.removeprefix(module).lstrip(".").split(".")[0]
    return not rest or rest in public_names(module)


# --- types --------------------------------------------------------------------------------------

TYPED = """
from collections.abc import Iterator

import torch
from torch import nn

import drainfsm
from drainfsm.machine import DrainMachine, StartSave


def train(model: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> None:
    session: drainfsm.Session = drainfsm.attach()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    checkpoint: drainfsm.Checkpoint = session.checkpoint(
        model=model, optimizer=optimizer, scheduler=scheduler, parts={"shuffle": generator}
    )
    first: int = checkpoint.restore()
    with session.phase("eval", expected_s=1.5):
        left: bool = checkpoint.step_done(first)
    machine = DrainMachine(job_id="j")
    machine.on_effect(StartSave, lambda m, todo: print(m.state, todo.generation_id, left))
"""

WRONG = {
    "session.checkpoint(modell=model)": "modell",
    "session.checkpoint(model=model, optimzer=optimizer)": "Never",
    "session.checkpoint(model=model, shuffle=generator)": "Never",
    "session.checkpoint(optimizer=optimizer)": "model",
    "session.checkpoint(model=model, scheduler=3)": "Stateful",
    "session.own_checkpoint(save=print)": "load",
    "session.step_done('3')": "int",
    "drainfsm.atach()": "atach",
    "machine.on_effect(StartSave, lambda m, todo: todo.generation)": "generation",
}


def test_a_strict_type_check_finds_what_is_misspelt(tmp_path: Path) -> None:
    good = TYPED.count("\n")
    (tmp_path / "job.py").write_text(TYPED + "".join(f"    {line}\n" for line in WRONG))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache", "job.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    told: defaultdict[int, str] = defaultdict(str)
    for line in done.stdout.splitlines():
        if ": error:" in line:
            told[int(line.split(":")[1])] += line
    assert min(told, default=0) > good, done.stdout
    for number, (line, word) in enumerate(WRONG.items(), good + 1):
        assert word in told[number], f"{line}: {done.stdout}"


def test_keywords_of_an_older_release_are_taken_and_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from typing import Any

    import torch

    monkeypatch.delenv("DRAINFSM_SOCKET", raising=False)
    import drainfsm

    session: Any = drainfsm.attach()
    with pytest.warns(DeprecationWarning, match=r"got shuffle: .*parts="):
        checkpoint = session.checkpoint(model=torch.nn.Linear(1, 1), shuffle=torch.Generator())
    assert checkpoint.restore() == 0
    with pytest.raises(drainfsm.errors.ConfigError, match="parts: model"):
        session.checkpoint(model=torch.nn.Linear(1, 1), parts={"model": torch.Generator()})
