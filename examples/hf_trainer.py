"""The Trainer of Hugging Face Transformers: `drain(trainer)` says what to resume from.

The Trainer saves nothing by itself here: drainfsm does, at a notice and with `--every-steps N`.
"""

import tempfile
import time

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from drainfsm.frameworks.transformers import drain


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 1)

    def forward(self, rows, labels):
        out = self.net(rows)
        return {"loss": (out - labels).square().mean(), "logits": out}


class Tell(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        if state.is_world_process_zero:
            print(f"step {state.global_step - 1}", flush=True)  # that many are complete: from 0
        time.sleep(0.05)


torch.manual_seed(0)
rows = torch.randn(4_000, 8)
data = [{"rows": row, "labels": row.sum().unsqueeze(0)} for row in rows]
trainer = Trainer(
    model=Model(),
    args=TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        num_train_epochs=100,
        per_device_train_batch_size=4,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    ),
    train_dataset=data,
    callbacks=[Tell()],
)
trainer.train(resume_from_checkpoint=drain(trainer))
