"""Measured settings of machines: one YAML file a machine, one entry a model.

`load_profile()` finds this machine's; `Profile.read(path)` reads one strictly; `with_entry` and `write` make one.
"""

from __future__ import annotations

from streaming_core.profile._entry import STATUSES, Entry
from streaming_core.profile._find import default_folders, load_profile
from streaming_core.profile._profile import Profile, Program

__all__ = ["STATUSES", "Entry", "Profile", "Program", "default_folders", "load_profile"]
