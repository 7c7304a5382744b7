"""The ASGI app: which handler answers which path.

GET  /                      the page           GET  /v1/models…        POST /v1/completions, chat, responses, embeddings
GET  /health, /metrics                         GET  /v1/runs…          POST /v1/classify, /v1/translate, /v1/look…
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from chumoku.server import lab
from chumoku.server.assets import Assets
from chumoku.server.disconnect import ClientDisconnected
from chumoku.server.errors import RequestError, to_request_error
from chumoku.server.look import routes as look_routes
from chumoku.server.models import find_adapter
from chumoku.server.openai import schemas
from chumoku.server.openai.classify import classify
from chumoku.server.openai.embeddings import embeddings
from chumoku.server.openai.routes import chat_completions, completions, responses
from chumoku.server.security.keys import cookie_name
from chumoku.server.security.middleware import CLIENT_CLOSED_REQUEST, SecurityMiddleware, client_address
from chumoku.server.state import ServerState, state_of
from chumoku.server.streaming import error_response, json_response
from chumoku.server.translate import translations

Handler = Callable[[Request], Awaitable[Response]]


async def health(request: Request) -> Response:
    return json_response({"status": "draining" if state_of(request).draining else "ok"})


async def metrics(request: Request) -> Response:
    state = state_of(request)
    return Response(state.metrics.render(state.models.values()), media_type="text/plain; version=0.0.4; charset=utf-8")


async def models(request: Request) -> Response:
    cards = [card for served in state_of(request).models.values() for card in served.cards]
    return json_response({"object": "list", "data": cards})


async def model(request: Request) -> Response:
    name = request.path_params["name"]
    served, _ = find_adapter(state_of(request).models, name)
    return json_response(next(card for card in served.cards if card["id"] == name))


async def session(request: Request) -> Response:
    """Check the API key and, if it is correct, set a cookie that scripts cannot read."""
    key = request.scope.get("chumoku.api_key")
    if key is None:
        raise RequestError(404, "This server does not require a key.")
    body = await state_of(request).read_body(request, schemas.Session)
    if not key.matches(body.key):
        await asyncio.sleep(key.record_failure(client_address(request.scope)))
        raise RequestError(401, "This API key is not correct.", param="key", code="invalid_api_key")
    response = json_response({"status": "ok"})
    response.set_cookie(cookie_name(request.headers["host"]), key.cookie, httponly=True, samesite="strict", path="/")
    return response


async def lab_status(request: Request) -> Response:
    state = state_of(request)
    found = None if state.lab is None else await state.files.read("lab exists", lab.find_report, state.lab)
    return json_response({"report": found is not None, "quick": found is not None and found[1]})


async def lab_report(request: Request) -> Response:
    state, view = state_of(request), []
    for name, known in (("language", lab.LANGUAGES), ("theme", lab.THEMES)):
        view.append(request.query_params.get(name))
        if view[-1] not in (None, *known):
            raise RequestError(400, f"The parameter '{name}' must be {' or '.join(known)}.", param=name)
    key = ("lab", *view)
    report = None if state.lab is None else await state.files.read(key, lab.read_report, state.lab, *view)
    if report is None:
        raise RequestError(404, "There is no report yet. Create one with: chumoku lab run all.")
    return Response(
        report.html, headers={"Content-Security-Policy": report.policy}, media_type="text/html; charset=utf-8"
    )


async def page(request: Request) -> Response:
    assets: Assets = request.app.state.assets
    return assets.respond(request, "index.html")


async def asset(request: Request) -> Response:
    assets: Assets = request.app.state.assets
    return assets.respond(request, request.path_params["name"])


GET: dict[str, Handler] = {
    "/": page,
    "/viewer/{name:path}": asset,
    "/health": health,
    "/metrics": metrics,
    "/v1/models": models,
    "/v1/models/{name}": model,
    "/v1/runs": look_routes.list_runs,
    "/v1/runs/{run}": look_routes.run_points,
    "/v1/lab": lab_status,
    "/lab/report.html": lab_report,
}
POST: dict[str, Handler] = {
    "/v1/completions": completions,
    "/v1/chat/completions": chat_completions,
    "/v1/responses": responses,
    "/v1/embeddings": embeddings,
    "/v1/classify": classify,
    "/v1/translate": translations,
    **{path: look_routes.make_look_handler(path) for path in look_routes.LOOKS},
    "/v1/runs/{run}/look": look_routes.run_look,
    "/v1/session": session,
}


def make_app(state: ServerState, assets: Assets | None = None) -> SecurityMiddleware:
    """The complete ASGI app; `assets` replaces the files of the web page."""
    # FastAPI's own documentation pages would load scripts from other servers.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.server, app.state.assets = state, assets or Assets()
    for method, routes in (("GET", GET), ("POST", POST)):
        for path, handler in routes.items():
            app.router.add_route(path, label_route(path, handler), methods=[method])
    app.add_exception_handler(RequestError, _send_error)
    app.add_exception_handler(HTTPException, _unknown_route)
    app.add_exception_handler(ClientDisconnected, _client_disconnected)
    app.add_exception_handler(Exception, _unexpected_error)
    return SecurityMiddleware(app, state)


def label_route(path: str, handler: Handler) -> Handler:
    """The handler, with its requests counted in the metrics by route instead of by path."""

    async def handle(request: Request) -> Response:
        request.scope["chumoku.route"] = path
        return await handler(request)

    return handle


async def _send_error(_: Request, error: Exception) -> Response:
    return error_response(to_request_error(error))


async def _unknown_route(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "POST")
        return error_response(RequestError(405, f"Use {allowed} for this path.", headers={"Allow": allowed}))
    return error_response(RequestError(404, "There is nothing at this path. The list of models is at /v1/models."))


async def _client_disconnected(_: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _unexpected_error(_: Request, error: Exception) -> Response:
    return error_response(RequestError(500, "Internal server error. Try again, and report it to the administrator."))
