"""How many bytes a checkpoint has, from the description of a model."""

from __future__ import annotations

from drainfsm.errors import ConfigError

DTYPE_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
"""Bytes of one number, as a state dict holds it."""

OPTIMIZER_COPIES = {"none": 0, "sgd": 0, "momentum": 1, "lion": 1, "adagrad": 1, "adamw": 2}
"""Numbers that the optimizer keeps for each parameter. Adam and AdamW are alike."""

ALIASES = {"adam": "adamw"}


def model_bytes(
    *,
    params: int,
    dtype: str = "fp16",
    optimizer: str = "adamw",
    optimizer_dtype: str | None = None,
    master_weights: bool = False,
) -> int:
    """Parameters, the optimizer's state, and master weights (fp32) where they are kept apart.

    70e9 parameters in fp16 under AdamW with its moments in fp16 are 420 GB.

    Raises:
        ConfigError: an unknown type or optimizer, or no parameters.
    """
    if params <= 0:
        raise ConfigError(f"--params {params}: a model has at least one parameter")
    name = ALIASES.get(optimizer.lower(), optimizer.lower())
    if name not in OPTIMIZER_COPIES:
        raise ConfigError(
            f"--optimizer {optimizer} is not known; known: {', '.join(sorted(OPTIMIZER_COPIES))} "
            "(give --bytes for any other)"
        )
    number = _dtype_bytes("--dtype", dtype)
    state = (
        number if optimizer_dtype is None else _dtype_bytes("--optimizer-dtype", optimizer_dtype)
    )
    return params * (number + OPTIMIZER_COPIES[name] * state + (4 if master_weights else 0))


def _dtype_bytes(option: str, dtype: str) -> int:
    try:
        return DTYPE_BYTES[dtype.lower()]
    except KeyError:
        known = ", ".join(DTYPE_BYTES)
        raise ConfigError(f"{option} {dtype} is not known; known: {known}") from None
