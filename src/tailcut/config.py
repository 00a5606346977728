"""The configuration: one frozen dataclass that knows where each of its values came from.

Sources, the later wins: default < file (TOML, named by TAILCUT_CONF_FILE) < code (`Config(...)`) <
environment (`TAILCUT_` and the field's name in capitals). The environment wins so that an operator can
rescue a job.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tailcut.errors import ConfigError, ranks_text

log = logging.getLogger("tailcut.config")

PREFIX = "TAILCUT_"
CONF_FILE = PREFIX + "CONF_FILE"
TEST_PREFIX = PREFIX + "TEST_"  # variables of our own test suite: not settings, not mistakes
BOOLEANS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
DEBUG_LEVELS = ("ERROR", "WARN", "INFO", "DEBUG", "TRACE")
# A datagram carries our header of 24 bytes, 16 more for authentication and at least 1024 bytes of data:
# Plans count on that.
MIN_DATAGRAM_BYTES = 1064
MAX_DATAGRAM_BYTES = 65507  # the largest that UDP over IPv4 can carry

Check = Callable[[Any], str | None]  # the complaint about a value, or None


def _between(low: float, high: float = math.inf, unit: str = "") -> Check:
    def check(value: Any) -> str | None:
        if math.isfinite(value) and low <= value <= high:
            return None
        bound = f"at least {low}" if high == math.inf else f"from {low} to {high}"
        return f"must be {bound}{unit}"

    return check


def _one_of(*allowed: str) -> Check:
    return lambda value: None if value in allowed else f"must be one of {', '.join(allowed)}"


def _payload(value: Any) -> str | None:
    if value == 0 or MIN_DATAGRAM_BYTES <= value <= MAX_DATAGRAM_BYTES:
        return None
    return f"must be 0 or from {MIN_DATAGRAM_BYTES} to {MAX_DATAGRAM_BYTES} bytes"


def _rule(value: Any) -> str | None:
    names = value.removeprefix("^").removeprefix("=")
    if value and not all(name.strip() for name in names.split(",")):
        return "must be names separated by commas, after `^` (all but), `=` (exact names) or both"
    return None


def _setting(default: Any, doc: str, check: Check | None = None, *, semantic: bool = False) -> Any:
    """A field with its sentence; `semantic` fields must be equal on all ranks."""
    return dataclasses.field(default=default, metadata={"doc": doc, "check": check, "semantic": semantic})


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a group. A field left out takes its value from the file or its default."""

    socket_ifname: str = _setting(
        "",
        "Network interfaces to use, in NCCL's syntax: prefixes `eth,ib`, all but `^docker,lo`, exact names "
        "`=eth0`; empty takes the interface of the route to the rendezvous host.",
        _rule,
    )
    socket_family: str = _setting(
        "auto",
        "Address family of the UDP sockets: ipv4, ipv6, or auto for that of the rendezvous host.",
        _one_of("auto", "ipv4", "ipv6"),
    )
    port: int = _setting(
        0,
        "UDP port of the first rank on a host, the others follow by local rank; 0 takes any free port.",
        _between(0, 65535),
    )
    receive_buffer_bytes: int = _setting(
        0,
        "Size asked of the kernel for the receive buffer of the UDP socket; 0 keeps the kernel's default.",
        _between(0, 2**31 - 1, " bytes"),
    )
    offload: bool = _setting(
        True,
        "Whether to let the kernel split and join UDP datagrams (GSO, GRO) where it can.",
    )
    liveness_s: float = _setting(
        5.0,
        "Seconds of silence after which a rank counts as dead; answered natively, also while Python is busy.",
        _between(0.05, 86400, " seconds"),
        semantic=True,
    )
    timeout_s: float = _setting(
        1800.0,
        "Seconds one operation may take while all ranks are alive, where the call does not say otherwise.",
        _between(0.001, 10**7, " seconds"),
    )
    rendezvous_timeout_s: float = _setting(
        300.0,
        "Seconds the ranks have to arrive at the rendezvous.",
        _between(0.1, 10**7, " seconds"),
    )
    connect_timeout_s: float = _setting(
        10.0,
        "Seconds for the probes between all ranks once they have arrived; after that UDP counts as blocked.",
        _between(0.1, 3600, " seconds"),
    )
    linger_s: float = _setting(
        5.0,
        "Seconds that closing a group, or the end of the process, waits at most for what peers still need.",
        _between(0, 3600, " seconds"),
    )
    eager_bytes: int = _setting(
        65536,
        "Transfers up to this size are sent at once; larger ones wait until the receiver has entered.",
        _between(0, 2**30, " bytes"),
        semantic=True,
    )
    stash_bytes: int = _setting(
        16 * 2**20,
        "Bound of the memory for data that arrives before this rank has entered the operation; what does not "
        "fit is counted and asked for again.",
        _between(65536, 2**40, " bytes"),
    )
    retained_bytes: int = _setting(
        256 * 2**20,
        "Bound of the memory for data that peers may still ask for after an operation has ended here.",
        _between(2**20, 2**44, " bytes"),
    )
    algorithm: str = _setting(
        "auto",
        "Schedule family of all_reduce: small, ring or transpose; auto chooses by size from measurements.",
        _one_of("auto", "small", "ring", "transpose"),
        semantic=True,
    )
    payload_bytes: int = _setting(
        0,
        "Bytes of one UDP datagram, our header included; 0 takes the largest that probes of all pairs allow.",
        _payload,
        semantic=True,
    )
    debug: str = _setting(
        "WARN",
        "Least level of the log lines of this library: ERROR, WARN, INFO, DEBUG or TRACE.",
        _one_of(*DEBUG_LEVELS),
    )

    def __new__(cls, **given: object) -> Config:
        # Which fields the code gave cannot be seen from the values: one may be given its default on purpose.
        config = object.__new__(cls)
        object.__setattr__(config, "_origins", dict.fromkeys(given, "code"))
        return config

    def __post_init__(self) -> None:
        for name in names():
            object.__setattr__(self, name, _checked(name, getattr(self, name), self.origin(name)))

    def origin(self, name: str) -> str:
        """Where the value of a field came from: `default`, `file PATH`, `code` or `environment VARIABLE`."""
        origins: dict[str, str] = self.__dict__["_origins"]
        return origins.get(name, "default")

    def but(self, **changes: Any) -> Config:
        """This configuration with some fields changed; the others keep their values and their origins."""
        return _with_origins(
            {**_values(self), **changes}, {**self.__dict__["_origins"], **dict.fromkeys(changes, "code")}
        )

    def resolved(self, environ: Mapping[str, str] | None = None) -> Config:
        """All four sources put together. Unknown variables are warned of, invalid values refused."""
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        path = environ.get(CONF_FILE, "")
        if path:
            values.update(_read_file(path))
            origins.update(dict.fromkeys(values, f"file {path}"))
        for name in names():
            if self.origin(name) == "code":
                values[name], origins[name] = getattr(self, name), "code"
        for name, (variable, text) in _from_environment(environ).items():
            origins[name] = f"environment {variable}"
            values[name] = _parsed(name, text, origins[name])
        config = _with_origins(values, origins)
        _check_order(config)  # only now: a value may contradict another that is yet to be overridden
        return config

    def semantic(self) -> dict[str, Any]:
        """The values on which all ranks must agree, for the rendezvous."""
        return {name: getattr(self, name) for name, field in _fields().items() if field.metadata["semantic"]}

    def table(self) -> str:
        """Every value with its origin, one line each."""
        rows = [(name, str(getattr(self, name)) or "-", self.origin(name)) for name in names()]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{name:{widths[0]}}  {value:{widths[1]}}  {origin}" for name, value, origin in rows)


def _fields() -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(Config)}


def _kind(name: str) -> type[Any]:
    return type(_fields()[name].default)


def names() -> tuple[str, ...]:
    """The names of all fields."""
    return tuple(_fields())


def doc(name: str) -> str:
    """The sentence that explains a field."""
    return str(_fields()[name].metadata["doc"])


def variable(name: str) -> str:
    """The environment variable of a field."""
    return PREFIX + name.upper()


def differing(configs: Mapping[int, Mapping[str, Any]]) -> str | None:
    """The first semantic field that differs between ranks, with the ranks of each value; or None."""
    for name in Config().semantic():
        holders: dict[str, list[int]] = {}
        for rank, values in configs.items():
            holders.setdefault(repr(values.get(name, "(missing)")), []).append(rank)
        if len(holders) > 1:
            said = "; ".join(f"{value} on {ranks_text(ranks)}" for value, ranks in holders.items())
            return f"{name} is not the same on all ranks: {said}"
    return None


def _values(config: Config) -> dict[str, Any]:
    return {name: getattr(config, name) for name in names()}


def _with_origins(values: Mapping[str, Any], origins: Mapping[str, str]) -> Config:
    config = Config.__new__(Config)
    object.__setattr__(config, "_origins", dict(origins))
    config.__init__(**values)  # type: ignore[misc]  # origins first: the checks name them
    return config


def _checked(name: str, value: Any, origin: str) -> Any:
    """The value in the field's type, or a ConfigError that names the source."""
    if name not in names():
        raise ConfigError(f"there is no setting {name!r} ({origin}){_nearest(name, names())}")
    kind = _kind(name)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ConfigError(f"{name} must be {kind.__name__}, not {type(value).__name__} {value!r} ({origin})")
    check: Check | None = _fields()[name].metadata["check"]
    complaint = check(value) if check else None
    if complaint:
        raise ConfigError(f"{name} {complaint}, not {value!r} ({origin})")
    return value


def _check_order(config: Config) -> None:
    """Refuses values that contradict each other: a bound never reached hides the error it exists for."""
    rules = (
        ("liveness_s", "timeout_s", "a dead rank would be reported as a timeout"),
        ("connect_timeout_s", "rendezvous_timeout_s", "a blocked network would be reported as missing ranks"),
        ("eager_bytes", "stash_bytes", "a single eager transfer would not fit into the stash"),
    )
    for small, large, why in rules:
        if getattr(config, small) > getattr(config, large):
            said = [f"{name} ({getattr(config, name)}, {config.origin(name)})" for name in (small, large)]
            raise ConfigError(f"{said[0]} must not be larger than {said[1]}: {why}")


def _parsed(name: str, text: str, origin: str) -> Any:
    """The value of a field from the text of an environment variable."""
    kind = _kind(name)
    try:
        if kind is bool:
            return BOOLEANS[text.strip().lower()]
        return kind(text.strip())
    except (ValueError, KeyError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise ConfigError(f"{name} must be {wanted}, not {text!r} ({origin})") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Field -> (variable, text). An unknown variable is probably a misspelt one: warned of, not refused."""
    known = {variable(name): name for name in names()}
    found = {}
    for key, text in environ.items():
        if key in known:
            found[known[key]] = (key, text)
        elif key.startswith(PREFIX) and key != CONF_FILE and not key.startswith(TEST_PREFIX):
            log.warning("unknown environment variable %s%s", key, _nearest(key, (*known, CONF_FILE)))
    return found


def _read_file(path: str) -> dict[str, Any]:
    """The fields a TOML file sets, at its top level. Unknown ones are refused: the file is for us alone."""
    origin = f"file {path}"
    try:
        toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        with open(path, "rb") as file:
            content: dict[str, Any] = toml.load(file)
    except ImportError:
        raise ConfigError(f"Python 3.10 needs the package tomli to read the {origin}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the {origin} (named by {CONF_FILE}): {error}") from error
    return {name: _checked(name, value, origin) for name, value in content.items()}


def _nearest(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""
