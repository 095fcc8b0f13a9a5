"""`mlx-autotune chat`: turns from a pipe, what is kept between them, and the ways out."""

from __future__ import annotations

import io
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import streaming_core
from autotune.cli import main
from autotune.conversation import Answer, Conversation
from streaming_core import Settings, StreamedModel

pytestmark = pytest.mark.usefixtures("elsewhere")

CHAT = ["chat", "--model", "tiny", "--profile", "none", "--max-tokens", "6", "--set", "residency.slots=4"]
Say = Callable[..., int]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    """`say("one", "two", flags=[...])`: these lines come through a pipe."""

    def run(*lines: str | bytes, flags: list[str] = []) -> int:  # noqa: B006
        text = b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
        return main([*CHAT, *flags])

    return run


@pytest.fixture
def streamed(tiny: Path, shared_cache: Path) -> Iterator[StreamedModel]:
    settings = Settings().with_values({"residency.slots": 4})
    with streaming_core.load(tiny, settings, cache_dir=shared_cache) as model:
        yield model


def answers(out: str) -> list[dict[str, Any]]:
    return [event for event in map(json.loads, out.splitlines()) if event["event"] == "answer"]


def asked(talk: Conversation, text: str) -> Answer:
    answer = Answer()
    assert "".join(talk.ask(text, answer, lambda: False)) == answer.text
    return answer


def test_only_new_tokens_are_computed_and_the_answer_is_that_of_the_whole_text(streamed: StreamedModel) -> None:
    tokenizer = streamed.tokenizer
    talk = Conversation(streamed, system="Be brief.", max_tokens=9, temperature=0.0)
    first = asked(talk, "Why is the sky blue?")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sky blue?"}]
    prompt = list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
    responses = list(streamed.stream(prompt, 9))
    assert first.text == "".join(response.text for response in responses)
    assert first.cached_tokens == 0 and first.prompt_tokens == len(prompt)
    # The model's own tokens, then what the template puts between them and the next answer.
    new = "<|im_end|>\n<|im_start|>user\nAnd at night?<|im_end|>\n<|im_start|>assistant\n"
    if responses[-1].finish_reason == "stop":
        new = new.removeprefix("<|im_end|>")
    chosen = [response.token for response in responses]
    whole = [*prompt, *chosen, *tokenizer.encode(new, add_special_tokens=False)]
    second = asked(talk, "And at night?")
    assert second.text == streamed.generate(whole, 9)
    assert second.prompt_tokens == len(whole)
    assert second.cached_tokens == len(prompt) + len(chosen)
    assert second.stats is not None
    assert second.stats.tokens == second.prompt_tokens - second.cached_tokens + second.tokens
    talk.clear()
    assert asked(talk, "Why is the sky blue?").text == first.text


def test_an_answer_that_the_model_ended_is_carried_on(streamed: StreamedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random weights end no answer by themselves: here the third token of the answer is one that does."""
    tokenizer = streamed.tokenizer
    prompt = list(tokenizer.apply_chat_template([{"role": "user", "content": "Rain?"}], add_generation_prompt=True))
    chosen = [response.token for response in streamed.stream(prompt, 3)]
    monkeypatch.setattr(tokenizer, "_eos_token_ids", {chosen[2]})
    ending = tokenizer.decode(chosen[2:])
    closed = f"(message.role == 'assistant') and '{ending}' or '<|im_end|>'"
    template = tokenizer.chat_template.replace("+ '<|im_end|>\n'", f"+ ({closed}) + '\n'")
    assert closed in template
    monkeypatch.setattr(tokenizer._tokenizer, "chat_template", template)
    talk = Conversation(streamed, system=None, max_tokens=9, temperature=0.0)
    first = asked(talk, "Rain?")
    assert (first.finish_reason, first.tokens) == ("stop", 3)
    second = asked(talk, "Snow?")
    assert second.cached_tokens == len(prompt) + 3
    new = tokenizer.encode("\n<|im_start|>user\nSnow?<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)
    assert second.text == streamed.generate([*prompt, *chosen, *new], 9)


def test_history_that_the_template_changes_is_computed_anew(streamed: StreamedModel) -> None:
    tokenizer = streamed.tokenizer
    tokenizer._tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + ': ' + (m.content | upper) + '\n' }}{% endfor %}"
    )
    talk = Conversation(streamed, system=None, max_tokens=5, temperature=0.0)
    first = asked(talk, "one two")
    second = asked(talk, "three")
    prompt = tokenizer.encode(
        f"user: ONE TWO\nassistant: {first.text.upper()}\nuser: THREE\n", add_special_tokens=False
    )
    assert second.cached_tokens == 0
    assert second.text == streamed.generate(prompt, 5)


def test_a_pipe_gives_a_turn_a_line_and_commands(say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    assert say("one two", "/stats", "", "what now", "/nothing", "/help", "/clear", "one two") == 0
    out, err = capsys.readouterr()
    first, second, third = out.splitlines()
    assert first == third and second
    assert "6 tokens at " in err and "(0 were kept)" in err and "of experts were in memory" in err and "waited" in err
    assert "no such command: /nothing" in err and "begun anew" in err
    assert say("one two", "/quit", "never answered", flags=["--quiet"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (f"{first}\n", "")


def test_json_is_a_line_an_answer(say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    assert say("one two", "what now", flags=["--json"]) == 0
    out, err = capsys.readouterr()
    first, second = answers(out)
    assert err == "" and first["text"] and first["generation_tokens"] == 6
    assert second["cached_tokens"] == first["prompt_tokens"] + 6
    assert {"hit_rate", "wait_s", "generation_tps", "finish_reason"} <= second.keys()


def test_system_and_temperature_change_the_answer(say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for flags in ([], ["--system", "A judge and a star."], ["--temp", "5"]):
        assert say("one two", flags=[*flags, "--quiet", "--max-tokens", "20"]) == 0
        said.append(capsys.readouterr().out)
    assert len(set(said)) == 3


def test_a_history_beyond_the_context_is_one_line_and_clear_helps(say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    room = ["--quiet", "--set", "memory.context=30"]
    assert say("one two", "what now", "/clear", "one two", flags=room) == 0
    out, err = capsys.readouterr()
    first, again = out.splitlines()
    assert first == again
    assert len(err.splitlines()) == 1 and "memory.context makes room for 30" in err and "/clear" in err


def test_a_model_without_a_template_continues_the_text(
    tiny: Path, tmp_path: Path, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(tiny, bare)
    config = json.loads((bare / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (bare / "tokenizer_config.json").write_text(json.dumps(config))
    assert say("A pan of onions", "and a star", flags=["--model", str(bare), "--json"]) == 0
    out = capsys.readouterr().out
    first, second = answers(out)
    assert "no chat template" in out
    settings = Settings().with_values({"residency.slots": 4})
    with streaming_core.load(bare, settings, cache_dir=tmp_path / "cache") as model:
        assert first["text"] == model.generate("A pan of onions", 6)
        tokens = model.tokenizer.encode("A pan of onions")
        tokens += [response.token for response in model.stream(tokens, 6)]
        tokens += model.tokenizer.encode("\nand a star", add_special_tokens=False)
        assert second["text"] == model.generate(tokens, 6)
    assert second["cached_tokens"] == first["prompt_tokens"] + 6


def interrupting(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Ctrl-C is pressed so often after the third token of each answer."""
    stream = StreamedModel.stream

    def pressed(self: StreamedModel, *args: Any, **options: Any) -> Iterator[Any]:
        for number, response in enumerate(stream(self, *args, **options)):
            yield response
            if number == 2:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(StreamedModel, "stream", pressed)


def test_ctrl_c_ends_the_answer_and_the_talk_goes_on(
    say: Say, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    interrupting(monkeypatch, 1)
    assert say("one two", "what now", flags=["--json", "--max-tokens", "50"]) == 0
    first, second = answers(capsys.readouterr().out)
    assert [first["finish_reason"], second["finish_reason"]] == ["interrupted"] * 2
    assert first["generation_tokens"] == 4
    assert second["cached_tokens"] == first["prompt_tokens"] + 4
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_leaves(say: Say, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    interrupting(monkeypatch, 2)
    assert say("one two", "what now") == 130
    assert capsys.readouterr().err.splitlines()[-1] == "mlx-autotune: interrupted"


def test_a_terminal_is_asked_line_by_line_until_ctrl_d(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["one two"])

    def typed(prompt: str) -> str:
        assert prompt == "> "
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("builtins.input", typed)
    assert main([*CHAT, "--quiet"]) == 0
    assert len(capsys.readouterr().out.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "flags", "message"),
    [
        ("x", ["--max-tokens", "0"], "--max-tokens must be at least 1"),
        ("x", ["--temp", "-1"], "--temp must be 0 or more"),
        ("x", ["--temp", "nan"], "--temp must be 0 or more"),
        (b"\xff\xfe", [], "turn 1 is not UTF-8"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    say: Say, capsys: pytest.CaptureFixture[str], line: str | bytes, flags: list[str], message: str
) -> None:
    assert say(line, flags=flags) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"mlx-autotune: error: {message}")
