"""One contract for the hook of every framework, with the framework itself: two ranks, on CPU."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from msgspec import structs

from drainfsm.core import events as e
from drainfsm.core.orders import CheckpointSettings
from drainfsm_kit.framework_contract import (
    INSTALLED,
    PATIENCE_S,
    QUICK,
    SCENARIOS,
    SCOPE,
    Framework,
    Point,
    Story,
    difference,
    trace,
)
from drainfsm_kit.framework_driver import Options
from drainfsm_kit.frameworks import FRAMEWORKS
from drainfsm_kit.running import RunningJob, running_job

pytestmark = pytest.mark.timeout(4 * PATIENCE_S)
WHOLE = os.environ.get(SCOPE) == "whole"
CASES = [
    (one, sharding)
    for one in FRAMEWORKS
    for sharding in (one.shardings if WHOLE else one.shardings[-1:])
]
each_framework = pytest.mark.parametrize(
    ("framework", "sharding"), CASES, ids=[f"{one.name}-{sharding}" for one, sharding in CASES]
)
in_whole = pytest.mark.skipif(not WHOLE, reason="only in the whole matrix: `make frameworks-whole`")


def _there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def check_installed(framework: Framework) -> None:
    missing = [name for name in framework.packages if not _there(name)]
    if missing and framework.name in os.environ.get(INSTALLED, "").split(","):
        pytest.fail(f"{', '.join(missing)} is missing, though it was to be installed")
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: `make frameworks` installs it")


@pytest.fixture
def story(framework: Framework, sharding: str, tmp_path: Path, job: RunningJob) -> Story:
    check_installed(framework)
    return Story(framework, tmp_path, job, sharding)


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Traces of runs without a drain, made when they are first wanted."""
    return {}


def whole_run(
    framework: Framework, sharding: str, made: dict[tuple[str, str], Path], directory: Path
) -> Path:
    key = (framework.name, sharding)
    if key not in made:
        with running_job(directory / "whole", nats="", wait_s=PATIENCE_S) as job:
            story = Story(framework, directory / "whole", job, sharding)
            story.run_to_the_end()
            made[key] = story.out
    return made[key]


@each_framework
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(name, marks=() if name == QUICK else in_whole, id=name.replace(" ", "_"))
        for name in SCENARIOS
    ],
)
def test_a_drained_job_goes_on_as_if_it_had_never_been_drained(
    story: Story,
    scenario: str,
    uninterrupted: dict[tuple[str, str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    points = SCENARIOS[scenario]
    if any(point.by_signal for point in points) and not story.framework.outlives_sigterm:
        pytest.skip(f"{story.framework.name} ends by a SIGTERM to all: docs/frameworks.md")
    for point in points:
        assert story.drain_at(point) in point.stop_steps
    story.run_to_the_end()
    whole = whole_run(
        story.framework, story.sharding, uninterrupted, tmp_path_factory.mktemp("whole")
    )
    assert difference(story.out, whole, "batch", "finished") == ""
    assert difference(story.out, whole, "validated") == ""


@in_whole
@each_framework
def test_a_lost_job_goes_on_from_its_periodic_commit_and_no_step_is_saved_twice(
    story: Story,
    uninterrupted: dict[tuple[str, str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    often = CheckpointSettings(every_steps=2)
    story.start(story.options(pauses=("batch:1:0",)), settings=often)
    story.wait_for_ranks_at("batch:1:0")
    story.job.wait_for(e.CheckpointCommitted, count=3)
    for pid in story.job.processes():
        os.kill(pid, signal.SIGKILL)
    story.job.wait_until_gone()
    story.run_to_the_end(settings=often)
    commits = [commit.step for at in (1, 2) for commit in story.job.find(e.CheckpointCommitted, at)]
    assert commits == [1, 3, 5, 7, 9, 11]
    whole = whole_run(
        story.framework, story.sharding, uninterrupted, tmp_path_factory.mktemp("whole")
    )
    assert difference(story.out, whole, "batch", "finished") == ""
    assert story.saved_elsewhere() == []
    lines = len(trace(story.out, 0, "batch"))
    story.run_to_the_end(settings=often)
    assert len(trace(story.out, 0, "batch")) == lines, "a job that is done trains nothing twice"
    assert story.job.find(e.CheckpointCommitted, 3) == []


@in_whole
@each_framework
def test_the_frameworks_own_resume_is_no_more_exact(
    story: Story,
    uninterrupted: dict[tuple[str, str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Ours is bit-exact (above). What is declared of the framework's own is found to be true."""
    whole = whole_run(
        story.framework, story.sharding, uninterrupted, tmp_path_factory.mktemp("whole")
    )
    native = Options(
        out=str(story.out),
        sharding=story.sharding,
        hook=False,
        native=str(story.directory / "native"),
        native_save_at=4,
    )
    story.framework.run_alone(native)
    assert difference(story.out, whole, "batch", "finished") == "", "the same without drainfsm"
    resumed = story.directory / "resumed"
    story.framework.run_alone(structs.replace(native, out=str(resumed), native_resume=True))
    exact = difference(resumed, whole, "batch", "finished", tail=True) == ""
    assert exact == story.framework.native_exact


MISUSES = [(one, one.shardings[0], name) for one in FRAMEWORKS for name in one.misuses]


@in_whole
@pytest.mark.parametrize(
    ("framework", "sharding", "misuse"), MISUSES, ids=[f"{one.name}-{m}" for one, _, m in MISUSES]
)
def test_a_wrong_use_ends_with_an_error_that_says_what_to_do(story: Story, misuse: str) -> None:
    wrong = story.framework.misuses[misuse]
    if wrong.after_drain:
        story.drain_at(Point("batch:0:2", (1,)))
    agent = story.start(story.options(misuse=misuse), settings=wrong.settings)
    assert agent.wait(PATIENCE_S) not in (0, 75), story.told()
    (said, *_) = re.findall(rf"^.*errors\.{wrong.error}: (.*)$", agent.output(), re.MULTILINE)
    assert wrong.says in said


NAMED = [one for one in FRAMEWORKS if one.has_extra]


@pytest.mark.parametrize("framework", NAMED, ids=[one.name for one in NAMED])
def test_a_framework_that_is_missing_is_named_with_its_extra(framework: Framework) -> None:
    """Without it, the module is still imported: the documents of the API are made from it."""
    code = f"""
import sys
for name in {framework.packages!r}:
    sys.modules[name] = None
import drainfsm.frameworks.{framework.name} as hook
hook.drain(type("Trainer", (), {{"__module__": "{framework.packages[0]}.trainer"}})())
"""
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, check=False)
    said = done.stderr.decode()
    assert f"errors.ConfigError: drainfsm.frameworks.{framework.name} needs" in said
    assert f"pip install 'drainfsm[{framework.name}]'" in said
