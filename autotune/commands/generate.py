"""`mlx-autotune generate`: an answer, as it comes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from autotune.commands.opened import chosen, opened
from autotune.context import Context, decoded
from autotune.errors import RequestInvalid
from autotune.wording import seconds_text, tps_text
from streaming_core.errors import ModelNotSupported
from streaming_core.units import format_size

if TYPE_CHECKING:
    from mlx_lm.generate import GenerationResponse

    from streaming_core.trace import Stats

__all__ = ["run"]


def run(args: argparse.Namespace, context: Context) -> int:
    choice = chosen(args, context)
    prompt = decoded(context.read_input() if args.prompt == "-" else args.prompt, "--prompt")
    if not prompt.strip():
        raise RequestInvalid("--prompt is empty; write what the model shall answer")
    screen = context.screen
    with opened(args, context, choice) as streamed:
        last = None
        tokens = _prompt(streamed.tokenizer, prompt, args.raw)
        room = _room(len(tokens), streamed.settings.memory.context)
        if room < args.max_tokens:
            screen.notice(f"the answer ends after {room} tokens: memory.context has no room for more")
        streamed.reset_stats()
        for last in streamed.stream(tokens, min(room, args.max_tokens)):
            screen.text(last.text)
        stats = streamed.stats()
    if last is None:
        raise RequestInvalid("the model said nothing; give a longer prompt")
    screen.text("\n")
    screen.notice(_summary(last, stats))
    screen.result(_data(last, stats), "", lambda console: None)
    return 0


def _summary(last: GenerationResponse, stats: Stats) -> str:
    return (
        f"{last.prompt_tokens} prompt tokens at {tps_text(last.prompt_tps)} tok/s, "
        f"{last.generation_tokens} tokens at {tps_text(last.generation_tps)} tok/s; "
        f"{stats.hit_rate:.1%} of experts were in memory, {format_size(stats.demand_bytes)} read, "
        f"{seconds_text(stats.wait_s)} waited"
    )


def _data(last: GenerationResponse, stats: Stats) -> dict[str, Any]:
    return {
        "prompt_tokens": last.prompt_tokens,
        "prompt_tps": last.prompt_tps,
        "generation_tokens": last.generation_tokens,
        "generation_tps": last.generation_tps,
        "finish_reason": last.finish_reason,
        "hits": stats.hits,
        "misses": stats.misses,
        "demand_bytes": stats.demand_bytes,
        "wait_s": stats.wait_s,
        "peak_bytes": stats.peak_bytes,
    }


def _prompt(tokenizer: Any, prompt: str, raw: bool) -> list[int]:
    if raw or tokenizer.chat_template is None:
        bos = tokenizer.bos_token
        return list(tokenizer.encode(prompt, add_special_tokens=bos is None or not prompt.startswith(bos)))
    messages = [{"role": "user", "content": prompt}]
    try:
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))
    except (TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as err:
        reason = " ".join(str(err).split())[:200]
        raise ModelNotSupported(f"the model's chat template fails: {reason}; mend it, or pass --raw") from err


def _room(prompt_tokens: int, context: int) -> int:
    """Tokens that an answer may have.  Raises RequestInvalid when memory was not planned for the prompt alone."""
    if prompt_tokens == 0:
        raise RequestInvalid("--prompt has no tokens; write what the model shall answer")
    if prompt_tokens >= context:
        raise RequestInvalid(
            f"--prompt has {prompt_tokens} tokens, memory.context makes room for {context} with the answer; "
            f"shorten it or pass --set memory.context={prompt_tokens + 256}"
        )
    return context - prompt_tokens
