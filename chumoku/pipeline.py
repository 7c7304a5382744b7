"""`chumoku.load` returns a Pipeline: a model with its tokenizers.

    encoder-decoder   translate
    decoder           generate, stream, chat
    encoder           embed, similarity

One text in, one answer out; a list in, a list out.
"""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from chumoku import lora
from chumoku.decoding import chat, embed, generate, translate
from chumoku.decoding.engines.native.call import prepare
from chumoku.decoding.sampling import SamplingOptions
from chumoku.errors import UnknownArgumentError, UsageError
from chumoku.models.count import count
from chumoku.models.model import DecoderModel, EncoderDecoderModel, EncoderModel, Model
from chumoku.models.precision import to_precision
from chumoku.nn.quantized import Quantized
from chumoku.weights import open_model
from chumoku.weights.bundle import CONFIG, Bundle
from chumoku.weights.families import transformers_rows
from chumoku.weights.formats.hub import HUB
from chumoku.weights.in_memory import copy_into_memory

ABILITIES = {
    "encoder-decoder": "it translates (translate)",
    "decoder": "it continues texts (generate, stream) and replies (chat)",
    "encoder": "it turns texts into vectors (embed)",
}
LENGTHS = ("max_new_tokens", "min_new_tokens", "stop")
OTHER_NAMES = {  # names used earlier, or elsewhere
    "new": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "least": "min_new_tokens",
    "min_length": "min_new_tokens",
    "min_tokens": "min_new_tokens",
    "repetition": "repetition_penalty",
    "presence": "presence_penalty",
    "logit_bias": "bias",
    "num_beams": "beam",
}
M = TypeVar("M", bound=Model)
Texts = TypeVar("Texts", str, list[str])


class Pipeline(Bundle):
    """A model and its tokenizers. Each kind of model has its own methods (see the table above)."""

    def __repr__(self) -> str:
        config, kinds = self.config, {part.kind for part in self.model.modules() if isinstance(part, Quantized)}
        precision = ", ".join(sorted(kinds)) or str(self.model.dtype).removeprefix("torch.")
        return (
            f"Pipeline(kind={config.kind}, parameters={count(config).parameters:,}, vocabulary={config.vocabulary:,}, "
            f"precision={precision}, device={self.model.device})"
        )

    def translate(self, text: Texts, **options: Any) -> Texts:
        """The most likely translation of a text, or of each text in a list.

        options     of `decoding.translate.translate`: beam, length_penalty, limit, min_new_tokens, into …
        """
        model = self._model_as(EncoderDecoderModel, "translate")
        check_arguments("translate", options, inspect.signature(translate.translate).parameters)
        options = {"within": self.config.context, **options}
        translations = translate.translate(
            model, as_list(text), source_tokenizer=self.source_tokenizer, tokenizer=self.tokenizer, **options
        )
        return translations[0] if isinstance(text, str) else translations

    def generate(
        self,
        text: Texts,
        *,
        max_new_tokens: int = 128,
        min_new_tokens: int = 0,
        stop: str | Sequence[str] = (),
        **sampling: Any,
    ) -> Texts:
        """The text that follows a prompt, or each prompt in a list.

        stop        text ends before any of these strings
        sampling    fields of `SamplingOptions`: temperature, top_k, top_p, min_p, repetition_penalty, seed …
        """
        model = self._model_as(DecoderModel, "generate")
        texts = generate.generate_texts(
            model,
            as_list(text),
            tokenizer=self.tokenizer,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            stop=as_list(stop),
            sampling=sampling_options("generate", sampling),
        )
        return texts[0] if isinstance(text, str) else texts

    def stream(
        self,
        text: str,
        *,
        max_new_tokens: int = 128,
        min_new_tokens: int = 0,
        stop: str | Sequence[str] = (),
        **sampling: Any,
    ) -> Iterator[str]:
        """The same as `generate` for one prompt, as an iterator over pieces of text."""
        return generate.stream(
            self._model_as(DecoderModel, "stream"),
            text,
            tokenizer=self.tokenizer,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            stop=as_list(stop),
            sampling=sampling_options("stream", sampling),
        )

    def chat(
        self,
        messages: str | Sequence[chat.Message | Mapping[str, str]],
        *,
        max_new_tokens: int = 512,
        format: str | None = None,
        **sampling: Any,
    ) -> str:
        """The assistant's reply to a conversation.

        messages    a user's text, or messages such as Message("system", "Be brief.")
        format      chatml, llama3 or plain; by default the one that the tokenizer has tokens for
        sampling    fields of `SamplingOptions`
        """
        reply = chat.reply(
            self._model_as(DecoderModel, "chat"),
            messages,
            tokenizer=self.tokenizer,
            max_new_tokens=max_new_tokens,
            format=format,
            sampling=sampling_options("chat", sampling),
        )
        if reply.dropped:
            warnings.warn(reply.dropped_notice, stacklevel=2)
        return "".join(reply.pieces)

    def embed(self, text: str | Sequence[str], **options: Any) -> Tensor:
        """The vector of a text [D], or of each text in a list [n, D]."""
        model = self._model_as(EncoderModel, "embed")
        check_arguments("embed", options, inspect.signature(embed.embed).parameters)
        vectors = embed.embed(model, as_list(text), tokenizer=self.tokenizer, **options)
        return vectors[0] if isinstance(text, str) else vectors

    def similarity(self, texts: Sequence[str]) -> Tensor:
        """The cosine similarity of each pair of texts [n, n]."""
        return embed.similarities(self.embed(as_list(texts)))

    def _model_as(self, kind: type[M], method: str) -> M:
        if not isinstance(self.model, kind):
            found = self.config.kind
            raise UsageError(f"This model is of kind '{found}' and cannot {method}: {ABILITIES[found]}.")
        return self.model


def sampling_options(method: str, given: Mapping[str, Any]) -> SamplingOptions:
    check_arguments(method, given, SamplingOptions.__dataclass_fields__, known=LENGTHS)
    return SamplingOptions(**given)


def check_arguments(method: str, given: Iterable[str], allowed: Iterable[str], known: Iterable[str] = ()) -> None:
    """Refuse a keyword argument that does not exist, and suggest the right one."""
    allowed = {*allowed} - {"model", "tokenizer", "source_tokenizer", "texts"}
    for name in given:
        if name not in allowed:
            close = difflib.get_close_matches(name, sorted({*allowed, *known}), n=1)
            right = OTHER_NAMES.get(name) or (close[0] if close else None)
            hint = (
                f"did you mean {right}?" if right in {*allowed, *known} else f"there are {', '.join(sorted(allowed))}."
            )
            raise UnknownArgumentError(f"{method}() has no argument '{name}'; {hint}")


def load(
    path: Path | str,
    *,
    device: torch.device | str = "cpu",
    precision: str | None = None,
    adapter: Path | str | None = None,
    in_memory: bool = False,
) -> Pipeline:
    """Open a model with its tokenizers.

    path         a model folder of chumoku or transformers, a run's folder (opens its last/), a GGUF or llama2.c file,
                 hf:owner/name, or an adapter's folder, which names its base model
    precision    float32, bf16, int8 or int4; by default as stored
    adapter      a LoRA adapter to merge into the model
    in_memory    copy the weights, so that the files are no longer needed; by default they are memory-mapped, which
                 opens faster and takes less memory
    """
    if in_memory:
        pipeline = _open(path, device=device, precision=precision, adapter=adapter, meanwhile=lambda model: None)
        copy_into_memory(pipeline.model)
        prepare(pipeline.model)
        return pipeline
    return _open(path, device=device, precision=precision, adapter=adapter, meanwhile=prepare)


def _open(
    path: Path | str,
    *,
    device: torch.device | str,
    precision: str | None,
    adapter: Path | str | None,
    meanwhile: Callable[[Model], None],
) -> Pipeline:
    place, path = check_device(device), resolve_run(path)
    if adapter is None and is_adapter(path):
        path, adapter = base_model_of(Path(path)), path
    if precision is None and adapter is None:
        # On a GPU, quantized weights are dequantized: its CUDA graphs are for floats.
        opened = open_model.load(path, device=place, dequantize=place.type == "cuda", on_model_loaded=meanwhile)
        model = opened.model
        if model.dtype == torch.bfloat16 and place.type == "cpu":
            model = to_precision(model, "bf16")  # CPUs compute bf16 weights in float32
        return Pipeline(model, opened.tokenizer, opened.source_tokenizer)
    opened = open_model.load(path, device=place)
    model = opened.model
    if adapter is not None:
        lora.load(model, resolve_run(adapter), rows=transformers_rows(model.config))
        model = lora.merged_copy(model)
    model = model if precision is None else to_precision(model, precision)
    return Pipeline(model, opened.tokenizer, opened.source_tokenizer)


def resolve_run(path: Path | str) -> Path | str:
    """The model folder of a run: last/, or best/ while the run is not finished. Other paths are returned unchanged."""
    folder = Path(path)
    if open_model.exists(folder / CONFIG) or is_adapter(folder):
        return path
    inner = (folder / name for name in ("last", "best"))
    return next((one for one in inner if open_model.exists(one / CONFIG) or is_adapter(one)), path)


def is_adapter(path: Path | str) -> bool:
    return open_model.exists(Path(path) / open_model.ADAPTER_CONFIG)


def base_model_of(folder: Path) -> str:
    """The base model of an adapter: the path it names, absolute or relative to the adapter's folder."""
    base = lora.read_adapter_config(folder).base
    if not base:
        raise UsageError(f"{folder} does not say which model it belongs to. Open the model, with adapter={folder}.")
    if base.startswith(HUB) or open_model.exists(Path(base)):
        return base
    if open_model.exists(folder / base):
        return str(folder / base)
    raise UsageError(
        f"The adapter {folder} belongs to the model {base[:200]}, which was not found. Open that model with this "
        "adapter, or, if it is the name of a model on the hub, open hf:owner/name with it."
    )


def check_device(device: torch.device | str) -> torch.device:
    """The device; refuse one that this machine does not have."""
    try:
        found = torch.device(device)
    except (RuntimeError, ValueError):
        raise UsageError(f"There is no device '{device}'. Choose cpu or cuda.") from None
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (found.index or 0) >= count:
            available = f"has {count} GPUs, numbered from 0" if count else "finds no GPU"
            raise UsageError(f"There is no device '{device}': PyTorch {available}. Choose cpu.")
    elif found.type != "cpu":
        raise UsageError(f"The device must be cpu or cuda, not '{device}'.")
    return found


def as_list(texts: str | Sequence[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)
