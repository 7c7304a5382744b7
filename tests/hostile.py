"""Hostile bodies: what a server must answer with a sentence, whatever they are.

    valid body → a few changes (types, sizes, NaN, nesting, odd unicode, huge numbers, fields of nobody) → bytes
               → some damaged again (cut, bytes flipped, other encodings, BOM, nonsense)

    python tests/hostile.py --each 400        bodies for each route (about 5,000 in all), against a server of its own

No status of 500 or above, no answer later than `SLOWEST` seconds, every error a sentence in OpenAI's form.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from bundles import bytewise, chatty, made
from chumoku.server.security.limits import Limits
from serving import Serving, serving, settled

SLOWEST = 10.0
LOOK = {"model": "writer", "text": "the cat", "new": 2}
VALID: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "model": "writer",
        "prompt": "a",
        "max_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "n": 1,
        "stop": ["x"],
        "seed": 1,
        "logprobs": 2,
        "logit_bias": {"5": 1.5},
        "stream": False,
        "stream_options": None,
    },
    "/v1/chat/completions": {
        "model": "writer",
        "messages": [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}],
        "max_completion_tokens": 3,
        "logprobs": True,
        "top_logprobs": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "/v1/embeddings": {"model": "encoder", "input": ["a", "b"], "encoding_format": "base64"},
    "/v1/translate": {
        "model": "translator",
        "text": "a",
        "beam": 2,
        "n": 1,
        "max_tokens": 4,
        "alignment": True,
        "tree": True,
    },
    "/v1/look": {**LOOK, "maps": ["decoder"], "layer": 1},
    "/v1/look/tokens": LOOK,
    "/v1/look/addresses": LOOK,
    "/v1/look/tensor": {**LOOK, "address": "decoder.blocks.0.attention.weights", "head": 1},
    "/v1/look/block": {**LOOK, "part": "decoder", "layer": 0, "head": 1, "place": 2},
    "/v1/look/next": {**LOOK, "count": 5, "target": "a"},
    "/v1/look/ablate": {**LOOK, "off": [{"part": "decoder", "layer": 0, "head": 1}]},
    "/v1/runs/none/look": {"checkpoint": 1, "text": "a", "map": "decoder", "layer": 0, "head": 0},
    "/v1/session": {"key": "a key of nobody"},
}
TEXTS = [
    "",
    " ",
    "\0",
    "\ud800",
    "\udfff\ud83d",
    "\u202e\u200b\ufeff",
    "e" + "\u0301" * 200,
    "👩‍👩‍👧‍👦" * 50,
    "<|im_start|>system\n<|im_end|>",
    "<s></s><pad><unk>",
    "x" * 5000,
    "猫" * 3000,
    " " * 9000,
    "\n" * 500,
    "../../etc/passwd",
    "http://127.0.0.1:1/",
    "{{7*7}}${jndi:x}%n%s",
    "'; DROP TABLE models; --",
    "<script>alert(1)</script>",
    "a\tb\rc\x7f\x1b[2J",
]
NUMBERS = [0, -1, 1, 2, 17, 4097, 2**31, 2**63, 2**64, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, -1e-320, 1e400]
OTHERS: list[Any] = [None, True, False, [], {}, [[]], [None], [True], {"a": 1}, ["a", 1], [1, 2.5], [[1], "a"], [{}]]
RAW = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"1e999",
    b"NaN",
    b'{"model": NaN}',
    b'{"model": "writer", "prompt": Infinity}',
    b'{"model": "writer", "prompt": "\\ud800"}',
    b'{"model": "writer", "prompt": "\xff\xfe"}',
    b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00",
    b'{"a":' * 5000,
    b"[" * 100_000,
    b'{"model": "writer", "model": "encoder", "prompt": "a", "prompt": 1}',
    b'{"prompt": ' + b"9" * 50_000 + b"}",
    b'{"model":"writer","prompt":[' + b"1," * 100_000 + b"1]}",
    b'{"model":"writer","prompt":[' + b'"a",' * 100_000 + b'"a"]}',
    b"{" + b",".join(b'"k%d":1' % number for number in range(20_000)) + b"}",
    b'{"model":"writer","prompt":"a"}{"model":"writer","prompt":"a"}',
    b'{"model":"writer","prompt":"a"} // why',
    b"a=1&b=2",
]


def odd(chance: random.Random) -> Any:
    """A value that nobody expects."""
    kind = chance.random()
    if kind < 0.35:
        return chance.choice(TEXTS)
    if kind < 0.65:
        return chance.choice(NUMBERS)
    if kind < 0.9:
        return copy.deepcopy(chance.choice(OTHERS))
    return nested(chance.randrange(1, 90), chance)


def nested(depth: int, chance: random.Random) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if chance.random() < 0.5 else {"a": value}
    return value


def changed(value: Any, chance: random.Random) -> Any:
    """The same with one thing in it otherwise."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        action = chance.random()
        if action < 0.08:
            del value[key]
        elif action < 0.16:
            value[chance.choice([key + "s", key.upper(), "tools", "", "__class__", "x" * 300])] = odd(chance)
        else:
            value[key] = changed(value[key], chance)
        return value
    if isinstance(value, list) and value and chance.random() < 0.6:
        place = chance.randrange(len(value))
        if chance.random() < 0.3:
            return value * chance.choice([2, 70, 3000])
        value[place] = changed(value[place], chance)
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and chance.random() < 0.4:
        return chance.choice(NUMBERS)
    return odd(chance)


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The bytes of a body, no longer what they were."""
    action = chance.random()
    if not data or action < 0.25:
        return data[: chance.randrange(len(data) + 1)]
    if action < 0.6:
        spoiled = bytearray(data)
        for _ in range(chance.randrange(1, 5)):
            spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
        return bytes(spoiled)
    if action < 0.75:
        return data.decode("utf-8", "replace").encode(
            chance.choice(["utf-16", "utf-32", "utf-7", "utf-8-sig"]), "replace"
        )
    return data.replace(b":", b": " + chance.choice([b"-", b"NaN,", b"//", b"0x1", b"'", b"\\"]), 1)


def bodies(path: str, count: int, seed: int = 0) -> list[bytes]:
    chance = random.Random(f"{path} {seed}")
    made_up = [*RAW[:count]]
    while len(made_up) < count:
        value: Any = copy.deepcopy(VALID[path])
        for _ in range(chance.randrange(1, 4)):
            value = changed(value, chance)
        data = json.dumps(value, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
        made_up.append(damaged(data, chance) if chance.random() < 0.2 else data)
    chance.shuffle(made_up)
    return made_up


def sent(server: Serving, path: str, count: int, seed: int = 0) -> tuple[collections.Counter[int], float]:
    """How often each status came, and the longest wait; what must not be is raised, with the body."""
    statuses: collections.Counter[int] = collections.Counter()
    slowest = 0.0
    for body in bodies(path, count, seed):
        began = time.monotonic()
        answer = server.client.post(path, content=body, headers={"Content-Type": "application/json"})
        took = time.monotonic() - began
        slowest, statuses[answer.status_code] = max(slowest, took), statuses[answer.status_code] + 1
        if answer.status_code >= 500 or took > SLOWEST:
            raise AssertionError(
                f"{path}: {answer.status_code} after {took:.1f} s for {body[:2000]!r}: {answer.text[:300]}"
            )
        check(answer)
    return statuses, slowest


def check(answer: httpx.Response) -> None:
    """A sentence in OpenAI's form, and no number that JSON does not know."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.endswith("data: [DONE]\n\n")
        assert '"server_error"' not in answer.text
        return
    value = json.loads(answer.text, parse_constant=lambda word: (_ for _ in ()).throw(AssertionError(word)))
    if answer.status_code != 200:
        assert {*value["error"]} == {"message", "type", "param", "code"}
        assert value["error"]["message"].endswith((".", "?"))
        assert len(value["error"]["message"]) < 1200


def models(place: Path) -> dict[str, Any]:
    return {
        "writer": made(place / "writer", "decoder", chatty()),
        "translator": made(place / "translator", "encoder-decoder", bytewise(("ja", "en"))),
        "encoder": made(place / "encoder", "encoder"),
    }


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--each", type=int, default=400)
    words.add_argument("--seed", type=int, default=0)
    asked = words.parse_args()
    began, total, slowest = time.monotonic(), collections.Counter[int](), 0.0
    with (
        tempfile.TemporaryDirectory() as place,
        serving(models(Path(place)), limits=Limits(rows=5), runs=Path(place)) as server,
    ):
        for path in VALID:
            statuses, longest = sent(server, path, asked.each, asked.seed)
            total, slowest = total + statuses, max(slowest, longest)
        settled(server.house)
        assert server.client.get("/health").status_code == 200
    print(
        json.dumps(
            {
                "bodies": total.total(),
                "statuses": {str(status): count for status, count in sorted(total.items())},
                "slowest_seconds": round(slowest, 3),
                "seconds": round(time.monotonic() - began, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
