"""What ``drainfsm init`` sees in a directory, what it writes, and what it refuses."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from drainfsm.cli.doctor import examine, setup_of
from drainfsm.cli.doctor import parser as doctor_parser
from drainfsm.cli.init import CHECKS
from drainfsm.cli.main import main
from drainfsm.cli.settings import load_settings
from drainfsm.errors import ConfigError, ScriptRefusedError
from drainfsm.init.configuration import job_name
from drainfsm.init.directory import command_for, look_at, script_of
from drainfsm.init.frameworks import FRAMEWORKS
from drainfsm.init.platforms import platforms
from drainfsm.init.proposal import Proposal, propose
from drainfsm.init.script import Script, read_script
from drainfsm_kit.init_scripts import EPOCHS, SCRIPTS

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("DRAINFSM_STATE_DIR", str(tmp_path / "state"))
    folder = tmp_path / "my project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def proposed(text: str) -> Proposal:
    return propose(Script(Path("train.py"), name="train.py", data=text.encode()))


def after(text: str) -> str:
    change = proposed(text).change
    assert change is not None, proposed(text).refused
    return change.after


# --- the loop -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_form_of_loop_gets_its_lines_once(name: str) -> None:
    made = after(SCRIPTS[name])
    ast.parse(made)
    for line in (
        "import drainfsm",
        "drainfsm.attach()",
        ".checkpoint(",
        ".restore()",
        "session.close()",
    ):
        assert made.count(line) == 1, line
    assert made.count(".step_done(") == 1
    assert proposed(made) == Proposal(change=None), "a script that has them is left alone"


def test_the_lines_are_put_where_a_person_would_put_them() -> None:
    made = after(EPOCHS)
    assert "def train(model, train_loader, optimizer, epoch, *, session, checkpoint):" in made
    assert "range(1 + max(session.last_step + checkpoint.ended, 0) // len(train_loader), 4)" in made
    assert "train_loader = StatefulDataLoader(Numbers(), batch_size=2, shuffle=True)" in made
    assert "scheduler=scheduler" in made
    behind = made[made.index("optimizer.step()") :]
    assert behind.startswith(
        "optimizer.step()\n        if checkpoint.step_done(session.last_step + 1):\n"
        "            break\n"
    )
    called = made[made.index("        train(model, ") :]
    assert called.splitlines()[1:3] == ["        if session.preempted:", "            break"]


def test_lines_of_loops_that_end_together_stand_each_in_its_own() -> None:
    made = after(
        f"{MADE}loader = DataLoader(x)\nfor epoch in range(3):\n  for b in loader:\n"
        "    optimizer.step()\n"
    )
    assert made.endswith(
        "    optimizer.step()\n    if checkpoint.step_done(session.last_step + 1):\n      break\n"
        "  if session.preempted:\n    break\nsession.close()\n"
    )


def test_arguments_by_keyword_alone_get_two_more() -> None:
    made = after(
        EPOCHS.replace("optimizer, epoch):", "optimizer, epoch, *, a, b=1):").replace(
            "        train(model, train_loader, optimizer, epoch)",
            "        train(model, train_loader, optimizer, epoch, a=2)",
        )
    )
    assert "optimizer, epoch, *, a, b=1, session, checkpoint):" in made
    assert "epoch, a=2, session=session, checkpoint=checkpoint)" in made


def test_a_scaler_is_saved_and_its_update_belongs_to_the_step() -> None:
    made = after(
        "import torch\nscaler = torch.amp.GradScaler()\nmodel = torch.nn.Linear(1, 1)\n"
        "opt = torch.optim.SGD(model.parameters())\nloader = make()\nfor x in loader:\n"
        "    scaler.step(opt)\n    scaler.update()\n    print(x)\n"
    )
    assert 'parts={"scaler": scaler}' in made
    assert "scaler.update()\n    if checkpoint.step_done(session.last_step + 1):" in made


def test_a_loader_of_unknown_make_is_named_in_a_note() -> None:
    change = proposed(f"{MADE}for x in batches:\n    optimizer.step()\nbatches = 1\n").change
    assert change is not None
    assert "make batches a StatefulDataLoader" in "".join(change.notes)


MADE = "model = M()\noptimizer = SGD(model.parameters())\nx = 1\n"
GAN_LOOP = "for b in x:\n    opt_g.step()\n    opt_d.step()\n"
CALLED = "for epoch in range(3):\n    train(a=1)\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import torch\n", "no optimizer that steps"),
        ("def f(optimizer):\n    optimizer.step()\n", "no loop of this file is around"),
        ("for a in x:\n    optimizer.step()\n", "no name for the model"),
        (
            f"{MADE}for a in range(2):\n for b in x:\n  for c in b:\n   optimizer.step()\n",
            "more than two loops",
        ),
        (
            f"{MADE}while epoch < 3:\n  for b in x:\n    optimizer.step()\n",
            "the loop over epochs is not over range",
        ),
        (
            f"{MADE}for b in x:\n  optimizer.step()\nfor b in y:\n  optimizer.step()\n",
            "step in several loops (lines 5, 7)",
        ),
        (
            f"{MADE}for b in x: optimizer.step()\n",
            "several statements stand in one line",
        ),
        (
            "opt_g = SGD(g.parameters())\nopt_d = SGD(d.parameters())\n" + GAN_LOOP,
            "of several models (g, d)",
        ),
        (
            f"{MADE}def train(**more):\n  for b in x:\n    optimizer.step()\n" + CALLED,
            "takes its arguments in an unusual way",
        ),
    ],
)
def test_what_no_rule_covers_is_refused_with_its_reason(text: str, why: str) -> None:
    found = proposed(text)
    assert found.change is None
    assert why in found.refused


ACCELERATE = """from accelerate import Accelerator
accelerator = Accelerator()
model = accelerator.prepare(net)
optimizer = SGD(model.parameters())
for epoch in tqdm(range(3)):
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "import lightning as L\ntrainer = L.Trainer(devices=2)\ntrainer.fit(model, loader)\n",
            "\ndrain(trainer)\ntrainer.fit(model, loader)",
        ),
        (
            "from trl import SFTTrainer\nt = SFTTrainer(args=a)\nt.train()\n",
            "t.train(resume_from_checkpoint=drain(t))",
        ),
        (
            "import transformers as T\nt = T.Trainer()\nt.train(resume_from_checkpoint=True)\n",
            "t.train(resume_from_checkpoint=drain(t))",
        ),
        (
            ACCELERATE,
            (
                "loop = drain(accelerator)\nfor epoch in tqdm(loop.epochs(3)):\n"
                "    for step, batch in enumerate(loop.batches(loader)):\n"
            ),
        ),
    ],
)
def test_a_framework_that_owns_the_loop_gets_its_own_lines(
    text: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainfsm.init.frameworks._is_there", lambda module: True)
    made = after(text)
    assert line in made
    assert (
        len(re.findall(r"^from drainfsm\.frameworks\.\w+ import drain$", made, re.MULTILINE)) == 1
    )


LIGHTNING = """import lightning as L
from torch.utils.data import DataLoader
class Data(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(self.numbers, batch_size=2, shuffle=True)
    def val_dataloader(self):
        return DataLoader(self.others)
trainer = L.Trainer()
trainer.fit(model, datamodule=Data(), ckpt_path=old)
"""
HUGGING_FACE = """from transformers import Trainer, TrainingArguments
args = TrainingArguments("out", save_strategy="steps")
t = Trainer(args=args)
t.train()
"""


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            LIGHTNING,
            (
                (
                    "StatefulDataLoader(self.numbers, batch_size=2, sampler=DistributedSampler("
                    "self.numbers, num_replicas=self.trainer.world_size, "
                    "rank=self.trainer.global_rank))"
                ),
                "return DataLoader(self.others)",
                "trainer = L.Trainer(enable_checkpointing=False)",
                "drain(trainer)\ntrainer.fit(",
                "ckpt_path=trainer.ckpt_path or old",
            ),
        ),
        (HUGGING_FACE, ('TrainingArguments("out", save_strategy="no")',)),
        (
            HUGGING_FACE.replace(', save_strategy="steps"', ""),
            ('TrainingArguments("out", save_strategy="no")',),
        ),
        (
            ACCELERATE.replace("range(3)", "range(first, 3)").replace(
                "optimizer.step()\n",
                "optimizer.step()\n        if accelerator.sync_gradients:\n            done += 1\n",
            )
            + "first = 0\nloader = DataLoader(x, shuffle=True)\n",
            (
                "tqdm(loop.epochs(3)):\n    done = loop.session.last_step + 1\n",
                "Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))",
            ),
        ),
    ],
)
def test_what_a_framework_would_be_refused_for_is_changed_too(
    text: str, lines: tuple[str, ...]
) -> None:
    made = after(text)
    assert [line for line in lines if line not in made] == [], made


def test_what_no_rule_changes_of_a_framework_is_said() -> None:
    own = LIGHTNING.replace("L.Trainer()", "L.Trainer(callbacks=[ModelCheckpoint(monitor='x')])")
    change = proposed(own.replace("def train_dataloader", "def make")).change
    assert change is not None
    assert "enable_checkpointing" not in change.after
    assert "may stay if it has a monitor" in "".join(change.notes)
    assert "must be a StatefulDataLoader" in "".join(change.notes)
    best = proposed(HUGGING_FACE.replace('"steps"', '"steps", load_best_model_at_end=True')).change
    assert best is not None
    assert 'save_strategy="no", or "best"' in "".join(best.notes)
    elsewhere = ACCELERATE.replace("range(3)", "range(first, 3)") + "first = 0\nfirst = resumed()\n"
    assert "not over range(n), from 0 on" in proposed(elsewhere).refused


def test_every_framework_whose_lines_are_put_in_has_its_module() -> None:
    named = [one.module for one in FRAMEWORKS if one.lines is not None]
    assert len(named) == 3
    assert [module for module in named if not hasattr(import_module(module), "drain")] == []


def test_a_framework_without_a_rule_or_a_module_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "import deepspeed\nengine = deepspeed.initialize(model=m)\nfor b in c:\n    engine.step()\n"
    )
    monkeypatch.setattr("drainfsm.init.frameworks._is_there", lambda module: True)
    assert "at the top of drainfsm.frameworks.deepspeed" in proposed(text).refused
    monkeypatch.setattr("drainfsm.init.frameworks._is_there", lambda module: False)
    assert "has no module for it" in proposed(text).refused


@pytest.mark.parametrize(
    "data",
    [b"def f(:\n", b"\xff\xfe\x00", b"# coding: nonsense\n", b"x = " + b"(" * 3_000, b"a\0b"],
)
def test_what_is_no_python_is_refused(data: bytes) -> None:
    with pytest.raises(ScriptRefusedError, match=r"train\.py cannot be read as Python"):
        Script(Path("train.py"), name="train.py", data=data)


def test_encoding_line_ends_and_rights_stay_and_the_diff_is_what_git_takes(project: Path) -> None:
    path = project / "train.py"
    text = "# -*- coding: latin-1 -*-\n# caf\xe9\n" + EPOCHS.rstrip("\n")
    path.write_bytes(text.replace("\n", "\r\n").encode("latin-1"))
    path.chmod(0o750)
    script = read_script(path, name="train.py")
    change = propose(script).change
    assert change is not None
    (project / "copy").mkdir()
    (project / "copy" / "train.py").write_text(text)
    diff = script.diff(change.after)
    subprocess.run(["git", "apply", "-"], input=diff.encode(), cwd=project / "copy", check=True)
    script.write(change.after)
    assert path.stat().st_mode & 0o777 == 0o750
    written = path.read_bytes()
    assert b"\r\n" in written
    assert b"\n" not in written.replace(b"\r\n", b"")
    assert written.decode("latin-1").replace("\r\n", "\n") == change.after
    assert (project / "copy" / "train.py").read_text() == change.after
    assert [one.name for one in project.iterdir()] != [], "and nothing beside it"
    assert not list(project.glob(".train*"))


# --- the directory ------------------------------------------------------------------------------


def test_the_script_that_a_launcher_names_is_taken(project: Path) -> None:
    (project / "src").mkdir()
    for name in ("src/train.py", "src/finetune.py"):
        (project / name).write_text(EPOCHS)
    (project / "go.sh").write_text(
        "exec torchrun --nproc-per-node 8 \\\n  src/train.py --lr 1 # go\n"
    )
    contents = look_at(project)
    assert script_of(contents) == "src/train.py"
    command = command_for(contents, "src/train.py", is_distributed=True)
    assert command == ("torchrun --nproc-per-node 8 src/train.py --lr 1", "go.sh")


@pytest.mark.parametrize(
    "line",
    [
        "python -m pip install x\npython -m speech.train --lr 1",
        "torchrun --nproc-per-node 8 -m speech.train --lr 1",
        "python -m torch.distributed.run --nproc-per-node 8 -m speech.train --lr 1",
        "deepspeed --num_gpus 2 --module speech.train --lr 1",
    ],
)
def test_a_line_may_start_a_module_of_a_package(project: Path, line: str) -> None:
    (project / "speech").mkdir()
    (project / "speech" / "train.py").write_text("from .data import x\n" + EPOCHS)
    (project / "go.sh").write_text(f"{line} 2>&1 | tee log\n")
    contents = look_at(project)
    (launch,) = contents.launches
    assert launch.script == "speech/train.py"
    assert (
        command_for(contents, "speech/train.py", is_distributed=False)[0] == (line.splitlines()[-1])
    )


def test_a_module_that_nothing_starts_is_started_as_one(project: Path, capsys: Output) -> None:
    (project / "speech").mkdir()
    (project / "speech" / "train.py").write_text("from .data import x\n" + EPOCHS)
    assert main(["init"]) == 0
    assert "drainfsm run -- python -m speech.train\n" in capsys.readouterr().out


def test_tests_and_environments_are_no_training_scripts(project: Path) -> None:
    (project / "env").mkdir()
    (project / "env" / "pyvenv.cfg").touch()
    (project / "tests").mkdir()
    for name in ("env/a.py", "tests/test_train.py", "main.py"):
        (project / name).write_text(EPOCHS)
    assert script_of(look_at(project)) == "main.py"


def test_odd_directories_are_refused_by_type(project: Path) -> None:
    with pytest.raises(ConfigError, match="is not there"):
        look_at(project / "nowhere")
    (project / "file").touch()
    with pytest.raises(ConfigError, match="is no directory"):
        look_at(project / "file")
    with pytest.raises(ConfigError, match="no Python file here trains"):
        script_of(look_at(project))
    (project / "a.py").write_text(EPOCHS)
    (project / "b.py").write_text(EPOCHS)
    with pytest.raises(ConfigError, match=r"which script trains\? .* a\.py, b\.py"):
        script_of(look_at(project))
    (project / "loop").symlink_to(project)
    (project / "dangling.py").symlink_to(project / "nobody.py")
    os.mkfifo(project / "pipe.py")
    assert look_at(project).python == ("a.py", "b.py")


def test_a_directory_of_endless_files_is_not_read_to_its_end(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainfsm.init.directory.ENTRIES_MAX", 5)
    for number in range(9):
        (project / f"{number}.txt").touch()
    with pytest.raises(ConfigError, match="holds more than 5 files"):
        look_at(project)


def test_platforms_by_what_can_be_seen(tmp_path: Path) -> None:
    vendor = tmp_path / "sys_vendor"
    vendor.write_text("Amazon EC2\n")
    texts = [("job.sbatch", "#!/bin/sh\n#SBATCH -N 2\n"), ("job.yaml", "kind: JobSet\n")]
    found = platforms(texts, environment={"SLURM_JOB_ID": "1"}, vendor_file=vendor)
    assert [(one.source, one.here) for one in found] == [
        ("slurm", True),
        ("aws", True),
        ("kubernetes", False),
    ]
    assert platforms([], environment={}, vendor_file=tmp_path / "none") == ()


# --- the command --------------------------------------------------------------------------------


def test_the_file_is_what_run_takes_and_the_script_stays(project: Path, capsys: Output) -> None:
    (project / "train.py").write_text(EPOCHS)
    assert main(["init"]) == 0
    printed = capsys.readouterr().out
    settings = load_settings({}, environment={}, directory=project)
    config = settings.run_config(["python", "train.py"])
    assert (config.job, config.store, config.create_store) == ("my-project", "checkpoints", True)
    assert (config.checkpoint.every_s, config.checkpoint.every_steps) == (600, 0)
    assert (project / "train.py").read_text() == EPOCHS
    assert "--- a/train.py" in printed
    assert "not applied" in printed
    assert "drainfsm doctor -- python train.py" in printed


def test_a_framework_that_writes_its_own_checkpoints_saves_by_steps(project: Path) -> None:
    """By time, it would be refused at its start."""
    (project / "train.py").write_text(ACCELERATE)
    assert main(["init"]) == 0
    config = load_settings({}, environment={}, directory=project).run_config(["python", "train.py"])
    assert (config.checkpoint.every_s, config.checkpoint.every_steps) == (0, 1000)


def test_a_file_that_is_there_is_never_written_over(project: Path, capsys: Output) -> None:
    (project / "train.py").write_text(EPOCHS)
    (project / "drainfsm.toml").write_text('job = "mine"\nstore = "s3://b/p"\n')
    assert main(["init", "--job", "other"]) == 0
    assert (project / "drainfsm.toml").read_text() == 'job = "mine"\nstore = "s3://b/p"\n'
    assert "notify --job mine" in capsys.readouterr().out
    (project / "drainfsm.toml").unlink()
    (project / "drainfsm.toml").symlink_to("nowhere")
    assert main(["init"]) != 0
    assert not (project / "nowhere").exists()


def test_only_apply_changes_the_script_and_diff_writes_nothing(
    project: Path, capsys: Output
) -> None:
    script = project / "train.py"
    script.write_text(EPOCHS)
    assert main(["init", "--diff"]) == 0
    assert capsys.readouterr().out.startswith("--- a/train.py\n+++ b/train.py\n")
    assert sorted(one.name for one in project.iterdir()) == ["train.py"]
    assert main(["init", "--apply"]) == 0
    assert script.read_text() == after(EPOCHS)
    assert main(["init", "--apply"]) == 0
    assert "nothing is proposed" in capsys.readouterr().out


def test_a_script_without_a_rule_still_gets_its_file_and_exits_with_1(
    project: Path, capsys: Output
) -> None:
    (project / "train.py").write_text("for a in b:\n    optimizer.step()\n")
    assert main(["init"]) == 1
    assert "No lines are proposed for the script: train.py:1: no name for the model" in (
        capsys.readouterr().out
    )
    assert (project / "drainfsm.toml").exists()
    assert main(["init", "--diff"]) == 2


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--script", "none.py"], "--script none.py: there is no such file"),
        (["--job", "a b"], "'a b' is not a job name"),
        (["--apply", "--diff"], "not allowed with argument"),
        (["elsewhere"], "elsewhere is not there"),
    ],
)
def test_usage_errors(project: Path, argv: list[str], message: str, capsys: Output) -> None:
    (project / "train.py").write_text(EPOCHS)
    assert main(["init", *argv]) == 2
    assert message in capsys.readouterr().err
    assert not (project / "drainfsm.toml").exists()


@pytest.mark.parametrize(
    ("directory", "name"),
    [("my project", "my-project"), ("日本", ""), ("a.b", "a-b"), ("-x-", "x")],
)
def test_a_job_is_named_after_its_directory(directory: str, name: str) -> None:
    assert job_name(directory) == name


def test_what_doctor_would_check_is_what_doctor_checks(project: Path) -> None:
    broker, coordinator = "nats://127.0.0.1:9", "127.0.0.1:45678"
    options = ["--job", "j", "--store", str(project), "--nats", broker, "--bytes", "1GB"]
    options += ["--nnodes", "2", "--coordinator", coordinator]
    arguments = doctor_parser().parse(options)
    settings = load_settings(vars(arguments), environment={}, directory=project)
    found = {one.check for one in examine(setup_of(settings, arguments, ["true"]))}
    assert {name for name in CHECKS if any(one.startswith(name) for one in found)} == set(CHECKS)
    assert [one for one in found if not one.startswith(tuple(CHECKS))] in ([], ["token"])
