"""/v1/look/… and /v1/runs…: the functions of `looking` and `runs`, each behind its path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from chumoku.models.model import Model
from chumoku.probe.cancellation import CheckInterrupt, interruptible
from chumoku.server.checkpoints import UnknownRun
from chumoku.server.disconnect import done, unless_gone
from chumoku.server.errors import Refusal, from_error
from chumoku.server.jobs import Job, Left
from chumoku.server.look import schemas, views
from chumoku.server.models import found
from chumoku.server.openai.routes import admitted
from chumoku.server.runs import Runs
from chumoku.server.state import House, house_of
from chumoku.server.streaming import answer, encoded

Handler = Callable[[Request], Awaitable[Response]]
LOOKS: dict[str, tuple[type[schemas.Strict], Callable[..., Any]]] = {
    "/v1/look": (schemas.Look, views.look),
    "/v1/look/tokens": (schemas.Question, views.tokens),
    "/v1/look/addresses": (schemas.Question, views.addresses),
    "/v1/look/tensor": (schemas.Tensor, views.tensor),
    "/v1/look/block": (schemas.Block, views.block),
    "/v1/look/next": (schemas.Next, views.next_tokens),
    "/v1/look/ablate": (schemas.Ablate, views.ablate),
}


class Looking(Job):
    """One look, made into JSON where it is made; it ends when nobody waits for it."""

    def __init__(self, model: Model, make: Callable[[CheckInterrupt], Any]) -> None:
        super().__init__()
        self._model, self._make = model, make

    def together(self, jobs: Sequence[Looking], pass_on: Callable[[], None]) -> list[bytes]:
        going = self.going(pass_on)
        with interruptible(self._model, going):
            return [encoded(self._make(going))]  # it has no key, and so is alone


def look_at(path: str) -> Handler:
    """The handler of one look."""
    schema, function = LOOKS[path]

    async def handle(request: Request) -> Response:
        house = house_of(request)
        asked: Any = await house.asked(request, schema)
        served = found(house.models, asked.model)
        with admitted(served, 1):
            job = Looking(served.speaker.model, lambda going: function(served.speaker, asked, going))
            return answer(await done(request, served.worker, job))

    return handle


def runs_of(house: House) -> Runs:
    if house.runs_there is None:
        raise Refusal(404, "No folder of runs is served. Name one with: chumoku serve --runs FOLDER.")
    return house.runs_there


async def listing(request: Request) -> Response:
    house = house_of(request)
    if house.runs_there is None:
        return answer({"runs": []})
    return answer(await house.files.read("runs", house.runs_there.listing))


async def points(request: Request) -> Response:
    house, after = house_of(request), request.query_params.get("after", "0")
    if not (after.isascii() and after.isdigit() and len(after) <= 12):
        raise Refusal(400, "The parameter 'after' is the number of a step.", param="after")
    name, step = request.path_params["run"], int(after)
    return answer(await house.files.read(("points", name, step), _known, runs_of(house).points, name, step))


async def run_look(request: Request) -> Response:
    house = house_of(request)
    asked = await house.asked(request, schemas.RunLook)
    runs, name, step = runs_of(house), request.path_params["run"], asked.checkpoint
    speaker = await unless_gone(request, house.files.read(("model", name, step), _known, runs.model, name, step))
    look = house.visit(lambda turns, going: encoded(_known(runs.look, speaker, asked, turns, going)))
    return answer(await unless_gone(request, look))


def _known(work: Callable[..., Any], *arguments: Any) -> Any:
    """What a run says; one that is not there is 404."""
    try:
        return work(*arguments)
    except Left:
        raise
    except UnknownRun as error:
        raise Refusal(404, str(error), code="run_not_found") from error
    except Exception as error:
        raise from_error(error) from error
