"""The Trainer of Hugging Face Transformers, as a user would drain it."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from drainfsm.frameworks.transformers import drain
from drainfsm_kit.framework_driver import (
    Options,
    Trace,
    cpu_ranks_that_accelerate_shards,
    network,
    parse,
    seed_rank,
    training_samples,
    validation_samples,
)


class Config(PretrainedConfig):  # type: ignore[misc]
    model_type = "drained"


class Model(PreTrainedModel):  # type: ignore[misc]
    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.net = network()
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        """They are those of ``network``."""

    def get_input_embeddings(self) -> None:
        """It has none."""

    get_output_embeddings = get_input_embeddings

    def forward(self, row: Tensor, target: Tensor) -> dict[str, Tensor]:
        out = self.net(row)
        return {"loss": (out - target).square().mean(), "logits": out}


class Traced(Trainer):  # type: ignore[misc]
    options: Options
    trace: Trace
    index = 0
    validations = 0

    def training_step(self, model: Any, inputs: dict[str, Tensor], *more: Any) -> Tensor:
        epoch, index = divmod(self.index, self.options.micro_batches)
        self.trace.reach(f"batch:{epoch}:{index}")
        loss: Tensor = super().training_step(model, inputs, *more)
        self.trace.batch(epoch, index, self.ids.tolist(), loss)
        self.index += 1
        return loss

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], *args: Any, **more: Any) -> Any:
        self.ids = inputs["id"]
        given = {name: inputs[name] for name in ("row", "target")}
        return super().compute_loss(model, given, *args, **more)

    def evaluate(self, *args: Any, **more: Any) -> Any:
        self.validations += 1
        self.trace.reach(f"validation:{self.validations}")
        metrics = super().evaluate(*args, **more)
        self.trace.validated(torch.tensor(metrics["eval_loss"]))
        return metrics


class Begin(TrainerCallback):  # type: ignore[misc]
    def __init__(self, trainer: Traced) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.index = state.global_step * args.gradient_accumulation_steps
        if state.global_step == 0:
            seed_rank(args.process_index)


def arguments(options: Options) -> TrainingArguments:
    more: dict[str, Any] = {}
    if options.sharding == "sharded":
        cpu_ranks_that_accelerate_shards()
        more = {
            "fsdp": True,
            "fsdp_config": {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"},
        }
    if options.misuse == "saved_at_sigterm":
        more["enable_jit_checkpoint"] = True
    saves = options.misuse == "saves_doubled" or options.native_save_at
    return TrainingArguments(
        output_dir=options.native or os.path.join(options.out, "output"),
        use_cpu=True,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=options.batch,
        gradient_accumulation_steps=options.accumulate,
        eval_strategy="steps",
        eval_steps=options.validate_every,
        save_strategy="steps" if saves else "no",
        save_steps=options.native_save_at or 1,
        lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs={"patience": 0},
        metric_for_best_model="eval_loss",
        learning_rate=0.01,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["target"],
        **more,
    )


def main() -> None:
    options = parse()
    trainer = Traced(
        model=Model(Config()),
        args=arguments(options),
        train_dataset=training_samples(options),
        eval_dataset=validation_samples(options),
    )
    trainer.options, trainer.trace = options, Trace(options)
    trainer.add_callback(Begin(trainer))
    path = os.path.join(options.native, f"checkpoint-{options.native_save_at}")
    native = path if options.native_resume else None
    resume = drain(trainer) if options.hook else native
    if options.misuse == "restore_forgotten":
        resume = None
    trainer.train(resume_from_checkpoint=resume)
    if options.misuse == "trained_twice":
        trainer.train()
    optimizer: Any = trainer.optimizer
    trainer.trace.finished(trainer.accelerator.unwrap_model(trainer.model), optimizer.optimizer)


if __name__ == "__main__":
    main()
