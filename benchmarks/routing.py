"""Routing of a synthetic checkpoint beside published figures of trained models.

    python benchmarks/routing.py --size demo --prompts 8

Published widths count in multiples of top-k and published slots in shares of the experts, so that models of different
sizes can be compared.  Two columns of ours: text the corpus wrote, and the model's own greedy continuation of it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mlx_lm import stream_generate
from mlx_lm.utils import load

from streaming_core.testing import make_checkpoint, parse_size, prompts
from streaming_core.testing.published import LRU_128, LRU_256, NEXT_LAYER, SAME_LAYER
from streaming_core.testing.routing import LayerRouting, expert_shares, lru_hit_rate, recall, record_routing

Sequences = list[list[LayerRouting]]  # by prompt, by layer


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="demo", help="tiny, demo or layers:N (default: demo)")
    parser.add_argument("--prompts", type=int, default=8, help="how many (default: 8)")
    parser.add_argument("--words", type=int, default=150, help="of each prompt (default: 150)")
    parser.add_argument("--tokens", type=int, default=100, help="of each greedy continuation (default: 100)")
    parser.add_argument("--folder", type=Path, help="where the checkpoint is or goes (default: a temporary folder)")
    args = parser.parse_args(argv)
    spec = parse_size(args.size)
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_checkpoint(args.folder or Path(scratch) / "model", spec)
        model, tokenizer = load(str(folder))
        written, own, variety = [], [], []
        for text in prompts(args.prompts, args.words, seed=1):
            tokens = tokenizer.encode(text)
            written.append(record_routing(model, tokens))
            if args.tokens:
                more = [piece.token for piece in stream_generate(model, tokenizer, tokens, max_tokens=args.tokens)]
                variety.append(len(set(more)))
                own.append([_tail(layer, len(more)) for layer in record_routing(model, tokens + more)])
    shape = f"{spec.layers} layers, top-{spec.top_k} of {spec.experts}"
    print(f"{spec.name}: {shape}; {args.prompts} prompts of {args.words} words")
    _tables(spec.experts, spec.top_k, written, own or written)
    if variety:
        print(f"\ndistinct tokens in {args.tokens} greedy ones: {min(variety)} to {max(variety)}")


def _tail(layer: LayerRouting, count: int) -> LayerRouting:
    guess = None if layer.next_layer is None else layer.next_layer[-count:]
    return LayerRouting(layer.routed[-count:], layer.same_layer[-count:], guess)


def _tables(experts: int, top_k: int, written: Sequences, own: Sequences) -> None:
    def over_layers(measure: Callable[[LayerRouting], float | None], data: Sequences) -> float:
        return float(np.mean([value for prompt in data for layer in prompt if (value := measure(layer)) is not None]))

    _heading("recall, same layer's un-normed input (Qwen3-Next, top-10 of 512)", "width / k")
    for width, published in SAME_LAYER:
        rates = [over_layers(_same_recall(top_k * width), d) for d in (written, own)]
        _row(width, published, *rates)
    _heading("recall, next layer's gate on this layer's MoE input (the same model)", "width / k")
    for width, published in NEXT_LAYER:
        rates = [over_layers(_next_recall(top_k * width), d) for d in (written, own)]
        _row(width, published, *rates)
    for name, curve in (("Qwen3-30B-A3B, top-8 of 128", LRU_128), ("Qwen3.5-35B, top-8 of 256", LRU_256)):
        _heading(f"LRU misses ({name})", "slots / E")
        for share, published in curve:
            ours = round(share * experts)
            _row(share, published, *(_miss_rate(data, ours) for data in (written, own)))
    _heading("share of all choices that go to the busiest experts", "of E")
    for part in (0.1, 0.25, 0.5):
        busiest = max(1, round(part * experts))
        _row(part, None, *(_busiest_share(data, experts, busiest) for data in (written, own)))


def _same_recall(width: float) -> Callable[[LayerRouting], float | None]:
    return lambda layer: recall(layer.routed, layer.same_layer, width)


def _next_recall(width: float) -> Callable[[LayerRouting], float | None]:
    return lambda layer: None if layer.next_layer is None else recall(layer.routed, layer.next_layer, width)


def _streams(data: Sequences) -> list[Any]:
    """[T, K] of each layer, all prompts one after another: the cache is not emptied between them."""
    return [np.concatenate([prompt[layer].routed for prompt in data]) for layer in range(len(data[0]))]


def _miss_rate(data: Sequences, slots: int) -> float:
    return 1 - float(np.mean([lru_hit_rate(routed, slots) for routed in _streams(data)]))


def _busiest_share(data: Sequences, experts: int, busiest: int) -> float:
    return float(np.mean([expert_shares(routed, experts)[:busiest].sum() for routed in _streams(data)]))


def _heading(title: str, unit: str) -> None:
    print(f"\n{title}\n{unit:>10} {'published':>10} {'text':>8} {'greedy':>8}")


def _row(at: float, published: float | None, text: float, greedy: float) -> None:
    print(f"{at:10.2f} {'' if published is None else f'{published:.3f}':>10} {text:8.3f} {greedy:8.3f}")


if __name__ == "__main__":
    main()
