"""Arms: the choices that are compared, as overrides of one recipe.

    model.position=rotary,none model.placement=pre,post     4 arms: all combinations
    train.steps=100                                         one value: for every arm
    --arm "model.position=rotary model.width=96"            one more arm, by its overrides; "" is the recipe itself

Commas inside brackets and quotes do not separate: data.languages=["ja","en"] is one value.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chumoku.errors import ConfigError, Problem, UsageError
from chumoku.training.recipe import COMMA_LISTS, Recipe, apply_changes, read_recipe, read_tables

MAX_ARMS = 256
LIST_KEYS = tuple(f"data.{key}" for key in COMMA_LISTS)  # their commas separate the elements of one list
FIXED = {  # keys that a comparison sets itself
    "train.out": "each run has its own folder inside the one of --out",
    "train.seed": "every arm is trained with every seed; see --seeds",
}
OPENING, CLOSING, QUOTES = "[{", "]}", "\"'"


class Choice(NamedTuple):
    """One arm as the user gave it."""

    name: str  # the overrides that differ between the arms
    overrides: tuple[str, ...]  # those, after the ones that all arms share


class Choices(NamedTuple):
    shared: tuple[str, ...]  # overrides of every arm
    arms: tuple[Choice, ...]


def parse_choices(choices: Sequence[str], explicit: Sequence[str] = ()) -> Choices:
    """The arms of `key=a,b,c` arguments, all combinations, and those of `explicit` lists of overrides."""
    values = {key: split_values(key, text) for key, text in map(_key_and_text, choices)}
    if len(values) < len(choices):
        twice = [key for key, _ in map(_key_and_text, choices)]
        raise UsageError(f"{next(key for key in twice if twice.count(key) > 1)} is given twice; list its values once.")
    shared = tuple(f"{key}={options[0]}" for key, options in values.items() if len(options) == 1)
    product = [[f"{key}={option}" for option in options] for key, options in values.items() if len(options) > 1]
    for key in FIXED.keys() & {one[0].partition("=")[0] for one in product}:
        raise UsageError(f"{key} cannot be compared: {FIXED[key]}.")
    if "train.out" in values:
        raise UsageError(f"train.out cannot be set here: {FIXED['train.out']}.")
    if sum(1 for _ in itertools.islice(itertools.product(*product), MAX_ARMS + 1)) > MAX_ARMS:
        raise UsageError(f"These are more than {MAX_ARMS} arms. Compare fewer values at once.")
    arms = [tuple(one) for one in itertools.product(*product)] if product else []
    arms += [_explicit_arm(text) for text in explicit]
    names = [" ".join(one) or "recipe" for one in arms]
    if len(names) < 2:
        raise UsageError(
            "A comparison needs two arms or more: give a key several values, as in model.position=rotary,learned, or "
            "give --arm twice."
        )
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"The arm '{name}' is given twice; give each once.")
    return Choices(shared, tuple(Choice(name, (*shared, *one)) for name, one in zip(names, arms, strict=True)))


def split_values(key: str, text: str) -> list[str]:
    """The values of `a,b,[1,2]`: split at commas outside brackets and quotes."""
    if key in LIST_KEYS and "[" not in text:
        return [text]
    values, depth, quote = [""], 0, ""
    for letter in text:
        if letter in QUOTES and quote in ("", letter):
            quote = "" if quote else letter
        elif not quote:
            depth += (letter in OPENING) - (letter in CLOSING)
        if letter == "," and depth == 0 and not quote:
            values.append("")
        else:
            values[-1] += letter
    values = [value.strip() for value in values]
    if len(values) > 1 and not all(values):  # `key=` alone clears a key for all arms, as in chumoku train
        raise ConfigError([Problem(key, f"'{text[:60]}' has an empty value; remove a comma, or add what is missing.")])
    return values


def read_arms(recipe: Recipe | Mapping[str, Any] | Path | str, choices: Choices) -> dict[str, Recipe]:
    """The recipe of each arm, by its name; one error reports all problems."""
    tables = recipe_tables(recipe)
    problems: dict[Problem, list[str]] = {}
    arms: dict[str, Recipe] = {}
    for arm in choices.arms:
        try:
            arms[arm.name] = read_recipe(apply_changes(tables, arm.overrides))
        except ConfigError as error:
            for problem in error.problems:
                problems.setdefault(problem, []).append(arm.name)
    if problems:
        everywhere = len(choices.arms)
        raise ConfigError(
            [
                Problem(key, sentence if len(names) == everywhere else f"{sentence} (arm {names[0]})")
                for (key, sentence), names in problems.items()
            ]
        )
    return arms


def read_reference(recipe: Recipe | Mapping[str, Any] | Path | str, choices: Choices) -> Recipe | None:
    """The recipe without what the arms change, whose cost all arms get; None if it is not complete without that."""
    try:
        return read_recipe(apply_changes(recipe_tables(recipe), choices.shared))
    except ConfigError:
        return None


def recipe_tables(recipe: Recipe | Mapping[str, Any] | Path | str) -> Mapping[str, Any]:
    """The unchecked tables of a recipe, in any of its forms."""
    if isinstance(recipe, (str, Path)):
        return read_tables(recipe)
    return recipe.as_dict() if isinstance(recipe, Recipe) else recipe


def _key_and_text(argument: str) -> tuple[str, str]:
    key, equals, text = argument.partition("=")
    if not equals:
        sentence = "this is not of the form key=value, as in model.position=rotary,learned."
        raise ConfigError([Problem(argument[:60], sentence)])
    return key.strip(), text


def _explicit_arm(text: str) -> tuple[str, ...]:
    try:
        overrides = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--arm '{text[:60]}' cannot be read: {str(error).lower()}.") from None
    for override in overrides:
        key, _ = _key_and_text(override)
        if key in FIXED:
            raise UsageError(f"{key} cannot be compared: {FIXED[key]}.")
    return overrides
