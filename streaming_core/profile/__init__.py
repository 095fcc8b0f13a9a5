"""Measured settings of machines: one YAML file a machine, one entry a model.

`load_profile()` finds the one to use here and `explain_profile()` says why that one; `Profile.read(path)` reads one
strictly; `with_entry` and `write` make one.
"""

from __future__ import annotations

from typing import Any

from streaming_core.profile._entry import STATUSES, Entry
from streaming_core.profile._find import Candidate, Explanation, default_folders, explain_profile, load_profile
from streaming_core.profile._profile import Profile, Program
from streaming_core.profile._stale import changes_since

__all__ = [
    "STATUSES",
    "Candidate",
    "Entry",
    "Explanation",
    "Profile",
    "Program",
    "changes_since",
    "default_folders",
    "explain_profile",
    "json_schema",
    "load_profile",
]


def json_schema() -> dict[str, Any]:
    """The format as a JSON schema, which is committed as profiles/schema.json."""
    from streaming_core.profile._schema import json_schema  # nobody who only runs models needs it

    return json_schema()
