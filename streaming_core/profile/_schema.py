"""The format of profiles as a JSON schema, for editors and for programs that are not in Python.

Made from the classes that read profiles.  Which values a setting takes is asked of the setting: it is given some that
no setting takes, and its complaint says what it would take.
"""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from streaming_core.errors import SettingsError
from streaming_core.hardware import Hardware
from streaming_core.profile._entry import ENTRY_KEYS, ENTRY_REQUIRED, STATUSES
from streaming_core.profile._profile import KEYS, REQUIRED, VERSION
from streaming_core.settings import SIZES, SWITCHES, Settings

__all__ = ["json_schema"]

_SIZE = r"^\s*[0-9]+(\.[0-9]+)?\s*([bB]|[kKmMgGtT][iI][bB])\s*$"
_LAYERS = r"^\s*(|none|[0-9]+(-[0-9]+)?(\s*,\s*[0-9]+(-[0-9]+)?)*)\s*$"
_DATE = r"^([0-9]{4}-[0-9]{2}-[0-9]{2}.*)?$"
_NO_WORD, _NO_NUMBER = "\0", -(1 << 70)
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def json_schema() -> dict[str, Any]:
    """A schema of draft 2020-12.  What it refuses `Profile.read` refuses too, and says more about it."""
    anything = {"type": "object"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mlx-autotune profile",
        **_object(
            {
                "schema_version": {"const": VERSION},
                "program": _object({"name": {"type": "string"}, "version": {"type": "string"}}, ()),
                "hardware": _hardware(),
                "probe": {"type": ["object", "null"]},
                "models": {
                    "type": "object",
                    "propertyNames": {"minLength": 1},
                    "additionalProperties": _entry(anything),
                },
            },
            REQUIRED,
            KEYS,
        ),
    }


def _object(
    properties: dict[str, Any], required: tuple[str, ...], keys: tuple[str, ...] | None = None
) -> dict[str, Any]:
    assert keys is None or tuple(properties) == keys, "every key that is read, and no other"
    return {
        "type": "object",
        "properties": properties,
        **({"required": list(required)} if required else {}),
        "additionalProperties": False,
    }


def _entry(anything: dict[str, Any]) -> dict[str, Any]:
    properties = {
        "fingerprint": {"type": "string", "minLength": 1},
        "status": {"enum": list(STATUSES)},
        "written": {"type": "string", "pattern": _DATE},
        "command": {"type": "string"},
        "settings": _settings(),
        "evidence": anything,
    }
    return _object(properties, ENTRY_REQUIRED, ENTRY_KEYS)


def _hardware() -> dict[str, Any]:
    hints = get_type_hints(Hardware)
    properties = {Hardware.key_of(f.name): _reading(f.name, hints[f.name]) for f in fields(Hardware)}
    return _object(properties, Hardware.REQUIRED)


def _reading(name: str, hint: Any) -> dict[str, Any]:
    if name.endswith("_bytes"):
        return {"type": "string", "pattern": _SIZE}
    kinds = _kinds(hint)
    if int in kinds:
        return {"type": "integer", "minimum": 1}
    words = [word for kind in kinds for word in get_args(kind)]
    return {"enum": words} if words else {"type": "string"}


def _settings() -> dict[str, Any]:
    default = Settings()
    return _object({f.name: _section(getattr(default, f.name)) for f in fields(Settings)}, ())


def _section(section: Any) -> dict[str, Any]:
    assert is_dataclass(section)
    name = next(f.name for f in fields(Settings) if type(getattr(Settings(), f.name)) is type(section))
    hints = get_type_hints(type(section))
    return _object({f.name: _setting(section, name, f.name, hints[f.name]) for f in fields(section)}, ())


def _setting(section: Any, name: str, key: str, hint: Any) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for kind in _kinds(hint):
        if kind is type(None):
            found.append({"type": "null"})
        elif kind is str:
            words = _complaint(section, key, _NO_WORD).words
            found += [{"enum": list(words)}] if words else []
            found += [] if words and not _takes(section, key, "1-2") else [{"type": "string", "pattern": _LAYERS}]
            found += [{"enum": [word]} for word in ("all", "auto") if word not in words and _takes(section, key, word)]
        else:
            found.append(_number(_complaint(section, key, _NO_NUMBER), kind))
    if (name, key) in SIZES:
        found.append({"type": "string", "pattern": _SIZE})
    if (name, key) in SWITCHES:
        found.append({"type": "boolean"})  # what YAML makes of on and off without quotes
    whole = {"default": Settings().to_mapping()[name][key]}
    return {**found[0], **whole} if len(found) == 1 else {"anyOf": found, **whole}


def _number(complaint: SettingsError, kind: type) -> dict[str, Any]:
    if complaint.words:
        return {"enum": list(complaint.words)}
    assert complaint.span is not None
    low, high = complaint.span
    return {"type": _TYPES[kind], "minimum": low, "maximum": high}


def _complaint(section: Any, key: str, value: object) -> SettingsError:
    try:
        type(section)(**{key: value})
    except SettingsError as err:
        return err
    raise AssertionError(f"{type(section).__name__}.{key} takes {value!r}")


def _takes(section: Any, key: str, value: object) -> bool:
    try:
        type(section)(**{key: value})
    except SettingsError:
        return False
    return True


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
