"""Run probes in the libraries that models are converted for.

transformers   logits [T, V], or vectors [T, D] for an encoder without a head
llama.cpp      logits [T, V]
CTranslate2    Generator: logits [T, V]; Translator: log-probabilities of the probe's tokens and the end token [T + 1]
chumoku        logits or vectors of the reopened bundle
"""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

import chumoku
from chumoku.errors import MissingExtraError
from chumoku.models.model import DecoderModel, EncoderDecoderModel, EncoderModel, Model
from chumoku.weights.bundle import load

Compared = Literal["logits", "log-probabilities", "vectors"]
PIP_NAMES = {"llama_cpp": "llama-cpp-python"}  # where they differ from the module's name


class Probe(NamedTuple):
    """Input tokens; `source` is the encoder's input of a translation model, and empty for other models."""

    name: str
    tokens: list[int]
    source: list[int]


class Peer(NamedTuple):
    """A converted model, opened in another library."""

    library: str
    version: str
    compared: Compared
    answer: Callable[[Probe], Tensor]
    begin_end: tuple[int, int] = (0, 0)  # begin and end tokens, if log-probabilities are compared
    padding: int | None = None  # a token that the library gives no position, wherever it is


def import_optional(name: str) -> Any:
    """Import an optional library; MissingExtraError says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"{name} is needed for this but not installed. Install it: pip install {PIP_NAMES.get(name, name)}"
        ) from error


@torch.inference_mode()
def our_answer(model: Model, probe: Probe, peer: Peer) -> Tensor:
    """Our model's output for a probe, in the same form as the peer's."""
    tokens = torch.tensor([probe.tokens])
    if isinstance(model, EncoderDecoderModel):
        begin, end = peer.begin_end
        if peer.compared == "log-probabilities":
            tokens = torch.tensor([[begin, *probe.tokens]])
        logits = model(torch.tensor([probe.source]), tokens).logits[0]
        if peer.compared == "logits":
            return logits  # type: ignore[no-any-return]
        scored = torch.tensor([*probe.tokens, end])
        return logits.log_softmax(-1).gather(-1, scored[:, None])[:, 0]  # type: ignore[no-any-return]
    output = model(tokens)
    return output.hidden[0] if peer.compared == "vectors" else output.logits[0]  # type: ignore[no-any-return]


def open_transformers(folder: Path, model: Model, max_tokens: int) -> Peer:
    """Open a folder in transformers: only safetensors, and no code from the folder."""
    library = import_optional("transformers")
    kinds: dict[type[Model], tuple[str, Compared]] = {
        DecoderModel: ("AutoModelForCausalLM", "logits"),
        EncoderDecoderModel: ("AutoModelForSeq2SeqLM", "logits"),
        EncoderModel: ("AutoModelForMaskedLM", "logits"),
    }
    name, compared = kinds[type(model)]
    if model.config.kind == "encoder" and model.config.head_kind == "vector":
        name, compared = "AutoModel", "vectors"
    elif model.config.labels is not None:
        name = (
            "AutoModelForTokenClassification" if model.config.head == "tags" else "AutoModelForSequenceClassification"
        )
    with _quiet(library.logging):
        opened = getattr(library, name).from_pretrained(str(folder), use_safetensors=True, local_files_only=True)
    opened = opened.float().eval()

    @torch.inference_mode()
    def answer(probe: Probe) -> Tensor:
        tokens = torch.tensor([probe.tokens])
        with _quiet(library.logging):  # random tokens may look like padding, which transformers warns of
            if probe.source:
                return opened(input_ids=torch.tensor([probe.source]), decoder_input_ids=tokens).logits[0]  # type: ignore[no-any-return]
            output = opened(input_ids=tokens)
        return output.logits[0] if compared == "logits" else output.last_hidden_state[0]  # type: ignore[no-any-return]

    skipping = (part for part in opened.modules() if hasattr(part, "create_position_ids_from_input_ids"))
    padding = next((part.padding_idx for part in skipping), None)
    return Peer("transformers", library.__version__, compared, answer, padding=padding)


def open_gguf(path: Path, model: Model, max_tokens: int) -> Peer:
    """Open a file in llama.cpp, with a float32 key-value cache like ours."""
    library = import_optional("llama_cpp")
    if model.config.kind != "decoder":
        raise MissingExtraError("llama.cpp returns logits only for decoders.")
    import numpy as np

    opened = library.Llama(
        str(path),
        n_ctx=max_tokens,
        n_batch=max_tokens,
        n_ubatch=max_tokens,
        logits_all=True,
        type_k=library.GGML_TYPE_F32,
        type_v=library.GGML_TYPE_F32,
        verbose=False,
    )

    def answer(probe: Probe) -> Tensor:
        opened.reset()
        opened.eval(probe.tokens)
        return torch.from_numpy(np.array(opened.scores[: len(probe.tokens)]))

    return Peer("llama_cpp", library.__version__, "logits", answer)


def open_ctranslate2(folder: Path, model: Model, max_tokens: int) -> Peer:
    """Open a folder in CTranslate2, computing in float32 so that only the stored weights are compared."""
    library = import_optional("ctranslate2")
    import numpy as np

    kind = "Generator" if model.config.kind == "decoder" else "Translator"
    threads = torch.get_num_threads()
    opened = getattr(library, kind)(str(folder), device="cpu", compute_type="float32", intra_threads=threads)
    if kind == "Generator":

        def logits(probe: Probe) -> Tensor:
            return torch.from_numpy(np.array(opened.forward_batch([probe.tokens]))[0])

        return Peer("ctranslate2", library.__version__, "logits", logits)
    source, target, begin_end = _read_vocabularies(folder)

    def answer(probe: Probe) -> Tensor:
        inputs, outputs = [source[token] for token in probe.source], [target[token] for token in probe.tokens]
        (scored,) = opened.score_batch([inputs], [outputs], max_input_length=0)
        return torch.tensor(scored.log_probs)

    return Peer("ctranslate2", library.__version__, "log-probabilities", answer, begin_end)


def open_chumoku(folder: Path, model: Model, max_tokens: int) -> Peer:
    opened = load(folder).model
    compared: Compared = "vectors" if model.config.head_kind == "vector" else "logits"
    peer = Peer("chumoku", chumoku.__version__, compared, lambda probe: our_answer(opened, probe, peer))
    return peer


OPENERS = {
    "transformers": open_transformers,
    "gguf": open_gguf,
    "ctranslate2": open_ctranslate2,
    "chumoku": open_chumoku,
}


def _read_vocabularies(folder: Path) -> tuple[list[str], list[str], tuple[int, int]]:
    """Source and target vocabulary of a CTranslate2 folder, and the ids of its begin and end tokens."""

    def read(name: str) -> Any:
        return json.loads((folder / name).read_text(encoding="utf-8"))

    shared = (folder / "shared_vocabulary.json").exists()
    source, target = (read(f"{'shared' if shared else side}_vocabulary.json") for side in ("source", "target"))
    settings = read("config.json")
    return source, target, (target.index(settings["decoder_start_token"]), target.index(settings["eos_token"]))


@contextlib.contextmanager
def _quiet(log: Any) -> Iterator[None]:
    """Turn off transformers' warnings and progress bars."""
    before, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(before)
        if bars:
            log.enable_progress_bar()
