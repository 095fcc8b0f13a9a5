"""What each command's exit status says, for its help."""

from __future__ import annotations

import textwrap

__all__ = ["exit_status"]

_DONE = (0, "done")
_WRONG = (2, "wrong input, or something on this machine is in the way (one line on standard error says what)")
_STOPPED = (130, "interrupted")
_EXITS: dict[str, tuple[tuple[int, str], ...]] = {
    "run": (
        (0, "done, also when the default is kept because nothing was proven faster"),
        _WRONG,
        (130, "interrupted; the best so far was written, unless a finished result was there"),
    ),
    "bench": (_DONE, (1, "resident and streamed did not say the same"), _WRONG, _STOPPED),
    "doctor": ((0, "nothing is wrong, though there may be warnings"), (1, "a problem was found"), _WRONG, _STOPPED),
    "verify": (
        (0, "keep: the profile is faster than the default, or cannot be told from it"),
        (1, "the profile's tokens differ from the default's"),
        _WRONG,
        (3, "stale: the model, the machine or a version is not the one it was measured with; nothing was measured"),
        (4, "worse: the profile is slower than the default (upper bound of the ratio below 1), or does not run"),
        _STOPPED,
    ),
    "profile validate": ((0, "every file can be used"), (1, "one cannot (a line for each says why)"), _WRONG, _STOPPED),
    "chat": (
        (0, "left by /quit or at the end of input"),
        _WRONG,
        (130, "left by Ctrl-C, or stopped by SIGTERM"),
    ),
    "serve": (
        (0, "stopped by Ctrl-C or SIGTERM: how a server ends"),
        (2, "wrong input, a port in use, or something on this machine is in the way (one line on standard error)"),
        (130, "interrupted before it was ready"),
    ),
    "pack": (_DONE, (1, "--verify: a file or a record in it is damaged"), _WRONG, _STOPPED),
}
_USUAL_EXITS = (_DONE, _WRONG, _STOPPED)
_COLUMNS = 78


def exit_status(command: str = "") -> str:
    lines = ["exit status:"]
    for code, text in _EXITS.get(command, _USUAL_EXITS):
        lines += textwrap.wrap(text, _COLUMNS, initial_indent=f"  {code:<5}", subsequent_indent=" " * 7)
    return "\n".join(lines) + "\n"
