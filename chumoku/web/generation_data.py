"""What a page needs to generate text, beside model and tokenizer: the part "generation" of a container's header.

context        most tokens of a prompt and the text that continues it
sampling       temperature, top_p, min_p: the defaults; model: the options of the model's generation_config.json
ends           tokens that end a completion
forbidden      tokens that are never generated: special ones, and ids beyond the tokenizer
chat           {pattern, ends, forbidden} (`web.chat_pattern`), or null
chat_reason    why a model with a chat template has no chat in the page, or null
chat_notice    the same as a sentence
"""

from __future__ import annotations

from typing import Any

from chumoku.decoding.batch import forbidden_tokens
from chumoku.decoding.chat import format_for, turn_end_tokens
from chumoku.decoding.defaults import MIN_P, TEMPERATURE, TOP_P
from chumoku.models.generation_config import GenerationConfig
from chumoku.models.model import Model
from chumoku.text.tokenizer import Tokenizer
from chumoku.web.chat_pattern_check import find_chat_pattern

MAX_CONTEXT = 4096  # tokens of a conversation; keys and values of more would fill the memory of a phone


def generation_data(model: Model, tokenizer: Tokenizer, generation_config: GenerationConfig) -> dict[str, Any]:
    """The values above, for JSON."""
    ends = [*{*tokenizer.roles.end_tokens, *tokenizer.stop_tokens}]
    chat, reason, notice = None, None, None
    if model.config.kind == "decoder" and model.config.labels is None:
        pattern, reason = find_chat_pattern(tokenizer)
        turn_ends = [*{*ends, *turn_end_tokens(tokenizer, format_for(tokenizer))}]
        if pattern is not None:
            chat = {"pattern": pattern, "ends": turn_ends, "forbidden": forbidden_tokens(model, tokenizer, turn_ends)}
    if reason is not None:
        notice = (
            "The page has no chat and completes texts only: this model's chat template cannot be written as fixed "
            f"texts around messages ({reason})."
        )
    return {
        "context": min(model.config.context, MAX_CONTEXT),
        "sampling": {
            **{"temperature": TEMPERATURE, "top_p": TOP_P, "min_p": MIN_P},
            "model": generation_config.sampling,
        },
        "ends": ends,
        "forbidden": forbidden_tokens(model, tokenizer),
        "chat": chat,
        "chat_reason": reason,
        "chat_notice": notice,
    }
