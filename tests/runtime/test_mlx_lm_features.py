"""mlx-lm's own functions give over a streamed model what they give over the resident one, to the bit."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import pytest
from mlx_lm.generate import BatchGenerator, batch_generate, generate_step
from mlx_lm.models.cache import (
    QuantizedKVCache,
    can_trim_prompt_cache,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
    trim_prompt_cache,
)
from mlx_lm.perplexity import eval_ppl
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

import streaming_core
from streaming_core import Settings

TEXT = "A pan of onions, a star and a judge walk into the garden."
STREAMED = {"residency.slots": 4}
GUESSING = {**STREAMED, "predict.kind": "gate", "predict.mult": 2.0, "prefetch.backend": "stage"}


class Pair(NamedTuple):
    streamed: streaming_core.StreamedModel
    resident: nn.Module
    tokenizer: TokenizerWrapper

    def agree(self, run: Callable[[nn.Module], Any]) -> Any:
        """What `run` makes of the streamed model, which is what it makes of the resident one."""
        misses = self.streamed.stats().misses
        got, expected = run(self.streamed.model), run(self.resident)
        assert got == expected
        assert self.streamed.stats().misses > misses
        return got


@pytest.fixture(scope="module", params=["recurrent", "recurrent-guessing", "attention-only"])
def pair(request: pytest.FixtureRequest, tiny: Path, attention_only: Path, shared_cache: Path) -> Iterator[Pair]:
    folder = attention_only if request.param == "attention-only" else tiny
    values = GUESSING if request.param.endswith("guessing") else STREAMED
    resident, tokenizer = mlx_lm.load(str(folder))
    with streaming_core.load(folder, Settings().with_values(values), cache_dir=shared_cache) as model:
        yield Pair(model, resident, tokenizer)


@pytest.fixture
def trimmable(attention_only: Path, shared_cache: Path) -> Iterator[Pair]:
    resident, tokenizer = mlx_lm.load(str(attention_only))
    with streaming_core.load(attention_only, Settings().with_values(STREAMED), cache_dir=shared_cache) as model:
        yield Pair(model, resident, tokenizer)


def tokens_of(pair: Pair, model: nn.Module, prompt: Any = TEXT, count: int = 24, **options: Any) -> list[int]:
    return [r.token for r in mlx_lm.stream_generate(model, pair.tokenizer, prompt, max_tokens=count, **options)]


def own_tokens(pair: Pair, **options: Any) -> list[int]:
    return [r.token for r in pair.streamed.stream(TEXT, 24, **options)]


def test_chat_templates(pair: Pair) -> None:
    chat = [{"role": "user", "content": "Why is the sky blue?"}]
    prompt = pair.streamed.tokenizer.apply_chat_template(chat, add_generation_prompt=True)
    assert prompt == pair.tokenizer.apply_chat_template(chat, add_generation_prompt=True)
    assert pair.agree(lambda model: mlx_lm.generate(model, pair.streamed.tokenizer, prompt, max_tokens=12))
    assert pair.streamed.generate(prompt, 12) == mlx_lm.generate(pair.resident, pair.tokenizer, prompt, max_tokens=12)


def test_prompt_caches_are_saved_loaded_and_go_from_one_model_to_the_other(pair: Pair, tmp_path: Path) -> None:
    prompt = pair.tokenizer.encode(TEXT)
    whole = tokens_of(pair, pair.resident, prompt)

    def continued(filled_by: nn.Module, used_by: nn.Module) -> list[int]:
        cache = make_prompt_cache(filled_by)
        mx.eval(filled_by(mx.array([prompt[:-1]]), cache=cache))
        save_prompt_cache(str(tmp_path / "cache.safetensors"), cache, {"of": "a test"})
        loaded, about = load_prompt_cache(str(tmp_path / "cache.safetensors"), return_metadata=True)
        assert about == {"of": "a test"} and [type(e) for e in loaded] == [type(e) for e in cache]
        return tokens_of(pair, used_by, prompt[-1:], prompt_cache=loaded)

    for filled_by in (pair.streamed.model, pair.resident):
        for used_by in (pair.streamed.model, pair.resident):
            assert continued(filled_by, used_by) == whole


def test_a_trimmed_cache_answers_as_one_that_never_was_longer(trimmable: Pair) -> None:
    prompt = trimmable.tokenizer.encode(TEXT)

    def run(model: nn.Module) -> list[int]:
        cache = make_prompt_cache(model)
        mx.eval(model(mx.array([prompt]), cache=cache))
        assert trim_prompt_cache(cache, 5) == 5
        return tokens_of(trimmable, model, prompt[-5:], prompt_cache=cache)

    assert trimmable.agree(run) == tokens_of(trimmable, trimmable.resident, prompt)


@pytest.mark.parametrize("start", [0, 20, 30])
def test_quantized_kv_caches(pair: Pair, start: int) -> None:
    options = {"kv_bits": 4, "kv_group_size": 32, "quantized_kv_start": start}

    def run(model: nn.Module) -> tuple[list[int], list[list[float]]]:
        cache = make_prompt_cache(model)
        steps = list(
            generate_step(mx.array(pair.tokenizer.encode(TEXT)), model, max_tokens=24, prompt_cache=cache, **options)
        )
        assert any(isinstance(entry, QuantizedKVCache) for entry in cache)
        return [token for token, _ in steps], [logprobs.tolist() for _, logprobs in steps]

    tokens, _ = pair.agree(run)
    assert own_tokens(pair, **options) == tokens[: len(own_tokens(pair, **options))]


def test_quantized_kv_caches_of_a_prompt_in_many_passes(tiny: Path, shared_cache: Path) -> None:
    """mlx-lm quantises between passes, so it has to be the one who makes them."""
    options = {"kv_bits": 2, "kv_group_size": 32, "quantized_kv_start": 0}
    resident, tokenizer = mlx_lm.load(str(tiny))
    settings = Settings().with_values({**STREAMED, "prefill.chunk": 16})
    prompt = tokenizer.encode(TEXT * 3)

    def logprobs(responses: Any) -> list[list[float]]:
        return [r.logprobs.tolist() for r in responses]

    with streaming_core.load(tiny, settings, cache_dir=shared_cache) as model:
        theirs = mlx_lm.stream_generate(resident, tokenizer, prompt, max_tokens=8, prefill_step_size=16, **options)
        assert logprobs(model.stream(prompt, 8, **options)) == logprobs(theirs)


def test_a_rotating_cache(trimmable: Pair) -> None:
    short = trimmable.agree(lambda model: tokens_of(trimmable, model, max_kv_size=12))
    assert own_tokens(trimmable, max_kv_size=12) == short != own_tokens(trimmable)


def test_progress_of_the_prompt_is_told(pair: Pair) -> None:
    told: list[tuple[int, int]] = []
    own_tokens(pair, prompt_progress_callback=lambda done, total: told.append((done, total)))
    count = len(pair.tokenizer.encode(TEXT))
    assert told == [(0, count), (count - 1, count), (count, count)]


PROMPTS = (TEXT, "Rain.", "The judge reads a book about stars, rivers and bread, and then another one.")


def test_batches(pair: Pair) -> None:
    prompts = [pair.tokenizer.encode(text) for text in PROMPTS]

    def run(model: nn.Module) -> Any:
        out = batch_generate(
            model, pair.tokenizer, prompts, max_tokens=[9, 14, 5], return_token_ids=True, return_logprobs=True
        )
        return out.texts, out.token_ids, out.logprobs

    _, tokens, _ = pair.agree(run)
    assert [len(answer) for answer in tokens] == [9, 14, 5]


def test_prompts_that_join_a_batch_under_way(pair: Pair) -> None:
    def run(model: nn.Module) -> dict[int, list[int]]:
        batch = BatchGenerator(model, max_tokens=10, completion_batch_size=2, prefill_batch_size=1)
        answers: dict[int, list[int]] = {}
        batch.insert([pair.tokenizer.encode(PROMPTS[0])])
        for step in range(100):
            if step == 3:
                batch.insert([pair.tokenizer.encode(text) for text in PROMPTS[1:]])
            responses = batch.next_generated()
            if not responses:
                break
            for r in responses:
                answers.setdefault(r.uid, []).append(r.token)
        batch.close()
        return answers

    assert [len(answer) for answer in pair.agree(run).values()] == [10, 10, 10]


@pytest.mark.parametrize("drafts", [1, 3])
def test_speculative_decoding_with_a_resident_draft(trimmable: Pair, attention_only: Path, drafts: int) -> None:
    plain = tokens_of(trimmable, trimmable.resident)
    draft = mlx_lm.load(str(attention_only))[0]
    last = draft.layers[-1]
    last.mlp.gate.biases = last.mlp.gate.biases + 0.02 * mx.arange(16)[:, None]  # right now and then
    options = {"draft_model": draft, "num_draft_tokens": drafts}

    def run(model: nn.Module) -> list[tuple[int, bool]]:
        responses = mlx_lm.stream_generate(model, trimmable.tokenizer, TEXT, max_tokens=24, **options)
        return [(r.token, r.from_draft) for r in responses]

    tokens, drafted = zip(*trimmable.agree(run), strict=True)
    assert list(tokens) == plain
    assert 0 < sum(drafted) < 24 * drafts // (drafts + 1)  # some drafts were taken, some refused
    assert own_tokens(trimmable, **options) == plain


def test_speculative_decoding_is_refused_by_name_where_a_state_cannot_be_taken_back(
    tiny: Path, shared_cache: Path, trimmable: Pair
) -> None:
    with streaming_core.load(tiny, Settings().with_values(STREAMED), cache_dir=shared_cache) as model:
        assert not can_trim_prompt_cache(make_prompt_cache(model.model))
        for stream in (model.stream, lambda p, n, **o: mlx_lm.stream_generate(model.model, model.tokenizer, p, n, **o)):
            with pytest.raises(ValueError, match=r"requires a trimmable prompt cache \(got {'ArraysCache'}\)"):
                list(stream(TEXT, 4, draft_model=trimmable.resident))
        assert model.generate(TEXT, 4)


def test_samplers_and_logits_processors(pair: Pair) -> None:
    processors = make_logits_processors(logit_bias={5: 3.0}, repetition_penalty=1.3, repetition_context_size=8)
    for sampler in (
        make_sampler(temp=0.8, top_p=0.9),
        make_sampler(temp=1.2, top_k=20, min_p=0.02),
        make_sampler(temp=1.0, xtc_probability=0.5, xtc_threshold=0.1),
    ):
        options = {"sampler": sampler, "logits_processors": processors}

        def run(model: nn.Module, options: dict[str, Any] = options) -> list[int]:
            mx.random.seed(7)
            return tokens_of(pair, model, **options)

        tokens = pair.agree(run)
        mx.random.seed(7)
        assert own_tokens(pair, **options) == tokens


def test_perplexity(pair: Pair) -> None:
    tokens = pair.tokenizer.encode(" ".join(PROMPTS) * 3)
    data = mx.array(tokens[: len(tokens) // 32 * 32]).reshape(-1, 32)
    perplexity, error = pair.agree(lambda model: eval_ppl(model, data, batch_size=2))
    assert perplexity > 1 and error > 0


def test_loglikelihoods_as_evaluate_computes_them(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = evaluate_module(monkeypatch)
    ask = [(TEXT, " They eat."), (TEXT, " They sleep in the rain."), ("The star", " burns")]
    requests = [types.SimpleNamespace(args=args) for args in ask]
    texts = [types.SimpleNamespace(args=(text,)) for text in PROMPTS]

    def run(model: nn.Module) -> Any:
        judge = evaluate.MLXLM.__new__(evaluate.MLXLM)  # its constructor only loads
        judge._model, judge.tokenizer, judge._max_tokens, judge._batch_size = model, pair.tokenizer, None, 2
        judge.use_chat_template = False
        return judge.loglikelihood(requests), judge.loglikelihood_rolling(texts)

    choices, rolling = pair.agree(run)
    assert len(choices) == 3 and len(rolling) == 3 and all(score < 0 for score, _ in choices)


def evaluate_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """mlx_lm.evaluate, whose import needs lm_eval: a base class and a decorator of it."""
    parts = {name: types.ModuleType(name) for name in
             ("lm_eval", "lm_eval.api", "lm_eval.api.model", "lm_eval.api.registry")}  # fmt: skip
    parts["lm_eval.api.model"].LM = object  # type: ignore[attr-defined]
    parts["lm_eval.api.registry"].register_model = lambda name: lambda cls: cls  # type: ignore[attr-defined]
    for name, module in parts.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "mlx_lm.evaluate", raising=False)
    import mlx_lm.evaluate as evaluate

    monkeypatch.delitem(sys.modules, "mlx_lm.evaluate")
    return evaluate
