"""Whether a run keeps its promises: memory within the budget, prompts and misses about as fast as reading allows.

python benchmarks/promises.py memory --model layers:4 --budget 1.5GiB
python benchmarks/promises.py prefill --model layers:2 --slots 128
python benchmarks/promises.py misses --model demo --slots 16
python benchmarks/promises.py packing --model layers:4 --folder /somewhere/with/12/GB
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm

import streaming_core
from autotune.prepare import Place, store_files
from autotune.probe import ProbePlan, probe_disk
from streaming_core import Settings
from streaming_core.hardware import detect
from streaming_core.models import default_cache_dir, resolve_model
from streaming_core.testing import make_checkpoint, parse_size, prompts
from streaming_core.units import format_size

_IMPORT_ONLY = "import mlx_lm, streaming_core.hardware as hardware; print(hardware.detect().process_memory().rss_bytes)"

# Prints peak RSS, bytes of the trunk and of one layer's records.
_LOAD_AND_PACK = """
import sys
from pathlib import Path
import streaming_core
from streaming_core.hardware import detect
wanted = streaming_core.Settings().with_values({"residency.slots": 10, "residency.resident_layers": "none"})
with streaming_core.load(Path(sys.argv[1]), wanted, cache_dir=Path(sys.argv[2])) as model:
    outline = model.outline
    layer = outline.expert_bytes // len(outline.layers)
    print(detect().process_memory().peak_rss_bytes, outline.demand.trunk_bytes, layer)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir())
    parts = parser.add_subparsers(required=True)
    memory = parts.add_parser("memory", help="peak RSS against budget plus the RSS of importing mlx_lm")
    memory.add_argument("--model", default="layers:4")
    memory.add_argument("--budget", default="1.5GiB")
    memory.add_argument("--prompt", type=int, default=500, help="tokens")
    memory.add_argument("--tokens", type=int, default=300, help="tokens decoded")
    memory.set_defaults(run=keeps_budget)
    prefill = parts.add_parser("prefill", help="time to the first token against resident plus reading once")
    prefill.add_argument("--model", default="layers:2")
    prefill.add_argument("--slots", type=int, default=128)
    prefill.add_argument("--prompt", type=int, default=512, help="tokens")
    prefill.add_argument("--rounds", type=int, default=3)
    prefill.set_defaults(run=prefills)
    misses = parts.add_parser("misses", help="tokens/s against 1 / (compute + missed bytes / probed bandwidth)")
    misses.add_argument("--model", default="demo")
    misses.add_argument("--slots", type=int, default=16)
    misses.add_argument("--tokens", type=int, default=60, help="tokens decoded in a round")
    misses.add_argument("--rounds", type=int, default=7)
    misses.set_defaults(run=misses_cost)
    packing = parts.add_parser("packing", help="peak RSS of loading and packing against trunk and two layers' records")
    packing.add_argument("--model", default="layers:4")
    packing.add_argument(
        "--folder", type=Path, help="for checkpoints and stores, removed afterwards (default: a new one)"
    )
    packing.set_defaults(run=packs)
    args = parser.parse_args()
    print(json.dumps(args.run(args), indent=2))


def forced(tokens: list[int]) -> Any:
    """A sampler that says these tokens, so that text of random weights does not run in circles."""
    left: Iterator[int] = iter(tokens)
    return lambda logits: mx.array([next(left)])


def keeps_budget(args: argparse.Namespace) -> dict[str, Any]:
    baseline = int(subprocess.run([sys.executable, "-c", _IMPORT_ONLY], capture_output=True, check=True).stdout)
    machine = detect()
    settings = Settings().with_values({"memory.budget": args.budget})
    decoding: list[int] = []
    with streaming_core.load(args.model, settings, cache_dir=args.cache_dir) as model:
        text = model.tokenizer.encode(" ".join(prompts(40, 100, seed=1)))
        prompt, rest = text[: args.prompt], text[args.prompt :]
        for _ in model.stream(prompt, args.tokens, sampler=forced(rest)):
            decoding.append(machine.process_memory().rss_bytes)
        plan = model.memory_plan
    peak = machine.process_memory().peak_rss_bytes
    assert plan.budget_bytes is not None
    return {
        "import_rss": format_size(baseline),
        "peak_rss": format_size(peak),
        "budget": format_size(plan.budget_bytes),
        "share_of_budget": round((peak - baseline) / plan.budget_bytes, 3),
        "growth_after_50_tokens": format_size(max(0, decoding[-1] - decoding[min(50, len(decoding) - 1)])),
        "tokens": len(decoding),
        "plan": {name: format_size(nbytes) for name, nbytes in plan.terms.items()},
    }


def packs(args: argparse.Namespace) -> dict[str, Any]:
    """Each layout in a process of its own: what made the checkpoint must not count."""
    baseline = int(subprocess.run([sys.executable, "-c", _IMPORT_ONLY], capture_output=True, check=True).stdout)
    found: dict[str, Any] = {"import_rss": format_size(baseline)}
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        folder = make_checkpoint(Path(place) / "stacked", parse_size(args.model))
        for name in ("stacked", "one_per_expert"):
            if name == "one_per_expert":
                folder = unstacked(folder, Path(place) / name)
                shutil.rmtree(Path(place) / "stacked")
            command = [sys.executable, "-c", _LOAD_AND_PACK, str(folder), str(Path(place) / "cache")]
            peak, trunk, layer = map(int, subprocess.run(command, capture_output=True, check=True).stdout.split())
            shutil.rmtree(Path(place) / "cache")
            bound = baseline + trunk + 2 * layer
            found[name] = {
                "peak_rss": format_size(peak),
                "trunk": format_size(trunk),
                "layer": format_size(layer),
                "bound": format_size(bound),
                "layers_above_import_and_trunk": round((peak - baseline - trunk) / layer, 3),
                "kept": peak <= bound,
            }
    return found


def unstacked(folder: Path, target: Path) -> Path:
    """The same bytes under one name per expert: only headers differ."""
    target.mkdir()
    for path in folder.iterdir():
        if path.suffix != ".safetensors" and "index" not in path.name:
            shutil.copy(path, target)
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as source, (target / path.name).open("wb") as file:
            header = json.loads(source.read(int.from_bytes(source.read(8), "little")))
            text = json.dumps(dict(single for entry in header.items() for single in _singles(*entry))).encode()
            file.write(len(text).to_bytes(8, "little") + text)
            shutil.copyfileobj(source, file, 8 << 20)
    return target


def _singles(name: str, entry: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if ".switch_mlp." not in name:
        yield name, entry
        return
    block, tensor = name.split(".switch_mlp.")
    experts, *shape = entry["shape"]
    begin, end = entry["data_offsets"]
    size = (end - begin) // experts
    for expert in range(experts):
        span = [begin + expert * size, begin + (expert + 1) * size]
        yield f"{block}.experts.{expert}.{tensor}", {**entry, "shape": shape, "data_offsets": span}


def prefills(args: argparse.Namespace) -> dict[str, Any]:
    source = resolve_model(args.model, cache_dir=args.cache_dir)
    resident, tokenizer = mlx_lm.load(str(source.folder))
    prompt = tokenizer.encode(" ".join(prompts(40, 100, seed=1)))[: args.prompt]
    values = {"residency.slots": args.slots, "prefill.chunk": args.prompt, "reading.page_cache": "bypass"}
    rounds = []
    for _ in range(args.rounds):
        plain_s = first_token_s(mlx_lm.stream_generate(resident, tokenizer, prompt, max_tokens=1))
        with streaming_core.load(source.folder, Settings().with_values(values), cache_dir=args.cache_dir) as model:
            streamed_s = first_token_s(model.stream(prompt, 1))
            stats = model.stats()
        rounds.append({"resident_s": plain_s, "streamed_s": streamed_s, "waited_s": stats.wait_s,
                       "read": format_size(stats.demand_bytes), "ratio": streamed_s / plain_s})  # fmt: skip
    return {"rounds": rounds, "median_ratio_to_resident": statistics.median(r["ratio"] for r in rounds)}


def misses_cost(args: argparse.Namespace) -> dict[str, Any]:
    """Compute is that of the same model with every layer resident; everything takes turns within a round."""
    machine = detect()
    source = resolve_model(args.model, cache_dir=args.cache_dir)
    streamed = {"residency.slots": args.slots, "residency.resident_layers": "none", "reading.page_cache": "bypass"}
    wanted = {"resident": {"residency.slots": "all", "residency.resident_layers": "all"}, "streamed": streamed}
    models = {
        name: streaming_core.load(source.folder, Settings().with_values(values), cache_dir=args.cache_dir)
        for name, values in wanted.items()
    }
    outline = models["streamed"].outline
    files = store_files(outline, Place(machine, args.cache_dir), "packed")
    plan = ProbePlan(read_bytes=(outline.record_bytes,), page_caches=("bypass",))
    rounds = []
    for number in range(args.rounds):
        text = models["streamed"].tokenizer.encode(" ".join(prompts(40, 100, seed=number)))
        token_s = {}
        for name in random.Random(number).sample(sorted(models), len(models)):
            token_s[name] = decode_s(models[name], text[:40], text[40:], args.tokens)
        stats = models["streamed"].stats()
        missed = stats.demand_bytes / stats.passes
        bandwidth = max(row.bytes_per_s for row in probe_disk(files, machine, plan))
        ceiling = 1 / (token_s["resident"] + missed / bandwidth)
        rounds.append({
            "tokens_per_s": 1 / token_s["streamed"], "compute_s": token_s["resident"], "missed_bytes": missed,
            "waited_s": stats.wait_s / stats.passes, "bytes_per_s": bandwidth, "ceiling": ceiling,
            "of_ceiling": 1 / token_s["streamed"] / ceiling,
        })  # fmt: skip
    for model in models.values():
        model.close()
    shares = sorted(r["of_ceiling"] for r in rounds)
    return {"rounds": rounds, "median_of_ceiling": statistics.median(shares), "spread": [shares[0], shares[-1]]}


def decode_s(model: streaming_core.StreamedModel, prompt: list[int], rest: list[int], tokens: int) -> float:
    """Seconds of one token after eight to warm up; the model's stats are of what was timed."""
    for count, _ in enumerate(model.stream(prompt, tokens + 8, sampler=forced(rest)), 1):
        if count == 8:
            model.reset_stats()
            started = time.perf_counter()
    return (time.perf_counter() - started) / tokens


def first_token_s(responses: Iterator[Any]) -> float:
    started = time.perf_counter()
    next(responses)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
