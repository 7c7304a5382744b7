"""Bugs planted into healthy models, tokenizers and corpora, and the healthy subjects themselves.

    python tests/planted.py            the confusion table: planted bug, checks with findings

Each planted bug names the check that must find it; `also` lists checks that may report its consequences. What may be
intended (POSSIBLE_INTENTIONS) is reported too, but not as broken.
"""

from __future__ import annotations

import copy
import math
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from bundles import make_bundle
from chats import chat_model, chat_recipe, write_chats, write_records
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers
from torch import Tensor, nn

from chumoku import text
from chumoku.data import grammar
from chumoku.data.batches import IGNORE, source_mask
from chumoku.data.pairs import Pair
from chumoku.data.span_corruption import find_sentinels
from chumoku.doctor import Subject
from chumoku.doctor.open_subject import subject_from_model, subject_from_recipe
from chumoku.models import heads
from chumoku.models import model as model_module
from chumoku.models.build import build
from chumoku.models.stack import Memory, Stack
from chumoku.nn import attention, masks
from chumoku.nn.attention import UNMASKED, AttentionContext
from chumoku.nn.cache import Cache
from chumoku.nn.moe import MixtureOfExperts
from chumoku.text.tokenizer import Tokenizer
from chumoku.training import optimizer
from chumoku.training.loop import Run
from chumoku.training.objectives import ContrastiveObjective, Objective, count_labels, grpo
from chumoku.training.objectives.distillation import Distillation
from chumoku.training.recipe import read_recipe

COUNT = 1000
FIRST_WORDS = ("Did", "I", "My", "The")
SIZES: dict[str, Any] = {"width": 24, "heads": 3, "layers": 2, "context": 29, "feedforward_width": 37}
Patch, Batch = pytest.MonkeyPatch, dict[str, Tensor]


class Subjects:
    """Healthy subjects: each kind's corpus is prepared once; each model is new."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bases: dict[str, Subject] = {}
        pairs = grammar.generate(COUNT)
        lines = list(dict.fromkeys(pair.target for pair in pairs))
        (folder / "text.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
        rows = [*pairs, *(Pair(f"ねえ、{pair.source}", pair.target) for pair in pairs[::3])]
        (folder / "sentences.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in rows), encoding="utf-8")
        # The class of a sentence is its first word, the tag of a word whether it is a short one.
        classes = [f"{line}\t{line.split()[0]}\n" for line in lines if line.split()[0] in FIRST_WORDS]
        (folder / "labels.tsv").write_text("".join(classes), encoding="utf-8")
        tagged = (
            "".join(f"{word} {'SHORT' if len(word) < 4 else 'LONG'}\n" for word in line.split()) for line in lines
        )
        (folder / "tags.conll").write_text("\n".join(tagged), encoding="utf-8")

    def recipe(self, kind: str, **changes: dict[str, Any]) -> dict[str, Any]:
        pairs = kind == "encoder-decoder" and changes.get("data", {}).get("kind") != "text"
        tables: dict[str, dict[str, Any]] = {
            "model": {"kind": kind, **SIZES},
            "tokenizer": {"kind": "character", "target_kind": "word"} if pairs else {"kind": "byte"},
            "data": {"kind": "embedded", "count": COUNT} if pairs else {"files": str(self.folder / "text.txt")},
            "train": {
                "out": str(self.folder / "run"),
                "steps": 60,
                "batch_size": 13,
                "batch_tokens": 331,
                "samples": 0,
            },
            "optimizer": {"learning_rate": 0.01},
        }
        if pairs and changes.get("model", {}).get("share_embeddings"):
            tables["tokenizer"] = {"kind": "bpe", "vocabulary": 997}
        return {name: {**tables.get(name, {}), **changes.get(name, {})} for name in {**tables, **changes}}

    def subject(self, kind: str, data: dict[str, Any] | None = None, **model: Any) -> Subject:
        """A new model of this kind with its corpus."""
        shared = "shared" if model.get("share_embeddings") else "own"
        key = f"{kind} {shared} {data}"
        if key not in self._bases:
            working = self.folder / f"corpus-{len(self._bases)}"
            recipe = read_recipe(self.recipe(kind, model={"share_embeddings": shared == "shared"}, data=data or {}))
            self._bases[key] = subject_from_recipe(recipe, working, lambda sentence: None)
        base = self._bases[key]
        recipe = read_recipe(self.recipe(kind, model=model, data=data or {}))
        assert base.model is not None
        known = base.model.config
        config = recipe.config(known.vocabulary, known.source_vocabulary)
        return replace(base, model=build(config, seed=5), recipe=recipe)

    def decoder(self, **model: Any) -> Subject:
        return self.subject("decoder", **model)

    def encoder(self, **model: Any) -> Subject:
        return self.subject("encoder", **model)

    def labeled(self, kind: str, data_kind: str = "labels", **model: Any) -> Subject:
        """A model with classes or tags."""
        file = self.folder / {"labels": "labels.tsv", "tags": "tags.conll"}[data_kind]
        labels = sorted(FIRST_WORDS) if data_kind == "labels" else ["LONG", "SHORT"]
        return self.subject(kind, {"kind": data_kind, "files": str(file)}, labels=labels, **model)

    def spans(self, **model: Any) -> Subject:
        """An encoder-decoder that is pre-trained on text."""
        data = {"kind": "text", "files": str(self.folder / "text.txt")}
        return self.subject("encoder-decoder", data, **model)

    def student(self, **model: Any) -> Subject:
        """A decoder that learns from a teacher."""
        subject = self.decoder(**model)
        assert subject.model is not None
        config = subject.model.config
        options: dict[str, Any] = {"temperature": 2.0, "weight": 0.5, "outputs": config.vocabulary}
        return replace(subject, objective=Distillation(subject.model, build(config, seed=11), **options))

    def translator(self, **model: Any) -> Subject:
        return self.subject("encoder-decoder", **model)

    def chat(self) -> Subject:
        """A new model with conversations."""
        if "chat" not in self._bases:
            sizes = {key: SIZES[key] for key in ("width", "heads", "feedforward_width")}
            model, file = chat_model(self.folder / "chat-model", **sizes), write_chats(self.folder / "chats.jsonl", 61)
            recipe = read_recipe(chat_recipe(model, file, self.folder / "chat-run"))
            self._bases["chat"] = subject_from_recipe(recipe, self.folder / "chat-corpus", lambda sentence: None)
        base = self._bases["chat"]
        assert base.model is not None
        return replace(base, model=build(base.model.config, seed=5))

    def prompts(self, answer: Callable[[int], Any] = str, **grpo: Any) -> Subject:
        """A new chat model with sums, which it answers itself."""
        file = self.folder / f"prompts-{answer.__name__}.jsonl"
        write_records(file, [{"prompt": f"Add {n} and 5.", "answer": answer(n + 5)} for n in range(61)])
        model = chat_model(self.folder / f"{file.stem}-model")
        options = {"samples": 3, "max_new_tokens": 5, **grpo}
        recipe = read_recipe(chat_recipe(model, file, self.folder / "x", data={"kind": "prompts"}, grpo=options))
        return subject_from_recipe(recipe, self.folder / f"{file.stem}-corpus", lambda sentence: None)

    def sentences(self, **model: Any) -> Subject:
        """A new sentence encoder; a third of the positives of its corpus have two anchors."""
        changes: dict[str, Any] = {
            "model": {"context": 61, **model},
            "tokenizer": {"kind": "bpe", "vocabulary": 997},
            "data": {"kind": "sentences", "files": str(self.folder / "sentences.tsv"), "validation_share": 0.1},
        }
        recipe = read_recipe(self.recipe("encoder", **changes))
        if "sentences" not in self._bases:
            working = self.folder / "corpus-sentences"
            self._bases["sentences"] = subject_from_recipe(recipe, working, lambda sentence: None)
        base = self._bases["sentences"]
        assert base.model is not None
        return replace(base, model=build(recipe.config(base.model.config.vocabulary), seed=5), recipe=recipe)

    def corpus(self) -> Subject:
        """Pairs without a model."""
        return replace(self.translator(), model=None, recipe=None)


Plant = Callable[[Subjects, Patch], Subject]


class PlantedBug(NamedTuple):
    check: str  # the check that must find it
    plant: Plant
    also: tuple[str, ...] = ()  # checks that may also have findings


class ModifiedBatches:
    """Batches modified by a function."""

    def __init__(self, batches: Any, change: Callable[[Batch], Batch]) -> None:
        self._batches, self._change = batches, change

    def __len__(self) -> int:
        return len(self._batches)

    def batch(self, epoch: int, index: int, *share: Any) -> Batch:
        return self._change({name: table.clone() for name, table in self._batches.batch(epoch, index, *share).items()})


def modify_batches(subject: Subject, change: Callable[[Batch], Batch]) -> Subject:
    return replace(
        subject, train=ModifiedBatches(subject.train, change), validation=ModifiedBatches(subject.validation, change)
    )


def change_labels(data_kind: str, change: Callable[[Tensor], Tensor], kind: str = "encoder") -> Plant:
    """Change the classes or tags of all batches."""

    def plant(subjects: Subjects, patch: Patch) -> Subject:
        subject = subjects.labeled(kind, data_kind)
        return modify_batches(subject, lambda batch: {**batch, "labels": change(batch["labels"])})

    return plant


def change_model(kind: str, change: Callable[[Any], object], **config: Any) -> Plant:
    """Change a new model of this kind."""

    def plant(subjects: Subjects, patch: Patch) -> Subject:
        subject = subjects.subject(kind, **config)
        change(subject.model)
        return subject

    return plant


def replace_method(owner: Any, name: str, wrap: Callable[[Any], Any], kind: str = "decoder", **config: Any) -> Plant:
    """Replace a function or method by `wrap` of it while the subject is examined."""

    def plant(subjects: Subjects, patch: Patch) -> Subject:
        patch.setattr(owner, name, wrap(getattr(owner, name)))
        return subjects.subject(kind, **config)

    return plant


def change_batches(kind: str, change: Callable[[Batch], Batch]) -> Plant:
    return lambda subjects, patch: modify_batches(subjects.subject(kind), change)


def change_corpus(change: Callable[[list[Pair]], list[Pair]]) -> Plant:
    """Change the pairs of a corpus without a model."""

    def plant(subjects: Subjects, patch: Patch) -> Subject:
        corpus = subjects.corpus()
        return replace(corpus, pairs=change(corpus.pairs))

    return plant


def change_texts(make: Callable[[list[str]], Subject]) -> Plant:
    """Make a subject of the English sentences."""
    return lambda subjects, patch: make([pair.target for pair in subjects.corpus().pairs])


# Masks, rows and padding.


def replace_rule(stack: Stack, change: Callable[[int, int], Tensor | None]) -> None:
    """Replace the causal rule by what `change` returns for the number of queries and of keys, unless it is None."""
    usual = stack.attention_context

    def attention_context(positions: Tensor, *, cache: Cache | None, **rest: Any) -> AttentionContext:
        new = positions.shape[-1]
        keys = positions if cache is None else cache.key_positions(new, local=rest.get("local", True))
        context, rule = usual(positions, cache=cache, **rest), change(new, keys.shape[-1])
        if not context.causal or rule is None:
            return context
        return context._replace(causal=False, mask=rule if context.mask is None else context.mask & rule)

    stack.attention_context = attention_context  # type: ignore[method-assign]


def see_ahead(model: Any) -> None:
    replace_rule(model.decoder, lambda new, end: torch.ones(new, end, dtype=torch.bool).tril(end - new + 1))


def end_mask_too_early(model: Any) -> None:
    def change(new: int, end: int) -> Tensor | None:
        if new <= 26:
            return None
        rule = torch.ones(new, end, dtype=torch.bool).tril(end - new)
        rule[26:, 26:] = True
        return rule

    replace_rule(model.decoder, change)


mask_off_by_one = change_model("decoder", see_ahead)
mask_off_by_one_in_translation = change_model("encoder-decoder", see_ahead, position="sinusoidal")
mask_that_ends_too_early = change_model("decoder", end_mask_too_early)
no_causal_mask = change_model(
    "decoder",
    lambda model: setattr(model.decoder, "causal", False),
    position="learned",
    norm="rms",
    feedforward="swiglu",
)
rule_off_by_one_beside_a_mask = replace_method(
    masks, "causal", lambda usual: lambda length, past=0, device=None: usual(length, past=past + 1)[:, : past + length]
)


def wrap_forward(part: Any, wrap: Callable[[Any], Any]) -> None:
    part.forward = wrap(part.forward)


first_row_in_later_rows = change_model(
    "decoder",
    lambda model: wrap_forward(
        model.decoder.embedding, lambda usual: lambda tokens: torch.cat([(x := usual(tokens))[:4], x[4:] + x[:1]])
    ),
)


def causal_encoder(kind: str) -> Plant:
    return change_model(kind, lambda model: setattr(model.encoder, "causal", True))


def positions_all_zero(kind: str, position: str) -> Plant:
    def change(model: Any) -> None:
        stack = model.decoder if kind == "decoder" else model.encoder
        part = stack.rotary if position == "rotary" else stack.position
        wrap_forward(part, lambda usual: lambda positions, *rest: usual(torch.zeros_like(positions), *rest))

    return change_model(kind, change, position=position)


def use_statistics_of_the_batch(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "momentum"):

            def forward(x: Tensor, module: Any = module) -> Tensor:
                return F.batch_norm(x.flatten(0, -2), None, None, module.gamma, module.beta, True).view_as(x)

            module.forward = forward


statistics_of_the_batch = change_model("encoder", use_statistics_of_the_batch, norm="batch")


def ignore_source_mask(model: Any) -> None:
    usual = model.encoder.attention_context
    model.encoder.attention_context = lambda positions, **rest: usual(positions, **{**rest, "mask": None})


source_mask_ignored = change_model("encoder-decoder", ignore_source_mask)
memory_mask_ignored = replace_method(
    Memory, "attention_context", lambda usual: lambda memory, target: UNMASKED, "encoder-decoder"
)
pool_over_padding = replace_method(
    model_module, "pool", lambda usual: lambda hidden, mask, **how: usual(hidden, None, **how), "encoder"
)
swapped_pad_id = change_batches(
    "encoder-decoder", lambda batch: {**batch, "source": batch["source"].masked_fill(~source_mask(batch), 2)}
)
swapped_target_pad_id = change_batches(
    "encoder-decoder", lambda batch: {**batch, "target": batch["target"].masked_fill(batch["labels"] == IGNORE, 3)}
)
padding_counts_as_real = change_batches(
    "encoder-decoder", lambda batch: {**batch, "source_mask": torch.ones_like(source_mask(batch))}
)

# Caches and fast twins.

cache_position_off_by_one = replace_method(
    Cache, "positions", lambda usual: lambda cache, new: usual(cache, new) + (1 if cache.used else 0)
)
cache_ignores_lengths = replace_method(
    Cache,
    "advance",
    lambda usual: lambda cache, new, lengths=None: replace(cache, used=cache.used + new),
    position="relative",
)
cache_ignores_the_source_mask = replace_method(
    Cache, "with_memory", lambda usual: lambda cache, memory, mask: usual(cache, memory, None), "encoder-decoder"
)
fused_with_another_scale = replace_method(
    attention, "attend_fused", lambda usual: lambda query, *rest, **how: usual(1.5 * query, *rest, **how), "encoder"
)
fused_norm_of_another_variance = change_model(
    "decoder",
    lambda model: wrap_forward(
        model.decoder.norm, lambda usual: lambda x: usual(x) * math.sqrt((x.shape[-1] - 1) / x.shape[-1])
    ),
)


def lose_a_token(usual: Any) -> Any:
    def forward(experts: MixtureOfExperts, x: Tensor, losses: Any = None) -> Tensor:
        output = usual(experts, x, losses)
        kept = torch.ones_like(output[..., :1])
        kept[:, -1:] = 0.5
        return output * kept

    return forward


query_norm_missing = change_model(
    "decoder",
    lambda model: wrap_forward(model.decoder.blocks[1].attention.query_norm, lambda usual: lambda x: x),
    query_key_norm="head",
)
cached_window_off_by_one = replace_method(
    masks,
    "window",
    lambda usual: lambda distances, size: usual(distances, size + (distances.shape[-2] < distances.shape[-1])),
    attention_window=5,
)
experts_lose_a_token = replace_method(MixtureOfExperts, "forward", lose_a_token, experts=5, feedforward="swiglu")

# Training.


def mean_train_step(run: Run, batches: list[Batch], tokens: int) -> bool:
    run.optimizer.zero_grad()
    for batch in batches:
        (run.module(batch) / count_labels(batch) / len(batches)).backward()
    run.optimizer.step(run.recipe.peak_learning_rate)
    return True


mean_of_means = replace_method(Run, "train_step", lambda usual: mean_train_step)


class ZeroGradObjective(Objective):
    def forward(self, batch: Batch) -> Tensor:
        for parameter in self.model.parameters():
            parameter.grad = None
        return super().forward(batch)


class NegatedGradientObjective(Objective):
    def forward(self, batch: Batch) -> Tensor:
        loss = super().forward(batch)
        return 2 * loss.detach() - loss


def with_objective(cls: type[Objective], kind: str) -> Plant:
    def plant(subjects: Subjects, patch: Patch) -> Subject:
        subject = subjects.subject(kind)
        return replace(subject, objective=cls(subject.model))

    return plant


def change_sentences(change: Callable[[Batch], Batch]) -> Plant:
    return lambda subjects, patch: modify_batches(subjects.sentences(), change)


def shift_positives(batch: Batch) -> Batch:
    """The positive of each row is that of the next."""
    moved = {name: table.roll(1, 0) for name, table in batch.items() if name.startswith("positive")}
    return {**batch, **moved}


def separate_groups(batch: Batch) -> Batch:
    return {**batch, "group": torch.arange(len(batch["group"]))}


def one_group(batch: Batch) -> Batch:
    return {**batch, "group": torch.zeros_like(batch["group"])}


def unmask_positives(batch: Batch) -> Batch:
    return {name: table for name, table in batch.items() if name != "positive_mask"}


class OwnBatchObjective(ContrastiveObjective):
    """Without the negatives of the other batches of a step."""

    step_batches = Objective.step_batches


class NextPositiveObjective(ContrastiveObjective):
    """The label of a row is the positive of the next."""

    def losses(self, vectors: Tensor, groups: Tensor) -> Tensor:
        return super().losses(torch.cat([vectors[:, :1], vectors[:, 1:].roll(1, 0)], 1), groups)


def with_contrastive(cls: type[ContrastiveObjective]) -> Plant:
    def plant(subjects: Subjects, patch: Patch) -> Subject:
        subject = subjects.sentences()
        assert subject.model is not None
        return replace(subject, objective=cls(subject.model))

    return plant


def shift_labels_twice(batch: Batch) -> Batch:
    labels = torch.roll(batch["labels"], -1, 1)
    labels[:, -1] = IGNORE
    return {**batch, "labels": labels}


def shuffle_labels(batch: Batch) -> Batch:
    order = torch.randperm(batch["labels"].shape[1], generator=torch.Generator().manual_seed(1))
    return {**batch, "labels": batch["labels"][:, order]}


def drop_begin_token(batch: Batch) -> Batch:
    target = torch.cat([batch["target"][:, 1:], batch["target"][:, -1:]], 1)
    labels = torch.cat([batch["labels"][:, 1:], torch.full_like(batch["labels"][:, :1], IGNORE)], 1)
    return {**batch, "target": target, "labels": labels}


def replace_end_token(with_begin: bool) -> Plant:
    def plant(subjects: Subjects, patch: Patch) -> Subject:
        subject = subjects.translator()
        roles = subject.tokenizer.roles
        new = roles.begin if with_begin else IGNORE
        return modify_batches(
            subject, lambda batch: {**batch, "labels": batch["labels"].masked_fill(batch["labels"] == roles.end, new)}
        )

    return plant


dropout_left_on = change_model(
    "decoder", lambda model: setattr(model.decoder.blocks[1], "_drop", lambda x: F.dropout(x, 0.3, True))
)
part_left_in_training = change_model(
    "encoder", lambda model: model.encoder.blocks[0].attention.train(), dropout={"attention": 0.2}
)
labels_not_shifted = change_batches("decoder", lambda batch: {**batch, "labels": batch["tokens"].clone()})
labels_shifted_twice = change_batches("decoder", shift_labels_twice)
target_labels_not_shifted = change_batches(
    "encoder-decoder", lambda batch: {**batch, "labels": batch["target"].masked_fill(batch["labels"] == IGNORE, IGNORE)}
)
labels_shifted_from_their_masks = change_batches(
    "encoder", lambda batch: {**batch, "labels": torch.roll(batch["labels"], 1, 1)}
)
shuffled_labels = change_batches("decoder", shuffle_labels)
begin_token_instead_of_end = replace_end_token(with_begin=True)
no_end_token = replace_end_token(with_begin=False)
no_begin_token = change_batches("encoder-decoder", drop_begin_token)
sources_cut = change_batches(
    "encoder-decoder",
    lambda batch: {**batch, "source": batch["source"][:, :2], "source_mask": source_mask(batch)[:, :2]},
)


def ignore_labels(kind: str, which: Callable[[Tensor], Tensor]) -> Plant:
    """Labels that are ignored where `which` of random numbers [B, T] says so."""

    def change(batch: Batch) -> Batch:
        numbers = torch.rand(batch["labels"].shape, generator=torch.Generator().manual_seed(2))
        return {**batch, "labels": batch["labels"].masked_fill(which(numbers), IGNORE)}

    return change_batches(kind, change)


def change_chats(change: Callable[[Batch, Tensor], Tensor]) -> Plant:
    """Conversations with the labels that `change` makes of a batch and the next tokens."""

    def modify(batch: Batch) -> Batch:
        following = torch.roll(batch["tokens"], -1, 1)
        ends = batch["documents"] != torch.roll(batch["documents"], -1, 1)
        return {**batch, "labels": change(batch, following.masked_fill(ends, IGNORE))}

    return lambda subjects, patch: modify_batches(subjects.chat(), modify)


def change_answers(change: Callable[[list[grpo.Answer]], Batch]) -> Plant:
    """Sampled answers are put together in another way."""

    def plant(subjects: Subjects, patch: Patch) -> Subject:
        patch.setattr(grpo, "pad_answers", change)
        return subjects.prompts()

    return plant


def change_advantages(change: Callable[[Tensor], Tensor]) -> Plant:
    def plant(subjects: Subjects, patch: Patch) -> Subject:
        patch.setattr(grpo, "advantages", lambda rewards, method: change(rewards))
        return subjects.prompts()

    return plant


def in_words(number: int) -> str:
    return "many" if number % 2 else "even more"


def shift_labels_of_answers(answers: list[grpo.Answer], pad: Any = grpo.pad_answers) -> Batch:
    batch: Batch = pad(answers)
    return {**batch, "labels": batch["labels"].roll(1, 1)}


def group_by_sample(answers: list[grpo.Answer], pad: Any = grpo.pad_answers) -> Batch:
    """The first answers of all prompts, then the second ones."""
    batch: Batch = pad([one for start in range(3) for one in answers[start::3]])
    return batch


chat_prompts_are_learned = change_chats(lambda batch, following: following)
chat_questions_are_learned = change_chats(
    lambda batch, following: following.masked_fill(batch["labels"] != IGNORE, IGNORE)
)
chat_labels_begin_a_token_late = change_chats(
    lambda batch, following: batch["labels"].masked_fill(torch.roll(batch["labels"] == IGNORE, 1, 1), IGNORE)
)


def every_other(numbers: Tensor) -> Tensor:
    return (torch.arange(numbers.shape[1]) % 2 == 0).expand_as(numbers)


def beginning_of_each_row(numbers: Tensor) -> Tensor:
    """The beginning of each row, of random length: only the rest (the answer) is learned."""
    return torch.arange(numbers.shape[1]) < 4 + 15 * numbers[:, :1]


def same_batch_always(subjects: Subjects, patch: Patch) -> Subject:
    subject = subjects.decoder()
    usual = subject.train.batch
    return replace(subject, train=ModifiedBatches(subject.train, lambda batch: usual(0, 0)))


def without_feedforwards(usual: Any) -> Any:
    return lambda parameters, settings: usual(
        {name: one for name, one in parameters.items() if "feedforward." not in name}, settings
    )


def untie_weights(model: Any) -> None:
    model.head.weight = nn.Parameter(1.01 * model.decoder.embedding.table.detach())


def kill_experts(model: Any) -> None:
    block = model.encoder.blocks[0]
    block.feedforward_norm.beta.data.fill_(1.0)
    block.feedforward.router.weight.data[3:] = -5.0
    block.feedforward.router.weight.data[:3].abs_()


def set_nan(model: Any) -> None:
    model.encoder.blocks[1].attention.query.weight.data[3, 5] = math.nan


def overflow(model: Any) -> None:
    for linear in (model.decoder.blocks[0].feedforward.up, model.decoder.blocks[0].feedforward.down):
        linear.weight.data *= 1e38


optimizer_without_feedforwards = replace_method(optimizer, "_build", without_feedforwards)
tied_weights_differ = change_model("decoder", untie_weights)
shared_tables_differ = change_model(
    "encoder-decoder",
    lambda model: setattr(model.encoder, "embedding", copy.deepcopy(model.decoder.embedding)),
    share_embeddings=True,
)
initial_weights_too_large = change_model("decoder", lambda model: model.head.weight.data.mul_(100), tie_output=False)
frozen_parameter = change_model(
    "encoder-decoder", lambda model: model.decoder.blocks[0].cross_attention.value.weight.requires_grad_(False)
)
detached_attention = change_model(
    "decoder",
    lambda model: wrap_forward(
        model.decoder.blocks[1].attention, lambda usual: lambda *args, **rest: usual(*args, **rest).detach()
    ),
)
dead_relu = change_model(
    "decoder", lambda model: model.decoder.blocks[0].feedforward.up.bias.data.fill_(-50.0), feedforward="relu"
)
dead_experts = change_model("encoder", kill_experts, experts=5, norm="layer")
not_a_number = change_model("encoder-decoder", set_nan)
overflowing_pass = change_model("decoder", overflow)
embeddings_with_large_offset = change_model(
    "decoder",
    lambda model: model.decoder.embedding.table.data.add_(30_000.0),
    tie_output=False,
    initialization="xavier",
)


def overflow_in_fp16(subjects: Subjects, patch: Patch) -> Subject:
    subject = subjects.decoder()
    part = subject.model.decoder.blocks[0].attention
    part.value.weight.data *= 1e7
    part.output.weight.data *= 1e-7
    recipe = read_recipe(subjects.recipe("decoder", train={"precision": "fp16"}))
    return replace(subject, recipe=recipe)


# Tokenizers and corpora.


def tokenizer_of_another_language(subjects: Subjects, patch: Patch) -> Subject:
    corpus = subjects.corpus()
    english = text.train([pair.target for pair in corpus.pairs], kind="character", vocabulary=300)
    return Subject(tokenizer=english, texts=[pair.source for pair in corpus.pairs])


def lowercase(lines: list[str]) -> Subject:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Subject(tokenizer=Tokenizer(backend), texts=lines)


def lose_spaces(lines: list[str]) -> Subject:
    tokenizer = text.train(lines, kind="character", vocabulary=300)
    usual = tokenizer.decode_batch
    tokenizer.decode_batch = lambda batch, **how: [one.replace(" ", "") for one in usual(batch, **how)]  # type: ignore[method-assign]
    return Subject(tokenizer=tokenizer, texts=lines)


def drop_words(tokenizer: Tokenizer, *words: str) -> Tokenizer:
    """A copy of the tokenizer whose normalizer drops some words."""
    backend = Backend.from_str(tokenizer.json)
    usual = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([*(normalizers.Replace(word, "") for word in words), *usual])
    return Tokenizer(backend)


def drop_two_words(lines: list[str]) -> Subject:
    tokenizer = text.train(lines, kind="unigram", vocabulary=600)
    return Subject(tokenizer=drop_words(tokenizer, "not ", "the "), texts=lines)


tokenizer_that_lowercases = change_texts(lowercase)
tokenizer_that_loses_spaces = change_texts(lose_spaces)
tokenizer_that_drops_words = change_texts(drop_two_words)


def recipe_whose_tokenizer_drops_words(subjects: Subjects, patch: Patch) -> Subject:
    """The corpus was prepared with this tokenizer, so its lines lack the words too."""
    folder = Path(tempfile.mkdtemp(dir=subjects.folder))
    lines = (subjects.folder / "text.txt").read_text(encoding="utf-8").splitlines()
    file = drop_words(text.train(lines, kind="wordpiece", vocabulary=500), "the ").save(folder / "tokenizer.json")
    recipe = subjects.recipe("decoder")
    return subject_from_recipe(read_recipe({**recipe, "tokenizer": {"file": str(file)}}), folder, lambda sentence: None)


def tokenizer_of_another_model(subjects: Subjects, patch: Patch) -> Subject:
    subject = subjects.decoder()
    larger = text.train([pair.target for pair in subjects.corpus().pairs], kind="bpe", vocabulary=503)
    return replace(subject, tokenizer=larger, source_tokenizer=None, train=None, validation=None)


def typed_specials(subjects: Subjects, patch: Patch) -> Subject:
    subject = subjects.decoder()
    return replace(subject, texts=[f"<s>{line}</s>" if n % 9 == 0 else line for n, line in enumerate(subject.texts)])


def specials_taken_from_texts(subjects: Subjects, patch: Patch) -> Subject:
    tokenizer = text.train(["one text"], kind="byte")
    tokenizer._plain = tokenizer._special
    return Subject(tokenizer=tokenizer)


def leaked_pairs(subjects: Subjects, patch: Patch) -> Subject:
    corpus = subjects.corpus()
    upper_case = [Pair(pair.source, pair.target.upper()) for pair in corpus.pairs[:5]]
    return replace(corpus, validation_pairs=[*corpus.validation_pairs, *upper_case])


def nearly_leaked_pairs(subjects: Subjects, patch: Patch) -> Subject:
    corpus = subjects.corpus()
    long = [pair for pair in corpus.pairs if len(pair.target) > 35][:30]
    return replace(
        corpus,
        validation_pairs=[*corpus.validation_pairs, *(Pair(p.source, p.target.replace("e", "a", 1)) for p in long)],
    )


def leaked_text(subjects: Subjects, patch: Patch) -> Subject:
    subject = replace(subjects.decoder(), model=None, train=None, validation=None)
    return replace(subject, validation_texts=[*subject.validation_texts, *subject.texts[40:55]])


def misaligned_after_a_missing_line(subjects: Subjects, patch: Patch) -> Subject:
    corpus = subjects.corpus()
    sources, targets = ([pair[side] for pair in corpus.pairs] for side in (0, 1))
    del targets[len(targets) // 2]
    return replace(corpus, pairs=[Pair(*pair) for pair in zip(sources, targets, strict=False)])


def swapped_columns(subjects: Subjects, patch: Patch) -> Subject:
    recipe = read_recipe(subjects.recipe("encoder-decoder", data={"languages": ["ja", "en"]}))
    pairs = [Pair(pair.target, pair.source) for pair in subjects.corpus().pairs]
    return Subject(pairs=pairs, recipe=recipe)


def untranslated_pairs(subjects: Subjects, patch: Patch) -> Subject:
    pairs = subjects.corpus().pairs
    return Subject(pairs=[Pair(p.target, p.target) if n % 4 == 0 else p for n, p in enumerate(pairs)])


def duplicate_lines(lines: list[str]) -> Subject:
    joined = [f"{one} {other}" for one, other in pairwise(lines)]
    return Subject(texts=joined + joined[::5])


duplicated_pairs = change_corpus(lambda pairs: [*pairs, *pairs[::7]])
duplicated_lines = change_texts(duplicate_lines)
empty_sides = change_corpus(lambda pairs: [Pair(p.source, " ") if n % 50 == 0 else p for n, p in enumerate(pairs)])
replacement_characters = change_texts(
    lambda lines: Subject(
        texts=[f"{line[:20]}\ufffd{line[21:]}" if n % 25 == 0 else line for n, line in enumerate(lines)]
    )
)
swapped_languages = change_corpus(
    lambda pairs: [Pair(p.target, p.source) if n % 37 == 0 else p for n, p in enumerate(pairs)]
)
misaligned_throughout = change_corpus(lambda pairs: [Pair(one.source, other.target) for one, other in pairwise(pairs)])
shuffled_targets = change_batches(
    "encoder-decoder", lambda batch: {**batch, **{name: torch.roll(batch[name], 1, 0) for name in ("target", "labels")}}
)
rare_words = change_texts(lambda lines: Subject(tokenizer=text.train(lines, kind="word", vocabulary=380), texts=lines))


# Files.


def damaged(how: Callable[[bytes], bytes]) -> Plant:
    def plant(subjects: Subjects, patch: Patch) -> Subject:
        folder = make_bundle(Path(tempfile.mkdtemp(dir=subjects.folder)) / "model", "decoder")
        file = folder / "model.safetensors"
        file.write_bytes(how(file.read_bytes()))
        return subject_from_model(str(folder), subjects.folder, lambda sentence: None)

    return plant


def flipped(data: bytes) -> bytes:
    place = random.Random(3).randrange(len(data))
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


def damaged_checkpoint(subjects: Subjects, patch: Patch) -> Subject:
    """The result is intact, but a checkpoint in the same run is damaged."""
    folder = Path(tempfile.mkdtemp(dir=subjects.folder))
    make_bundle(folder / "last", "decoder")
    step = make_bundle(folder / "checkpoints" / "step-00000007", "decoder")
    (step / "tokenizer.json").write_bytes((step / "tokenizer.json").read_bytes()[:-1])
    return Subject(folder=folder)


def labels_of_a_student(subjects: Subjects, patch: Patch) -> Subject:
    return modify_batches(subjects.student(), lambda batch: {**batch, "labels": batch["tokens"].clone()})


def sentinels_from_one(subjects: Subjects, patch: Patch) -> Subject:
    subject = subjects.spans()
    assert subject.tokenizer is not None
    first, *_, last = find_sentinels(subject.tokenizer)

    def change(batch: Batch) -> Batch:
        later = {name: batch[name] + ((batch[name] >= first) & (batch[name] < last)) for name in ("target", "labels")}
        return {**batch, **later}

    return modify_batches(subject, change)


def pooling_ignores_the_mask(subjects: Subjects, patch: Patch) -> Subject:
    pool = heads.pool
    patch.setattr(heads, "pool", lambda hidden, mask, **options: pool(hidden, None, **options))
    return subjects.labeled("decoder")


PLANTED_BUGS: dict[str, PlantedBug] = {
    "mask off by one": PlantedBug("future", mask_off_by_one, ("cache", "engine", "fused", "mates")),
    "mask off by one, translation": PlantedBug("future", mask_off_by_one_in_translation, ("cache", "engine")),
    "no causal mask": PlantedBug("future", no_causal_mask, ("cache", "engine", "padding")),
    "causal rule off by one beside a mask": PlantedBug(
        "future", rule_off_by_one_beside_a_mask, ("fused", "cache", "padding", "engine")
    ),
    "a mask that ends too early": PlantedBug("future", mask_that_ends_too_early, ("fused",)),
    "the first row in later rows": PlantedBug("mates", first_row_in_later_rows, ("cache",)),
    "causal encoder": PlantedBug("reach", causal_encoder("encoder")),
    "causal encoder of a translator": PlantedBug("reach", causal_encoder("encoder-decoder")),
    "sinusoidal positions all 0": PlantedBug("reach", positions_all_zero("decoder", "sinusoidal"), ("engine",)),
    "rotary positions all 0": PlantedBug("reach", positions_all_zero("decoder", "rotary"), ("engine",)),
    "learned positions all 0": PlantedBug("reach", positions_all_zero("encoder", "learned"), ("gradients",)),
    "positions of a source all 0": PlantedBug("reach", positions_all_zero("encoder-decoder", "rotary"), ("engine",)),
    "statistics of the batch in eval mode": PlantedBug("mates", statistics_of_the_batch, ("padding", "gradients")),
    "source mask ignored": PlantedBug("padding", source_mask_ignored, ("cache", "engine")),
    "memory mask ignored": PlantedBug("padding", memory_mask_ignored, ("cache", "engine")),
    "pooled over padding": PlantedBug("padding", pool_over_padding),
    "swapped pad id": PlantedBug("padding", swapped_pad_id),
    "swapped pad id of the target": PlantedBug("padding", swapped_target_pad_id),
    "padding counts as real": PlantedBug("padding", padding_counts_as_real),
    "cache position off by one": PlantedBug("cache", cache_position_off_by_one, ("engine",)),
    "cache ignores lengths": PlantedBug("cache", cache_ignores_lengths, ("engine",)),
    "cache ignores the source mask": PlantedBug("cache", cache_ignores_the_source_mask, ("engine",)),
    "fused kernel of another scale": PlantedBug("fused", fused_with_another_scale),
    "fused norm of another variance": PlantedBug("fused", fused_norm_of_another_variance, ("engine",)),
    "query norm missing": PlantedBug("fused", query_norm_missing, ("gradients",)),
    "cached window off by one": PlantedBug("cache", cached_window_off_by_one, ("engine",)),
    "experts lose a token": PlantedBug("fused", experts_lose_a_token, ("future", "cache", "engine", "padding")),
    "mean of means": PlantedBug("accumulation", mean_of_means),
    "only the last batch counts": PlantedBug("accumulation", with_objective(ZeroGradObjective, "encoder-decoder")),
    "positives of the next row": PlantedBug("labels", change_sentences(shift_positives), ("alignment",)),
    "duplicates are negatives": PlantedBug("labels", change_sentences(separate_groups)),
    "no negatives": PlantedBug("labels", change_sentences(one_group), ("overfit",)),
    "padding of positives unmasked": PlantedBug("padding", change_sentences(unmask_positives), ("labels",)),
    "negatives of the own batch only": PlantedBug("accumulation", with_contrastive(OwnBatchObjective)),
    "the label is the next row": PlantedBug("overfit", with_contrastive(NextPositiveObjective)),
    "gradient uphill": PlantedBug("overfit", with_objective(NegatedGradientObjective, "decoder")),
    "dropout left on": PlantedBug("dropout", dropout_left_on),
    "a part left in training mode": PlantedBug("dropout", part_left_in_training),
    "labels not shifted": PlantedBug("labels", labels_not_shifted, ("first loss",)),
    "labels shifted twice": PlantedBug("labels", labels_shifted_twice),
    "labels of a translation not shifted": PlantedBug("labels", target_labels_not_shifted, ("first loss",)),
    "labels shifted from their masks": PlantedBug("labels", labels_shifted_from_their_masks),
    "shuffled labels": PlantedBug("labels", shuffled_labels),
    "begin token instead of the end token": PlantedBug("labels", begin_token_instead_of_end),
    "no end token": PlantedBug("labels", no_end_token),
    "no begin token": PlantedBug("labels", no_begin_token, ("batches",)),
    "classes of the next texts": PlantedBug("alignment", change_labels("labels", lambda labels: labels.roll(1))),
    "every class is the first": PlantedBug("labels", change_labels("labels", torch.zeros_like, "decoder")),
    "tags one token late": PlantedBug("labels", change_labels("tags", lambda labels: labels.roll(1, 1))),
    "sentinels of targets numbered from one": PlantedBug("labels", sentinels_from_one),
    "labels of a student not shifted": PlantedBug("labels", labels_of_a_student, ("first loss",)),
    "padding reaches the classes": PlantedBug("padding", pooling_ignores_the_mask),
    "every other label ignored": PlantedBug("labels", ignore_labels("decoder", every_other)),
    "half of the labels ignored": PlantedBug("labels", ignore_labels("decoder", lambda numbers: numbers < 0.5)),
    "half of the rows ignored": PlantedBug("labels", ignore_labels("decoder", lambda numbers: (numbers < 0.5)[:, :1])),
    "labels inside targets ignored": PlantedBug("labels", ignore_labels("encoder-decoder", every_other)),
    "half of the hidden tokens ignored": PlantedBug("labels", ignore_labels("encoder", lambda numbers: numbers < 0.5)),
    "prompts of a chat are learned": PlantedBug("chat", chat_prompts_are_learned),
    "questions of a chat are learned": PlantedBug("chat", chat_questions_are_learned),
    "answers that the rule cannot compare": PlantedBug("rewards", lambda s, _: s.prompts(in_words, reward="number")),
    "sampled answers in another order": PlantedBug("rewards", change_answers(group_by_sample)),
    "labels of sampled answers are shifted": PlantedBug("rewards", change_answers(shift_labels_of_answers)),
    "advantages over the whole batch": PlantedBug("rewards", change_advantages(lambda r: r - r.mean())),
    "advantages with the wrong sign": PlantedBug("rewards", change_advantages(lambda r: r.mean(1, keepdim=True) - r)),
    "labels of a chat begin a token late": PlantedBug("chat", chat_labels_begin_a_token_late),
    "the same batch always": PlantedBug("batches", same_batch_always),
    "sources cut to two tokens": PlantedBug("batches", sources_cut),
    "optimizer without feed-forwards": PlantedBug("optimizer", optimizer_without_feedforwards),
    "tied weights differ": PlantedBug("tied", tied_weights_differ),
    "shared tables differ": PlantedBug("tied", shared_tables_differ),
    "initial weights too large": PlantedBug("first loss", initial_weights_too_large),
    "frozen parameter": PlantedBug("gradients", frozen_parameter),
    "detached attention": PlantedBug("gradients", detached_attention),
    "dead ReLU": PlantedBug("dead", dead_relu, ("gradients",)),
    "dead experts": PlantedBug("dead", dead_experts),
    "NaN weight": PlantedBug("numbers", not_a_number),
    "a pass that overflows": PlantedBug("numbers", overflowing_pass),
    "embeddings with a large offset": PlantedBug(
        "precision", embeddings_with_large_offset, ("engine", "mates", "fused")
    ),
    "overflow in fp16": PlantedBug("precision", overflow_in_fp16),
    "tokenizer of another language": PlantedBug("unknown", tokenizer_of_another_language),
    "tokenizer that lowercases": PlantedBug("tokenizer", tokenizer_that_lowercases),
    "tokenizer that loses spaces": PlantedBug("tokenizer", tokenizer_that_loses_spaces),
    "tokenizer that drops words": PlantedBug("tokenizer", tokenizer_that_drops_words),
    "recipe whose tokenizer drops words": PlantedBug("tokenizer", recipe_whose_tokenizer_drops_words),
    "tokenizer of another model": PlantedBug("tokenizer", tokenizer_of_another_model),
    "typed specials": PlantedBug("specials", typed_specials),
    "specials taken from texts": PlantedBug("specials", specials_taken_from_texts),
    "leaked validation pairs": PlantedBug("leak", leaked_pairs),
    "nearly leaked validation pairs": PlantedBug("leak", nearly_leaked_pairs),
    "leaked validation text": PlantedBug("leak", leaked_text),
    "duplicated pairs": PlantedBug("lines", duplicated_pairs),
    "duplicated lines": PlantedBug("lines", duplicated_lines),
    "empty sides": PlantedBug("lines", empty_sides),
    "replacement characters": PlantedBug("lines", replacement_characters),
    "untranslated pairs": PlantedBug("languages", untranslated_pairs),
    "swapped languages": PlantedBug("languages", swapped_languages, ("unknown",)),
    "swapped columns": PlantedBug("languages", swapped_columns),
    "misaligned after a missing line": PlantedBug("alignment", misaligned_after_a_missing_line),
    "misaligned throughout": PlantedBug("alignment", misaligned_throughout),
    "shuffled targets": PlantedBug("alignment", shuffled_targets),
    "flipped byte": PlantedBug("checkpoint", damaged(flipped)),
    "truncated file": PlantedBug("checkpoint", damaged(lambda data: data[:-7])),
    "damaged checkpoint": PlantedBug("checkpoint", damaged_checkpoint),
}


POSSIBLE_INTENTIONS: dict[str, PlantedBug] = {
    "rare words": PlantedBug("unknown", rare_words),
    "batch norm": PlantedBug("mates", lambda subjects, patch: subjects.decoder(norm="batch")),
    "only answers are learned": PlantedBug("labels", ignore_labels("decoder", beginning_of_each_row)),
}


# Healthy subjects.


def trained(kind: str) -> Callable[[Subjects], Iterator[Subject]]:
    @contextmanager
    def make_subject(subjects: Subjects) -> Iterator[Subject]:
        import io

        from rich.console import Console

        from chumoku.doctor.open_subject import open_subject
        from chumoku.training.run import train

        out = subjects.folder / f"trained-{kind}"
        train(
            subjects.recipe(kind, train={"out": str(out), "validation_batches": 3}), console=Console(file=io.StringIO())
        )
        with open_subject(str(out / "last")) as subject:
            assert subject.train is not None
            yield subject

    return make_subject  # type: ignore[return-value]


def imported(variant: str) -> Callable[[Subjects], Any]:
    @contextmanager
    def make_subject(subjects: Subjects) -> Iterator[Subject]:
        from foreign import save_variant as write

        from chumoku.doctor.open_subject import open_subject

        write(variant, subjects.folder / variant)
        with open_subject(str(subjects.folder / variant)) as subject:
            yield subject

    return make_subject


PROMPT = "System: You are a helpful assistant. Answer briefly, truthfully and politely, and never invent anything."
RULE = 60 * "-"


def corpus_with(change: Callable[[int, str], str], kind: str = "byte") -> Callable[[Subjects], Any]:
    """A corpus whose lines are changed by `change`, and a tokenizer of this kind."""

    @contextmanager
    def make_subject(subjects: Subjects) -> Iterator[Subject]:
        folder = Path(tempfile.mkdtemp(dir=subjects.folder))
        pairs = list(dict.fromkeys(grammar.generate(COUNT)))
        lines = [change(number, f"{one.target} {other.target}") for number, (one, other) in enumerate(pairwise(pairs))]
        (folder / "text.txt").write_text("\n\n".join(lines[::2]), encoding="utf-8")
        recipe = subjects.recipe("decoder", data={"files": str(folder / "text.txt")})
        tokenizer = {"kind": kind} if kind in ("byte", "word", "character") else {"kind": kind, "vocabulary": 700}
        yield subject_from_recipe(read_recipe({**recipe, "tokenizer": tokenizer}), folder, lambda sentence: None)

    return make_subject


def fresh(kind: str, **model: Any) -> Callable[[Subjects], Any]:
    @contextmanager
    def make_subject(subjects: Subjects) -> Iterator[Subject]:
        yield subjects.subject(kind, **model)

    return make_subject


@contextmanager
def fresh_prompts(subjects: Subjects) -> Iterator[Subject]:
    yield subjects.prompts()


@contextmanager
def fresh_chat(subjects: Subjects) -> Iterator[Subject]:
    yield subjects.chat()


@contextmanager
def spans(subjects: Subjects) -> Iterator[Subject]:
    yield subjects.spans(share_embeddings=True, position="relative_bias")


@contextmanager
def student(subjects: Subjects) -> Iterator[Subject]:
    yield subjects.student(norm="rms")


def labeled(kind: str, data_kind: str = "labels", **model: Any) -> Callable[[Subjects], Any]:
    @contextmanager
    def make_subject(subjects: Subjects) -> Iterator[Subject]:
        yield subjects.labeled(kind, data_kind, **model)

    return make_subject


DROPOUT = {"embedding": 0.1, "attention": 0.2, "sublayer": 0.1}
PAPER = {"position": "sinusoidal", "placement": "post", "scale_embedding": True, "share_embeddings": True}
GEMMA = {
    **{"norm": "rms", "norm_unit_offset": True, "placement": "sandwich", "query_key_norm": "head", "bias": False},
    **{"attention_window": 5, "full_attention_every": 2, "rotary": {"local_base": 77.0}, "feedforward": "geglu_tanh"},
    **{"head_width": 10, "attention_scale": 0.3, "score_cap": 5.0, "logit_cap": 7.0, "scale_embedding": True},
}
HEALTHY: dict[str, Callable[[Subjects], Any]] = {
    "decoder": fresh("decoder"),
    "decoder, sinusoidal, rms, swiglu": fresh("decoder", position="sinusoidal", norm="rms", feedforward="swiglu"),
    "decoder, learned, post, relu": fresh("decoder", position="learned", placement="post", feedforward="relu"),
    "decoder, relative, geglu, one key head": fresh("decoder", position="relative", feedforward="geglu", kv_heads=1),
    "decoder, alibi": fresh("decoder", position="alibi", norm="rms"),
    "translator, relative bias": fresh("encoder-decoder", position="relative_bias"),
    "decoder, window": fresh("decoder", attention_window=5),
    "decoder like Gemma": fresh("decoder", **GEMMA),
    "decoder like OLMo 2": fresh("decoder", norm="rms", placement="output", query_key_norm="all", bias=False),
    "decoder like GPT-NeoX": fresh("decoder", parallel=True, rotary={"share": 0.25}),
    "decoder, no positions, untied": fresh("decoder", position="none", tie_output=False, output_bias=True),
    "decoder, experts": fresh("decoder", experts=5, feedforward="swiglu", norm="rms", bias=False),
    "decoder, xavier, dropout": fresh("decoder", initialization="xavier", dropout=DROPOUT),
    "decoder, separate documents": fresh("decoder", data={"separate_documents": True}),
    "encoder": fresh("encoder", position="learned"),
    "encoder like BERT": fresh("encoder", position="learned", placement="post", embedding_norm=True, segments=2),
    "encoder, experts, rotary": fresh("encoder", experts=3, dropout=DROPOUT),
    "encoder, relative, rms, silu": fresh("encoder", position="relative", norm="rms", feedforward="silu"),
    "encoder, alibi, window": fresh("encoder", position="alibi", attention_window=7),
    "sentence encoder": lambda subjects: nullcontext(subjects.sentences()),
    "sentence encoder, learned, rms, dropout": lambda subjects: nullcontext(
        subjects.sentences(position="learned", norm="rms", dropout=DROPOUT)
    ),
    "translator, alibi, window": fresh("encoder-decoder", position="alibi", attention_window=3),
    "translator": fresh("encoder-decoder", feedforward="relu", initialization="xavier"),
    "translator of the paper": fresh("encoder-decoder", **PAPER, initialization="xavier", feedforward="relu"),
    "translator, relative, kv heads": fresh("encoder-decoder", position="relative", kv_heads=1, layers=1),
    "translator, experts": fresh("encoder-decoder", experts=4, norm="rms", dropout=DROPOUT),
    "translator, none, untied, gelu_tanh": fresh("encoder-decoder", position="none", tie_output=False),
    "a prompt in every document": corpus_with(lambda number, line: f"{PROMPT}\n{line}"),
    "a prompt in every line": corpus_with(lambda number, line: f"{PROMPT} {line}"),
    "rules of dashes": corpus_with(lambda number, line: f"{line}\n{RULE}" if number % 3 else line),
    "accents, quotes, forms, unigram": corpus_with(lambda number, line: f"“Ｃａｆé”… {line}", "unigram"),
    "wordpiece tokenizer": corpus_with(lambda number, line: f"naïve — {line}", "wordpiece"),
    "word tokenizer": corpus_with(lambda number, line: line, "word"),
    "character tokenizer, Japanese": corpus_with(lambda number, line: f"ﾊﾝｶｸ、が　{number} {line}", "character"),
    "conversations": fresh_chat,
    "prompts": fresh_prompts,
    "trained decoder": trained("decoder"),
    "trained encoder": trained("encoder"),
    "trained translator": trained("encoder-decoder"),
    "classes": labeled("encoder", position="learned", dropout=DROPOUT),
    "classes of a decoder, last token": labeled("decoder", pooling="last", classifier_activation="tanh"),
    "tags": labeled("encoder", "tags"),
    "span corruption": spans,
    "student": student,
    "gpt2": imported("gpt2"),
    "bert": imported("bert"),
    "bert body": imported("bert body"),
    "llama": imported("llama"),
    "llama tied": imported("llama tied"),
    "marian": imported("marian"),
    "marian two tables": imported("marian two tables"),
}


def confusion() -> None:
    """Print which checks report each planted bug and each healthy subject."""
    from chumoku.doctor import examine

    right = 0
    with tempfile.TemporaryDirectory() as name:
        subjects = Subjects(Path(name))
        for title, planted in PLANTED_BUGS.items():
            with pytest.MonkeyPatch.context() as patch:
                findings = examine(planted.plant(subjects, patch)).findings
            reported = list(dict.fromkeys(f.check if f.measured else f"{f.check} FAILED" for f in findings))
            unexpected = [check for check in reported if check not in (planted.check, "modules", *planted.also)]
            good = planted.check in reported and not unexpected
            right += good
            print(
                f"{'right' if good else 'WRONG'}  {title:<40} {planted.check:<13} {', '.join(reported) or 'nothing'}",
                flush=True,
            )
        print(f"{right} of {len(PLANTED_BUGS)} planted bugs found by the right check.")
        for title, planted in POSSIBLE_INTENTIONS.items():
            with pytest.MonkeyPatch.context() as patch:
                findings = examine(planted.plant(subjects, patch)).findings
            print(f"worth a look  {title:<33} {[(f.check, f.sure) for f in findings]}", flush=True)
        silent = 0
        for title, make_subject in HEALTHY.items():
            with make_subject(subjects) as subject:
                report = examine(subject)
            silent += not report.findings
            shown = "; ".join(f"{f.check}: {f.what} ({f.where})" for f in report.findings) or "healthy"
            print(f"{title:<40} {len(report.passed)} passed  {shown}", flush=True)
        print(f"{silent} of {len(HEALTHY)} healthy subjects have no findings.")


if __name__ == "__main__":
    torch.set_num_threads(1)
    confusion()
