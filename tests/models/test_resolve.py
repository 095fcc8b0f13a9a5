"""From what a user types to a folder with a checkpoint."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from hub_server import COMMIT, serve_hub

from streaming_core.errors import AutotuneError, DiskFull, ModelNotFound, ModelNotSupported
from streaming_core.models.resolve import ALIASES, ModelSource, default_cache_dir, model_names, resolve_model
from streaming_core.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
REPO = "mlx-community/Qwen3-30B-A3B-4bit"
FILES = {
    "config.json": b'{"model_type": "qwen3_moe"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"w" * 300_000,
    "README.md": b"never fetched",
}


def checkpoint(folder: Path, config: bytes = b"{}", shards: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_bytes(config)
    names = [f"model-{n + 1:05}-of-{shards:05}.safetensors" for n in range(shards)]
    for name in names:
        (folder / name).write_bytes(b"x")
    index = {"weight_map": {f"tensor{n}": name for n, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def cached(hub: Path, repo: str = REPO, shards: int = 2) -> Path:
    """A snapshot as the hub's library leaves it."""
    place = hub / f"models--{repo.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(COMMIT)
    return checkpoint(place / "snapshots" / COMMIT, shards=shards)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may reach a network by accident, or read the cache of whoever runs it."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def message(name: str | Path, tmp_path: Path, kind: type[AutotuneError] = ModelNotFound) -> str:
    with pytest.raises(kind) as caught:
        resolve_model(name, cache_dir=tmp_path / "cache", hub_cache=tmp_path / "hub")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_is_taken_as_it_is_and_named_by_its_last_part(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "my-model", shards=3)
    for name in (folder, str(folder), f"{folder}/"):
        assert resolve_model(name, cache_dir=tmp_path) == ModelSource("my-model", Path(name))


def test_a_folder_of_the_hubs_cache_keeps_the_name_of_its_model(tmp_path: Path) -> None:
    folder = cached(tmp_path / "hub")
    assert resolve_model(folder, cache_dir=tmp_path).name == REPO


def test_the_current_folder_has_a_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint(tmp_path / "here"))
    assert resolve_model(".", cache_dir=tmp_path).name == "here"


def test_a_single_file_checkpoint_needs_no_index(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"x")
    assert resolve_model(tmp_path / "m", cache_dir=tmp_path).folder == tmp_path / "m"


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name, alias", [(REPO, None), ("qwen3-30b-a3b", "qwen3-30b-a3b")])
def test_a_cached_model_needs_no_network(tmp_path: Path, name: str, alias: str | None) -> None:
    folder = cached(tmp_path / "hub")
    found = resolve_model(name, cache_dir=tmp_path / "cache", hub_cache=tmp_path / "hub")
    assert (found.name, found.alias) == (REPO, alias)
    assert found.folder.resolve() == folder.resolve()


@pytest.mark.usefixtures("offline")
def test_offline_and_not_cached_is_one_line_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    text = message("qwen3-next", tmp_path)
    assert text == (
        f"{ALIASES['qwen3-next']} is not in {tmp_path / 'hub'} and the hub cannot be reached; "
        f"run `hf download {ALIASES['qwen3-next']}` with a network"
    )


@pytest.mark.usefixtures("offline")
def test_offline_and_cached_in_part_says_so(tmp_path: Path) -> None:
    (cached(tmp_path / "hub") / "model-00002-of-00002.safetensors").unlink()
    text = message(REPO, tmp_path)
    assert "is not whole" in text or "only partly in" in text
    assert f"run `hf download {REPO}` with a network" in text


@pytest.mark.parametrize(
    "name, words",
    [
        ("", "the model name is empty"),
        ("   ", "the model name is empty"),
        ("a/b/c", "'a/b/c' is no folder, no hub id (owner/name) and no alias; check its spelling. Aliases: demo, "),
        ("own er/x", "'own er/x' is no folder, no hub id"),
        ("a--b/x..y", "is no folder, no hub id"),
        ("qwen3-nxt", "did you mean 'qwen3-next'? Aliases: demo, "),
        ("Qwen3-Next", "did you mean 'qwen3-next'?"),
        ("dmeo", "did you mean 'demo'?"),
        ("layers:0", "unknown checkpoint size 'layers:0'; known: tiny, demo, layers:N"),
        ("layers:many", "unknown checkpoint size"),
        ("./none", "there is no folder ./none; check the path"),
        ("/none/there", "there is no folder /none/there; check the path"),
        (Path("mlx-community/none"), "there is no folder mlx-community/none; check the path"),
    ],
)
def test_a_name_that_means_nothing_is_one_clear_line(tmp_path: Path, name: str | Path, words: str) -> None:
    assert words in message(name, tmp_path)


def test_a_folder_that_is_no_checkpoint_says_what_it_lacks(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    assert f"{folder} is no whole checkpoint: config.json is missing" in message(folder, tmp_path)
    (folder / "config.json").write_text("{}")
    assert "no model*.safetensors" in message(folder, tmp_path)
    checkpoint(folder, shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors is missing (1 of 2 files)" in message(folder, tmp_path)
    (folder / "model.safetensors.index.json").write_text("[]")
    assert "model.safetensors.index.json cannot be read" in message(folder, tmp_path)
    assert "is a file; give the folder" in message(folder / "config.json", tmp_path)


@pytest.mark.parametrize(
    "config, words",
    [
        (b"{", "is not JSON (Expecting property name"),
        (b"\xff\xfe", "is not JSON ("),
        (b"[1]", "holds no settings but a list"),
    ],
)
def test_a_config_that_cannot_be_read_is_one_clear_line(tmp_path: Path, config: bytes, words: str) -> None:
    folder = checkpoint(tmp_path / "m", config)
    assert f"{folder / 'config.json'} {words}" in message(folder, tmp_path, ModelNotSupported)


def test_a_made_checkpoint_is_made_once_under_the_cache_folder(tmp_path: Path) -> None:
    heard: list[Progress] = []
    found = resolve_model("tiny", cache_dir=tmp_path, on_progress=heard.append)
    assert found == ModelSource("tiny", tmp_path / "models" / "tiny")
    assert heard and heard[-1].stage == "making tiny" and heard[-1].done == heard[-1].total
    heard.clear()
    assert resolve_model("tiny", cache_dir=tmp_path, on_progress=heard.append) == found and not heard


def test_an_alias_goes_before_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint(tmp_path / "tiny")
    assert resolve_model("tiny", cache_dir=tmp_path / "c").folder == tmp_path / "c" / "models" / "tiny"
    assert resolve_model("./tiny", cache_dir=tmp_path / "c").folder == Path("tiny")


def test_a_made_checkpoint_whose_place_is_taken_says_what_to_remove(tmp_path: Path) -> None:
    checkpoint(tmp_path / "cache" / "models" / "tiny")
    text = message("tiny", tmp_path)
    assert f"tiny cannot be made in {tmp_path / 'cache' / 'models' / 'tiny'}" in text and "remove that folder" in text


def test_a_full_disk_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("streaming_core.testing.make_checkpoint", fail)
    assert "no room left for demo in" in message("demo", tmp_path, DiskFull)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    assert f"to download {REPO}" in message(REPO, tmp_path, DiskFull)


def test_any_other_failure_of_a_download_keeps_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> Path:
        raise OSError("the wire is cut\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    assert f"{REPO} could not be downloaded to {tmp_path / 'hub'}: the wire is cut; run" in message(REPO, tmp_path)


def test_a_failed_download_shows_no_chain_of_the_hubs_errors_but_logs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[bool] = []

    def fail(*args: object, local_files_only: bool = False, **options: object) -> Path:
        asked.append(local_files_only)
        raise FileNotFoundError("not cached") if local_files_only else RuntimeError("the wire is cut")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with caplog.at_level("DEBUG", "streaming_core"), pytest.raises(ModelNotFound) as caught:
        resolve_model(REPO, cache_dir=tmp_path / "cache", hub_cache=tmp_path / "hub")
    assert asked == [True, False], "the cache first, then the network"
    chain = "".join(traceback.format_exception(caught.value))
    assert "the wire is cut" in str(caught.value)
    assert "RuntimeError" not in chain and "FileNotFoundError" not in chain
    assert "RuntimeError: the wire is cut" in caplog.text


SCRIPT = """
import sys
from pathlib import Path
from streaming_core.errors import AutotuneError
from streaming_core.models import resolve_model
heard = []
try:
    found = resolve_model(sys.argv[1], cache_dir=Path(sys.argv[2]), on_progress=heard.append)
    last = heard[-1] if heard else None
    print(found.folder, last and (last.stage, last.done, last.total), sep="|")
except AutotuneError as err:
    print(type(err).__name__, err)
"""


def resolve_elsewhere(name: str, tmp_path: Path, endpoint: str) -> str:
    """In a process of its own, since the hub's library reads its environment once."""
    env = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1",
    }  # fmt: skip
    command = [sys.executable, "-c", SCRIPT, name, str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert done.stderr == "", "nothing may be printed but by the caller"
    return done.stdout


def test_a_download_fetches_what_a_model_needs_reports_bytes_and_prints_nothing(tmp_path: Path) -> None:
    with serve_hub(REPO, FILES) as endpoint:
        output = resolve_elsewhere("qwen3-30b-a3b", tmp_path, endpoint)
        assert resolve_elsewhere("mlx-community/none", tmp_path, endpoint).startswith(
            "ModelNotFound the hub has no model mlx-community/none, or it is private; check the name"
        )
    folder, _, last = output.strip().partition("|")
    fetched = sorted(path.name for path in Path(folder).iterdir())
    assert fetched == ["config.json", "model.safetensors", "tokenizer.json"]
    assert last.startswith("('downloading the model', ")
    again = resolve_elsewhere(REPO, tmp_path, "http://127.0.0.1:9")
    assert again.strip() == f"{folder}|None", "from the cache, with nobody to ask"


def test_a_hub_that_cannot_be_reached_is_one_line_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    output = resolve_elsewhere(REPO, tmp_path, "http://127.0.0.1:9")
    assert output.startswith(
        f"ModelNotFound {REPO} is not in {tmp_path / 'hf' / 'hub'} and the hub cannot be reached; "
    )
    assert output.endswith(f"run `hf download {REPO}` with a network\n") and output.count("\n") == 1


def test_names_of_a_model_in_a_profile() -> None:
    assert model_names("qwen3-30b-a3b") == (REPO, "qwen3-30b-a3b")
    assert model_names(REPO) == (REPO, "qwen3-30b-a3b")
    assert model_names("demo") == ("demo",)
    assert model_names("layers:2") == ("layers:2",)
    assert model_names(Path("/models/My-Model")) == ("/models/My-Model", "My-Model")
    snapshot = f"/hub/models--a--b-c/snapshots/{COMMIT}"
    assert model_names(snapshot) == (snapshot, "a/b-c", COMMIT)


def test_the_cache_is_in_the_home_folder_where_the_system_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/u"))
    monkeypatch.setattr("sys.platform", "linux")
    assert default_cache_dir() == Path("/home/u/.cache/mlx-autotune")
    monkeypatch.setattr("sys.platform", "darwin")
    assert default_cache_dir() == Path("/home/u/Library/Caches/mlx-autotune")
