"""Requests to the handlers of a web page and to the server, whose answers must be equal."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from serving import Serving

from chumoku.pipeline import Pipeline
from chumoku.web.container import write_container
from chumoku.web.generation_data import generation_data
from chumoku.web.tokenizer_data import tokenizer_data

ENTRY = """
import { Container } from "./container.js";
import { encodePrompt, renderChat } from "./decoding/chat.js";
import { chatCompletions, completions, streamChatCompletions, streamCompletions } from "./decoding/completions.js";
import { samplingOf } from "./decoding/plan.js";
import { translate } from "./decoding/translate.js";
import { Model } from "./model.js";
import { JavaScriptEngine } from "./session.js";
import { makeTokenizer } from "./tokenizers/tokenizer.js";

const ROUTES = { "/v1/translate": translate, "/v1/completions": completions, "/v1/chat/completions": chatCompletions };
const STREAMS = { "/v1/completions": streamCompletions, "/v1/chat/completions": streamChatCompletions };
const collect = async (chunks) => {
  const found = [];
  for await (const chunk of chunks) found.push(chunk);
  return found;
};

async function answer(runtime, [path, body]) {
  let checks = 0;
  const check = async () => void checks++;
  try {
    const handler = (body.stream ? STREAMS : ROUTES)[path];
    const result = await (body.stream ? collect(handler(runtime, body, check)) : handler(runtime, body, check));
    return { result, checks };
  } catch (error) {
    if (error.name !== "RequestError") throw error;
    const { message, param, code, status } = error;
    return { error: { message, param, code }, status };
  }
}

function openRuntime(name, container) {
  const opened = new Container(Uint8Array.from(atob(container), (char) => char.charCodeAt(0)).buffer);
  const model = new Model(opened);
  const twin = new JavaScriptEngine(model);
  const tokenizer = makeTokenizer(opened.tokenizer);
  return { name, model, engine: twin, twin, tokenizer, sourceTokenizer: tokenizer, generation: opened.generation };
}

const answers = async (name, container, requests) => {
  const runtime = openRuntime(name, container);
  const found = [];
  for (const request of requests) found.push(await answer(runtime, request));
  return found;
};
Object.assign(window, { answers, encodePrompt, makeTokenizer, renderChat, samplingOf });
"""
# A page has one model, and no tools.
PAGE_WORDS = {
    " (or a tool's result)": "",
    "user, assistant, tool": "user, assistant",
    "translator, many, writer": "writer",
}


def pack(pipeline: Pipeline) -> str:
    tokenizer = tokenizer_data(pipeline.tokenizer)
    generation = generation_data(pipeline.model, pipeline.tokenizer, pipeline.generation_config)
    content = write_container(pipeline.model, name="m", tokenizer=tokenizer, generation=generation)
    return base64.b64encode(content).decode()


def expected(server: Serving, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = server.post(path, **body)
    if response.status_code != 200:
        error = response.json()["error"]
        return {"error": {name: error[name] for name in ("message", "param", "code")}, "status": response.status_code}
    if not body.get("stream"):
        return {"result": response.json()}
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    return {"result": [json.loads(event) for event in events]}


def assert_same(found: Any, wanted: Any, where: str) -> None:
    """Equal, with numbers up to rounding; ids, times and what was cached aside."""
    if isinstance(wanted, dict):
        assert isinstance(found, dict), where
        assert found.keys() == wanted.keys(), (where, found, wanted)
        for key in wanted.keys() - {"id", "created", "cached_tokens"}:
            assert_same(found[key], wanted[key], f"{where}.{key}")
        assert isinstance(wanted.get("id"), str) or found.get("id") == wanted.get("id"), where
    elif isinstance(wanted, list):
        assert isinstance(found, list), where
        assert len(found) == len(wanted), (where, found, wanted)
        for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_same(one, other, f"{where}[{place}]")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, abs=2e-4), where
    else:
        assert found == wanted, where


def compare(page: Any, server: Serving, models: dict[str, Pipeline], name: str, requests: list[Any]) -> list[Any]:
    requests = [(path, {"model": name, **body}) for path, body in requests]
    given = [name, pack(models[name]), requests]
    found: list[Any] = page.evaluate("([name, container, requests]) => answers(name, container, requests)", given)
    for (path, body), one in zip(requests, found, strict=True):
        checks, result = one.pop("checks", 0), one.get("result")
        if isinstance(result, dict):
            least = 1 if "translations" in result else result["usage"]["completion_tokens"]
            assert checks >= least, "one for each token at least"
        wanted = expected(server, path, body)
        if "error" in wanted:
            for theirs, ours in PAGE_WORDS.items():
                wanted["error"]["message"] = wanted["error"]["message"].replace(theirs, ours)
        assert_same(one, wanted, f"{path} {body}")
    return found
