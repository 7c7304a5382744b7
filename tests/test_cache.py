from __future__ import annotations

import pytest
import torch
from cells import Cell, model_of, tokens
from laws import distance

from chumoku.errors import LengthError, ShapeError, UsageError
from chumoku.nn import Cache


def test_step_writes_in_place() -> None:
    model = model_of(Cell("decoder", kv_heads=1))
    cache = model.new_cache(2, 13)
    address = cache.store.data_ptr()
    with torch.no_grad():
        after = model(tokens(2, 5), cache=cache).cache
        later = model(tokens(2, 1), cache=after).cache
    assert later.store.data_ptr() == address
    keys, _ = after.layer(0, after.positions(1)).append(torch.zeros(2, 1, 1, 10), torch.zeros(2, 1, 1, 10))
    assert keys.data_ptr() == address
    assert (cache.used, after.used, later.used) == (0, 5, 6)
    assert cache.nbytes == 2 * 2 * 2 * 1 * 13 * 10 * 8


def test_decoding_continues_from_earlier_cache() -> None:
    """Decoding other tokens from an earlier cache gives the same logits as a full pass."""
    model = model_of(Cell("decoder"))
    one, two = tokens(2, 3, seed=1), tokens(2, 3, seed=2)
    with torch.no_grad():
        prompt = model(tokens(2, 5), cache=model.new_cache(2, 13)).cache
        model(one, cache=prompt)
        stepped = model(two, cache=prompt).logits
        whole = model(torch.cat([tokens(2, 5), two], 1)).logits[:, 5:]
    assert distance(whole, stepped) < 1e-10


def test_cross_attention_keys_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(Cell("encoder-decoder"))
    with torch.no_grad():
        memory = model.encode(tokens(2, 7))
        cache = model.new_cache(memory, 13)
        for block in model.decoder.blocks:
            monkeypatch.setattr(block.cross_attention, "project", None)
        out = model.decode(tokens(2, 3), cache=cache)
        assert out.cache.memory is cache.memory
        model.decode(tokens(2, 1), cache=out.cache)
    assert cache.nbytes == cache.store.nbytes + 2 * 2 * (2 * 3 * 7 * 10) * 8


def test_a_source_mask_is_kept_with_the_memory() -> None:
    model = model_of(Cell("encoder-decoder"))
    source, target = tokens(2, 7), tokens(2, 3)
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    with torch.no_grad():
        whole = model(source, target, source_mask=mask).logits
        memory = model.encode(source, mask=mask)
        stepped = model.decode(target, cache=model.new_cache(memory, 5)).logits
        alone = model(source[1:, :4], target[1:]).logits
    assert distance(whole, stepped) < 1e-10
    assert distance(alone[0], stepped[1]) < 1e-10


def test_invalid_steps_are_refused_before_writing() -> None:
    model = model_of(Cell("decoder"))
    cache = model.new_cache(2, 5)
    with torch.no_grad():
        with pytest.raises(LengthError, match=r"has 5 positions, 0 are used, and 7 more do not fit. .*capacity=7"):
            model(tokens(2, 7), cache=cache)
        with pytest.raises(ShapeError, match="is for 2 rows, but 3 were given"):
            model(tokens(3, 1), cache=cache)
        with pytest.raises(ShapeError, match="pass lengths instead"):
            model(tokens(2, 3), cache=cache, mask=torch.ones(2, 3, dtype=torch.bool))
        with pytest.raises(ShapeError, match="Lengths are only used with a cache"):
            model(tokens(2, 3), lengths=torch.tensor([1, 2]))
    assert (cache.store == 0).all()
    with pytest.raises(UsageError, match="stores no gradients"):
        model(tokens(2, 3), cache=cache)
    with pytest.raises(LengthError, match="needs at least one layer"):
        Cache.empty(2, 0, 5, kv_heads=1, head_width=2)
    with torch.no_grad():
        for lengths, message in (
            (torch.tensor([5, 9]), "Lengths must be 0 to 5, the tokens per row; these are 5 to 9"),
            (torch.tensor([-1, 2]), "these are -1 to 2"),
            (torch.tensor([1, 2, 3]), "Lengths must be 2 integers, one for each row"),
            (torch.tensor([1.0, 2.0]), "Lengths must be 2 integers"),
        ):
            with pytest.raises(ShapeError, match=message):
                model(tokens(2, 5), cache=cache, lengths=lengths)
        for other in (model_of(Cell("decoder"), layers=3), model_of(Cell("decoder", kv_heads=1))):
            with pytest.raises(ShapeError, match="This cache belongs to another model"):
                other(tokens(2, 3), cache=cache)
    with torch.inference_mode():
        inference = model.new_cache(2, 5)
    with torch.no_grad(), pytest.raises(UsageError, match="can only be used there"):
        model(tokens(2, 3), cache=inference)
    both = model_of(Cell("encoder-decoder"))
    with pytest.raises(ShapeError, match="needs an encoder output"):
        both.decode(tokens(2, 3))


def test_used_is_the_length_of_the_longest_row() -> None:
    model = model_of(Cell("decoder", "learned"))
    with torch.no_grad():
        cache = model(tokens(2, 5), cache=model.new_cache(2, 9), lengths=torch.tensor([5, 1])).cache
        cache = model(tokens(2, 4), cache=cache, lengths=torch.tensor([1, 4])).cache
        assert (cache.used, cache.lengths.tolist()) == (6, [6, 5])
        assert model(tokens(2, 3), cache=cache).cache.used == 9


def test_unused_cache_memory_does_not_affect_logits() -> None:
    """Random numbers in the unused part of the cache do not change the logits of a batch with different lengths."""
    model = model_of(Cell("decoder", "relative"))
    clean, dirty = model.new_cache(2, 13), model.new_cache(2, 13)
    dirty.store.normal_()
    lengths = torch.tensor([5, 2])
    outputs = []
    with torch.no_grad():
        for cache in (clean, dirty):
            cache = model(tokens(2, 5), cache=cache, lengths=lengths).cache
            outputs.append(model(tokens(2, 2, seed=1), cache=cache).logits)
    assert distance(*outputs) < 1e-12
