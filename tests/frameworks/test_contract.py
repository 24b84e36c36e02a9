"""One contract for every framework's hook: the real framework, agent and notices, two ranks on CPU."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from drainfsm.core import events as e
from drainfsm.core.orders import CheckpointSettings
from drainfsm_kit.framework_contract import (
    QUICK,
    RANKS,
    SCENARIOS,
    Framework,
    Story,
    trace,
    training,
)
from drainfsm_kit.frameworks import FRAMEWORKS
from drainfsm_kit.running import RunningJob, running_job

INSTALLED = "DRAINFSM_FRAMEWORKS"
"""Environment variable: names of frameworks that were installed for these tests, by commas."""

WHOLE = os.environ.get("DRAINFSM_FRAMEWORKS_SCOPE", "whole") == "whole"
"""``quick``: one scenario of each framework and sharding."""

CASES = [(one, sharding) for one in FRAMEWORKS for sharding in one.shardings]
each_framework = pytest.mark.parametrize(
    ("framework", "sharding"), CASES, ids=[f"{one.name}-{sharding}" for one, sharding in CASES]
)
in_whole = pytest.mark.skipif(not WHOLE, reason="only in the whole matrix: `make frameworks-all`")


@pytest.fixture(autouse=True)
def installed(framework: Framework) -> None:
    missing = [name for name in framework.packages if find_spec(name) is None]
    if missing and framework.name in os.environ.get(INSTALLED, "").split(","):
        pytest.fail(f"{', '.join(missing)} is missing, though it was to be installed")
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: `make frameworks` installs it")


@pytest.fixture
def story(framework: Framework, sharding: str, tmp_path: Path, job: RunningJob) -> Story:
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
        with running_job(directory / "whole", nats="") as job:
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
    for point in SCENARIOS[scenario]:
        assert story.drain_at(point) in point.stop_steps
    story.run_to_the_end()
    whole = whole_run(
        story.framework, story.sharding, uninterrupted, tmp_path_factory.mktemp("whole")
    )
    assert training(story.out) == training(whole)
    assert [trace(story.out, rank, "validated") for rank in range(RANKS)] == [
        trace(whole, rank, "validated") for rank in range(RANKS)
    ]
