"""The job files of ``deploy/`` for SkyPilot, dstack and Ray: what is in them is a command of ours,
and says the same twice. Where the tool's own package is installed, its parser has the last word."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from drainfsm.cli import notify, run
from drainfsm.core.decider import EX_TEMPFAIL

DEPLOY = Path(__file__).parents[2] / "deploy"
SKYPILOT = DEPLOY / "skypilot" / "train.yaml"
DSTACK = DEPLOY / "dstack" / "train.dstack.yml"
RAY = DEPLOY / "ray" / "rayjob.yaml"
VARIABLES = {
    "STORE": "s3://my-checkpoints/train",
    "head": "10.0.0.1",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
    "DSTACK_NODES_NUM": "2",
    "DSTACK_NODE_RANK": "1",
    "DSTACK_GPUS_PER_NODE": "8",
    "DSTACK_MASTER_NODE_IP": "10.0.0.1",
}
"""What the tools' documentation says that a job finds in its environment, on the second machine."""


def content(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def agent_of(script: str) -> tuple[dict[str, Any], list[str]]:
    """The options of its ``drainfsm run``, and the launcher's command."""
    script = script.replace('$(echo "$SKYPILOT_NODE_IPS" | head -n 1)', "10.0.0.1")
    filled = re.sub(r"\$(\w+)", lambda found: VARIABLES[found[1]], script.replace("\\\n", " "))
    (line,) = re.findall(r"exec drainfsm run (.*)", filled)
    words = shlex.split(line)
    at = words.index("--")
    return vars(run.parser().parse(words[:at])), words[at + 1 :]


def check(script: str) -> dict[str, Any]:
    options, launcher = agent_of(script)
    assert (options["nnodes"], options["node_rank"]) == ("2", "1")
    assert options["coordinator"] == "10.0.0.1:7411"
    assert options["source"] == ["auto"]
    told = dict(zip(launcher[1:-1:2], launcher[2:-1:2], strict=True))
    assert (told["--nnodes"], told["--node-rank"], told["--nproc-per-node"]) == ("2", "1", "8")
    assert told["--master-port"] not in options["coordinator"], "each has its own port"
    return options


def test_skypilot_recovers_what_drained_and_nothing_else() -> None:
    job = content(SKYPILOT)
    check(job["run"])
    assert job["resources"]["job_recovery"]["recover_on_exit_codes"] == [EX_TEMPFAIL]
    assert job["secrets"] == {"DRAINFSM_TOKEN": None}, "given on the command line, not in the file"


def test_dstack_starts_what_drained_again_and_waits_for_the_save() -> None:
    job = content(DSTACK)
    options = check(job["commands"][-1])
    assert "error" in job["retry"]["on_events"], "75 is an error to dstack"
    assert float(options["grace"]) < 60 * int(job["stop_duration"].removesuffix("m"))


def test_ray_hears_of_the_pods_end_only_after_the_job_has_left() -> None:
    job = content(RAY)["spec"]
    words = shlex.split(job["entrypoint"])
    at = words.index("--")
    assert words[:2] == ["drainfsm", "run"]
    options = vars(run.parser().parse(words[2:at]))
    launcher = words[at + 1 :]
    (group,) = job["rayClusterSpec"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    (container,) = pod["containers"]
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert float(launcher[launcher.index("--nproc-per-node") + 1]) == float(gpus)
    assert job["entrypointNumGpus"] == float(gpus), "it runs where the GPUs are"
    assert job["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"

    shell = container["lifecycle"]["preStop"]["exec"]["command"]
    hook = shlex.split(shell[-1].removesuffix(" || true"))
    told = vars(notify.parser().parse(hook[2:]))
    assert hook[:2] == ["drainfsm", "notify"]
    assert told["wait"], "Kubernetes ends Ray once the hook has returned"
    for name in ("job", "state_dir"):
        assert told[name] == options[name], "the hook has nothing of the entrypoint's environment"
    stop = yaml.safe_load(job["runtimeEnvYAML"])["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]
    for window_s in (float(stop), told["in_s"], float(options["grace"])):
        assert 100 <= window_s < pod["terminationGracePeriodSeconds"]
    assert job["backoffLimit"] >= 100, "a drain fails the job, which starts it again"


def test_skypilot_itself_takes_the_file() -> None:
    sky = pytest.importorskip("sky", reason="pip install skypilot")
    task = sky.Task.from_yaml_config(
        content(SKYPILOT), secrets_overrides=[("DRAINFSM_TOKEN", "secret")]
    )
    (resources,) = task.resources
    assert (task.num_nodes, resources.use_spot) == (2, True)
    assert resources.job_recovery["recover_on_exit_codes"] == [EX_TEMPFAIL]


def test_dstack_itself_takes_the_file() -> None:
    models = pytest.importorskip(
        "dstack._internal.core.models.configurations", reason="pip install dstack"
    )
    task = models.parse_run_configuration(content(DSTACK))
    assert (type(task).__name__, task.nodes) == ("TaskConfiguration", 2)
