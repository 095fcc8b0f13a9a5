"""The corpus and the tokenizer that comes with a synthetic checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_tokenizer

from streaming_core.testing import prompts
from streaming_core.testing.corpus import topic_names
from streaming_core.testing.tokenizer import build_vocabulary, tokenizer_files

TEXTS = (
    "the salty onion",
    " leading,  double  and trailing ",
    "tabs\tand\nnew lines\r\n",
    "žluťoučký kůň, Ελληνικά, 日本語, العربية",
    "emoji 🧑‍🚀🏳️‍🌈 and \U0010ffff and \x00\x7f",
    "",
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    for name, text in tokenizer_files(build_vocabulary(1024)).items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "config.json").write_text('{"model_type": "qwen3_next"}')
    return load_tokenizer(Path(folder))


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_survives_encoding(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", [text for text in TEXTS if text and text[0] != " " and "\0" not in text])
def test_the_streaming_detokenizer_gives_the_same_text(tokenizer: Any, text: str) -> None:
    detokenizer = tokenizer.detokenizer
    for token in tokenizer.encode(text):
        detokenizer.add_token(token)
    detokenizer.finalize()
    assert detokenizer.text == text


def test_the_chat_template_marks_turns(tokenizer: Any) -> None:
    messages = [{"role": "user", "content": "Why is the sky blue?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
    tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert tokens[0] == tokenizer.bos_token_id
    assert tokens.count(tokenizer.eos_token_id) == 1
    assert tokenizer.eos_token_ids == {tokenizer.eos_token_id}


def test_prompts_are_reproducible_and_have_the_asked_length() -> None:
    texts = prompts(25, 40, seed=7)
    assert texts == prompts(25, 40, seed=7)
    assert texts != prompts(25, 40, seed=8)
    assert len(set(texts)) == 25
    assert {len(text.split(" ")) for text in texts} == {40}
    assert prompts(3, 40, seed=7) == texts[:3]


def test_prompts_keep_to_their_topic() -> None:
    assert len(topic_names()) >= 8
    sailing, cooking = (" ".join(prompts(5, 80, seed=1, topic=topic)) for topic in ("sailing", "cooking"))
    assert sailing.count("harbour") > 0 == cooking.count("harbour")
    with pytest.raises(ValueError, match="unknown topic 'chess'; known: cooking"):
        prompts(1, 10, seed=0, topic="chess")
