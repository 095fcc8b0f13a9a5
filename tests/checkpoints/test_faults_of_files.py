"""Files that cannot be a whole checkpoint: one line each, exit status 2, nothing written."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import streaming_core
from autotune.cli import main
from streaming_core import Settings
from streaming_core.assemble import assemble, open_store
from streaming_core.errors import ModelNotFound, StoreInvalid
from streaming_core.hardware import detect
from streaming_core.models.outline import open_model
from streaming_core.progress import ignore
from streaming_core.runtime import plan

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    """Two shards and their index."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def change_header(path: Path, change: Callable[[dict[str, Any]], str | None]) -> None:
    """`change` alters the header, or gives its text."""
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    text = change(header) or json.dumps(header)
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + raw[8 + length :])


def truncated(folder: Path) -> None:
    os.truncate(folder / SECOND, (folder / SECOND).stat().st_size - 100)


def cut_in_its_header(folder: Path) -> None:
    os.truncate(folder / SECOND, 300)


def empty(folder: Path) -> None:
    os.truncate(folder / SECOND, 0)


def lfs_pointer(folder: Path) -> None:
    (folder / SECOND).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b\nsize 12345\n"
    )


def lfs_pointer_of_the_config(folder: Path) -> None:
    (folder / "config.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")


def twice(folder: Path) -> None:
    """A single file that an earlier download left beside the shards."""
    shutil.copy(folder / SECOND, folder / "model.safetensors")


def twice_without_an_index(folder: Path) -> None:
    twice(folder)
    (folder / "model.safetensors.index.json").unlink()


def missing_shard(folder: Path) -> None:
    (folder / SECOND).unlink()


def missing_shard_without_an_index(folder: Path) -> None:
    missing_shard(folder)
    (folder / "model.safetensors.index.json").unlink()


def header_longer_than_the_file(folder: Path) -> None:
    raw = (folder / FIRST).read_bytes()
    (folder / FIRST).write_bytes(struct.pack("<Q", len(raw) + 1) + raw[8:])


def a_pipe(folder: Path) -> None:
    (folder / FIRST).unlink()
    os.mkfifo(folder / FIRST)


def a_pipe_that_only_the_tokenizer_reads(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")


def a_pipe_for_a_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")


def a_config_without_bottom(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 200_000)


def an_index_without_bottom(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("[" * 200_000)


def a_header_without_bottom(folder: Path) -> None:
    change_header(folder / FIRST, lambda header: "[" * 200_000)


def called_awq(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["quantization"]
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "awq"}}))


def a_million_layers(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1_000_000}))


def not_json(folder: Path) -> None:
    change_header(folder / FIRST, lambda header: json.dumps(header)[:-1])


def overlapping(folder: Path) -> None:
    def shift(header: dict[str, Any]) -> None:
        names = sorted((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"])
        header[names[1]]["data_offsets"] = [n - 4 for n in header[names[1]]["data_offsets"]]

    change_header(folder / FIRST, shift)


def wrong_size(folder: Path) -> None:
    def shorten(header: dict[str, Any]) -> None:
        next(entry for name, entry in header.items() if name != "__metadata__")["shape"][0] -= 1

    change_header(folder / FIRST, shorten)


def negative(folder: Path) -> None:
    def shift(header: dict[str, Any]) -> None:
        next(entry for name, entry in header.items() if name != "__metadata__")["data_offsets"][0] = -8

    change_header(folder / FIRST, shift)


def named_twice_in_one_header(folder: Path) -> None:
    def repeat(header: dict[str, Any]) -> str:
        name = next(name for name in header if name != "__metadata__")
        return f"{json.dumps(header)[:-1]}, {json.dumps(name)}: {json.dumps(header[name])}}}"

    change_header(folder / FIRST, repeat)


FAULTS: list[tuple[Callable[[Path], None], str]] = [
    (truncated, "ends past the end of the file, 100 bytes are missing); download it again"),
    (cut_in_its_header, "the file has 300); download it again"),
    (empty, f"{SECOND}: not a whole safetensors file"),
    (lfs_pointer, f"{SECOND}: a git-lfs pointer, not the file itself; run `git lfs pull` in "),
    (lfs_pointer_of_the_config, "config.json: a git-lfs pointer, not the file itself; run `git lfs pull` in "),
    (twice, "is in model-00002-of-00002.safetensors and in model.safetensors; remove model.safetensors"),
    (twice_without_an_index, "remove the file that does not belong to this model"),
    (missing_shard, f"{SECOND} is missing (1 of 2 files)"),
    (missing_shard_without_an_index, f"{SECOND} is missing (1 of 2 files); download again"),
    (header_longer_than_the_file, "its header would have"),
    (a_pipe, "model-00001-of-00002.safetensors is a pipe, a socket or a device; remove it"),
    (a_pipe_that_only_the_tokenizer_reads, "tokenizer.json is a pipe, a socket or a device; remove it"),
    (a_pipe_for_a_config, "config.json is a pipe, a socket or a device; remove it"),
    (a_config_without_bottom, "config.json is not JSON (maximum recursion depth exceeded"),
    (an_index_without_bottom, "model.safetensors.index.json cannot be read"),
    (a_header_without_bottom, "not a whole safetensors file (maximum recursion depth exceeded"),
    (called_awq, "quantization_config says awq, and no tensor is called *.qweight"),
    (a_million_layers, "num_hidden_layers is 1000000, and the files have "),
    (not_json, "not a whole safetensors file"),
    (overlapping, " overlap); download it again"),
    (wrong_size, "bytes where its shape needs"),
    (negative, "has offsets -8 to"),
    (named_twice_in_one_header, "twice); download it again"),
]


@pytest.mark.parametrize(("damage", "message"), FAULTS, ids=[damage.__name__ for damage, _ in FAULTS])
@pytest.mark.parametrize("command", ["pack", "plan"])
def test_a_faulty_file_is_one_line_and_nothing_is_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str,
    damage: Callable[[Path], None], message: str,
) -> None:  # fmt: skip
    damage(folder)
    cache = tmp_path / "cache"
    assert main([command, "--model", str(folder), "--cache-dir", str(cache), "--profile", "none"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("mlx-autotune: error: ") and str(folder) in line and message in line
    assert not cache.exists()


def test_an_index_that_names_too_much_or_too_little_is_not_in_the_way(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """mlx-lm reads the files' headers and never the index."""
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.layers.99.mlp.gate.weight"] = FIRST
    del index["weight_map"]["model.norm.weight"]
    path.write_text(json.dumps(index))
    assert main(["pack", "--model", str(folder), "--cache-dir", str(tmp_path / "cache"), "--quiet"]) == 0


@pytest.mark.parametrize(("name", "message"), [("m[1]", "for a pattern; rename"), ("m\udcff", "is not UTF-8")])
def test_a_path_that_mlx_would_take_for_another_is_refused(folder: Path, name: str, message: str) -> None:
    """`m[1]` is a pattern that finds the files of a folder `m1`."""
    shutil.copytree(folder, folder.parent / "m1")
    try:
        moved = folder.rename(folder.parent / name)
    except OSError:
        pytest.skip("this file system takes no such name")
    with pytest.raises(ModelNotFound, match=message):
        streaming_core.inspect(moved)


@pytest.mark.parametrize("layout", ["packed", "checkpoint"])
def test_weights_that_are_cut_short_while_they_are_read_are_one_line(folder: Path, tmp_path: Path, layout: str) -> None:
    opened = open_model(folder, "cut", detect().hardware())
    wanted = Settings().with_values({"store.layout": layout, "residency.slots": 4})
    planned = plan(opened.outline, wanted, detect())
    for path in folder.glob("model-*.safetensors"):
        os.truncate(path, 20_000)
    with pytest.raises(StoreInvalid, match="its weights changed or cannot be read"):
        store = open_store(opened, wanted, tmp_path, detect(), ignore)
        assemble(opened, planned, wanted, store, detect(), None, ignore)
    assert not list(tmp_path.rglob("*.records")) and not list(tmp_path.rglob("*.tmp"))
