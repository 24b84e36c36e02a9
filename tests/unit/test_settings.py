"""Which layer wins, and what each kind of mistake is answered with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from drainfsm.cli.options import OPTIONS, Option
from drainfsm.cli.run import parser
from drainfsm.cli.settings import Settings, load_settings
from drainfsm.errors import ConfigError
from drainfsm.log.server import READERS_INBOX
from drainfsm.runtime.config import RANK_VARIABLES, RunConfig, secret_variables

Load = Callable[..., Settings]
COMMAND = ("python", "train.py")

SAMPLES = {
    "job": ("a", "b", "c"),
    "store": ("/a", "/b", "/c"),
    "nats": ("nats://a", "nats://b", "nats://c"),
    "nnodes": ("2", "3", "4"),
    "node_rank": ("1", "2", "3"),
    "coordinator": ("a:1", "b:2", "c:3"),
    "token": ("a", "b", "c"),
    "tls_cert": ("a", "b", "c"),
    "tls_key": ("a", "b", "c"),
    "tls_ca": ("a", "b", "c"),
    "source": ("aws", "gcp", "azure"),
    "signal": ("SIGHUP", "SIGTERM", "SIGINT"),
    "grace": ("1.5", "2.5", "3.5"),
    "cordon": ("a", "b", "c"),
    "accumulation": ("finish", "discard", "finish"),
    "state_dir": ("/a", "/b", "/c"),
    "heartbeat": ("1", "2", "3"),
    "silence": ("10", "20", "30"),
    "attach": ("10", "20", "30"),
    "log_format": ("json", "text", "json"),
    "metrics": ("a:1", "b:2", "c:3"),
    "checksum": ("sha256", "xxh3_128", "sha256"),
    "verify": ("checksums", "sizes", "checksums"),
    "on_refused": ("fallback", "fail", "fallback"),
    "reshard": ("true", "false", "true"),
    "create_store": ("true", "false", "true"),
    "require_durable_log": ("true", "false", "true"),
    "final": ("false", "true", "false"),
    "rewind": ("true", "false", "true"),
    "asynchronous": ("false", "true", "false"),
    "layout": ("dp=1", "dp=2", "dp=3"),
    "topology": ("a", "b", "c"),
    "digests": ("config=a", "config=b", "config=c"),
}


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Settings from a file's text, an environment and a command line, all optional."""

    def loaded(toml: str = "", env: dict[str, str] | None = None, *argv: str) -> Settings:
        if toml:
            (tmp_path / "drainfsm.toml").write_text(toml, encoding="utf-8")
        arguments = vars(parser().parse(argv))
        return load_settings(arguments, environment=env or {}, directory=tmp_path)

    return loaded


def _sample(option: Option) -> tuple[str, str, str]:
    return SAMPLES.get(option.key, ("10", "20", "30"))


def _toml(option: Option, text: str) -> str:
    table = f"[{option.table}]\n" if option.table else ""
    return (
        f'{table}{option.key} = "{text}"\n' if option.shape != "mapping" else _mapping(option, text)
    )


def _mapping(option: Option, text: str) -> str:
    key, _, value = text.partition("=")
    shown = value if value.isdecimal() else f'"{value}"'
    return f"[{option.table}.{option.key}]\n{key} = {shown}\n"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.key)
def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    load: Load, option: Option
) -> None:
    line, variable, file = _sample(option)
    toml, env = _toml(option, file), {option.variable: variable}
    from_file = load(toml).given(option.key)
    from_variable = load(toml, env).given(option.key)
    from_line = load(toml, env, option.flag, line).given(option.key)
    assert from_file == load("", {option.variable: file}).given(option.key)
    assert from_variable == load("", {}, option.flag, variable).given(option.key)
    assert from_line == load("", {}, option.flag, line).given(option.key)
    assert from_file != from_variable != from_line


def test_every_option_reaches_its_field(load: Load) -> None:
    argv = [part for option in OPTIONS for part in (option.flag, _sample(option)[0])]
    config = load("", {}, *argv).run_config(COMMAND)
    tables = {"allowances", "checkpoint", "capacity", "adapters"}
    fields = set(RunConfig.__struct_fields__) - {"command", *tables}
    assert {option.attribute for option in OPTIONS if not option.table} == fields
    assert set(config.allowances.__struct_fields__) == {
        option.key for option in OPTIONS if option.table == "allowances"
    }
    assert set(config.checkpoint.__struct_fields__) == {
        option.key for option in OPTIONS if option.table == "checkpoint"
    }
    assert set(config.capacity.__struct_fields__) == {
        option.key for option in OPTIONS if option.table == "capacity"
    }
    assert (config.job, config.grace_s, config.nnodes, config.node_rank) == ("a", 1.5, 2, 1)
    assert config.source == ("aws",)
    assert config.signals == ("SIGHUP",)
    assert config.state_dir == Path("/a")
    assert config.allowances.quiesce_ms == 10
    assert config.checkpoint.layout == {"dp": 1}
    assert config.checkpoint.digests.config == "a"
    assert config.checkpoint.asynchronous is False
    assert config.command == COMMAND


def test_without_any_layer_the_defaults_of_the_config_count(load: Load) -> None:
    config = load("", {}, "--job", "j", "--store", "s").run_config(COMMAND)
    assert config == RunConfig(job="j", store="s", command=COMMAND, state_dir=config.state_dir)


def test_typed_values_of_the_file_are_taken_as_they_are(load: Load) -> None:
    toml = (
        'job = "j"\nstore = "s"\ngrace = 12\nsource = ["aws", "slurm"]\n[checkpoint]\nevery_s = 7'
    )
    config = load(toml).run_config(COMMAND)
    assert (config.grace_s, config.source, config.checkpoint.every_s) == (12.0, ("aws", "slurm"), 7)


def test_lists_come_by_comma_and_by_repeating_the_flag(load: Load) -> None:
    assert load("", {"DRAINFSM_SOURCE": "aws, gcp"}).given("source") == ("aws", "gcp")
    assert load("", {}, "--source", "aws", "--source", "gcp").given("source") == ("aws", "gcp")


def test_an_empty_variable_counts_as_not_set(load: Load) -> None:
    assert load('nats = "nats://a"', {"DRAINFSM_NATS": ""}).given("nats") == "nats://a"


@pytest.mark.parametrize(
    ("toml", "names"),
    [
        ("grcae = 5", ["grcae is not known", "did you mean grace?"]),
        ("[allowances]\nquiece_ms = 5", ["allowances.quiece_ms", "did you mean quiesce_ms?"]),
        ("[checkpoint]\nevery_step = 5", ["checkpoint.every_step", "did you mean every_steps?"]),
        ("[alowances]\nquiesce_ms = 5", ["alowances is not known", "did you mean allowances?"]),
        ("[checkpoint.digests]\ncontaner = 'x'", ["contaner is not known", "container?"]),
        ("node-rank = 1", ["node-rank is not known", "did you mean node_rank?"]),
        ("quiesce_ms = 5", ["quiesce_ms is in the wrong place", "[allowances]"]),
        ("[allowances]\ngrace = 5", ["allowances.grace is in the wrong place", "at the top"]),
        ("allowances = 5", ["allowances is a table", "[allowances]"]),
        ("[adapters]\naws = 5", ["adapters holds one table an adapter"]),
        ("[adapters.no_such_cloud]\nx = 1", ["no adapter no_such_cloud is installed"]),
        ("state_dir = 5", ["state_dir: 5 cannot be used"]),
        ("grace = 'soon'", ["grace: 'soon' cannot be used"]),
        ("grace = [1]", ["grace: [1] cannot be used"]),
        ("source = 5", ["source: 5 cannot be used"]),
        ("source = [5]", ["source: [5] cannot be used"]),
        ("job =", ["is not valid TOML"]),
    ],
)
def test_a_mistake_in_the_file_is_named(load: Load, toml: str, names: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        load(toml, {}, *_NAMED).run_config(COMMAND)
    for name in names:
        assert name in str(raised.value)
    assert "drainfsm.toml" in str(raised.value)


_NAMED = ("--job", "j", "--store", "s")


def test_the_service_links_of_kubernetes_are_nobodys_typo(load: Load) -> None:
    links = {
        "DRAINFSM_SERVICE_HOST": "10.0.0.1",
        "DRAINFSM_PORT": "tcp://10.0.0.1:4222",
        "DRAINFSM_NATS_SERVICE_HOST": "10.0.0.1",
        "DRAINFSM_NATS_SERVICE_PORT_CLIENT": "4222",
        "DRAINFSM_NATS_PORT_4222_TCP_ADDR": "10.0.0.1",
    }
    settings = load("", {**links, "DRAINFSM_NATS": "nats://a"}, *_NAMED)
    assert settings.run_config(COMMAND).nats == "nats://a"
    del links["DRAINFSM_SERVICE_HOST"]
    with pytest.raises(ConfigError, match="DRAINFSM_PORT is not known"):
        load("", links, *_NAMED)


@pytest.mark.parametrize(
    ("variable", "value", "names"),
    [
        ("DRAINFSM_GRCAE", "5", ["DRAINFSM_GRCAE is not known", "did you mean DRAINFSM_GRACE?"]),
        ("DRAINFSM_NODERANK", "5", ["DRAINFSM_NODERANK", "DRAINFSM_NODE_RANK?"]),
        ("DRAINFSM_CONFG", "x", ["DRAINFSM_CONFG", "DRAINFSM_CONFIG?"]),
        ("DRAINFSM_GRACE", "soon", ["DRAINFSM_GRACE: 'soon' cannot be used"]),
        ("DRAINFSM_NNODES", "1.5", ["DRAINFSM_NNODES: '1.5' cannot be used"]),
        (
            "DRAINFSM_ASYNCHRONOUS",
            "maybe",
            ["DRAINFSM_ASYNCHRONOUS: 'maybe' is neither true nor false"],
        ),
        ("DRAINFSM_LAYOUT", "dp", ["DRAINFSM_LAYOUT: 'dp' is not KEY=N"]),
        ("DRAINFSM_ADAPTER_NOSUCH_POLL_S", "5", ["DRAINFSM_ADAPTER_NOSUCH_POLL_S", "nosuch"]),
        ("DRAINFSM_CONFIG", "/no/such/file", ["/no/such/file cannot be read"]),
    ],
)
def test_a_mistake_in_the_environment_is_named(
    load: Load, variable: str, value: str, names: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        load("", {variable: value}, *_NAMED).run_config(COMMAND)
    for name in names:
        assert name in str(raised.value)


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (("--grcae", "5"), ["--grcae is not known", "did you mean --grace?"]),
        (("--grac", "5"), ["--grac is not known", "did you mean --grace?"]),
        (("--nnodes", "two"), ["--nnodes: 'two' cannot be used"]),
        (("--grace",), ["--grace", "expected one argument"]),
        (("--config", "/no/such/file"), ["/no/such/file cannot be read"]),
        (("--nnodes", "2", "--coordinator", "h:1", "--node-rank", "2"), ["node_rank: 2 is not in"]),
        (("--nnodes", "2"), ["coordinator: is needed with more than one node"]),
        (("--coordinator", "host"), ["coordinator: 'host' is not HOST:PORT"]),
        (("--coordinator", "host:0"), ["coordinator: 'host:0' is not HOST:PORT"]),
        (("--grace", "0"), ["grace: 0 s"]),
        (("--grace", "nan"), ["grace: nan s"]),
        (("--grace", "1e9"), ["at most a year"]),
        (("--silence", "1"), ["silence: 1 s is not more than the heartbeat of 2 s"]),
        (("--signal", "SIGKILL"), ["signal: 'SIGKILL' is not a signal that can be caught"]),
        (("--signal", "TERM"), ["signal: 'TERM'"]),
        (("--accumulation", "drop"), ["accumulation: 'drop' is not one of finish, discard"]),
        (("--checksum", "md5"), ["checksum: 'md5' is not one of xxh3_128, sha256"]),
        (("--verify", "no"), ["verify: 'no' is not one of sizes, checksums"]),
        (("--on-refused", "newest"), ["on_refused: 'newest' is not one of fail, fallback"]),
        (("--accelerators", "-1"), ["accelerators: -1 is negative"]),
        (("--quiesce-ms", "-1"), ["quiesce_ms: -1"]),
        (("--store-bytes-per-s", "0"), ["store_bytes_per_s: 0"]),
        (("--every-steps", "-1"), ["every_steps: -1 is negative"]),
        (("--tls-cert", "c.pem"), ["tls_cert and tls_key belong together"]),
        (("--require-durable-log",), ["require_durable_log: needs nats"]),
        (("--nats-creds", "c"), ["nats_creds: is for a NATS server: name one with nats"]),
        (("--job", "a.b"), ["job: 'a.b' is not a job name"]),
        (("--job", ""), ["job: '' is not a job name"]),
        (("--store", ""), ["store: is empty"]),
    ],
)
def test_a_mistake_on_the_command_line_is_named(
    load: Load, argv: tuple[str, ...], names: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        load("", {}, *_NAMED, *argv).run_config(COMMAND)
    for name in names:
        assert name in str(raised.value)


@pytest.mark.parametrize("key", ["job", "store"])
def test_what_is_missing_is_named_with_all_the_places_it_can_be_given(load: Load, key: str) -> None:
    given = {"job": "j", "store": "s"}
    del given[key]
    argv = [part for name, value in given.items() for part in (f"--{name}", value)]
    with pytest.raises(ConfigError, match=f"--{key} is missing.*DRAINFSM_{key.upper()}.*`{key}`"):
        load("", {}, *argv).run_config(COMMAND)


def test_variables_that_an_agent_sets_for_its_ranks_are_no_typos(load: Load) -> None:
    environment = dict.fromkeys(RANK_VARIABLES, "x")
    environment["DRAINFSM_AZURE_METADATA_ENDPOINT"] = "http://127.0.0.1"
    load("", environment, *_NAMED).run_config(COMMAND)


SERVICE_LINKS = {
    "DRAINFSM_SERVICE_HOST": "10.0.0.1",
    "DRAINFSM_SERVICE_PORT": "4222",
    "DRAINFSM_SERVICE_PORT_CLIENT": "4222",
    "DRAINFSM_PORT": "tcp://10.0.0.1:4222",
    "DRAINFSM_PORT_4222_TCP": "tcp://10.0.0.1:4222",
    "DRAINFSM_PORT_4222_TCP_PROTO": "tcp",
    "DRAINFSM_PORT_4222_TCP_PORT": "4222",
    "DRAINFSM_PORT_4222_TCP_ADDR": "10.0.0.1",
    "DRAINFSM_NATS_SERVICE_HOST": "10.0.0.1",
    "DRAINFSM_NATS_PORT": "tcp://10.0.0.1:4222",
    "DRAINFSM_NATS_PORT_4222_TCP_PORT": "4222",
}
"""What a pod beside the Services drainfsm and drainfsm-nats has in its environment."""


def test_the_links_of_a_service_are_no_options(load: Load) -> None:
    config = load("", SERVICE_LINKS, *_NAMED).run_config(COMMAND)
    assert config == load("", {}, *_NAMED).run_config(COMMAND)
    with pytest.raises(ConfigError, match="DRAINFSM_PORT is not known"):
        load("", {"DRAINFSM_PORT": "4222"}, *_NAMED)


def test_a_user_without_a_home_is_asked_for_a_state_directory_and_helped(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(ConfigError, match="give --state-dir"):
        _ = load().state_dir
    assert "~/.local/state/drainfsm" in parser().format_help()


def test_another_file_is_read_instead_of_the_one_in_the_directory(
    load: Load, tmp_path: Path
) -> None:
    other, third = tmp_path / "other.toml", tmp_path / "third.toml"
    other.write_text('job = "other"')
    third.write_text('job = "third"')
    assert load('job = "here"', {"DRAINFSM_CONFIG": str(other)}).job == "other"
    assert load("", {"DRAINFSM_CONFIG": str(other)}, "--config", str(third)).job == "third"


def test_the_state_directory_follows_the_xdg_specification(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert load().state_dir == Path("/somewhere/drainfsm")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert load().state_dir == Path("/home/me/.local/state/drainfsm")
    assert load("", {"DRAINFSM_STATE_DIR": "~/here"}).state_dir == Path("/home/me/here")


def test_options_of_an_adapter_come_from_its_table_and_its_variables(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drainfsm.adapter.adapter_names", lambda: ("my", "my_cloud"))
    settings = load(
        '[adapters.my_cloud]\npoll_s = 2\nwait = true\nzone = "a"',
        {"DRAINFSM_ADAPTER_MY_CLOUD_POLL_S": "5", "DRAINFSM_ADAPTER_MY_URL": "http://x"},
        *_NAMED,
    )
    assert settings.run_config(COMMAND).adapters == {
        "my_cloud": {"poll_s": "5", "wait": "true", "zone": "a"},
        "my": {"url": "http://x"},
    }


@pytest.mark.parametrize("where", ["file", "environment", "option"])
def test_an_adapter_without_an_entry_point_has_options_by_the_name_of_its_module(
    load: Load, where: str
) -> None:
    text = '[adapters.weather]\npath = "/a"\n'
    variables = {
        "DRAINFSM_ADAPTER_WEATHER_UNIT": "C",
        "DRAINFSM_WEATHER_METADATA_ENDPOINT": "http://127.0.0.1:9",
    }
    options: list[str] = []
    match where:
        case "file":
            text = 'source = ["site.weather:Storms"]\n' + text
        case "environment":
            variables["DRAINFSM_SOURCE"] = "aws,site.weather:Storms"
        case _:
            options = ["--source", "site.weather:Storms"]
    config = load(text, variables, *options, *_NAMED).run_config(COMMAND)
    assert config.adapters == {"weather": {"path": "/a", "unit": "C"}}
    assert "site.weather:Storms" in config.source


def test_an_endpoint_of_a_cloud_that_nobody_knows_is_a_typo(load: Load) -> None:
    with pytest.raises(ConfigError, match="DRAINFSM_AZRE_METADATA_ENDPOINT is not known"):
        load("", {"DRAINFSM_AZRE_METADATA_ENDPOINT": "http://127.0.0.1"}, *_NAMED)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--reshard", "maybe"), "--reshard: 'maybe' is neither true nor false"),
        (("--layout", "dp"), "--layout: 'dp' is not KEY=N"),
    ],
)
def test_a_value_of_the_wrong_form_is_told_in_words(
    load: Load, argv: tuple[str, ...], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        load("", {}, *_NAMED, *argv).run_config(COMMAND)


@pytest.mark.parametrize(
    ("nats", "secret"), [("nats://u:p@h", True), ("nats://token@h", True), ("nats://h", False)]
)
def test_no_child_of_an_agent_gets_its_secrets(nats: str, secret: bool) -> None:
    environment = {"DRAINFSM_TOKEN": "t", "DRAINFSM_NATS": nats, "DRAINFSM_JOB": "j"}
    expected = ["DRAINFSM_TOKEN", "DRAINFSM_NATS"] if secret else ["DRAINFSM_TOKEN"]
    assert secret_variables(environment) == expected


def test_a_reader_finds_what_it_shows_to_the_server_by_option_variable_and_file(
    load: Load, tmp_path: Path
) -> None:
    assert load("", {}).nats is None
    token = tmp_path / "token"
    token.write_text("secret")
    ways = (
        load("", {}, "--nats", "nats://h", "--nats-token-file", str(token)),
        load("", {"DRAINFSM_NATS": "nats://h", "DRAINFSM_NATS_TOKEN_FILE": str(token)}),
        load(f'nats = "nats://h"\nnats_token_file = "{token}"'),
    )
    for settings in ways:
        server = settings.nats
        assert server is not None
        assert server.shown("") == {"auth_token": "secret"}
        assert server.inbox_prefix == READERS_INBOX
    with pytest.raises(ConfigError, match="nats_token_file: gone"):
        _ = load("", {}, "--nats", "nats://h", "--nats-token-file", "gone").nats
