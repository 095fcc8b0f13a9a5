"""The checkpoint's own byte-level BPE tokenizer, and what its tokens say about topics."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .corpus import prompts, topic_names

__all__ = ["BOS", "EOS", "PAD", "Vocabulary", "build_vocabulary", "tokenizer_files"]

PAD, BOS, EOS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# 40 prompts of 150 words use nearly every word of a topic's lists several times; training takes about 0.1 s.
TRAINING_PROMPTS = 40
TRAINING_WORDS = 150

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Vocabulary:
    """A trained tokenizer and, for each token, how often each topic's text uses it.

    `counts` [V, T] int64: occurrences of token v in the text of topic t.
    """

    tokenizer: Tokenizer
    counts: NDArray[np.int64]

    @property
    def size(self) -> int:
        return int(self.counts.shape[0])


def build_vocabulary(max_vocab: int) -> Vocabulary:
    """Train on `corpus.prompts`.  The text does not depend on a checkpoint's seed: one vocabulary per `max_vocab`."""
    texts = [prompts(TRAINING_PROMPTS, TRAINING_WORDS, seed=0, topic=name) for name in topic_names()]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=max_vocab,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[PAD, BOS, EOS],
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for topic in texts for text in topic), trainer)
    counts = np.zeros((tokenizer.get_vocab_size(), len(texts)), dtype=np.int64)
    for column, topic in enumerate(texts):
        for encoding in tokenizer.encode_batch(topic):
            counts[:, column] += np.bincount(encoding.ids, minlength=len(counts))
    return Vocabulary(tokenizer, counts)


def tokenizer_files(vocabulary: Vocabulary) -> dict[str, str]:
    """File name -> content of what transformers' AutoTokenizer reads."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 262144,
        "chat_template": CHAT_TEMPLATE,
    }
    return {
        "tokenizer.json": vocabulary.tokenizer.to_str(pretty=False),
        "tokenizer_config.json": json.dumps(config, indent=2, sort_keys=True),
    }
