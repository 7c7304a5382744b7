"""`chumoku.load` returns a Pipeline: a model with its tokenizers.

    encoder-decoder   translate
    decoder           generate, stream, chat
    encoder           embed, similarity

One text in, one answer out; a list in, a list out.
"""

from __future__ import annotations

import difflib
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from chumoku import lora, text
from chumoku.decoding import chat, embed, generate, translate
from chumoku.decoding.defaults import BEAM, LENGTH_PENALTY, TEMPERATURE, TOP_P
from chumoku.decoding.engines.native.call import prepare
from chumoku.decoding.engines.unmodified import changed_module
from chumoku.decoding.sampling import SamplingOptions
from chumoku.errors import NoTokenizerWarning, UnknownArgumentError, UsageError
from chumoku.models.count import count
from chumoku.models.model import DecoderModel, EncoderDecoderModel, EncoderModel, Model
from chumoku.models.precision import to_precision
from chumoku.nn.modules import unwrap_compiled
from chumoku.nn.quantized import QuantizedLinear
from chumoku.text import MissingTokenizer, Tokenizer
from chumoku.text.progress import Progress, silent
from chumoku.weights import open_model
from chumoku.weights.bundle import CONFIG, Bundle, Tokenizers, tensors_of, write_bundle
from chumoku.weights.checksums import atomic_folder
from chumoku.weights.families import transformers_rows
from chumoku.weights.formats.hub import HUB
from chumoku.weights.in_memory import copy_into_memory

ABILITIES = {
    "encoder-decoder": "it translates (translate)",
    "decoder": "it continues texts (generate, stream) and replies (chat)",
    "encoder": "it turns texts into vectors (embed)",
}
OTHER_NAMES = {  # names used earlier, or elsewhere; the first that a method has is suggested
    "new": ("max_new_tokens", "limit"),
    "max_tokens": ("max_new_tokens", "limit"),
    "max_length": ("max_new_tokens", "limit"),
    "max_new_tokens": ("limit",),
    "limit": ("max_new_tokens",),
    "least": ("min_new_tokens",),
    "min_length": ("min_new_tokens",),
    "min_tokens": ("min_new_tokens",),
    "repetition": ("repetition_penalty",),
    "presence": ("presence_penalty",),
    "logit_bias": ("bias",),
    "num_beams": ("beam",),
    "language": ("into",),
    "target_language": ("into",),
    "batch_size": ("batch_tokens",),
}
M = TypeVar("M", bound=Model)
Texts = TypeVar("Texts", str, list[str])


class Pipeline(Bundle):
    """A model and its tokenizers. Each kind of model has its own methods (see the table above).

    `load` returns one; to make one of your own parts:

        pipeline = Pipeline(model, tokenizer)
        pipeline.save("my-model")

    Without a tokenizer (None), everything that takes a text raises a UsageError; the model takes token ids.
    """

    def __repr__(self) -> str:
        config, kinds = self.config, {part.kind for part in self.model.modules() if isinstance(part, QuantizedLinear)}
        precision = ", ".join(sorted(kinds)) or str(self.model.dtype).removeprefix("torch.")
        return (
            f"Pipeline(kind={config.kind}, parameters={count(config).parameters:,}, vocabulary={config.vocabulary:,}, "
            f"precision={precision}, device={self.model.device}{'' if self.has_tokenizer else ', no tokenizer'})"
        )

    def translate(
        self,
        text: Texts,
        *,
        beam: int = BEAM,
        length_penalty: float = LENGTH_PENALTY,
        limit: int | None = None,
        min_new_tokens: int = 0,
        into: str | None = None,
        batch_tokens: int = translate.BATCH_TOKENS,
        progress: Progress = silent,
        **unknown: Any,
    ) -> Texts:
        """The most likely translation of a text, or of each text in a list.

        beam              beam size; 1 is greedy
        length_penalty    above 0 favors long translations, below 0 short ones
        limit             most tokens of a translation; by default 2 × source + 20
        into              target language, for multilingual models
        batch_tokens      most tokens of a batch: rows × longest × beam
        progress          called as progress(step, done, total, unit)
        """
        model = self._model_as(EncoderDecoderModel, "translate")
        check_arguments(self.translate, unknown)
        translations = translate.translate(
            model,
            as_list(text),
            source_tokenizer=self.source_tokenizer,
            tokenizer=self.tokenizer,
            into=into,
            beam=beam,
            length_penalty=length_penalty,
            limit=limit,
            min_new_tokens=min_new_tokens,
            batch_tokens=batch_tokens,
            progress=progress,
        )
        return translations[0] if isinstance(text, str) else translations

    def generate(
        self,
        text: Texts,
        *,
        max_new_tokens: int = 128,
        min_new_tokens: int = 0,
        stop: str | Sequence[str] = (),
        temperature: float = TEMPERATURE,
        top_k: int | None = None,
        top_p: float | None = TOP_P,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        bias: Mapping[int, float] | None = None,
        seed: int = 0,
        **unknown: Any,
    ) -> Texts:
        """The text that follows a prompt, or each prompt in a list.

        stop          text ends before any of these strings
        temperature   0 always takes the most likely token
        seed          the same seed gives the same text
        The other arguments are those of `SamplingOptions`.

            pipeline.generate("Once upon a time", max_new_tokens=50, temperature=0.8, top_p=0.95)
        """
        model = self._model_as(DecoderModel, "generate")
        sampling = sampling_options(self.generate, locals())
        texts = generate.generate_texts(
            model,
            as_list(text),
            tokenizer=self.tokenizer,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            stop=as_list(stop),
            sampling=sampling,
        )
        return texts[0] if isinstance(text, str) else texts

    def stream(
        self,
        text: str,
        *,
        max_new_tokens: int = 128,
        min_new_tokens: int = 0,
        stop: str | Sequence[str] = (),
        temperature: float = TEMPERATURE,
        top_k: int | None = None,
        top_p: float | None = TOP_P,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        bias: Mapping[int, float] | None = None,
        seed: int = 0,
        **unknown: Any,
    ) -> Iterator[str]:
        """The same as `generate` for one prompt, as an iterator over pieces of text."""
        sampling = sampling_options(self.stream, locals())
        return generate.stream(
            self._model_as(DecoderModel, "stream"),
            text,
            tokenizer=self.tokenizer,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            stop=as_list(stop),
            sampling=sampling,
        )

    def chat(
        self,
        messages: str | Sequence[chat.Message | Mapping[str, str]],
        *,
        max_new_tokens: int = 512,
        format: str | None = None,
        temperature: float = TEMPERATURE,
        top_k: int | None = None,
        top_p: float | None = TOP_P,
        min_p: float | None = None,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        bias: Mapping[int, float] | None = None,
        seed: int = 0,
        **unknown: Any,
    ) -> str:
        """The assistant's reply to a conversation.

        messages    a user's text, or messages such as Message("system", "Be brief.")
        format      chatml, llama3 or plain; by default the one that the tokenizer has tokens for
        The other arguments are those of `SamplingOptions`.
        """
        sampling = sampling_options(self.chat, locals())
        reply = chat.reply(
            self._model_as(DecoderModel, "chat"),
            messages,
            tokenizer=self.tokenizer,
            max_new_tokens=max_new_tokens,
            format=format,
            sampling=sampling,
        )
        if reply.dropped:
            warnings.warn(reply.dropped_notice, stacklevel=2)
        return "".join(reply.pieces)

    def embed(
        self,
        text: str | Sequence[str],
        *,
        batch_tokens: int = embed.BATCH_TOKENS,
        note: Callable[[str], object] = warnings.warn,
        **unknown: Any,
    ) -> Tensor:
        """The vector of a text [D], or of each text in a list [n, D].

        batch_tokens    most tokens of a batch: rows × longest
        note            called with a sentence if texts were cut
        """
        model = self._model_as(EncoderModel, "embed")
        check_arguments(self.embed, unknown)
        vectors = embed.embed(model, as_list(text), tokenizer=self.tokenizer, batch_tokens=batch_tokens, note=note)
        return vectors[0] if isinstance(text, str) else vectors

    def similarity(self, texts: Sequence[str]) -> Tensor:
        """The cosine similarity of each pair of texts [n, n]."""
        return embed.similarities(self.embed(as_list(texts)))

    def save(self, path: Path | str, *, overwrite: bool = False) -> Path:
        """Write the model and its tokenizers to a folder that `load` opens; the arguments are those of `save`."""
        return save(path, self.model, self.tokenizer, source_tokenizer=self.source_tokenizer, overwrite=overwrite)

    def to(self, device: torch.device | str) -> Pipeline:
        """Move the model to a device, such as "cuda"."""
        return Pipeline(self.model.to(check_device(device)), self.tokenizer, self.source_tokenizer)

    def _model_as(self, kind: type[M], method: str) -> M:
        if not isinstance(self.model, kind):
            found = self.config.kind
            raise UsageError(f"This model is of kind '{found}' and cannot {method}: {ABILITIES[found]}.")
        return self.model


def sampling_options(method: Callable[..., Any], arguments: Mapping[str, Any]) -> SamplingOptions:
    """The sampling options among the arguments of a method; refuses its unknown keyword arguments."""
    check_arguments(method, arguments["unknown"])
    names = [name for name in SamplingOptions.__dataclass_fields__ if name in arguments]
    return SamplingOptions(**{name: arguments[name] for name in names if name != "bias" or arguments[name]})


def check_arguments(method: Callable[..., Any], unknown: Iterable[str]) -> None:
    """Refuse keyword arguments that a method does not have, and suggest the right one."""
    parameters = inspect.signature(method).parameters.values()
    allowed = sorted(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)
    for name in unknown:
        similar = difflib.get_close_matches(name, allowed, n=1)
        right = next((other for other in (*OTHER_NAMES.get(name, ()), *similar) if other in allowed), None)
        hint = f"did you mean {right}?" if right else f"there are {', '.join(allowed)}."
        raise UnknownArgumentError(f"{method.__name__}() has no argument '{name}'; {hint}")


def save(
    path: Path | str,
    model: Model,
    tokenizer: Tokenizer | None,
    *,
    source_tokenizer: Tokenizer | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a model and its tokenizer to a folder that `load` opens, and return the folder.

        model = chumoku.build(chumoku.ModelConfig(vocabulary=tokenizer.size))
        chumoku.save("my-model", model, tokenizer)
        chumoku.load("my-model").generate("Once upon a time")

    tokenizer           None saves a model that takes only token ids
    source_tokenizer    of an encoder-decoder whose source has another vocabulary
    overwrite           replace a model that was saved there before
    """
    folder, model = Path(path), unwrap_compiled(model)
    bundle = Bundle(model, tokenizer, source_tokenizer)
    check_savable(model)
    check_vocabulary(bundle)
    saved = open_model.is_bundle(folder)
    empty = not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir()))
    if not empty and not (saved and overwrite):
        hint = "Pass overwrite=True to replace it" if saved else "It is not a saved model"
        raise UsageError(f"{folder} already exists. {hint}, or choose another folder.")
    with atomic_folder(folder) as working:
        write_bundle(working, model.config, tensors_of(model), Tokenizers(bundle.tokenizer, bundle.source_tokenizer))
    return folder


def check_savable(model: Model) -> None:
    """Refuse a model that would not be the same after `load`."""
    if kinds := {part.kind for part in model.modules() if isinstance(part, QuantizedLinear)}:
        raise UsageError(
            f"This model is quantized ({', '.join(sorted(kinds))}), and a saved model has float weights. Save the "
            "model it was made from; load(path, precision=…) quantizes it again."
        )
    if changed := changed_module(model):
        hint = "Merge adapters first (chumoku.lora.merge), or save" if lora.list_adapters(model) else "Save"
        raise UsageError(
            f"This model differs from its config: {changed}. A saved model is a config and its weights, so it would be "
            f"another model after load. {hint} its weights yourself, with safetensors."
        )


def check_vocabulary(bundle: Bundle) -> None:
    """Refuse a tokenizer with more tokens than the model."""
    config = bundle.config
    for name, tokenizer, size in (
        ("tokenizer", bundle.tokenizer, config.vocabulary),
        ("source tokenizer", bundle.source_tokenizer, config.source_vocabulary or config.vocabulary),
    ):
        if not isinstance(tokenizer, MissingTokenizer) and tokenizer.size > size:
            raise UsageError(
                f"The {name} has {tokenizer.size:,} tokens and the model's vocabulary {size:,}. Build the model with "
                f"vocabulary={tokenizer.size}, or more."
            )


def load(
    path: Path | str,
    *,
    device: torch.device | str = "cpu",
    precision: str | None = None,
    adapter: Path | str | None = None,
    tokenizer: Tokenizer | Path | str | None = None,
    in_memory: bool = False,
) -> Pipeline:
    """Open a model with its tokenizers.

    path         a model folder of chumoku or transformers, a run's folder (opens its last/), a GGUF or llama2.c file,
                 hf:owner/name, or an adapter's folder, which names its base model
    precision    float32, bf16, int8 or int4; by default as stored
    adapter      a LoRA adapter to merge into the model
    tokenizer    a Tokenizer or its file or folder, used instead of the model's own; without either, the model is opened
                 with a warning, and takes only token ids
    in_memory    copy the weights, so that the files are no longer needed; by default they are memory-mapped, which
                 opens faster and takes less memory
    """
    meanwhile = (lambda model: None) if in_memory else prepare
    pipeline = _open(path, device=device, precision=precision, adapter=adapter, meanwhile=meanwhile)
    if in_memory:
        copy_into_memory(pipeline.model)
        prepare(pipeline.model)
    if tokenizer is not None:
        pipeline = Pipeline(pipeline.model, tokenizer if isinstance(tokenizer, Tokenizer) else text.load(tokenizer))
        check_vocabulary(pipeline)
    elif isinstance(pipeline.tokenizer, MissingTokenizer):
        warnings.warn(pipeline.tokenizer.message, NoTokenizerWarning, stacklevel=2)
    return pipeline


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
