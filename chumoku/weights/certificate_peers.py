"""The libraries that models are written for, asked for their own answer to a probe.

transformers   its logits [T, V], or its vectors [T, D] where an encoder has no head
llama.cpp      its logits [T, V]
CTranslate2    a Generator's logits [T, V]; a Translator's log-probabilities of the probe's tokens and the end [T + 1]
chumoku        the bundle's, opened again
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
PIP_NAMES = {
    "transformers": "transformers",
    "llama_cpp": "llama-cpp-python",
    "ctranslate2": "ctranslate2",
    "gguf": "gguf",
}


class Probe(NamedTuple):
    """Tokens to be asked about; `source` is what a translator reads first, and empty for the other kinds."""

    name: str
    tokens: list[int]
    source: list[int]


class Peer(NamedTuple):
    library: str
    version: str
    compared: Compared
    answer: Callable[[Probe], Tensor]
    ends: tuple[int, int] = (0, 0)  # begin and end, where log-probabilities are compared


def import_optional(name: str) -> Any:
    """An optional library."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"{name} is needed for this and is not installed. Install it: pip install {PIP_NAMES[name]}"
        ) from error


@torch.inference_mode()
def our_answer(model: Model, probe: Probe, peer: Peer) -> Tensor:
    """What this model says, in the form that the peer says it."""
    tokens = torch.tensor([probe.tokens])
    if isinstance(model, EncoderDecoderModel):
        begin, end = peer.ends
        if peer.compared == "log-probabilities":
            tokens = torch.tensor([[begin, *probe.tokens]])
        logits = model(torch.tensor([probe.source]), tokens).logits[0]
        if peer.compared == "logits":
            return logits  # type: ignore[no-any-return]
        said = torch.tensor([*probe.tokens, end])
        return logits.log_softmax(-1).gather(-1, said[:, None])[:, 0]  # type: ignore[no-any-return]
    output = model(tokens)
    return output.hidden[0] if peer.compared == "vectors" else output.logits[0]  # type: ignore[no-any-return]


def open_transformers(folder: Path, model: Model, reach: int) -> Peer:
    """The folder as transformers opens it: safetensors alone, and no code of the folder's own."""
    library = import_optional("transformers")
    kinds: dict[type[Model], tuple[str, Compared]] = {
        DecoderModel: ("AutoModelForCausalLM", "logits"),
        EncoderDecoderModel: ("AutoModelForSeq2SeqLM", "logits"),
        EncoderModel: ("AutoModelForMaskedLM", "logits"),
    }
    name, compared = kinds[type(model)]
    if model.config.kind == "encoder" and model.config.head_kind == "vector":
        name, compared = "AutoModel", "vectors"
    with _quiet(library.logging):
        opened = getattr(library, name).from_pretrained(str(folder), use_safetensors=True, local_files_only=True)
    opened = opened.float().eval()

    @torch.inference_mode()
    def answer(probe: Probe) -> Tensor:
        tokens = torch.tensor([probe.tokens])
        if probe.source:
            return opened(input_ids=torch.tensor([probe.source]), decoder_input_ids=tokens).logits[0]  # type: ignore[no-any-return]
        output = opened(input_ids=tokens)
        return output.logits[0] if compared == "logits" else output.last_hidden_state[0]  # type: ignore[no-any-return]

    return Peer("transformers", library.__version__, compared, answer)


def open_gguf(path: Path, model: Model, reach: int) -> Peer:
    """The file as llama.cpp opens it, keys and values in float32 as ours are."""
    library = import_optional("llama_cpp")
    if model.config.kind != "decoder":
        raise MissingExtraError("llama.cpp was not asked: it gives logits of decoders alone.")
    import numpy as np

    opened = library.Llama(
        str(path),
        n_ctx=reach,
        n_batch=reach,
        n_ubatch=reach,
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


def open_ctranslate2(folder: Path, model: Model, reach: int) -> Peer:
    """The folder as CTranslate2 opens it, computing in float32 whatever is stored: what was written is asked for."""
    library = import_optional("ctranslate2")
    import numpy as np

    kind = "Generator" if model.config.kind == "decoder" else "Translator"
    threads = torch.get_num_threads()
    opened = getattr(library, kind)(str(folder), device="cpu", compute_type="float32", intra_threads=threads)
    if kind == "Generator":

        def logits(probe: Probe) -> Tensor:
            return torch.from_numpy(np.array(opened.forward_batch([probe.tokens]))[0])

        return Peer("ctranslate2", library.__version__, "logits", logits)
    source, target, ends = _vocabularies(folder)

    def answer(probe: Probe) -> Tensor:
        asked = ([source[number] for number in probe.source], [target[number] for number in probe.tokens])
        (scored,) = opened.score_batch([asked[0]], [asked[1]], max_input_length=0)
        return torch.tensor(scored.log_probs)

    return Peer("ctranslate2", library.__version__, "log-probabilities", answer, ends)


def open_chumoku(folder: Path, model: Model, reach: int) -> Peer:
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


def _vocabularies(folder: Path) -> tuple[list[str], list[str], tuple[int, int]]:
    """Words of source and target, and the numbers of begin and end, as the folder says."""

    def read(name: str) -> Any:
        return json.loads((folder / name).read_text(encoding="utf-8"))

    shared = (folder / "shared_vocabulary.json").exists()
    source, target = (read(f"{'shared' if shared else side}_vocabulary.json") for side in ("source", "target"))
    settings = read("config.json")
    return source, target, (target.index(settings["decoder_start_token"]), target.index(settings["eos_token"]))


@contextlib.contextmanager
def _quiet(log: Any) -> Iterator[None]:
    """Without transformers' reports and bars, which are not for those who convert."""
    before, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(before)
        if bars:
            log.enable_progress_bar()
