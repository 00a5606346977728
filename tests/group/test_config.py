"""A value comes from the source that ranks highest, its origin is told; a bad one is refused by source."""

from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
from pathlib import Path

import pytest

from tailcut import Config, ConfigError, config


def write(folder: Path, text: str) -> dict[str, str]:
    path = folder / "tailcut.toml"
    path.write_text(text)
    return {"TAILCUT_CONF_FILE": str(path)}


def test_defaults_stand_alone() -> None:
    resolved = Config().resolved({})
    assert resolved == Config()
    assert {resolved.origin(name) for name in config.names()} == {"default"}


def test_each_source_overrides_the_one_before(tmp_path: Path) -> None:
    environ = write(tmp_path, "port = 1000\nlinger_s = 1\neager_bytes = 10\n")
    file = environ["TAILCUT_CONF_FILE"]
    resolved = Config(port=2000, linger_s=2.0).resolved({**environ, "TAILCUT_PORT": "3000"})
    assert (resolved.port, resolved.origin("port")) == (3000, "environment TAILCUT_PORT")
    assert (resolved.linger_s, resolved.origin("linger_s")) == (2.0, "code")
    assert (resolved.eager_bytes, resolved.origin("eager_bytes")) == (10, f"file {file}")
    assert (resolved.timeout_s, resolved.origin("timeout_s")) == (1800.0, "default")


def test_a_default_given_in_code_beats_the_file(tmp_path: Path) -> None:
    resolved = Config(port=0).resolved(write(tmp_path, "port = 1000\n"))
    assert (resolved.port, resolved.origin("port")) == (0, "code")


def test_resolving_again_changes_nothing_of_the_code(tmp_path: Path) -> None:
    first = Config(linger_s=2.0).resolved({"TAILCUT_PORT": "3000"})
    again = first.resolved({})
    assert (again.linger_s, again.origin("linger_s")) == (2.0, "code")
    assert (again.port, again.origin("port")) == (0, "default")


def test_but_changes_some_fields_and_keeps_origins() -> None:
    base = Config(linger_s=2.0).resolved({"TAILCUT_PORT": "3000"})
    other = base.but(timeout_s=60)
    assert (other.timeout_s, other.linger_s, other.port) == (60.0, 2.0, 3000)
    assert other.origin("timeout_s") == "code"
    assert other.origin("port") == "environment TAILCUT_PORT"
    assert base.timeout_s == 1800.0


def test_copies_keep_origins() -> None:
    base = Config(port=5).resolved({"TAILCUT_LINGER_S": "3"})
    for other in (copy.copy(base), copy.deepcopy(base), pickle.loads(pickle.dumps(base))):
        assert other == base
        assert other.origin("linger_s") == "environment TAILCUT_LINGER_S"
        assert other.origin("port") == "code"


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().port = 5  # type: ignore[misc]


def test_every_field_has_a_sentence_and_stands_in_the_table() -> None:
    table = Config(port=7).resolved({"TAILCUT_DEBUG": "INFO"}).table().splitlines()
    assert len(table) == len(config.names())
    for name, line in zip(config.names(), table, strict=True):
        assert config.doc(name).endswith(".") and len(config.doc(name)) > 30, name
        assert line.startswith(name)
    assert any(line.split() == ["port", "7", "code"] for line in table)
    assert any(line.split() == ["debug", "INFO", "environment", "TAILCUT_DEBUG"] for line in table)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("ON", True), ("0", False), ("no", False), (" off ", False)],
)
def test_booleans_from_the_environment(text: str, value: bool) -> None:
    assert Config().resolved({"TAILCUT_OFFLOAD": text}).offload is value


@pytest.mark.parametrize(
    ("variable", "text", "complaint"),
    [
        ("TAILCUT_PORT", "http", "port must be a whole number, not 'http'"),
        ("TAILCUT_PORT", "70000", "port must be from 0 to 65535, not 70000"),
        ("TAILCUT_PORT", "-1", "port must be from 0 to 65535, not -1"),
        ("TAILCUT_OFFLOAD", "maybe", "offload must be true or false, not 'maybe'"),
        ("TAILCUT_LIVENESS_S", "nan", "liveness_s must be from"),
        ("TAILCUT_LIVENESS_S", "inf", "liveness_s must be from"),
        ("TAILCUT_LINGER_S", "soon", "linger_s must be a number, not 'soon'"),
        ("TAILCUT_ALGORITHM", "tree", "algorithm must be one of auto, small, ring, transpose, not 'tree'"),
        ("TAILCUT_SOCKET_FAMILY", "ipx", "socket_family must be one of auto, ipv4, ipv6, not 'ipx'"),
        ("TAILCUT_PAYLOAD_BYTES", "100", "payload_bytes must be 0 or from 1064 to 65507 bytes, not 100"),
        ("TAILCUT_SOCKET_IFNAME", "eth0,,eth1", "socket_ifname must be names separated by commas"),
        ("TAILCUT_SOCKET_IFNAME", "^", "socket_ifname must be names separated by commas"),
        ("TAILCUT_DEBUG", "LOUD", "debug must be one of ERROR, WARN, INFO, DEBUG, TRACE, not 'LOUD'"),
    ],
)
def test_bad_value_in_the_environment(variable: str, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config().resolved({variable: text})
    assert complaint in str(caught.value)
    assert f"(environment {variable})" in str(caught.value)
    assert caught.value.reason == "config"


def test_bad_value_in_code() -> None:
    with pytest.raises(ConfigError, match=r"port must be from 0 to 65535, not -5 \(code\)"):
        Config(port=-5)
    with pytest.raises(ConfigError, match=r"port must be int, not str '80' \(code\)"):
        Config(port="80")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"port must be int, not bool True \(code\)"):
        Config(port=True)
    with pytest.raises(TypeError):
        Config(prot=5)  # type: ignore[call-arg]


def test_bad_value_in_a_file(tmp_path: Path) -> None:
    for text, complaint in (
        ("port = 'x'", "port must be int, not str 'x' (file "),
        ("prot = 5", "there is no setting 'prot' (file "),
        ("port = ", "cannot read the file "),
    ):
        with pytest.raises(ConfigError) as caught:
            Config().resolved(write(tmp_path, text))
        assert complaint in str(caught.value)
        assert str(tmp_path / "tailcut.toml") in str(caught.value)
    assert "did you mean port?" in _text_of(write(tmp_path, "prot = 5"))
    assert "cannot read the file" in _text_of({"TAILCUT_CONF_FILE": str(tmp_path / "absent.toml")})


def _text_of(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        Config().resolved(environ)
    return str(caught.value)


def test_contradictions_name_both_sources() -> None:
    with pytest.raises(ConfigError) as caught:
        Config(timeout_s=2).resolved({"TAILCUT_LIVENESS_S": "20"})
    assert (
        "liveness_s (20.0, environment TAILCUT_LIVENESS_S) must not be larger than timeout_s (2.0, code)"
        in str(caught.value)
    )
    with pytest.raises(ConfigError, match=r"eager_bytes .* must not be larger than stash_bytes"):
        Config(eager_bytes=2**20, stash_bytes=2**16).resolved({})
    assert Config(timeout_s=2).resolved({"TAILCUT_LIVENESS_S": "1"}).liveness_s == 1.0


def test_unknown_variable_warns_with_the_nearest_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="tailcut"):
        Config().resolved({"TAILCUT_LIVNESS_S": "3", "TAILCUT_TEST_SEED": "1", "HOME": "/"})
    assert [record.getMessage() for record in caplog.records] == [
        "unknown environment variable TAILCUT_LIVNESS_S; did you mean TAILCUT_LIVENESS_S?"
    ]


def test_differing_names_field_values_and_ranks() -> None:
    same = Config().semantic()
    assert config.differing({0: same, 1: dict(same)}) is None
    other = Config(eager_bytes=4096).semantic()
    assert config.differing({0: same, 1: other, 2: same}) == (
        "eager_bytes is not the same on all ranks: 65536 on ranks 0 and 2; 4096 on rank 1"
    )
    partial = {name: value for name, value in same.items() if name != "liveness_s"}
    assert config.differing({0: same, 1: partial}) == (
        "liveness_s is not the same on all ranks: 5.0 on rank 0; '(missing)' on rank 1"
    )


def test_settings_of_one_host_may_differ() -> None:
    here = Config(port=1000, socket_ifname="eth0", timeout_s=60).semantic()
    there = Config(port=2000, socket_ifname="ib0", receive_buffer_bytes=10).semantic()
    assert config.differing({0: here, 1: there}) is None
