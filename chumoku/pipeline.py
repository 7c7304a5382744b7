"""`chumoku.load` returns a Pipeline: a model with its tokenizers.

    encoder-decoder   translate
    decoder           generate, stream, chat
    encoder           embed, similarity
    with labels       classify

One text in, one answer out; a list in, a list out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from chumoku import lora, text
from chumoku.decoding import chat, classify, embed, generate, translate
from chumoku.decoding.arguments import check_arguments, sampling_options
from chumoku.decoding.defaults import BEAM, LENGTH_PENALTY, MODEL_DEFAULT
from chumoku.decoding.embed import BATCH_TOKENS
from chumoku.decoding.engines.native.call import prepare
from chumoku.errors import NoTokenizerWarning, UsageError
from chumoku.model_path import base_model_of, is_adapter, resolve_run
from chumoku.models.count import count
from chumoku.models.limit_context import limit_context
from chumoku.models.model import DecoderModel, EncoderDecoderModel, EncoderModel, Model
from chumoku.models.precision import to_precision
from chumoku.nn.quantized import quantized_kinds
from chumoku.save_model import check_vocabulary, save
from chumoku.text import MissingTokenizer, Tokenizer
from chumoku.text.progress import Progress, silent
from chumoku.weights import open_model
from chumoku.weights.bundle import Bundle
from chumoku.weights.families import all_transformers_rows
from chumoku.weights.in_memory import copy_into_memory

ABILITIES = {
    "encoder-decoder": "it translates (translate)",
    "decoder": "it continues texts (generate, stream) and replies (chat)",
    "encoder": "it turns texts into vectors (embed)",
}
LABEL_ABILITY = "it gives labels to texts (classify)"
M = TypeVar("M", bound=Model)
Texts = TypeVar("Texts", str, list[str])


class Pipeline(Bundle):
    """A model and its tokenizers. Each kind of model has its own methods: the table is at the top of
    `chumoku/pipeline.py`.

    `load` returns one; to make one of your own parts:

        pipeline = Pipeline(model, tokenizer)
        pipeline.save("my-model")

    Without a tokenizer (None), everything that takes a text raises a UsageError; the model takes token ids.
    """

    def __repr__(self) -> str:
        config = self.config
        precision = ", ".join(sorted(quantized_kinds(self.model))) or str(self.model.dtype).removeprefix("torch.")
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
        max_new_tokens: int | None = None,
        min_new_tokens: int = 0,
        into: str | None = None,
        source_language: str | None = None,
        split: bool = True,
        batch_tokens: int = translate.BATCH_TOKENS,
        progress: Progress = silent,
        **unknown: Any,
    ) -> Texts:
        """The most likely translation of a text, or of each text in a list.

        beam              beam size; 1 is greedy
        length_penalty    above 0 favors long translations, below 0 short ones
        max_new_tokens    most tokens of a translation; by default 2 × source + 20
        into              target language, for multilingual models
        source_language   language of the texts, for models that have a token for it (M2M100, NLLB, mBART)
        split             translate the sentences of a text one by one, and join their translations
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
            source_language=source_language,
            beam=beam,
            length_penalty=length_penalty,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            batch_tokens=batch_tokens,
            split=split,
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
        temperature: float = MODEL_DEFAULT,
        top_k: int | None = MODEL_DEFAULT,
        top_p: float | None = MODEL_DEFAULT,
        min_p: float | None = MODEL_DEFAULT,
        repetition_penalty: float = MODEL_DEFAULT,
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
        The other arguments are those of `SamplingOptions`. By default they are as in the model's
        generation_config.json; without one, as in `decoding.defaults`: temperature 0.7, top_p 0.95, min_p 0.3.

            pipeline.generate("Once upon a time", max_new_tokens=50, temperature=0.8, top_p=0.95)
        """
        model = self._model_as(DecoderModel, "generate")
        sampling = sampling_options(self.generate, locals(), self.generation_config)
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
        temperature: float = MODEL_DEFAULT,
        top_k: int | None = MODEL_DEFAULT,
        top_p: float | None = MODEL_DEFAULT,
        min_p: float | None = MODEL_DEFAULT,
        repetition_penalty: float = MODEL_DEFAULT,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        bias: Mapping[int, float] | None = None,
        seed: int = 0,
        **unknown: Any,
    ) -> Iterator[str]:
        """The same as `generate` for one prompt, as an iterator over pieces of text."""
        sampling = sampling_options(self.stream, locals(), self.generation_config)
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
        messages: chat.Messages,
        *,
        max_new_tokens: int = 512,
        format: str | None = None,
        tools: chat.Tools = None,
        temperature: float = MODEL_DEFAULT,
        top_k: int | None = MODEL_DEFAULT,
        top_p: float | None = MODEL_DEFAULT,
        min_p: float | None = MODEL_DEFAULT,
        repetition_penalty: float = MODEL_DEFAULT,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        bias: Mapping[int, float] | None = None,
        seed: int = 0,
        **unknown: Any,
    ) -> str:
        """The assistant's reply to a conversation.

        messages    a user's text, or messages such as ("system", "Be brief.") or {"role": "user", "content": "Hello"}
        format      chatml, llama3 or plain; by default the model's chat template, or the format that the tokenizer has
                    tokens for
        tools       JSON schemas of functions, for the chat template
        The other arguments are those of `generate`.
        """
        sampling = sampling_options(self.chat, locals(), self.generation_config)
        reply = chat.reply(
            self._model_as(DecoderModel, "chat"),
            messages,
            tokenizer=self.tokenizer,
            max_new_tokens=max_new_tokens,
            format=format,
            tools=tools,
            sampling=sampling,
        )
        if reply.dropped:
            warnings.warn(reply.dropped_notice, stacklevel=2)
        return "".join(reply.pieces)

    def embed(
        self,
        text: str | Sequence[str],
        *,
        prompt: embed.Prompt | None = None,
        width: int | None = None,
        batch_tokens: int = embed.BATCH_TOKENS,
        note: Callable[[str], object] = warnings.warn,
        **unknown: Any,
    ) -> Tensor:
        """The vector of a text [D], or of each text in a list [n, D].

        prompt          put the model's prompt for a "query" or a "document" before each text
        width           the first elements only, for models trained with contrastive.widths (Matryoshka)
        batch_tokens    most tokens of a batch: rows × longest
        note            called with a sentence if texts were cut
        """
        model = self._model_as(EncoderModel, "embed")
        check_arguments(self.embed, unknown)
        options: dict[str, Any] = {"prompt": prompt, "width": width, "batch_tokens": batch_tokens, "note": note}
        vectors = embed.embed(model, as_list(text), tokenizer=self.tokenizer, **options)
        return vectors[0] if isinstance(text, str) else vectors

    def classify(
        self,
        text: str | Sequence[str],
        *,
        batch_tokens: int = BATCH_TOKENS,
        note: Callable[[str], object] = warnings.warn,
        progress: Progress = silent,
        **unknown: Any,
    ) -> Any:
        """The probability of each class, most likely first: {"positive": 0.9, …}; of a list of texts, a list of these.

        A model with tags splits a text at spaces, and returns a (word, tag, probability) for each word.

        batch_tokens    most tokens of a batch: rows × longest
        note            called with a sentence if texts were truncated
        progress        called as progress(step, done, total, unit)
        """
        if self.config.labels is None:
            raise UsageError(f"This model has no labels and cannot classify: {ABILITIES[self.config.kind]}.")
        check_arguments(self.classify, unknown)
        options: dict[str, Any] = {"tokenizer": self.tokenizer, "batch_tokens": batch_tokens, "progress": progress}
        found: list[Any]
        if self.config.head == "tags":
            found = classify.tag(self.model, [each.split() for each in as_list(text)], **options)
        else:
            found = classify.classify(self.model, as_list(text), note=note, **options)
        return found[0] if isinstance(text, str) else found

    def similarity(self, texts: Sequence[str]) -> Tensor:
        """The cosine similarity of each pair of texts [n, n]."""
        return embed.similarities(self.embed(as_list(texts)))

    def save(self, path: Path | str, *, overwrite: bool = False) -> Path:
        """Write the model and its tokenizers to a folder that `load` opens; the arguments are those of `save`."""
        return save(
            path,
            self.model,
            self.tokenizer,
            source_tokenizer=self.source_tokenizer,
            generation_config=self.generation_config,
            overwrite=overwrite,
        )

    def to(self, device: torch.device | str) -> Pipeline:
        """Move the model to a device, such as "cuda"."""
        model = self.model.to(check_device(device))
        return Pipeline(model, self.tokenizer, self.source_tokenizer, self.generation_config)

    def _model_as(self, kind: type[M], method: str) -> M:
        if self.config.labels is not None and kind is DecoderModel:
            raise UsageError(f"This model has the head '{self.config.head}' and cannot {method}: {LABEL_ABILITY}.")
        if not isinstance(self.model, kind):
            found = self.config.kind
            raise UsageError(f"This model is of kind '{found}' and cannot {method}: {ABILITIES[found]}.")
        return self.model


def load(
    path: Path | str,
    *,
    device: torch.device | str = "cpu",
    precision: str | None = None,
    adapter: Path | str | None = None,
    tokenizer: Tokenizer | Path | str | None = None,
    context: int | None = None,
    in_memory: bool = False,
) -> Pipeline:
    """Open a model with its tokenizers.

    path         a model folder of chumoku or transformers, a run's folder (opens its last/), a GGUF or llama2.c file,
                 hf:owner/name, an adapter's folder, which names its base model, or the name of a model that ships
                 with chumoku: ja-en, en-ja (a file or folder of this name wins)
    precision    float32, bf16, int8 or int4; by default as stored
    adapter      a LoRA adapter to merge into the model
    tokenizer    a Tokenizer or its file or folder, used instead of the model's own; without either, the model is opened
                 with a warning, and takes only token ids
    context      the most tokens of a text, by default and at most as the model says. For models with longrope (Phi-3
                 with 128k) it decides the rotary frequencies: up to the original length the short factors
    in_memory    copy the weights, so that the files are no longer needed; by default they are memory-mapped, which
                 opens faster and takes less memory
    """
    meanwhile = (lambda model: None) if in_memory else prepare
    pipeline = _open(path, device=device, precision=precision, adapter=adapter, meanwhile=meanwhile)
    if context is not None:
        limit_context(pipeline.model, context)
    if in_memory:
        copy_into_memory(pipeline.model)
        prepare(pipeline.model)
    if tokenizer is not None:
        replacement = tokenizer if isinstance(tokenizer, Tokenizer) else text.load(tokenizer)
        pipeline = Pipeline(pipeline.model, replacement, generation_config=pipeline.generation_config)
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
        return Pipeline(model, opened.tokenizer, opened.source_tokenizer, opened.generation_config)
    opened = open_model.load(path, device=place)
    model = opened.model
    if adapter is not None:
        tables = all_transformers_rows(model.config)
        lora.load(model, resolve_run(adapter), rows=tables[0] if tables else None, other_rows=tables[1:])
        model = lora.merged_copy(model)
    model = model if precision is None else to_precision(model, precision)
    return Pipeline(model, opened.tokenizer, opened.source_tokenizer, opened.generation_config)


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
