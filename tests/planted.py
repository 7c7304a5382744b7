"""Bugs planted into healthy models, tokenizers and corpora, and the healthy subjects themselves.

    python tests/planted.py            the confusion table: planted bug, checks with findings

Each plant names the check that must find it; `also` lists checks that may report its consequences. Possible intentions
(LOOKS) are reported too, but not as broken.
"""

from __future__ import annotations

import copy
import math
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from bundles import made as bundle
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers
from torch import Tensor, nn

from chumoku import text
from chumoku.data import grammar
from chumoku.data.batches import IGNORE
from chumoku.data.pairs import Pair
from chumoku.doctor import Subject
from chumoku.doctor.open_subject import subject_from_model, subject_from_recipe
from chumoku.models.build import build
from chumoku.models.stack import Memory, Stack
from chumoku.nn import attention, masks
from chumoku.nn.attention import UNMASKED, AttentionContext
from chumoku.nn.cache import Cache
from chumoku.nn.moe import MixtureOfExperts
from chumoku.text.tokenizer import Tokenizer
from chumoku.training import optimizer
from chumoku.training.loop import Run
from chumoku.training.objectives import Objective, count_labels
from chumoku.training.recipe import read_recipe

COUNT = 1000
SIZES: dict[str, Any] = {"width": 24, "heads": 3, "layers": 2, "context": 29, "feedforward_width": 37}
Patch = pytest.MonkeyPatch


class Ward:
    """Healthy subjects: each kind's corpus is prepared once; each model is new."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._bases: dict[str, Subject] = {}
        lines = list(dict.fromkeys(pair.target for pair in grammar.generate(COUNT)))
        (folder / "text.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")

    def recipe(self, kind: str, **changes: dict[str, Any]) -> dict[str, Any]:
        pairs = kind == "encoder-decoder"
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
            working = self.folder / f"ward-{len(self._bases)}"
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

    def translator(self, **model: Any) -> Subject:
        return self.subject("encoder-decoder", **model)

    def corpus(self) -> Subject:
        """Pairs without a model."""
        return replace(self.translator(), model=None, recipe=None)


Planting = Callable[[Ward, Patch], Subject]


class Plant(NamedTuple):
    check: str  # the check that must find it
    plant: Planting
    also: tuple[str, ...] = ()  # checks that may also have findings


class ModifiedBatches:
    """Batches modified by a function."""

    def __init__(self, batches: Any, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
        self._batches, self._change = batches, change

    def __len__(self) -> int:
        return len(self._batches)

    def batch(self, epoch: int, index: int, *share: Any) -> dict[str, Tensor]:
        return self._change({name: table.clone() for name, table in self._batches.batch(epoch, index, *share).items()})


def modify_batches(subject: Subject, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Subject:
    return replace(
        subject, train=ModifiedBatches(subject.train, change), validation=ModifiedBatches(subject.validation, change)
    )


# Masks, rows and padding.


def see_ahead(stack: Stack, by: int) -> None:
    usual = stack.attention_context

    def attention_context(positions: Tensor, end: int, **rest: Any) -> AttentionContext:
        made = usual(positions, end, **rest)
        if not made.causal:
            return made
        new = positions.shape[-1]
        rule = torch.ones(new, end, dtype=torch.bool).tril(end - new + by)
        return made._replace(causal=False, mask=rule if made.mask is None else made.mask & rule)

    stack.attention_context = attention_context  # type: ignore[method-assign]


def mask_off_by_one(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder()
    see_ahead(subject.model.decoder, 1)
    return subject


def mask_off_by_one_in_translation(ward: Ward, patch: Patch) -> Subject:
    subject = ward.translator(position="sinusoidal")
    see_ahead(subject.model.decoder, 1)
    return subject


def no_causal_mask(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder(position="learned", norm="rms", feedforward="swiglu")
    subject.model.decoder.causal = False
    return subject


def rule_off_by_one_beside_a_mask(ward: Ward, patch: Patch) -> Subject:
    usual = masks.causal
    patch.setattr(masks, "causal", lambda length, past=0, device=None: usual(length, past=past + 1)[:, : past + length])
    return ward.decoder()


def mask_that_ends_too_early(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder()
    stack = subject.model.decoder
    usual = stack.attention_context

    def attention_context(positions: Tensor, end: int, **rest: Any) -> AttentionContext:
        made, new = usual(positions, end, **rest), positions.shape[-1]
        if not made.causal or new <= 26:
            return made
        rule = torch.ones(new, end, dtype=torch.bool).tril(end - new)
        rule[26:, 26:] = True
        return made._replace(causal=False, mask=rule if made.mask is None else made.mask & rule)

    stack.attention_context = attention_context  # type: ignore[method-assign]
    return subject


def first_row_in_later_rows(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder()
    table = subject.model.decoder.embedding
    usual = table.forward
    table.forward = lambda tokens: torch.cat([(x := usual(tokens))[:4], x[4:] + x[:1]])
    return subject


def causal_encoder(kind: str) -> Planting:
    def plant(ward: Ward, patch: Patch) -> Subject:
        subject = ward.subject(kind)
        subject.model.encoder.causal = True
        return subject

    return plant


def positions_all_zero(kind: str, position: str) -> Planting:
    def plant(ward: Ward, patch: Patch) -> Subject:
        subject = ward.subject(kind, position=position)
        stack = subject.model.decoder if kind == "decoder" else subject.model.encoder
        part = stack.rotary if position == "rotary" else stack.position
        usual = part.forward
        part.forward = lambda positions, *rest: usual(torch.zeros_like(positions), *rest)
        return subject

    return plant


def batch_norm(ward: Ward, patch: Patch) -> Subject:
    return ward.decoder(norm="batch")


def statistics_of_the_batch(ward: Ward, patch: Patch) -> Subject:
    subject = ward.encoder(norm="batch")
    for module in subject.model.modules():
        if hasattr(module, "momentum"):

            def forward(x: Tensor, module: Any = module) -> Tensor:
                return F.batch_norm(x.flatten(0, -2), None, None, module.gamma, module.beta, True).view_as(x)

            module.forward = forward
    return subject


def source_mask_ignored(ward: Ward, patch: Patch) -> Subject:
    subject = ward.translator()
    usual = subject.model.encoder.attention_context
    subject.model.encoder.attention_context = lambda positions, end, **rest: usual(
        positions, end, **{**rest, "mask": None}
    )
    return subject


def memory_mask_ignored(ward: Ward, patch: Patch) -> Subject:
    patch.setattr(Memory, "attention_context", property(lambda memory: UNMASKED))
    return ward.translator()


def pool_over_padding(ward: Ward, patch: Patch) -> Subject:
    from chumoku.models import model

    usual = model.pool
    patch.setattr(model, "pool", lambda hidden, mask, **how: usual(hidden, None, **how))
    return ward.encoder()


def swapped_pad_id(ward: Ward, patch: Patch) -> Subject:
    def change(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        batch["source"][~batch["source_mask"]] = 2
        return batch

    return modify_batches(ward.translator(), change)


def swapped_target_pad_id(ward: Ward, patch: Patch) -> Subject:
    def change(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        batch["target"][batch["labels"] == IGNORE] = 3
        return batch

    return modify_batches(ward.translator(), change)


def padding_counts_as_real(ward: Ward, patch: Patch) -> Subject:
    return modify_batches(
        ward.translator(), lambda batch: {**batch, "source_mask": torch.ones_like(batch["source_mask"])}
    )


# Caches and fast twins.


def cache_position_off_by_one(ward: Ward, patch: Patch) -> Subject:
    usual = Cache.positions
    patch.setattr(Cache, "positions", lambda cache, new: usual(cache, new) + (1 if cache.used else 0))
    return ward.decoder()


def cache_forgets_lengths(ward: Ward, patch: Patch) -> Subject:
    patch.setattr(Cache, "advance", lambda cache, new, lengths=None: replace(cache, used=cache.used + new))
    return ward.decoder(position="relative")


def cache_forgets_the_source_mask(ward: Ward, patch: Patch) -> Subject:
    usual = Cache.with_memory
    patch.setattr(Cache, "with_memory", lambda cache, memory, mask: usual(cache, memory, None))
    return ward.translator()


def fused_without_the_root(ward: Ward, patch: Patch) -> Subject:
    usual = attention.attend_fused
    patch.setattr(attention, "attend_fused", lambda query, *rest, **how: usual(1.5 * query, *rest, **how))
    return ward.encoder()


def fused_norm_of_another_variance(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder()
    norm = subject.model.decoder.norm
    usual = norm.forward
    norm.forward = lambda x: usual(x) * math.sqrt((x.shape[-1] - 1) / x.shape[-1])
    return subject


def experts_lose_a_token(ward: Ward, patch: Patch) -> Subject:
    usual = MixtureOfExperts.forward

    def forward(experts: MixtureOfExperts, x: Tensor, losses: Any = None) -> Tensor:
        output = usual(experts, x, losses)
        kept = torch.ones_like(output[..., :1])
        kept[:, -1:] = 0.5
        return output * kept

    patch.setattr(MixtureOfExperts, "forward", forward)
    return ward.decoder(experts=5, feedforward="swiglu")


# Training.


def mean_of_means(ward: Ward, patch: Patch) -> Subject:
    def train_step(run: Run, batches: list[dict[str, Tensor]], tokens: int) -> bool:
        run.optimizer.zero_grad()
        for batch in batches:
            (run.module(batch) / count_labels(batch) / len(batches)).backward()
        run.optimizer.step(run.recipe.peak_learning_rate)
        return True

    patch.setattr(Run, "train_step", train_step)
    return ward.decoder()


class Forgetting(Objective):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        for parameter in self.model.parameters():
            parameter.grad = None
        return super().forward(batch)


class Uphill(Objective):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        loss = super().forward(batch)
        return 2 * loss.detach() - loss


def with_objective(cls: type[Objective], kind: str) -> Planting:
    def plant(ward: Ward, patch: Patch) -> Subject:
        subject = ward.subject(kind)
        return replace(subject, objective=cls(subject.model))

    return plant


def dropout_left_on(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder()
    subject.model.decoder.blocks[1]._drop = lambda x: F.dropout(x, 0.3, True)
    return subject


def part_left_in_training(ward: Ward, patch: Patch) -> Subject:
    subject = ward.encoder(dropout={"attention": 0.2})
    subject.model.encoder.blocks[0].attention.train()
    return subject


def labels_not_shifted(ward: Ward, patch: Patch) -> Subject:
    return modify_batches(ward.decoder(), lambda batch: {**batch, "labels": batch["tokens"].clone()})


def labels_shifted_twice(ward: Ward, patch: Patch) -> Subject:
    def change(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        labels = torch.roll(batch["labels"], -1, 1)
        labels[:, -1] = IGNORE
        return {**batch, "labels": labels}

    return modify_batches(ward.decoder(), change)


def target_labels_not_shifted(ward: Ward, patch: Patch) -> Subject:
    def change(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**batch, "labels": batch["target"].masked_fill(batch["labels"] == IGNORE, IGNORE)}

    return modify_batches(ward.translator(), change)


def masked_labels_beside_their_masks(ward: Ward, patch: Patch) -> Subject:
    return modify_batches(ward.encoder(), lambda batch: {**batch, "labels": torch.roll(batch["labels"], 1, 1)})


def shuffled_labels(ward: Ward, patch: Patch) -> Subject:
    def change(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        order = torch.randperm(batch["labels"].shape[1], generator=torch.Generator().manual_seed(1))
        return {**batch, "labels": batch["labels"][:, order]}

    return modify_batches(ward.decoder(), change)


def end_that_is_the_beginning(ward: Ward, patch: Patch) -> Subject:
    subject = ward.translator()
    roles = subject.tokenizer.roles
    return modify_batches(
        subject,
        lambda batch: {**batch, "labels": torch.where(batch["labels"] == roles.end, roles.begin, batch["labels"])},
    )


def no_end_token(ward: Ward, patch: Patch) -> Subject:
    subject = ward.translator()
    end = subject.tokenizer.roles.end
    return modify_batches(
        subject, lambda batch: {**batch, "labels": batch["labels"].masked_fill(batch["labels"] == end, IGNORE)}
    )


def no_begin_token(ward: Ward, patch: Patch) -> Subject:
    def change(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        target = torch.cat([batch["target"][:, 1:], batch["target"][:, -1:]], 1)
        labels = torch.cat([batch["labels"][:, 1:], torch.full_like(batch["labels"][:, :1], IGNORE)], 1)
        return {**batch, "target": target, "labels": labels}

    return modify_batches(ward.translator(), change)


def unlearned(kind: str, which: Callable[[Tensor], Tensor]) -> Planting:
    """Labels that are ignored where `which` of random numbers [B, T] says so."""

    def change(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        numbers = torch.rand(batch["labels"].shape, generator=torch.Generator().manual_seed(2))
        return {**batch, "labels": batch["labels"].masked_fill(which(numbers), IGNORE)}

    return lambda ward, patch: modify_batches(ward.subject(kind), change)


def every_other(numbers: Tensor) -> Tensor:
    return (torch.arange(numbers.shape[1]) % 2 == 0).expand_as(numbers)


def questions(numbers: Tensor) -> Tensor:
    """Of every row a beginning, long or short: only answers are learned."""
    return torch.arange(numbers.shape[1]) < 4 + 15 * numbers[:, :1]


def same_batch_always(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder()
    usual = subject.train.batch
    return replace(subject, train=ModifiedBatches(subject.train, lambda batch: usual(0, 0)))


def sources_cut(ward: Ward, patch: Patch) -> Subject:
    def change(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**batch, "source": batch["source"][:, :2], "source_mask": batch["source_mask"][:, :2]}

    return modify_batches(ward.translator(), change)


def optimizer_without_feedforwards(ward: Ward, patch: Patch) -> Subject:
    usual = optimizer._build

    def made(parameters: dict[str, Any], settings: Any) -> Any:
        return usual({name: one for name, one in parameters.items() if "feedforward." not in name}, settings)

    patch.setattr(optimizer, "_build", made)
    return ward.decoder()


def tied_weights_apart(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder()
    subject.model.head.weight = nn.Parameter(1.01 * subject.model.decoder.embedding.table.detach())
    return subject


def shared_tables_apart(ward: Ward, patch: Patch) -> Subject:
    subject = ward.translator(share_embeddings=True)
    subject.model.encoder.embedding = copy.deepcopy(subject.model.decoder.embedding)
    return subject


def beginning_too_large(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder(tie_output=False)
    subject.model.head.weight.data *= 100
    return subject


def frozen_parameter(ward: Ward, patch: Patch) -> Subject:
    subject = ward.translator()
    subject.model.decoder.blocks[0].cross_attention.value.weight.requires_grad_(False)
    return subject


def detached_attention(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder()
    inner = subject.model.decoder.blocks[1].attention
    usual = inner.forward
    inner.forward = lambda *args, **rest: usual(*args, **rest).detach()
    return subject


def dead_relu(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder(feedforward="relu")
    subject.model.decoder.blocks[0].feedforward.up.bias.data.fill_(-50.0)
    return subject


def dead_experts(ward: Ward, patch: Patch) -> Subject:
    subject = ward.encoder(experts=5, norm="layer")
    block = subject.model.encoder.blocks[0]
    block.feedforward_norm.beta.data.fill_(1.0)
    block.feedforward.router.weight.data[3:] = -5.0
    block.feedforward.router.weight.data[:3].abs_()
    return subject


def not_a_number(ward: Ward, patch: Patch) -> Subject:
    subject = ward.translator()
    subject.model.encoder.blocks[1].attention.query.weight.data[3, 5] = math.nan
    return subject


def overflowing_pass(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder()
    subject.model.decoder.blocks[0].feedforward.up.weight.data *= 1e38
    subject.model.decoder.blocks[0].feedforward.down.weight.data *= 1e38
    return subject


def drowned_embeddings(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder(tie_output=False, initialization="xavier")
    subject.model.decoder.embedding.table.data += 30_000.0
    return subject


def overflow_in_fp16(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder()
    part = subject.model.decoder.blocks[0].attention
    part.value.weight.data *= 1e7
    part.output.weight.data *= 1e-7
    recipe = read_recipe(ward.recipe("decoder", train={"precision": "fp16"}))
    return replace(subject, recipe=recipe)


# Tokenizers and corpora.


def tokenizer_of_another_language(ward: Ward, patch: Patch) -> Subject:
    corpus = ward.corpus()
    english = text.train([pair.target for pair in corpus.pairs], kind="character", vocabulary=300)
    return Subject(tokenizer=english, texts=[pair.source for pair in corpus.pairs])


def tokenizer_that_lowers(ward: Ward, patch: Patch) -> Subject:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Subject(tokenizer=Tokenizer(backend), texts=[pair.target for pair in ward.corpus().pairs])


def tokenizer_that_loses_spaces(ward: Ward, patch: Patch) -> Subject:
    lines = [pair.target for pair in ward.corpus().pairs]
    tokenizer = text.train(lines, kind="character", vocabulary=300)
    usual = tokenizer.decode_batch
    tokenizer.decode_batch = lambda batch, **how: [one.replace(" ", "") for one in usual(batch, **how)]  # type: ignore[method-assign]
    return Subject(tokenizer=tokenizer, texts=lines)


def forgetful(tokenizer: Tokenizer, *words: str) -> Tokenizer:
    """The same, whose normalizer drops some words."""
    backend = Backend.from_str(tokenizer.json)
    usual = [] if backend.normalizer is None else [backend.normalizer]
    backend.normalizer = normalizers.Sequence([*(normalizers.Replace(word, "") for word in words), *usual])
    return Tokenizer(backend)


def tokenizer_that_drops_words(ward: Ward, patch: Patch) -> Subject:
    lines = [pair.target for pair in ward.corpus().pairs]
    tokenizer = text.train(lines, kind="unigram", vocabulary=600)
    return Subject(tokenizer=forgetful(tokenizer, "not ", "the "), texts=lines)


def recipe_whose_tokenizer_drops_words(ward: Ward, patch: Patch) -> Subject:
    """The corpus was prepared with it, and has lost the words too."""
    folder = Path(tempfile.mkdtemp(dir=ward.folder))
    lines = (ward.folder / "text.txt").read_text(encoding="utf-8").splitlines()
    file = forgetful(text.train(lines, kind="wordpiece", vocabulary=500), "the ").save(folder / "tokenizer.json")
    recipe = ward.recipe("decoder")
    return subject_from_recipe(read_recipe({**recipe, "tokenizer": {"file": str(file)}}), folder, lambda sentence: None)


def tokenizer_of_another_model(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder()
    larger = text.train([pair.target for pair in ward.corpus().pairs], kind="bpe", vocabulary=503)
    return replace(subject, tokenizer=larger, source_tokenizer=None, train=None, validation=None)


def typed_specials(ward: Ward, patch: Patch) -> Subject:
    subject = ward.decoder()
    return replace(subject, texts=[f"<s>{line}</s>" if n % 9 == 0 else line for n, line in enumerate(subject.texts)])


def specials_taken_from_texts(ward: Ward, patch: Patch) -> Subject:
    tokenizer = text.train(["one text"], kind="byte")
    tokenizer._plain = tokenizer._special
    return Subject(tokenizer=tokenizer)


def leaked_pairs(ward: Ward, patch: Patch) -> Subject:
    corpus = ward.corpus()
    loud = [Pair(pair.source, pair.target.upper()) for pair in corpus.pairs[:5]]
    return replace(corpus, validation_pairs=[*corpus.validation_pairs, *loud])


def nearly_leaked_pairs(ward: Ward, patch: Patch) -> Subject:
    corpus = ward.corpus()
    long = [pair for pair in corpus.pairs if len(pair.target) > 35][:30]
    return replace(
        corpus,
        validation_pairs=[*corpus.validation_pairs, *(Pair(p.source, p.target.replace("e", "a", 1)) for p in long)],
    )


def leaked_text(ward: Ward, patch: Patch) -> Subject:
    subject = replace(ward.decoder(), model=None, train=None, validation=None)
    return replace(subject, validation_texts=[*subject.validation_texts, *subject.texts[40:55]])


def duplicated_pairs(ward: Ward, patch: Patch) -> Subject:
    corpus = ward.corpus()
    return replace(corpus, pairs=[*corpus.pairs, *corpus.pairs[::7]])


def duplicated_lines(ward: Ward, patch: Patch) -> Subject:
    lines = [
        f"{one.target} {other.target}" for one, other in zip(ward.corpus().pairs, ward.corpus().pairs[1:], strict=False)
    ]
    return Subject(texts=lines + lines[::5])


def empty_sides(ward: Ward, patch: Patch) -> Subject:
    corpus = ward.corpus()
    return replace(corpus, pairs=[Pair(p.source, " ") if n % 50 == 0 else p for n, p in enumerate(corpus.pairs)])


def letters_that_were_lost(ward: Ward, patch: Patch) -> Subject:
    lines = [pair.target for pair in ward.corpus().pairs]
    return Subject(texts=[f"{line[:20]}\ufffd{line[21:]}" if n % 25 == 0 else line for n, line in enumerate(lines)])


def untranslated_pairs(ward: Ward, patch: Patch) -> Subject:
    pairs = ward.corpus().pairs
    return Subject(pairs=[Pair(p.target, p.target) if n % 4 == 0 else p for n, p in enumerate(pairs)])


def swapped_languages(ward: Ward, patch: Patch) -> Subject:
    corpus = ward.corpus()
    return replace(corpus, pairs=[Pair(p.target, p.source) if n % 37 == 0 else p for n, p in enumerate(corpus.pairs)])


def columns_turned_around(ward: Ward, patch: Patch) -> Subject:
    recipe = read_recipe(ward.recipe("encoder-decoder", data={"languages": ["ja", "en"]}))
    pairs = [Pair(pair.target, pair.source) for pair in ward.corpus().pairs]
    return Subject(pairs=pairs, recipe=recipe)


def misaligned_from_a_line_on(ward: Ward, patch: Patch) -> Subject:
    corpus = ward.corpus()
    sources, targets = ([pair[side] for pair in corpus.pairs] for side in (0, 1))
    del targets[len(targets) // 2]
    return replace(corpus, pairs=[Pair(*pair) for pair in zip(sources, targets, strict=False)])


def misaligned_throughout(ward: Ward, patch: Patch) -> Subject:
    corpus = ward.corpus()
    targets = [pair.target for pair in corpus.pairs]
    return replace(corpus, pairs=[Pair(p.source, t) for p, t in zip(corpus.pairs, targets[1:], strict=False)])


def shuffled_targets(ward: Ward, patch: Patch) -> Subject:
    def change(batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**batch, **{name: torch.roll(batch[name], 1, 0) for name in ("target", "labels")}}

    return modify_batches(ward.translator(), change)


# Files.


def damaged(how: Callable[[bytes], bytes]) -> Planting:
    def plant(ward: Ward, patch: Patch) -> Subject:
        folder = bundle(Path(tempfile.mkdtemp(dir=ward.folder)) / "model", "decoder")
        file = folder / "model.safetensors"
        file.write_bytes(how(file.read_bytes()))
        return subject_from_model(str(folder), ward.folder, lambda sentence: None)

    return plant


def flipped(data: bytes) -> bytes:
    place = random.Random(3).randrange(len(data))
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


def damaged_checkpoint(ward: Ward, patch: Patch) -> Subject:
    """The result is whole, and a checkpoint beside it is not."""
    folder = Path(tempfile.mkdtemp(dir=ward.folder))
    bundle(folder / "last", "decoder")
    step = bundle(folder / "checkpoints" / "step-00000007", "decoder")
    (step / "tokenizer.json").write_bytes((step / "tokenizer.json").read_bytes()[:-1])
    return Subject(folder=folder)


PLANTS: dict[str, Plant] = {
    "mask off by one": Plant("future", mask_off_by_one, ("cache", "engine", "fused", "mates")),
    "mask off by one, translation": Plant("future", mask_off_by_one_in_translation, ("cache", "engine")),
    "no causal mask": Plant("future", no_causal_mask, ("cache", "engine", "padding")),
    "causal rule off by one beside a mask": Plant(
        "future", rule_off_by_one_beside_a_mask, ("fused", "cache", "padding", "engine")
    ),
    "a mask that ends too early": Plant("future", mask_that_ends_too_early, ("fused",)),
    "the first row in later rows": Plant("mates", first_row_in_later_rows, ("cache",)),
    "causal encoder": Plant("reach", causal_encoder("encoder")),
    "causal encoder of a translator": Plant("reach", causal_encoder("encoder-decoder")),
    "sinusoidal positions all 0": Plant("reach", positions_all_zero("decoder", "sinusoidal"), ("engine",)),
    "rotary positions all 0": Plant("reach", positions_all_zero("decoder", "rotary"), ("engine",)),
    "learned positions all 0": Plant("reach", positions_all_zero("encoder", "learned"), ("gradients",)),
    "positions of a source all 0": Plant("reach", positions_all_zero("encoder-decoder", "rotary"), ("engine",)),
    "statistics of the batch in eval mode": Plant("mates", statistics_of_the_batch, ("padding", "gradients")),
    "source mask ignored": Plant("padding", source_mask_ignored, ("cache", "engine")),
    "memory mask ignored": Plant("padding", memory_mask_ignored, ("cache", "engine")),
    "pooled over padding": Plant("padding", pool_over_padding),
    "swapped pad id": Plant("padding", swapped_pad_id),
    "swapped pad id of the target": Plant("padding", swapped_target_pad_id),
    "padding counts as real": Plant("padding", padding_counts_as_real),
    "cache position off by one": Plant("cache", cache_position_off_by_one, ("engine",)),
    "cache forgets lengths": Plant("cache", cache_forgets_lengths, ("engine",)),
    "cache forgets the source mask": Plant("cache", cache_forgets_the_source_mask, ("engine",)),
    "fused kernel of another scale": Plant("fused", fused_without_the_root),
    "fused norm of another variance": Plant("fused", fused_norm_of_another_variance, ("engine",)),
    "experts lose a token": Plant("fused", experts_lose_a_token, ("future", "cache", "engine", "padding")),
    "mean of means": Plant("accumulation", mean_of_means),
    "only the last batch counts": Plant("accumulation", with_objective(Forgetting, "encoder-decoder")),
    "gradient uphill": Plant("overfit", with_objective(Uphill, "decoder")),
    "dropout left on": Plant("dropout", dropout_left_on),
    "a part left in training mode": Plant("dropout", part_left_in_training),
    "labels not shifted": Plant("labels", labels_not_shifted, ("first loss",)),
    "labels shifted twice": Plant("labels", labels_shifted_twice),
    "labels of a translation not shifted": Plant("labels", target_labels_not_shifted, ("first loss",)),
    "labels beside their masks": Plant("labels", masked_labels_beside_their_masks),
    "shuffled labels": Plant("labels", shuffled_labels),
    "end that is the beginning": Plant("labels", end_that_is_the_beginning),
    "no end token": Plant("labels", no_end_token),
    "no begin token": Plant("labels", no_begin_token, ("batches",)),
    "every other label ignored": Plant("labels", unlearned("decoder", every_other)),
    "half of the labels ignored": Plant("labels", unlearned("decoder", lambda numbers: numbers < 0.5)),
    "half of the rows ignored": Plant("labels", unlearned("decoder", lambda numbers: (numbers < 0.5)[:, :1])),
    "labels inside targets ignored": Plant("labels", unlearned("encoder-decoder", every_other)),
    "half of the hidden tokens ignored": Plant("labels", unlearned("encoder", lambda numbers: numbers < 0.5)),
    "the same batch always": Plant("batches", same_batch_always),
    "sources cut to two tokens": Plant("batches", sources_cut),
    "optimizer without feed-forwards": Plant("optimizer", optimizer_without_feedforwards),
    "tied weights apart": Plant("tied", tied_weights_apart),
    "shared tables apart": Plant("tied", shared_tables_apart),
    "weights begin too large": Plant("first loss", beginning_too_large),
    "frozen parameter": Plant("gradients", frozen_parameter),
    "detached attention": Plant("gradients", detached_attention),
    "dead ReLU": Plant("dead", dead_relu, ("gradients",)),
    "dead experts": Plant("dead", dead_experts),
    "NaN weight": Plant("numbers", not_a_number),
    "a pass that overflows": Plant("numbers", overflowing_pass),
    "embeddings drowned in an offset": Plant("precision", drowned_embeddings, ("engine", "mates", "fused")),
    "overflow in fp16": Plant("precision", overflow_in_fp16),
    "tokenizer of another language": Plant("unknown", tokenizer_of_another_language),
    "tokenizer that lowers": Plant("tokenizer", tokenizer_that_lowers),
    "tokenizer that loses spaces": Plant("tokenizer", tokenizer_that_loses_spaces),
    "tokenizer that drops words": Plant("tokenizer", tokenizer_that_drops_words),
    "recipe whose tokenizer drops words": Plant("tokenizer", recipe_whose_tokenizer_drops_words),
    "tokenizer of another model": Plant("tokenizer", tokenizer_of_another_model),
    "typed specials": Plant("specials", typed_specials),
    "specials taken from texts": Plant("specials", specials_taken_from_texts),
    "leaked validation pairs": Plant("leak", leaked_pairs),
    "nearly leaked validation pairs": Plant("leak", nearly_leaked_pairs),
    "leaked validation text": Plant("leak", leaked_text),
    "duplicated pairs": Plant("lines", duplicated_pairs),
    "duplicated lines": Plant("lines", duplicated_lines),
    "empty sides": Plant("lines", empty_sides),
    "letters that were lost": Plant("lines", letters_that_were_lost),
    "untranslated pairs": Plant("languages", untranslated_pairs),
    "swapped languages": Plant("languages", swapped_languages, ("unknown",)),
    "columns turned around": Plant("languages", columns_turned_around),
    "misaligned from a line on": Plant("alignment", misaligned_from_a_line_on),
    "misaligned throughout": Plant("alignment", misaligned_throughout),
    "shuffled targets": Plant("alignment", shuffled_targets),
    "flipped byte": Plant("checkpoint", damaged(flipped)),
    "truncated file": Plant("checkpoint", damaged(lambda data: data[:-7])),
    "damaged checkpoint": Plant("checkpoint", damaged_checkpoint),
}


def rare_words(ward: Ward, patch: Patch) -> Subject:
    lines = [pair.target for pair in ward.corpus().pairs]
    return Subject(tokenizer=text.train(lines, kind="word", vocabulary=380), texts=lines)


LOOKS: dict[str, Plant] = {
    "rare words": Plant("unknown", rare_words),
    "batch norm": Plant("mates", batch_norm),
    "only answers are learned": Plant("labels", unlearned("decoder", questions)),
}


# Healthy patients.


def trained(kind: str) -> Callable[[Ward], Iterator[Subject]]:
    @contextmanager
    def admit(ward: Ward) -> Iterator[Subject]:
        import io

        from rich.console import Console

        from chumoku.doctor.open_subject import open_subject
        from chumoku.training.run import train

        out = ward.folder / f"trained-{kind}"
        train(ward.recipe(kind, train={"out": str(out), "validation_batches": 3}), console=Console(file=io.StringIO()))
        with open_subject(str(out / "last")) as subject:
            assert subject.train is not None
            yield subject

    return admit  # type: ignore[return-value]


def imported(variant: str) -> Callable[[Ward], Any]:
    @contextmanager
    def admit(ward: Ward) -> Iterator[Subject]:
        from foreign import save_variant as write

        from chumoku.doctor.open_subject import open_subject

        write(variant, ward.folder / variant)
        with open_subject(str(ward.folder / variant)) as subject:
            yield subject

    return admit


PROMPT = "System: You are a helpful assistant. Answer briefly, truthfully and politely, and never invent anything."
RULE = 60 * "-"


def corpus_with(change: Callable[[int, str], str], kind: str = "byte") -> Callable[[Ward], Any]:
    """A text of lines that `change` was made to, and a tokenizer of this kind."""

    @contextmanager
    def admit(ward: Ward) -> Iterator[Subject]:
        folder = Path(tempfile.mkdtemp(dir=ward.folder))
        pairs = list(dict.fromkeys(grammar.generate(COUNT)))
        lines = [change(number, f"{one.target} {other.target}") for number, (one, other) in enumerate(pairwise(pairs))]
        (folder / "text.txt").write_text("\n\n".join(lines[::2]), encoding="utf-8")
        recipe = ward.recipe("decoder", data={"files": str(folder / "text.txt")})
        tokenizer = {"kind": kind} if kind in ("byte", "word", "character") else {"kind": kind, "vocabulary": 700}
        yield subject_from_recipe(read_recipe({**recipe, "tokenizer": tokenizer}), folder, lambda sentence: None)

    return admit


def fresh(kind: str, **model: Any) -> Callable[[Ward], Any]:
    @contextmanager
    def admit(ward: Ward) -> Iterator[Subject]:
        yield ward.subject(kind, **model)

    return admit


DROPOUT = {"embedding": 0.1, "attention": 0.2, "sublayer": 0.1}
PAPER = {"position": "sinusoidal", "placement": "post", "scale_embedding": True, "share_embeddings": True}
HEALTHY: dict[str, Callable[[Ward], Any]] = {
    "decoder": fresh("decoder"),
    "decoder, sinusoidal, rms, swiglu": fresh("decoder", position="sinusoidal", norm="rms", feedforward="swiglu"),
    "decoder, learned, post, relu": fresh("decoder", position="learned", placement="post", feedforward="relu"),
    "decoder, relative, geglu, one key head": fresh("decoder", position="relative", feedforward="geglu", kv_heads=1),
    "decoder, no positions, untied": fresh("decoder", position="none", tie_output=False, output_bias=True),
    "decoder, experts": fresh("decoder", experts=5, feedforward="swiglu", norm="rms", bias=False),
    "decoder, xavier, dropout": fresh("decoder", initialization="xavier", dropout=DROPOUT),
    "decoder, separate documents": fresh("decoder", data={"separate_documents": True}),
    "encoder": fresh("encoder", position="learned"),
    "encoder like BERT": fresh("encoder", position="learned", placement="post", embedding_norm=True, segments=2),
    "encoder, experts, rotary": fresh("encoder", experts=3, dropout=DROPOUT),
    "encoder, relative, rms, silu": fresh("encoder", position="relative", norm="rms", feedforward="silu"),
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
    "trained decoder": trained("decoder"),
    "trained encoder": trained("encoder"),
    "trained translator": trained("encoder-decoder"),
    "gpt2": imported("gpt2"),
    "bert": imported("bert"),
    "bert body": imported("bert body"),
    "llama": imported("llama"),
    "llama tied": imported("llama tied"),
    "marian": imported("marian"),
    "marian two tables": imported("marian two tables"),
}


def confusion() -> None:
    """Every plant and every healthy patient, and which checks spoke."""
    from chumoku.doctor import examine

    right = 0
    with tempfile.TemporaryDirectory() as name:
        ward = Ward(Path(name))
        for title, planted in PLANTS.items():
            with pytest.MonkeyPatch.context() as patch:
                findings = examine(planted.plant(ward, patch)).findings
            spoke = list(dict.fromkeys(f.check if f.measured else f"{f.check} BROKE DOWN" for f in findings))
            beside = [check for check in spoke if check not in (planted.check, "modules", *planted.also)]
            good = planted.check in spoke and not beside
            right += good
            print(
                f"{'right' if good else 'WRONG'}  {title:<40} {planted.check:<13} {', '.join(spoke) or 'nothing'}",
                flush=True,
            )
        print(f"{right} of {len(PLANTS)} planted bugs found and named rightly.")
        for title, planted in LOOKS.items():
            with pytest.MonkeyPatch.context() as patch:
                findings = examine(planted.plant(ward, patch)).findings
            print(f"worth a look  {title:<33} {[(f.check, f.sure) for f in findings]}", flush=True)
        silent = 0
        for title, admit in HEALTHY.items():
            with admit(ward) as subject:
                report = examine(subject)
            silent += not report.findings
            shown = "; ".join(f"{f.check}: {f.what} ({f.where})" for f in report.findings) or "healthy"
            print(f"{title:<40} {len(report.passed)} passed  {shown}", flush=True)
        print(f"{silent} of {len(HEALTHY)} healthy patients are found healthy.")


if __name__ == "__main__":
    torch.set_num_threads(1)
    confusion()
