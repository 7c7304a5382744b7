"""Example sentences that the web page offers for a model."""

from __future__ import annotations

from pathlib import Path

from chumoku import pretrained
from chumoku.errors import ChumokuError
from chumoku.safe_files import read_json
from chumoku.weights.formats.hub import HUB
from chumoku.weights.identify_model import RECIPE_FILE, local_path

ORDINARY = {  # by source language
    "ja": (
        "明日は雨が降るでしょう。",
        "今日は寒いですね。温かいお茶が飲みたいです。",
        "駅までの道を教えていただけませんか。",
        "彼女は来年、京都の大学で日本の歴史を勉強するつもりです。",
    ),
    "en": (
        "It will probably rain tomorrow.",
        "It is cold today. I want to drink hot tea.",
        "Could you tell me the way to the station?",
        "She is going to study Japanese history at a university in Kyoto next year.",
    ),
}
DEMO = ("こたつでみかんを食べる", "庭で花を植える")  # of the grammar that the demo learns
LARGEST_RECIPE = 1 << 20


def examples_for(path: str) -> tuple[str, ...]:
    """Ordinary sentences for a shipped translator, those of its grammar for the demo's, none for other models."""
    if path.startswith(HUB):
        return ()
    folder = local_path(path).resolve()
    if folder.parent == pretrained.FOLDER.resolve():
        return ORDINARY.get(folder.name.partition("-")[0], ())
    return DEMO if is_demo(folder) else ()


def is_demo(folder: Path) -> bool:
    """Whether a model was trained on the built-in grammar."""
    try:
        data = read_json(folder.parent / RECIPE_FILE, max_bytes=LARGEST_RECIPE).get("data")
    except (ChumokuError, OSError):
        return False
    return isinstance(data, dict) and data.get("kind") == "embedded"
