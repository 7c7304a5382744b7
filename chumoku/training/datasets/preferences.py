"""data.kind = "preferences": prompts with a chosen and a rejected answer, for a decoder that has a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chumoku.data.chat_samples import ConversationEncoder, show_sample
from chumoku.data.manifest import describe_report, read_manifest
from chumoku.data.preference_batches import PreferenceBatches
from chumoku.data.preferences import encode_preference, open_preferences, prepare_preferences, read_preferences
from chumoku.data.report import Report
from chumoku.data.text_files import find_files
from chumoku.errors import UsageError
from chumoku.text.progress import Progress
from chumoku.training.datasets.chat import require_init
from chumoku.training.datasets.training_data import TrainingData, hash_tokens
from chumoku.training.recipe import Recipe
from chumoku.training.reference import prepare_reference
from chumoku.training.settings import as_list
from chumoku.weights.bundle import Bundle


def prepare_preference_data(recipe: Recipe, folder: Path, init: Bundle | None, progress: Progress) -> TrainingData:
    data, train, bundle = recipe.data, recipe.train, require_init(init)
    tokenizer, config = bundle.tokenizer, recipe.config()
    reading: dict[str, Any] = {"length": train.sequence_length or config.context, "progress": progress}
    share = 0.0 if data.validation_files else data.held_out
    prepared = prepare_preferences(as_list(data.files), tokenizer, folder / "preferences", validation=share, **reading)
    places = {"train": (prepared, "train"), "validation": (prepared, "validation")}
    if data.validation_files:
        names = as_list(data.validation_files)
        separate = prepare_preferences(names, tokenizer, folder / "validation", validation=0.0, **reading)
        places["validation"] = (separate, "train")
    pairs = {name: open_preferences(*place) for name, place in places.items()}
    shape: dict[str, Any] = {"rows": train.batch_size, "pad": tokenizer.roles.pad or 0}
    batches = {name: PreferenceBatches(part, **shape) for name, part in pairs.items()}
    parts = [read_manifest(place)["parts"] for place, _ in places.values()]
    reference = {}
    if recipe.lora is None:  # an adapter's reference is the model without it
        options: dict[str, Any] = {"pairs": parts, "settings": train, "progress": progress}
        reference = prepare_reference(bundle.model, batches, folder / "reference", **options)
    shape["seed"] = train.seed
    batches = {name: PreferenceBatches(part, reference=reference.get(name), **shape) for name, part in pairs.items()}
    return TrainingData(
        config,
        tokenizer,
        tokenizer,
        batches["train"],
        batches["validation"],
        corpus=hash_tokens(*parts),
        length=max(1, round(batches["train"].mean_length)),
        fewest_rows=batches["train"].fewest_rows,
        notes=describe_report(prepared, "pairs"),
        unit="pairs",
        tokens_a_term=2 * batches["train"].mean_length,
    )


def first_pair(recipe: Recipe, init: Bundle | None) -> str:
    """The first pair as the model gets it, with ⟦ ⟧ around what is learned."""
    tokenizer = require_init(init).tokenizer
    encoder = ConversationEncoder(tokenizer, recipe.train.sequence_length or recipe.config().context)
    problem = "the files are empty"
    for one in read_preferences(find_files(as_list(recipe.data.files)), Report()):
        encoded = None if one.problem else encode_preference(one, encoder)
        if encoded is not None and encoded.problem is None:
            chosen, rejected = (show_sample(sample, tokenizer) for sample in encoded.samples)
            return f"chosen:\n{chosen}\nrejected:\n{rejected}"
        problem = f"{one.file}:{one.line}: {one.problem or (encoded and (encoded.detail or encoded.problem))}"
    raise UsageError(f"There is no usable pair in data.files; {problem}.")
