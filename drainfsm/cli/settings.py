"""Which value wins: command line, then ``DRAINFSM_…``, then drainfsm.toml, then the default.

Unknown names are refused everywhere: a typo in an allowance must not silently become a default.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from drainfsm.cli.options import BY_KEY, NATS_KEYS, OPTIONS, PREFIX, TABLES, Option, nearest
from drainfsm.core.budget import Allowances
from drainfsm.core.foreign import UNREADABLE
from drainfsm.core.orders import CapacitySettings, CheckpointSettings
from drainfsm.errors import ConfigError
from drainfsm.runtime.config import RANK_VARIABLES, RunConfig, check_job_name

if TYPE_CHECKING:
    from drainfsm.log.server import NatsServer

CONFIG_VARIABLE = "DRAINFSM_CONFIG"
CONFIG_FILE = "drainfsm.toml"
ADAPTER_PREFIX = "DRAINFSM_ADAPTER_"
ADAPTER_VARIABLE = re.compile(rf"{ADAPTER_PREFIX}|{PREFIX}\w+_METADATA_ENDPOINT$")

OTHER_VARIABLES = RANK_VARIABLES | {
    CONFIG_VARIABLE,
    "DRAINFSM_NODES",
    "DRAINFSM_REQUEUE",
    "DRAINFSM_SERVE_TOKEN",
    "DRAINFSM_SIGNERS",
}
"""Known names that are not options of the table: of ranks, adapters and their commands."""

STRUCTS: dict[str, type[msgspec.Struct]] = {
    "": RunConfig,
    "allowances": Allowances,
    "checkpoint": CheckpointSettings,
    "capacity": CapacitySettings,
}


class Given(NamedTuple):
    """A value as it was written, and where."""

    value: object
    origin: str
    """Its name in error messages: ``--grace``, ``DRAINFSM_GRACE``, ``drainfsm.toml: grace``."""


class Settings:
    """The layers, merged. Values are checked when they are asked for."""

    def __init__(self, given: Mapping[str, Given], adapters: Mapping[str, dict[str, str]]) -> None:
        self._given = given
        self.adapters = adapters
        """Options of adapters, by adapter."""

    def given(self, key: str) -> object | None:
        """The value of the option in its type; None: none was given.

        Raises:
            ConfigError: it is of another type; names where it was given.
        """
        given = self._given.get(key)
        if given is None:
            return None
        option = BY_KEY[key]
        wanted = _types(option.table)[option.attribute]
        value = _structured(given.value, option)
        if isinstance(value, dict) and isinstance(wanted, type):
            _check_keys(value, wanted, where=given.origin)
        try:
            converted: object = msgspec.convert(value, wanted, strict=False, dec_hook=_path)
        except msgspec.ValidationError as error:
            if wanted is bool:
                raise ConfigError(
                    f"{given.origin}: {given.value!r} is neither true nor false"
                ) from error
            if (
                option.shape == "mapping"
                and isinstance(given.value, str)
                and "=" not in given.value
            ):
                raise ConfigError(
                    f"{given.origin}: {given.value!r} is not {option.metavar}"
                ) from error
            raise ConfigError(f"{given.origin}: {given.value!r} cannot be used: {error}") from error
        return converted

    @property
    def job(self) -> str:
        """Raises: ConfigError: no job was named."""
        job = self.given("job")
        if job is None:
            raise ConfigError(_missing("job"))
        check_job_name(str(job))
        return str(job)

    @property
    def state_dir(self) -> Path:
        state_dir = self.given("state_dir")
        try:
            if state_dir is None:
                return Path(_default_state_dir()).expanduser()
            return Path(str(state_dir)).expanduser()
        except RuntimeError as error:  # neither HOME nor an entry in the user database
            raise ConfigError(
                f"{error}: there is no place for the state directory; give --state-dir, or set "
                "DRAINFSM_STATE_DIR"
            ) from error

    @property
    def nats(self) -> NatsServer | None:
        """Of somebody who reads; None: no server is named.

        Raises:
            ConfigError: an option or a file of it will not do.
        """
        from drainfsm.log.server import READERS_INBOX

        return self.nats_with(READERS_INBOX)

    def nats_with(self, inbox_prefix: str) -> NatsServer | None:
        """The same of somebody else; ``inbox_prefix``: where the options name none."""
        from drainfsm.log.server import server_of

        options = {key: str(self.given(key) or "") for key in NATS_KEYS}
        server = server_of(options, inbox_prefix=inbox_prefix)
        if server.url:
            server.check()
        return server if server.url else None

    @property
    def allowances(self) -> Allowances:
        """Raises: ConfigError: one of them is wrong."""
        rows = [option for option in OPTIONS if option.table == "allowances"]
        self.check([row.key for row in rows])
        found: dict[str, Any] = {row.attribute: self.given(row.key) for row in rows}
        return Allowances(**{name: value for name, value in found.items() if value is not None})

    def check(self, keys: Sequence[str] = tuple(BY_KEY)) -> None:
        """Raises: ConfigError: ``drainfsm run`` would not take these, as far as they are given."""
        given = dict.fromkeys(("job", "store"), Given("any", ""))
        given |= {key: self._given[key] for key in keys if key in self._given}
        Settings(given, self.adapters).run_config(("any",))

    def run_config(self, command: Sequence[str]) -> RunConfig:
        """Everything for ``drainfsm run``.

        Raises:
            ConfigError: an option is missing or wrong.
        """
        parts: dict[str, dict[str, Any]] = {table: {} for table in STRUCTS}
        for option in OPTIONS:
            value = self.given(option.key)
            if value is not None:
                parts[option.table][option.attribute] = value
        for key in ("job", "store"):
            if key not in parts[""]:
                raise ConfigError(_missing(key))
        top = parts.pop("") | {"state_dir": self.state_dir, "adapters": dict(self.adapters)}
        tables: dict[str, Any] = {name: STRUCTS[name](**part) for name, part in parts.items()}
        return RunConfig(command=tuple(command), **top, **tables)


def load_settings(
    arguments: Mapping[str, Any], *, environment: Mapping[str, str], directory: Path
) -> Settings:
    """Merge the layers. ``arguments`` is a parsed command line; None there means not given.

    Raises:
        ConfigError: an unknown key or variable, or a file that cannot be read.
    """
    given: dict[str, Given] = {}
    adapters: dict[str, dict[str, str]] = {}
    file = arguments.get("config") or environment.get(CONFIG_VARIABLE)
    path = Path(file) if file else directory / CONFIG_FILE
    document = _document(path) if file or path.exists() else {}
    known = _adapters(document, environment, arguments)
    _read_document(path, document, given, adapters, known)
    _read_environment(environment, given, adapters, known)
    for option in OPTIONS:
        value = arguments.get(option.key)
        if value is not None:
            given[option.key] = Given(value, option.flag)
    return Settings(given, adapters)


def _missing(key: str) -> str:
    option = BY_KEY[key]
    return f"{option.flag} is missing; or set {option.variable}, or `{key}` in {CONFIG_FILE}"


def _types(table: str) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(STRUCTS[table])}


def default_values() -> dict[str, object]:
    """Defaults by option, as the help shows them."""
    shown: dict[str, object] = {
        "state_dir": _default_state_dir()
    }  # not evaluated: help cannot fail
    for option in OPTIONS:
        for field in msgspec.structs.fields(STRUCTS[option.table]):
            if field.name == option.attribute and isinstance(field.default, str | int | float):
                shown[option.key] = field.default
            elif field.name == option.attribute and isinstance(field.default, tuple):
                shown[option.key] = ",".join(field.default)
    return shown


def _default_state_dir() -> str:
    """``$XDG_STATE_HOME/drainfsm``, by the XDG base directory specification; ``~`` stands in it."""
    return f"{os.environ.get('XDG_STATE_HOME') or '~/.local/state'}/drainfsm"


# --- drainfsm.toml ------------------------------------------------------------------------------


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UNREADABLE as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _read_document(
    path: Path,
    document: Mapping[str, Any],
    given: dict[str, Given],
    adapters: dict[str, dict[str, str]],
    known: Sequence[str],
) -> None:
    for key, value in document.items():
        if key == "adapters":
            _read_adapters(path, value, adapters, known)
        elif key in TABLES:
            if not isinstance(value, dict):
                raise ConfigError(f"{path}: {key} is a table: write [{key}]")
            for inner, inner_value in value.items():
                _take(path, inner, inner_value, given, table=key)
        else:
            _take(path, key, value, given, table="")


def _take(path: Path, key: str, value: object, given: dict[str, Given], *, table: str) -> None:
    where = f"{path}: {table}.{key}" if table else f"{path}: {key}"
    option = BY_KEY.get(key)
    if option is not None and option.table == table:
        given[key] = Given(value, where)
        return
    if option is not None:
        place = f"in [{option.table}]" if option.table else "at the top, before every table"
        raise ConfigError(f"{where} is in the wrong place: it belongs {place}")
    valid = [option.key for option in OPTIONS if option.table == table]
    hint = nearest(key, [*valid, *TABLES] if not table else valid) or nearest(key, list(BY_KEY))
    raise ConfigError(f"{where} is not known{hint}")


def _read_adapters(
    path: Path, tables: object, adapters: dict[str, dict[str, str]], known: Sequence[str]
) -> None:
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise ConfigError(f"{path}: adapters holds one table an adapter: write [adapters.NAME]")
    for name, table in tables.items():
        _check_adapter(name, known, where=f"{path}: adapters.{name}")
        options = adapters.setdefault(name, {})
        for key, value in table.items():
            if isinstance(value, dict | list):
                raise ConfigError(f"{path}: adapters.{name}.{key} is neither text nor a number")
            options[key] = str(value).lower() if isinstance(value, bool) else str(value)


# --- the environment ----------------------------------------------------------------------------


def _read_environment(
    environment: Mapping[str, str],
    given: dict[str, Given],
    adapters: dict[str, dict[str, str]],
    known: Sequence[str],
) -> None:
    """An empty variable counts as not set, as everywhere in a shell."""
    by_variable = {option.variable: option for option in OPTIONS}
    links = _service_links(environment)
    endpoints = {f"{PREFIX}{_upper(name)}_METADATA_ENDPOINT" for name in known}
    for variable in sorted(environment):
        value = environment[variable]
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES | endpoints:
            continue
        option = by_variable.get(variable)
        if option is None and variable.startswith(links):
            continue
        if option is not None:
            if value:
                given[option.key] = Given(value, variable)
        elif variable.startswith(ADAPTER_PREFIX):
            name, key = _adapter_variable(variable, known)
            adapters.setdefault(name, {})[key] = value
        else:
            hint = nearest(variable, [*by_variable, CONFIG_VARIABLE])
            raise ConfigError(f"environment variable {variable} is not known{hint}")


def _service_links(environment: Mapping[str, str]) -> tuple[str, ...]:
    """How the variables begin that Kubernetes puts into every pod of a namespace for a Service
    whose name begins with ``drainfsm``: nobody wrote them, so none is a typo."""
    end = "_SERVICE_HOST"
    services = [name.removesuffix(end) for name in environment if name.endswith(end)]
    return tuple(f"{name}_{part}" for name in services for part in ("SERVICE_", "PORT"))


def _adapter_variable(variable: str, known: Sequence[str]) -> tuple[str, str]:
    """``DRAINFSM_ADAPTER_AWS_POLL_S`` is ``poll_s`` of ``aws``; the longest known name wins."""
    rest = variable.removeprefix(ADAPTER_PREFIX)
    for name in sorted(known, key=len, reverse=True):
        head = _upper(name) + "_"
        if rest.startswith(head) and rest != head:
            return name, rest.removeprefix(head).lower()
    where = f"environment variable {variable}"
    _check_adapter(rest.split("_", 1)[0].lower(), known, where=where)
    raise ConfigError(f"environment variable {variable} names no option after the adapter")


def _upper(name: str) -> str:
    return name.upper().replace("-", "_")


def _check_adapter(name: str, known: Sequence[str], *, where: str) -> None:
    if name not in known:
        installed = ", ".join(known) or "none"
        hint = nearest(name, known)
        raise ConfigError(f"{where}: no adapter {name} is installed ({installed}){hint}")


def _adapters(*layers: Mapping[str, Any]) -> tuple[str, ...]:
    """Under which names adapters find their options: of those that are installed, and of the
    modules that a layer names as ``module:factory``."""
    document, environment, _ = layers
    if "adapters" not in document and not any(map(ADAPTER_VARIABLE.match, environment)):
        return ()
    from drainfsm.adapter import adapter_names, options_name

    named: list[str] = []
    for layer in layers:
        for key in ("source", "cordon"):
            for value in (layer.get(key), layer.get(BY_KEY[key].variable)):
                words = value.split(",") if isinstance(value, str) else value or ()
                named += [word.strip() for word in words if isinstance(word, str) and ":" in word]
    return tuple(dict.fromkeys((*adapter_names(), *map(options_name, named))))


# --- text to values -----------------------------------------------------------------------------


def _structured(value: object, option: Option) -> object:
    """Lists and mappings out of text: ``a,b`` and ``dp=4,tp=2``; anything else as it is."""
    if option.shape == "list":
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list):
            return value
        return [part for text in texts for part in _parts(text)]
    if option.shape == "mapping" and isinstance(value, str):
        return dict(part.partition("=")[::2] for part in _parts(value))
    return value


def _path(wanted: type, value: object) -> object:
    """``msgspec`` knows no paths."""
    if wanted is not Path or not isinstance(value, str) or not value:
        raise ValueError(f"Expected a path, got {value!r}")
    return Path(value)


def _check_keys(value: Mapping[str, object], wanted: type, *, where: str) -> None:
    """A struct read from a log may have unknown fields; one that somebody typed may not."""
    if not issubclass(wanted, msgspec.Struct):
        return
    valid = [field.name for field in msgspec.structs.fields(wanted)]
    for key in value:
        if key not in valid:
            hint = nearest(key, valid)
            raise ConfigError(f"{where}: {key} is not known ({', '.join(valid)}){hint}")


def _parts(text: object) -> Iterator[Any]:
    if not isinstance(text, str):
        yield text
        return
    yield from (part.strip() for part in text.split(",") if part.strip())
