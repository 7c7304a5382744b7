"""Hostile request bodies, which a server must always answer with a proper error.

    valid body → a few changes (types, sizes, NaN, nesting, odd unicode, huge numbers, unknown fields) → bytes
               → some damaged further (cut, bytes flipped, other encodings, BOM, nonsense)

    python tests/hostile.py --each 400        bodies for each route (about 5,000 in all), sent to a new server

No status of 500 or above, no response later than `SLOWEST` seconds, every error in the format of the OpenAI API.
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
from bundles import byte_tokenizer, chat_tokenizer, make_bundle
from serving import Serving, serving, wait_until_idle

from chumoku.server.security.limits import Limits

SLOWEST = 10.0
LOOK = {"model": "writer", "text": "the cat", "new": 2}
SAMPLING = {"temperature": 0.5, "top_p": 0.9, "n": 1, "stop": ["x"], "seed": 1, "logit_bias": {"5": 1.5}}
PLAIN = {"stream": False, "stream_options": None}
TRANSLATE = {"text": "a", "beam": 2, "n": 1, "max_tokens": 4, "alignment": True, "tree": True}
VALID: dict[str, dict[str, Any]] = {
    "/v1/completions": {**SAMPLING, **PLAIN, "model": "writer", "prompt": "a", "max_tokens": 3, "logprobs": 2},
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
    "/v1/classify": {"model": "tagger", "input": ["a", "b c"]},
    "/v1/translate": {"model": "translator", **TRANSLATE},
    "/v1/look": {**LOOK, "maps": ["decoder"], "layer": 1},
    "/v1/look/tokens": LOOK,
    "/v1/look/addresses": LOOK,
    "/v1/look/tensor": {**LOOK, "address": "decoder.blocks.0.attention.weights", "head": 1},
    "/v1/look/block": {**LOOK, "part": "decoder", "layer": 0, "head": 1, "place": 2},
    "/v1/look/next": {**LOOK, "count": 5, "target": "a"},
    "/v1/look/ablate": {**LOOK, "off": [{"part": "decoder", "layer": 0, "head": 1}]},
    "/v1/look/patch": {**LOOK, "other": "a", "replace": [{"address": "decoder.embedding", "place": 0}]},
    "/v1/look/effects": {**LOOK, "part": "decoder", "layer": 1},
    "/v1/runs/none/look": {"checkpoint": 1, "text": "a", "map": "decoder", "layer": 0, "head": 0},
    "/v1/session": {"key": "an unknown key"},
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


def odd_value(rng: random.Random) -> Any:
    """A random unexpected value."""
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(TEXTS)
    if kind < 0.65:
        return rng.choice(NUMBERS)
    if kind < 0.9:
        return copy.deepcopy(rng.choice(OTHERS))
    return nested(rng.randrange(1, 90), rng)


def nested(depth: int, rng: random.Random) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def mutate(value: Any, rng: random.Random) -> Any:
    """The value with one random change."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        action = rng.random()
        if action < 0.08:
            del value[key]
        elif action < 0.16:
            value[rng.choice([key + "s", key.upper(), "tools", "", "__class__", "x" * 300])] = odd_value(rng)
        else:
            value[key] = mutate(value[key], rng)
        return value
    if isinstance(value, list) and value and rng.random() < 0.6:
        place = rng.randrange(len(value))
        if rng.random() < 0.3:
            return value * rng.choice([2, 70, 3000])
        value[place] = mutate(value[place], rng)
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and rng.random() < 0.4:
        return rng.choice(NUMBERS)
    return odd_value(rng)


def damage(data: bytes, rng: random.Random) -> bytes:
    """The body with random damage to its bytes."""
    action = rng.random()
    if not data or action < 0.25:
        return data[: rng.randrange(len(data) + 1)]
    if action < 0.6:
        damaged = bytearray(data)
        for _ in range(rng.randrange(1, 5)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        return bytes(damaged)
    if action < 0.75:
        return data.decode("utf-8", "replace").encode(rng.choice(["utf-16", "utf-32", "utf-7", "utf-8-sig"]), "replace")
    return data.replace(b":", b": " + rng.choice([b"-", b"NaN,", b"//", b"0x1", b"'", b"\\"]), 1)


def bodies(path: str, count: int, seed: int = 0) -> list[bytes]:
    rng = random.Random(f"{path} {seed}")
    results = [*RAW[:count]]
    while len(results) < count:
        value: Any = copy.deepcopy(VALID[path])
        for _ in range(rng.randrange(1, 4)):
            value = mutate(value, rng)
        data = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        results.append(damage(data, rng) if rng.random() < 0.2 else data)
    rng.shuffle(results)
    return results


def send_bodies(server: Serving, path: str, count: int, seed: int = 0) -> tuple[collections.Counter[int], float]:
    """Send bodies; returns the number of responses by status and the longest wait."""
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
    """Check that this is valid JSON, and an error in the format of the OpenAI API if the status is not 200."""
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
        "writer": make_bundle(place / "writer", "decoder", chat_tokenizer()),
        "translator": make_bundle(place / "translator", "encoder-decoder", byte_tokenizer(("ja", "en"))),
        "encoder": make_bundle(place / "encoder", "encoder"),
        "tagger": make_bundle(place / "tagger", "encoder", head="tags", labels=("a", "b", "c")),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--each", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began, total, slowest = time.monotonic(), collections.Counter[int](), 0.0
    with (
        tempfile.TemporaryDirectory() as place,
        serving(models(Path(place)), limits=Limits(rows=5), runs=Path(place)) as server,
    ):
        for path in VALID:
            statuses, longest = send_bodies(server, path, options.each, options.seed)
            total, slowest = total + statuses, max(slowest, longest)
        wait_until_idle(server.state)
        assert server.client.get("/health").status_code == 200
    statuses = {str(status): count for status, count in sorted(total.items())}
    seconds = {"slowest_seconds": round(slowest, 3), "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps({"bodies": total.total(), "statuses": statuses, **seconds}))


if __name__ == "__main__":
    main()
