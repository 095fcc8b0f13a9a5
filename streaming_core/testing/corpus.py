"""English-like text written from word lists: for training the tokenizer, for workloads and for calibration."""

from __future__ import annotations

import random

from .words import OPENERS, REQUESTS, TIMES, TOPICS, Topic

__all__ = ["prompts", "topic_names"]

# Slots are filled anew each time they occur: {p}erson, {t}hing, {v}erb, {q}uality, p{l}ace, t{i}me, {o}pener.
_SENTENCES = (
    "the {q} {t} in the {l} belongs to the {p}, who has to {v} it {i}.",
    "{o}, a {p} will {v} the {t} and the {t} before anyone can {v} the {t}.",
    "if the {t} is {q}, you should {v} it; if not, ask the {p} at the {l}.",
    "we found {n} of them near the {l}, each with a {q} {t} and a {q} {t}.",
    "it is hard to {v} a {t} without a {t}, but the {p} did so {i}.",
    "{o}, the {p} and the {p} said that the {t} was too {q} to {v}.",
    "what would happen to the {t} when nobody wants to {v} it {i}?",
    "their {t}, {t} and {t} were {q}, and that is why the {l} stayed open {i}.",
    "she wrote about {n} {q} {t} notes which every {p} in the {l} had to read.",
    "do not {v} the {q} {t} {i}, or the {t} may become {q}.",
    "there are {n} ways to {v} a {t}: {v} it, {v} it again, or leave it to the {p}.",
)


def topic_names() -> tuple[str, ...]:
    """Every value `prompts(topic=...)` takes."""
    return tuple(topic.name for topic in TOPICS)


def prompts(count: int, words: int, seed: int, topic: str | None = None) -> list[str]:
    """`count` prompts of exactly `words` words each, the same for the same arguments; a larger count only adds more.

    With `topic=None` prompt i is about a topic drawn at random, every topic once before any comes again.  An unknown
    topic is a ValueError.
    """
    if count < 0 or words < 1:
        raise ValueError(f"prompts needs count >= 0 and words >= 1, got {count} and {words}")
    if topic is not None and topic not in topic_names():
        raise ValueError(f"unknown topic {topic!r}; known: {', '.join(topic_names())}")
    order = random.Random(f"topics-{seed}")
    chosen: list[Topic] = []
    while len(chosen) < count:
        chosen += order.sample(TOPICS, len(TOPICS)) if topic is None else [t for t in TOPICS if t.name == topic]
    return [
        _prompt(random.Random(f"prompt-{seed}-{number}"), subject, words)
        for number, subject in enumerate(chosen[:count])
    ]


def _prompt(rng: random.Random, topic: Topic, words: int) -> str:
    request = rng.choice(REQUESTS)
    text = f"{request} {_sentence(rng, topic)}"
    while text.count(" ") + 1 < words:
        following = _sentence(rng, topic)
        text += " " + following[0].upper() + following[1:]
    return " ".join(text.split(" ")[:words])


def _sentence(rng: random.Random, topic: Topic) -> str:
    kinds = {"p": topic.people, "t": topic.things, "v": topic.verbs, "q": topic.qualities, "l": topic.places,
             "i": TIMES, "o": OPENERS}  # fmt: skip
    pieces = rng.choice(_SENTENCES).split("{")
    text = pieces[0]
    for piece in pieces[1:]:
        kind, rest = piece[0], piece[2:]
        text += (str(rng.randint(2, 90)) if kind == "n" else rng.choice(kinds[kind])) + rest
    return text
