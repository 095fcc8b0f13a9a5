"""A profile's entry without what is nobody else's business: folders of this machine and names of its users."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from streaming_core.profile import Entry, Profile

__all__ = ["shareable"]

# A path that starts at the root, at a home folder, at a drive or in the current folder, as a word of its own.
_PATH = re.compile(
    r"(?<![\w.~/\\-])(?:file://)?(?:~[\w.-]*/|\.{1,2}/|/(?=[^\s/])|[A-Za-z]:\\|\\\\)[^\s'\",;:()\[\]{}<>|]*"
)
_OF_THIS_MACHINE = ("--cache-dir", "--output", "--profile", "--trace", "--hardware", "--save", "--oracle")


def shareable(profile: Profile, name: str, users: Collection[str]) -> Profile:
    """The profile with this entry alone; of paths only the last part is left, and `users` are not named."""
    clean = _Cleaner(users)
    entry = profile.entries[name]
    probe = None if profile.probe is None else clean.data(profile.probe)
    cleaned: Entry = replace(entry, evidence=clean.data(entry.evidence), command=clean.command(entry.command))
    return replace(profile, entries={_short(name): cleaned}, probe=probe)


class _Cleaner:
    def __init__(self, users: Collection[str]) -> None:
        names = "|".join(re.escape(user) for user in users if user)
        # A name before a slash stays: owner/name is public.
        self._users = re.compile(rf"(?<![\w-])(?:{names})(?![\w/-])") if names else None

    def text(self, text: str) -> str:
        short = _short(text)
        return short if self._users is None else self._users.sub("user", short)

    def data(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {_short(key): self.data(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(each) for each in value]
        return value

    def command(self, command: str) -> str:
        """Without flags whose value is a file or folder of this machine."""
        try:
            words = shlex.split(command)
        except ValueError:  # written by hand, with a quote that never ends
            words = command.split()
        kept: list[str] = []
        skip = False
        for word in words:
            flag, equals, _ = word.partition("=")
            if skip:
                skip = False
            elif flag in _OF_THIS_MACHINE:
                skip = not equals
            else:
                kept.append(self.word(word))
        return shlex.join(kept)

    def word(self, word: str) -> str:
        """An argument is one path even where it has spaces."""
        flag, equals, value = word.rpartition("=")
        if value.startswith(("/", "~", "./", "../")):
            value = re.split(r"[/\\]", value.rstrip("/"))[-1]
        return self.text(f"{flag}{equals}{value}")


def _short(text: str) -> str:
    return _PATH.sub(lambda found: re.split(r"[/\\]", found[0].rstrip("/\\"))[-1], text)
