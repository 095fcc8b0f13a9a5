"""YAML text to plain data and back, with everything refused that a profile never needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from streaming_core.errors import ProfileInvalid

__all__ = ["dump", "parse", "read_text"]

_LARGEST = 4 << 20
_DEEPEST = 64
_HEADER = "# Measured settings of one machine, one entry a model.  Written by `mlx-autotune run`.\n"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, not in every build


def read_text(path: Path) -> str:
    """Raises ProfileInvalid when there is no such file, when it is too large, or not UTF-8."""
    try:
        if path.exists() and not path.is_file():
            raise ProfileInvalid(f"{path}: is no regular file; give the path of a .yaml file")
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except FileNotFoundError as err:
        raise ProfileInvalid(f"{path}: no such file; `mlx-autotune run` writes one") from err
    except OSError as err:
        raise ProfileInvalid(f"{path}: cannot be read: {err.strerror or err}; check its permissions") from err
    if len(raw) > _LARGEST:
        raise ProfileInvalid(f"{path}: larger than {_LARGEST >> 20} MiB, so no profile; give another file")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as err:
        line = raw.count(b"\n", 0, err.start) + 1
        raise ProfileInvalid(f"{path}:{line}: not UTF-8 at byte {err.start}; save the file as UTF-8") from err


def parse(text: str, path: Path) -> Any:
    """Plain data.  Raises ProfileInvalid, with the line, on broken YAML, references and keys that appear twice."""
    try:
        _check_events(text, path)
        return yaml.load(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as err:
        place = f"{path}:{err.problem_mark.line + 1}" if err.problem_mark else f"{path}"
        reason = " ".join(f"{err.problem or err.context or 'broken'}".split())
        raise ProfileInvalid(f"{place}: not YAML: {reason}; correct that line") from err
    except (yaml.YAMLError, ValueError) as err:
        reason = " ".join(str(err).split())
        raise ProfileInvalid(f"{path}: not YAML: {reason}; correct the file") from err


def _check_events(text: str, path: Path) -> None:
    """Looks at the stream of events first: it cannot be made to grow, unlike what references may stand for."""
    open_nodes: list[set[str] | None] = []  # a mapping's keys so far; None for a sequence
    key_is_next: list[bool] = []
    for event in yaml.parse(text, Loader=_LOADER):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise ProfileInvalid(f"{path}:{line}: references (& and *) are not allowed; write the value out")
        if isinstance(event, yaml.CollectionEndEvent):
            open_nodes.pop()
            key_is_next.pop()
            continue
        if not isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)):
            continue
        if open_nodes and (keys := open_nodes[-1]) is not None:
            if key_is_next[-1] and isinstance(event, yaml.ScalarEvent):
                if event.value in keys:
                    raise ProfileInvalid(f"{path}:{line}: key {event.value!r} appears twice; remove one")
                keys.add(event.value)
            key_is_next[-1] = not key_is_next[-1]
        if isinstance(event, yaml.CollectionStartEvent):
            if len(open_nodes) == _DEEPEST:
                raise ProfileInvalid(f"{path}:{line}: nested more than {_DEEPEST} deep, so no profile")
            open_nodes.append(set() if isinstance(event, yaml.MappingStartEvent) else None)
            key_is_next.append(True)


class _Dumper(yaml.SafeDumper):
    """Lists of single values on one line, everything else in blocks, nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.SequenceNode:
    short = not any(isinstance(item, (list, dict)) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=short)


def _represent_text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    # Left to itself the emitter writes some line breaks of Unicode as they are and loses them when reading.
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=None if data.isprintable() else '"')


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(str, _represent_text)


def dump(data: dict[str, Any], path: Path) -> str:
    """The same text for the same data, on every machine.  Raises ProfileInvalid if it would not read back equal."""
    text = _text(data)
    if _text(parse(text, path)) != text:
        raise ProfileInvalid(f"{path}: YAML cannot keep this evidence as it is; remove unusual characters from it")
    return _HEADER + text


def _text(data: Any) -> str:
    # The emitter in Python even where the one in C exists: they break lines at different places.
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=120)
