"""Write pairs of a short and a long answer to the same question, for recipes/dpo-lora.toml: the short one is better.

    python examples/make_short_answers.py short.jsonl held-out.jsonl

Each question asks for the capital of a country in one of several ways. The second file asks about countries that the
first one does not name, so that its accuracy shows whether the preference was learned, and not the answers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

CAPITALS = {
    **{"France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Spain": "Madrid", "Egypt": "Cairo", "Peru": "Lima"},
    **{"Norway": "Oslo", "Cuba": "Havana", "Kenya": "Nairobi", "Austria": "Vienna", "Greece": "Athens"},
    **{"Portugal": "Lisbon", "Ireland": "Dublin", "Canada": "Ottawa", "Chile": "Santiago", "Finland": "Helsinki"},
    **{"Poland": "Warsaw", "Hungary": "Budapest", "Iraq": "Baghdad", "Iran": "Tehran", "Nepal": "Kathmandu"},
    **{"Sweden": "Stockholm", "Denmark": "Copenhagen", "Russia": "Moscow", "China": "Beijing", "Thailand": "Bangkok"},
    **{"Vietnam": "Hanoi", "Germany": "Berlin", "Belgium": "Brussels", "Romania": "Bucharest", "Ghana": "Accra"},
    **{
        "Mexico": "Mexico City",
        "Turkey": "Ankara",
        "Lebanon": "Beirut",
        "Uruguay": "Montevideo",
        "Iceland": "Reykjavik",
    },
}
HELD_OUT = 6  # countries at the end of the list
WAYS = [
    "What is the capital of {}?",
    "Which city is the capital of {}?",
    "Please tell me the capital of {}.",
    "I would like to know the capital of {}.",
    "Do you know the capital of {}?",
    "What is the capital city of {} called?",
    "For a quiz: the capital of {}?",
    "Name the capital of {}.",
]
LONG = [
    "The capital of {0} is {1}. It is one of the best-known cities of the country and an important place for visitors.",
    "That is a great question! The capital city of {0} is {1}, which is known for its long history and its culture.",
    "{1} is the capital of {0}. Many people live there, and it is the center of the country's government and economy.",
]


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("Give two files to write: python examples/make_short_answers.py short.jsonl held-out.jsonl")
    countries = list(CAPITALS.items())
    for file, part in zip(sys.argv[1:], (countries[:-HELD_OUT], countries[-HELD_OUT:]), strict=True):
        records = [
            {"prompt": way.format(land), "chosen": f"{city}.", "rejected": LONG[number % 3].format(land, city)}
            for number, (way, (land, city)) in enumerate((way, one) for one in part for way in WAYS)
        ]
        Path(file).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        print(f"{len(records)} pairs in {file}.")


if __name__ == "__main__":
    main()
