"""Heads for classes and tags in the files of transformers.

classes   BERT          pooler.dense → tanh → classifier, of the first token
          RoBERTa       classifier.dense → tanh → classifier.out_proj, of the first token
          DistilBERT    pre_classifier → relu → classifier, of the first token
          ModernBERT    head.dense → its activation → head.norm → classifier, of the first token or of the mean
          decoders      score, without a bias, of the last token
tags      ModernBERT    as its classes, of every token
          decoders      score, with a bias (GPT-2: classifier), of every token
          others        classifier, of every token
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.weights.families.family import Supported, Values, require
from chumoku.weights.families.table import Row, Source, linear_rows, norm_rows

LABEL_HEADS = ("classes", "tags")
HEADS = (None, "masked", "vector", *LABEL_HEADS)  # that encoders can express
TASKS = {"classes": "ForSequenceClassification", "tags": "ForTokenClassification"}


class Classifier(NamedTuple):
    """The names of a family's layers before the labels, and what is between them."""

    output: str  # of classes
    tags: str = "classifier"  # of tags
    transform: str | None = None  # the layer before the classes
    norm: str | None = None  # after that layer; then tags have both, too
    activation: str | None = None  # of that layer
    pooling: str = "first"
    bias: bool = True  # of the classes

    def rows(self, config: ModelConfig) -> list[Row]:
        """The rows of the head; those of layers that it does not have are left out later."""
        if config.labels is None:
            return []
        output = self.tags if config.head == "tags" else self.output
        before = [] if self.transform is None else linear_rows("head.transform", self.transform)
        norm = [] if self.norm is None else norm_rows("head.norm", self.norm)
        return [*before, *norm, *linear_rows("head.output", output)]

    def read(self, values: Values, source: Source) -> dict[str, Any]:
        """The config values of the head; empty if the file has no classes or tags."""
        head = self._find_head(values, source)
        if head is None:
            return {}
        output = self.tags if head == "tags" else self.output
        require(values, "classifier", {"problem_type": (None, "single_label_classification")})
        count = source.shapes[f"{output}.weight"][0]
        if count < 2:
            raise UsageError(f"{source.path} has one label: a regression, which is not supported.")
        given = values.get("id2label")
        names = given if isinstance(given, dict) else {}
        labels = [str(names.get(str(number), f"LABEL_{number}")) for number in range(count)]
        found = {"head": head, "labels": labels, "label_bias": f"{output}.bias" in source.shapes}
        if head == "tags":
            return found
        return {**found, "pooling": self.pooling, "classifier_activation": self.activation}

    def _find_head(self, values: Values, source: Source) -> str | None:
        """The kind of head that the file's tensors belong to; of equal ones, the one that the config names."""
        named = str(values.get("architectures"))
        classes = [self.output] if self.transform is None else [self.output, self.transform]
        if all(f"{name}.weight" in source.shapes for name in classes):
            shared = self.output == self.tags and (self.transform is None or self.norm is not None)
            return "tags" if shared and TASKS["tags"] in named else "classes"
        return "tags" if f"{self.tags}.weight" in source.shapes else None

    def write(self, config: ModelConfig, title: str, tasks: Sequence[str] = LABEL_HEADS) -> dict[str, Any]:
        """Architecture and labels for config.json; `title` is the first part of their class names.

        tasks    the heads that transformers has for this family
        """
        if config.labels is None:
            return {}
        if config.head not in tasks:
            raise UsageError(f"transformers has no {title}{TASKS[str(config.head)]}.")
        if config.head == "classes" and self.norm is None:
            self._check_classes(config, title)
        elif config.head == "tags" and not config.label_bias:
            raise UsageError(f"The tags of {title} have a bias: label_bias = true. This model has none.")
        return {
            "architectures": [f"{title}{TASKS[str(config.head)]}"],
            "id2label": {str(number): name for number, name in enumerate(config.labels)},
            "label2id": {name: number for number, name in enumerate(config.labels)},
        }

    def _check_classes(self, config: ModelConfig, title: str) -> None:
        needed = {"pooling": self.pooling, "classifier_activation": self.activation, "label_bias": self.bias}
        wrong = {key: value for key, value in needed.items() if getattr(config, key) != value}
        if wrong:
            all_needed = ", ".join(f"{key} = {_show(value)}" for key, value in needed.items())
            found = ", ".join(f"{key} = {_show(getattr(config, key))}" for key in wrong)
            raise UsageError(f"{title} reads the class of a text with {all_needed}. This model has {found}.")


def _show(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


# The last token of a decoder decides.
DECODER = Classifier("score", "score", pooling="last", bias=False)
DECODER_SUPPORTED: Supported = {"head": (None, "next", *LABEL_HEADS), "label_bias": (True, False)}
