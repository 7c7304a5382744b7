"""data.kind = "prompts": prompts with an answer that can be checked, for a decoder that generates answers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from chumoku.data.manifest import describe_report, read_manifest
from chumoku.data.prompt_batches import PromptBatches, pad
from chumoku.data.prompts import PromptEncoder, open_prompts, prepare_prompts, read_prompts
from chumoku.data.report import Report
from chumoku.data.text_files import find_files
from chumoku.errors import UsageError
from chumoku.text.progress import Progress
from chumoku.training.datasets.chat import require_init
from chumoku.training.datasets.training_data import TrainingData, hash_tokens
from chumoku.training.objectives.grpo import GrpoObjective
from chumoku.training.recipe import Recipe
from chumoku.training.settings import GrpoSettings, as_list
from chumoku.weights.bundle import Bundle


def prepare_prompt_data(recipe: Recipe, folder: Path, init: Bundle | None, progress: Progress) -> TrainingData:
    data, train, grpo = recipe.data, recipe.train, settings_of(recipe)
    tokenizer, config = require_init(init).tokenizer, recipe.config()
    reading: dict[str, Any] = {"length": most_prompt_tokens(recipe), "progress": progress}
    share = 0.0 if data.validation_files else data.held_out
    prepared = prepare_prompts(as_list(data.files), tokenizer, folder / "prompts", validation=share, **reading)
    separate, part = prepared, "validation"
    if data.validation_files:
        names, part = as_list(data.validation_files), "train"
        separate = prepare_prompts(names, tokenizer, folder / "validation", validation=0.0, **reading)
    batches = PromptBatches(open_prompts(prepared), rows=train.batch_size, terms=grpo.samples, seed=train.seed)
    length = batches.mean_length + grpo.max_new_tokens
    return TrainingData(
        config,
        tokenizer,
        tokenizer,
        batches,
        PromptBatches(open_prompts(separate, part), rows=train.batch_size * grpo.samples),
        corpus=hash_tokens(read_manifest(prepared)["parts"], read_manifest(separate)["parts"]),
        length=max(1, round(length)),
        fewest_rows=batches.fewest_rows,
        notes=describe_report(prepared, "prompts"),
        unit="answers",
        tokens_a_term=length,
        grpo=grpo,
    )


def settings_of(recipe: Recipe) -> GrpoSettings:
    return recipe.grpo or GrpoSettings()


def most_prompt_tokens(recipe: Recipe) -> int:
    """The most tokens of a prompt: the longest answer must fit after it."""
    whole, answer = recipe.train.sequence_length or recipe.config().context, settings_of(recipe).max_new_tokens
    if whole <= answer:
        raise UsageError(
            f"A sequence has {whole:,} tokens, so no prompt fits before grpo.max_new_tokens = {answer:,}. Lower it, or "
            "raise train.sequence_length."
        )
    return whole - answer


def first_answers(recipe: Recipe, init: Bundle | None) -> str:
    """The first prompt with the answers that the model samples for it before training, and their rewards."""
    bundle = require_init(init)
    encoder, problem = PromptEncoder(bundle.tokenizer, most_prompt_tokens(recipe)), "the files are empty"
    for one in read_prompts(find_files(as_list(recipe.data.files)), Report()):
        encoded = None if one.problem else encoder(one)
        if encoded is not None and encoded.samples:
            objective = GrpoObjective(bundle.model, settings_of(recipe), bundle.tokenizer)
            prompt, answer, _ = (sample.tokens for sample in encoded.samples)
            batch = {"prompts": pad([prompt]), "answers": pad([answer]), "seeds": torch.tensor([recipe.train.seed])}
            lines = [
                f"  ⟦{one.text}⟧ reward {one.reward:g}{'' if one.finished else ', does not end'}"
                for one in objective.generate(batch)
            ]
            shown = bundle.tokenizer.decode(prompt.tolist(), special=True)
            return "\n".join([f"{shown} (answer: {one.answer})", *lines])
        problem = f"{one.file}:{one.line}: {one.problem or (encoded and (encoded.detail or encoded.problem))}"
    raise UsageError(f"There is no usable prompt in data.files; {problem}.")
