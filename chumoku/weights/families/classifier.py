"""Heads for classes and tags in the files of BERT, RoBERTa and DistilBERT.

classes   BERT          pooler.dense → tanh → classifier, of the first token
          RoBERTa       classifier.dense → tanh → classifier.out_proj
          DistilBERT    pre_classifier → relu → classifier
tags      all           classifier, of every token
"""

from __future__ import annotations

from typing import Any, NamedTuple

from chumoku.errors import UsageError
from chumoku.models.config import ModelConfig
from chumoku.weights.families.family import Values, require
from chumoku.weights.families.table import Row, Source, linear_rows

TAGS = "classifier"
HEADS = (None, "masked", "vector", "classes", "tags")  # that these families can express


class Classifier(NamedTuple):
    """The names of a family's layers before the classes, and the activation between them."""

    transform: str
    output: str
    activation: str

    def rows(self, config: ModelConfig) -> list[Row]:
        if config.head == "tags":
            return linear_rows("head.output", TAGS)
        return [*linear_rows("head.transform", self.transform), *linear_rows("head.output", self.output)]

    def read(self, values: Values, source: Source) -> dict[str, Any]:
        """The config values of the head; empty if the file has no classes or tags."""
        classes = f"{self.transform}.weight" in source.shapes and f"{self.output}.weight" in source.shapes
        output = f"{self.output if classes else TAGS}.weight"
        if output not in source.shapes:
            return {}
        require(values, "classifier", {"problem_type": (None, "single_label_classification")})
        count = source.shapes[output][0]
        if count < 2:
            raise UsageError(f"{source.path} has one label: a regression, which is not supported.")
        given = values.get("id2label")
        names = given if isinstance(given, dict) else {}
        labels = [str(names.get(str(number), f"LABEL_{number}")) for number in range(count)]
        if not classes:
            return {"head": "tags", "labels": labels}
        return {"head": "classes", "labels": labels, "pooling": "first", "classifier_activation": self.activation}

    def write(self, config: ModelConfig, title: str) -> dict[str, Any]:
        """Architecture and labels for config.json; `title` is the first part of their class names."""
        if config.labels is None:
            return {}
        found = config.pooling, config.classifier_activation
        if config.head == "classes" and found != ("first", self.activation):
            raise UsageError(
                f"{title} takes the class of a text from its first token, with {self.activation}: pooling = 'first', "
                f"classifier_activation = '{self.activation}'. This model has {found[0]!r} and {found[1]!r}."
            )
        task = "ForTokenClassification" if config.head == "tags" else "ForSequenceClassification"
        return {
            "architectures": [f"{title}{task}"],
            "id2label": {str(number): name for number, name in enumerate(config.labels)},
            "label2id": {name: number for number, name in enumerate(config.labels)},
        }
