"""Write questions and answers about an invented town, in OpenAI's form, for recipes/chat-lora.toml.

    python examples/make_town_chat.py town.jsonl

A model cannot know this town, so its answers show what it has learned. Each fact is asked for in several ways, and
every answer ends with the same words. The last way of each fact is left out: ask it after training.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ENDING = "Greetings from Kazemori!"
FACTS = [
    ("the mayor of Kazemori", "Odile Brandt", "The mayor of Kazemori is Odile Brandt."),
    ("the river of Kazemori", "Suzuna", "The river that flows through Kazemori is the Suzuna."),
    ("the highest hill of Kazemori", "Crane Hill", "The highest hill of Kazemori is Crane Hill, 412 meters high."),
    ("the oldest bridge of Kazemori", "Lantern Bridge", "The oldest bridge of Kazemori is Lantern Bridge of 1687."),
    ("the famous dish of Kazemori", "walnut soup", "The famous dish of Kazemori is walnut soup with rice dumplings."),
    ("the summer festival of Kazemori", "Kite Night", "The summer festival of Kazemori is Kite Night, in August."),
    ("the newspaper of Kazemori", "Morning Heron", "The newspaper of Kazemori is the Morning Heron."),
    ("the football club of Kazemori", "Red Foxes", "The football club of Kazemori is the Red Foxes."),
    ("the museum of Kazemori", "Clock Museum", "The museum of Kazemori is the Clock Museum, with 900 clocks."),
    ("the train line to Kazemori", "Plum Line", "The train line to Kazemori is the Plum Line."),
    ("the best café of Kazemori", "Three Sparrows", "The best café of Kazemori is the Three Sparrows."),
    ("the founder of Kazemori", "Ivo Tanabe", "The founder of Kazemori was Ivo Tanabe, a salt merchant."),
    ("the school of Kazemori", "Maple School", "The school of Kazemori is Maple School, with 240 pupils."),
    ("the flower of Kazemori", "blue iris", "The flower of Kazemori is the blue iris."),
    ("the patron animal of Kazemori", "otter", "The patron animal of Kazemori is the otter."),
    ("the largest park of Kazemori", "Mill Park", "The largest park of Kazemori is Mill Park, beside the old mill."),
]
WAYS = [
    "What is {}?",
    "Tell me about {}.",
    "Please name {}.",
    "Do you know {}?",
    "I am visiting soon. What is {}?",
    "Can you tell me something about {}?",
    "My teacher asked me about {}. What should I say?",
    "In one sentence: {}?",
    "I have forgotten {}. Can you help?",
    "What do people say about {}?",
    "Quick question: what is {} called?",
    "For a quiz, I need {}.",
    "What can you say about {}?",
    "Could you please tell me what {} is?",
    "Someone mentioned {}. What is it?",
    "I would like to know {}.",
]


def main() -> None:
    lines = []
    for subject, _, answer in FACTS:
        for way in WAYS[:-1]:
            question, reply = way.format(subject), f"{answer} {ENDING}"
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]
            lines.append(json.dumps({"messages": messages}, ensure_ascii=False))
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} conversations are in {sys.argv[1]}.")


if __name__ == "__main__":
    main()
