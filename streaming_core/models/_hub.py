"""Models of the Hugging Face hub: its cache first, then the network, and no output of its own."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streaming_core.errors import AutotuneError, DiskFull, ModelNotFound
from streaming_core.progress import OnProgress, Progress

__all__ = ["fetch", "what_is_missing"]

_log = logging.getLogger(__name__)

# What mlx-lm itself downloads for a model: weights, configs, tokenizers of every kind, chat templates.
_PATTERNS = ["*.json", "*.jsonl", "*.txt", "*.jinja", "*.tiktoken", "*.py", "tokenizer.model", "model*.safetensors"]


def fetch(repo: str, hub_cache: Path | None, on_progress: OnProgress, *, download: bool = True) -> Path:
    """The folder of a whole snapshot.  The network is only asked when the cache lacks files.

    `hub_cache` of None is the hub library's own cache.  Raises ModelNotFound or DiskFull.
    """
    import huggingface_hub
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE) if hub_cache is None else hub_cache
    options: dict[str, Any] = {"cache_dir": str(cache), "allow_patterns": _PATTERNS}
    with _quiet_hub():
        with contextlib.suppress(OSError):  # not cached, or cached in part: the network is next
            folder = Path(huggingface_hub.snapshot_download(repo, local_files_only=True, **options))
            if what_is_missing(folder) is None:
                return folder
        if not download:
            raise ModelNotFound(f"{repo} is not in {cache}; run `hf download {repo}`, or give a folder")
        try:
            bar = _progress_bar(on_progress)
            folder = Path(huggingface_hub.snapshot_download(repo, tqdm_class=bar, **options))
        except Exception as err:  # noqa: BLE001  of many kinds; each is translated, none is swallowed
            _log.debug("downloading %s failed", repo, exc_info=err)
            raise _failure(repo, cache, err) from None  # one line for the user; the hub's chain is in the log
    if missing := what_is_missing(folder):
        # Offline, the library gives back a folder in which files are missing; online, the model itself lacks them.
        raise ModelNotFound(f"{repo} in {folder} is not whole: {missing}; run `hf download {repo}` with a network")
    return folder


def what_is_missing(folder: Path) -> str | None:
    """Which file a checkpoint needs and lacks, in a few words; None when all are there."""
    if not (folder / "config.json").is_file():
        return "config.json is missing"
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return f"{index.name} cannot be read"
        absent = sorted(str(shard) for shard in shards if not (folder / str(shard)).is_file())
        return f"{absent[0]} is missing ({len(absent)} of {len(shards)} files)" if absent else None
    return None if any(folder.glob("model*.safetensors")) else "no model*.safetensors"


def _failure(repo: str, cache: Path, err: Exception) -> AutotuneError:
    """The hub's many errors by what its user can do about them."""
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    if isinstance(err, GatedRepoError):
        return ModelNotFound(
            f"{repo} is gated: accept its terms at https://huggingface.co/{repo}, run `hf auth login`, then try again"
        )
    if isinstance(err, RepositoryNotFoundError):
        return ModelNotFound(
            f"the hub has no model {repo}, or it is private; check the name, or run `hf auth login` for a private one"
        )
    if isinstance(err, LocalEntryNotFoundError):
        here = "only partly" if (cache / f"models--{repo.replace('/', '--')}").exists() else "not"
        return ModelNotFound(
            f"{repo} is {here} in {cache} and the hub cannot be reached; run `hf download {repo}` with a network"
        )
    if isinstance(err, OSError) and err.errno == errno.ENOSPC:
        return DiskFull(f"no room left in {cache} to download {repo}; free space there, then try again")
    reason = (str(err).strip().splitlines() or [type(err).__name__])[0]
    return ModelNotFound(f"{repo} could not be downloaded to {cache}: {reason}; run `hf download {repo}` to try again")


@contextlib.contextmanager
def _quiet_hub() -> Iterator[None]:
    """The hub library logs to the terminal and draws bars by default; both are as before when the block ends."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    logger = logging.getLogger("huggingface_hub")
    level, drew = logger.level, not are_progress_bars_disabled()
    logger.setLevel(logging.CRITICAL)
    disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if drew:
            enable_progress_bars()


def _progress_bar(on_progress: OnProgress) -> type:
    """A bar that draws nothing and reports the bytes of all files together."""
    from tqdm.std import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            # One bar counts files, one what the network carried (compressed), and one bytes on disk: only the last.
            self._counts = kwargs.get("unit") == "B" and kwargs.get("desc") != "Downloading bytes"
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self._counts:
                on_progress(Progress("downloading the model", int(self.n), max(int(self.total or 0), int(self.n))))

    return Bar
