"""The largest differences of every family in every format, on tiny models with random weights; `make families`.

    transformers in    our logits and those of transformers, which made the model
    transformers out   the same, after transformers opened what we wrote
    GGUF in, out       before writing an f32 file, and after reading it
    CTranslate2 out    our logits or log-probabilities and those of CTranslate2

A cell is the largest difference of all variants of the family that the format can express, divided by the largest logit
if that is above 1; – if it can express none.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chumoku.errors import MissingExtraError, UsageError
from chumoku.models.limit_context import use_short_factors
from chumoku.models.model import Model
from chumoku.weights.certificate import MAX_PROBE_TOKENS, compare
from chumoku.weights.certificate_peers import (
    Peer,
    import_optional,
    open_ctranslate2,
    open_transformers,
    our_answer,
)
from chumoku.weights.families import FAMILIES
from chumoku.weights.supported_formats import FORMATS, supported_formats

Save = Callable[[Path], object]


def family_variants() -> dict[str, list[Save]]:
    """For the title of each family, the functions that save its variants to a folder."""
    import foreign
    import test_decoder_families as decoders
    import test_encoder_families as encoders
    import test_gguf_decoders as gguf_decoders
    import test_seq2seq_families as seq2seq

    found: dict[str, list[Save]] = {family.title: [] for family in FAMILIES.values()}

    def add(config: Any, save: Save) -> None:
        found[FAMILIES[config.model_type].title].append(save)

    for module in (foreign, decoders, encoders, seq2seq):
        for name, make in module.VARIANTS.items():
            add(make().config, functools.partial(module.save_variant, name))
    for _, make in gguf_decoders.VARIANTS.values():
        add(make().config, lambda folder, make=make: foreign.save_model(foreign.randomize(make()), folder))
    return found


def open_gguf_here(model: Model, path: Path) -> Peer:
    """Write a GGUF file and open it again."""
    from bundles import byte_tokenizer

    from chumoku.weights.bundle import Tokenizers
    from chumoku.weights.formats.gguf_model import write_gguf_model
    from chumoku.weights.open_model import load

    write_gguf_model(path, model, Tokenizers(byte_tokenizer(), byte_tokenizer()), kind="f32")
    again = load(path).model
    peer = Peer("chumoku", "", "logits", lambda probe: our_answer(again, probe, peer))
    return peer


def measure_variant(save: Save, folder: Path) -> dict[str, float]:
    """The largest difference in each format that can express the model."""
    from bundles import byte_tokenizer
    from foreign import export

    from chumoku.weights.bundle import Tokenizers
    from chumoku.weights.formats.ctranslate2 import write_ctranslate2
    from chumoku.weights.open_model import load

    save(folder / "theirs")
    model = load(folder / "theirs").model
    use_short_factors(model)

    def write_for_ctranslate2() -> Path:
        (folder / "ctranslate2").mkdir()
        write_ctranslate2(folder / "ctranslate2", model, Tokenizers(byte_tokenizer(), byte_tokenizer()))
        return folder / "ctranslate2"

    peers: dict[str, Callable[[], Peer]] = {
        "transformers in": lambda: open_transformers(folder / "theirs", model, MAX_PROBE_TOKENS),
        "transformers out": lambda: open_transformers(export(model, folder / "ours"), model, MAX_PROBE_TOKENS),
        "GGUF in": lambda: open_gguf_here(model, folder / "model.gguf"),
        "CTranslate2 out": lambda: open_ctranslate2(write_for_ctranslate2(), model, MAX_PROBE_TOKENS),
    }
    found = {}
    for form, make_peer in peers.items():
        try:
            comparison = compare(model, make_peer(), "float32")
        except (UsageError, MissingExtraError):
            continue
        found[form] = comparison.difference / max(1, comparison.scale)
    return {**found, **({"GGUF out": found["GGUF in"]} if "GGUF in" in found else {})}


def measure_family(variants: Sequence[Save]) -> dict[str, float]:
    """The largest difference of all variants in each format."""
    largest: dict[str, float] = {}
    for save in variants:
        with tempfile.TemporaryDirectory() as place:
            for form, difference in measure_variant(save, Path(place)).items():
                largest[form] = max(difference, largest.get(form, 0.0))
    return largest


def main() -> int:
    try:
        library = import_optional("transformers")
    except MissingExtraError as error:
        print(error, file=sys.stderr)
        return 2
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    wrong = 0
    print("| family | variants |", *(f"{form} |" for form in FORMATS))
    print("|" + "---|" * (2 + len(FORMATS)))
    for title, variants in family_variants().items():
        found, expected = measure_family(variants), supported_formats()[title]
        wrong += sum(expected[form] != (form in found) for form in FORMATS)
        cells = [f"{found[form]:.1e}" if form in found else "–" for form in FORMATS]
        print("|", " | ".join([title, str(len(variants)), *cells]), "|", flush=True)
    if wrong:
        print(f"{wrong} cells differ from chumoku.weights.supported_formats.", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
