"""The part of JSON schema that ours uses; a word that is not known here fails the test instead of checking nothing."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["faults"]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_SAYS_NOTHING = {"$schema", "title", "default"}


def faults(schema: dict[str, Any], value: Any, where: str = "") -> list[str]:
    """Where a value is not as the schema says."""
    found: list[str] = []
    for word, wanted in schema.items():
        match word:
            case "type":
                kinds = [wanted] if isinstance(wanted, str) else wanted
                if not any(_is(kind, value) for kind in kinds):
                    return [f"{where}: no {'/'.join(kinds)}"]
            case "const" | "enum":
                allowed = [wanted] if word == "const" else wanted
                if not any(type(each) is type(value) and each == value for each in allowed):
                    found.append(f"{where}: not one of {allowed}")
            case "minimum" if value < wanted:
                found.append(f"{where}: below {wanted}")
            case "maximum" if value > wanted:
                found.append(f"{where}: above {wanted}")
            case "minLength" if len(value) < wanted:
                found.append(f"{where}: too short")
            case "pattern" if not re.search(wanted, value):
                found.append(f"{where}: not {wanted}")
            case "required":
                found += [f"{where}.{key}: missing" for key in wanted if key not in value]
            case "properties":
                for key in wanted.keys() & value.keys():
                    found += faults(wanted[key], value[key], f"{where}.{key}")
            case "propertyNames":
                for key in value:
                    found += faults(wanted, key, f"{where}.{key}")
            case "additionalProperties":
                for key in value.keys() - schema.get("properties", {}).keys():
                    found += (
                        [f"{where}.{key}: unknown"] if wanted is False else faults(wanted, value[key], f"{where}.{key}")
                    )
            case "anyOf":
                if all(faults(each, value) for each in wanted):
                    found.append(f"{where}: none of {len(wanted)} kinds")
            case "minimum" | "maximum" | "minLength" | "pattern":
                pass
            case _:
                assert word in _SAYS_NOTHING, f"{word} is not checked"
    return found


def _is(kind: str, value: Any) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
