"""The app: which path is answered by what.

GET  /                      the page           GET  /v1/models…        POST /v1/completions, chat, embeddings
GET  /health, /metrics                         GET  /v1/runs…          POST /v1/translate, /v1/look…
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
from chumoku.server.disconnect import Gone
from chumoku.server.errors import Refusal, from_error
from chumoku.server.look import routes as look_routes
from chumoku.server.models import found
from chumoku.server.openai import schemas
from chumoku.server.openai.embeddings import embeddings
from chumoku.server.openai.routes import chat_completions, completions
from chumoku.server.security.keys import cookie_name
from chumoku.server.security.middleware import GONE, Guard, address_of
from chumoku.server.state import House, house_of
from chumoku.server.streaming import answer, refused
from chumoku.server.translate import translations

Handler = Callable[[Request], Awaitable[Response]]


async def health(request: Request) -> Response:
    return answer({"status": "draining" if house_of(request).draining else "ok"})


async def metrics(request: Request) -> Response:
    house = house_of(request)
    return Response(house.metrics.text(house.models.values()), media_type="text/plain; version=0.0.4; charset=utf-8")


async def models(request: Request) -> Response:
    return answer({"object": "list", "data": [one.card for one in house_of(request).models.values()]})


async def model(request: Request) -> Response:
    return answer(found(house_of(request).models, request.path_params["name"]).card)


async def session(request: Request) -> Response:
    """A key that fits becomes a cookie that no script reads."""
    key = request.scope.get("chumoku.sign_in")
    if key is None:
        raise Refusal(404, "This server asks for no key.")
    asked = await house_of(request).asked(request, schemas.Session)
    if not key.opens(asked.key):
        await asyncio.sleep(key.missed(address_of(request.scope)))
        raise Refusal(401, "This key does not fit.", param="key", code="invalid_api_key")
    response = answer({"status": "ok"})
    response.set_cookie(cookie_name(request.headers["host"]), key.cookie, httponly=True, samesite="strict", path="/")
    return response


async def lab_there(request: Request) -> Response:
    house = house_of(request)
    there = house.lab is not None and await house.files.read("lab exists", lab.exists, house.lab)
    return answer({"report": there})


async def lab_report(request: Request) -> Response:
    house, asked = house_of(request), []
    for name, known in (("language", lab.LANGUAGES), ("theme", lab.THEMES)):
        asked.append(request.query_params.get(name))
        if asked[-1] not in (None, *known):
            raise Refusal(400, f"The parameter '{name}' is {' or '.join(known)}.", param=name)
    what = ("lab", *asked)
    report = None if house.lab is None else await house.files.read(what, lab.report, house.lab, *asked)
    if report is None:
        raise Refusal(404, "There is no report yet. Make one with: chumoku lab run all.")
    return Response(
        report.html, headers={"Content-Security-Policy": report.policy}, media_type="text/html; charset=utf-8"
    )


async def page(request: Request) -> Response:
    assets: Assets = request.app.state.assets
    return assets.answer(request, "index.html")


async def asset(request: Request) -> Response:
    assets: Assets = request.app.state.assets
    return assets.answer(request, request.path_params["name"])


GET: dict[str, Handler] = {
    "/": page,
    "/viewer/{name:path}": asset,
    "/health": health,
    "/metrics": metrics,
    "/v1/models": models,
    "/v1/models/{name}": model,
    "/v1/runs": look_routes.listing,
    "/v1/runs/{run}": look_routes.points,
    "/v1/lab": lab_there,
    "/lab/report.html": lab_report,
}
POST: dict[str, Handler] = {
    "/v1/completions": completions,
    "/v1/chat/completions": chat_completions,
    "/v1/embeddings": embeddings,
    "/v1/translate": translations,
    **{path: look_routes.look_at(path) for path in look_routes.LOOKS},
    "/v1/runs/{run}/look": look_routes.run_look,
    "/v1/session": session,
}


def make_app(house: House, assets: Assets | None = None) -> Guard:
    """The whole server, but for the sockets."""
    # The pages that FastAPI makes of its own accord load their parts from elsewhere.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.house, app.state.assets = house, assets or Assets()
    for method, routes in (("GET", GET), ("POST", POST)):
        for path, handler in routes.items():
            app.router.add_route(path, counted(path, handler), methods=[method])
    for kind, said in ((Refusal, _refused), (HTTPException, _unknown), (Gone, _gone), (Exception, _failed)):
        app.add_exception_handler(kind, said)
    return Guard(app, house)


def counted(path: str, handler: Handler) -> Handler:
    """The same, counted under its route and not under whatever was asked for."""

    async def handle(request: Request) -> Response:
        request.scope["chumoku.route"] = path
        return await handler(request)

    return handle


async def _refused(_: Request, error: Exception) -> Response:
    return refused(from_error(error))


async def _unknown(_: Request, error: Exception) -> Response:
    """What the router does not know."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "POST")
        return refused(Refusal(405, f"This path is asked with {allowed}.", headers={"Allow": allowed}))
    return refused(Refusal(404, "There is nothing at this path. The list of models is at /v1/models."))


async def _gone(_: Request, error: Exception) -> Response:
    return Response(status_code=GONE)


async def _failed(_: Request, error: Exception) -> Response:
    return refused(Refusal(500, "The server failed at this. Ask again, and tell those who run it."))
