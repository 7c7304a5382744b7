"""The model `chumoku` of lm-evaluation-harness, which importing this module registers.

    chumoku lm-eval --model chumoku --model_args path=runs/novel,precision=int8 --tasks hellaswag

    loglikelihood            log P(continuation | context)
    loglikelihood_rolling    log P(document), in windows of the model's context
    generate_until           the text after a prompt, up to a stop string

Texts become tokens, contexts are cut, and texts are decoded as by the harness's model `hf`, so that both give the same
numbers for the same weights. Log probabilities come from `evaluation.token_scores`, texts from `decoding.generate`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import lm_eval.models  # noqa: F401 - registers the harness's own models, which it only does while it has no other
import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from rich.console import Console

from chumoku.decoding.generate import run_requests
from chumoku.decoding.requests import Request
from chumoku.decoding.sampling import SamplingOptions
from chumoku.decoding.stop_strings import TextStream
from chumoku.errors import LengthError, UnknownArgumentError, UsageError, did_you_mean
from chumoku.evaluation.token_scores import score_continuations
from chumoku.messages import translate
from chumoku.models.model import DecoderModel
from chumoku.pipeline import load
from chumoku.text.progress import ShowProgress

ARGUMENTS = ("path", "precision", "adapter", "context")
HARNESS_DEVICE = "cuda:0"  # which the harness gives if the user gives none
MAX_NEW_TOKENS = 256  # if a task does not say
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # the harness's names; first wins
SAMPLING = ("top_k", "top_p", "min_p", "repetition_penalty", "seed")


@register_model("chumoku")
class ChumokuLM(TemplateLM):  # type: ignore[misc]
    """A decoder for lm-evaluation-harness.

    path, precision, adapter, context    the arguments of `chumoku.load`
    device                               cpu or cuda; cuda:0, the harness's default, means the CPU where there is no GPU
    batch_size, max_batch_size           given by the harness and not used: batches are as large as their tokens allow
    """

    def __init__(
        self,
        *,
        path: str | None = None,
        precision: str | None = None,
        adapter: str | None = None,
        context: int | None = None,
        device: str = "cpu",
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        for name in unknown:
            hint = did_you_mean(name, ARGUMENTS, f"It takes {', '.join(ARGUMENTS)}.")
            raise UnknownArgumentError(f"The model chumoku has no argument '{name}' in --model_args. {hint}")
        if path is None:
            raise UsageError("Say which model to score, with: --model_args path=MODEL.")
        if device == HARNESS_DEVICE and not torch.cuda.is_available():
            line = f"PyTorch finds no GPU ({device}); the model runs on the CPU."
            print(translate(line), file=sys.stderr)
            device = "cpu"
        pipeline = load(str(path), device=device, precision=precision, adapter=adapter, context=context)
        if not isinstance(pipeline.model, DecoderModel) or not pipeline.config.predicts_tokens:
            raise UsageError(f"{path} is not a language model. lm_eval needs a model of kind 'decoder' without labels.")
        pipeline.require_tokenizer()
        self._model, self._tokenizer, self._device = pipeline.model, pipeline.tokenizer, pipeline.model.device
        self._ends = [*{*self._tokenizer.roles.end_tokens, *self._tokenizer.stop_tokens}]
        self._without_token = range(self._tokenizer.size, pipeline.config.vocabulary)  # rows of the embedding to spare
        self._repetition_penalty = pipeline.generation_config.sampling.get("repetition_penalty", 1.0)

    @property
    def eot_token_id(self) -> int:
        end = self._tokenizer.roles.end
        return self.prefix_token_id if end is None else end

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context."""
        roles = self._tokenizer.roles
        prefix = roles.end if roles.begin is None else roles.begin
        if prefix is None:
            raise UsageError("This tokenizer has no begin or end token, which a text without a context starts from.")
        return prefix

    @property
    def max_length(self) -> int:
        return self._model.config.context

    @property
    def tokenizer_name(self) -> str:
        return self._tokenizer.fingerprint

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """The tokens of a text with those that the tokenizer puts around every text, unless it begins with one."""
        tokens = self._tokenizer.encode(string, special=True)
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(self._tokenizer.token(self.prefix_token_id))
        before, after = self._tokenizer.prefix_and_suffix if add_special_tokens else ((), ())
        return [*before, *tokens, *after]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        template = self._tokenizer.chat_template
        if template is None:
            raise UsageError("This model has no chat template. Leave out --apply_chat_template.")
        if not add_generation_prompt:
            raise UsageError("A reply whose beginning the task gives cannot be written with a chat template here.")
        return "".join(span.text for span in template.render(chat_history))

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        pairs = [self._cut(context, continuation) for _, context, continuation in requests]
        with _show_progress(disable_tqdm) as progress:
            scores = score_continuations(self._model, pairs, progress=progress)
        return [(score.logprob, score.is_greedy) for score in scores]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        windows, owners = [], []
        for number, request in enumerate(requests):
            tokens, prefix = self.tok_encode(request.args[0]), self.prefix_token_id
            for window in get_rolling_token_windows(tokens, prefix, self.max_length, 1):
                windows.append((None, *make_disjoint_window(window)))
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, (logprob, _) in zip(owners, self._loglikelihood_tokens(windows, disable_tqdm), strict=True):
            totals[owner] += logprob
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        made, streams = [], []
        for row, request in enumerate(requests):
            prompt, options = request.args
            limit, stop, sampling = self._read_options(options, row)
            room = self.max_length - limit
            if room < 1:
                raise LengthError(
                    f"A task generates up to {limit:,} tokens, but this model reads {self.max_length:,} at most. Give "
                    f"a smaller limit with: --gen_kwargs max_gen_toks={self.max_length // 2}."
                )
            tokens = self.tok_encode(prompt)[-room:] or [self.prefix_token_id]
            made.append(Request(tokens, limit, sampling.forbid(self._without_token), self._ends))
            # As by `hf`, a text is decoded without its prompt (some tokenizers then drop the space before the first
            # word), and special tokens can be generated, but do not show.
            streams.append(TextStream(self._tokenizer, stop=stop))
        with _show_progress(disable_tqdm) as progress:
            return run_requests(self._model, made, streams, progress=progress)

    def _cut(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """A context and its continuation; a context that is too long loses its first tokens."""
        if len(continuation) > self.max_length:
            raise LengthError(
                f"A continuation has {len(continuation):,} tokens, but this model reads {self.max_length:,} at most. "
                "Use a model with a larger context."
            )
        return context[-(self.max_length + 1 - len(continuation)) :], continuation

    def _read_options(self, options: Mapping[str, Any], row: int) -> tuple[int, list[str], SamplingOptions]:
        """The most new tokens, the stop strings and the sampling options of a request; without options, greedy."""
        known = (*LIMITS, *SAMPLING, "until", "do_sample", "temperature")
        for name in options:
            if name not in known:
                raise UsageError(f"The task has the generation option '{name}'; known are {', '.join(known)}.")
        limit = next((int(options[name]) for name in LIMITS if options.get(name) is not None), MAX_NEW_TOKENS)
        until = options.get("until") or []
        temperature = 0.0 if options.get("do_sample") is False else float(options.get("temperature") or 0)
        chosen = {"top_p": None, "repetition_penalty": self._repetition_penalty}
        chosen |= {name: options[name] for name in SAMPLING if options.get(name) is not None}
        sampling = SamplingOptions(temperature=temperature, row=row, **chosen)
        return limit, [stop for stop in ([until] if isinstance(until, str) else until) if stop], sampling


def _show_progress(disabled: bool) -> ShowProgress:
    return ShowProgress(None if disabled else Console(stderr=True))
