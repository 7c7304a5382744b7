"""Routes /v1/look/… and /v1/runs…, which call `views` and `runs`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from chumoku.models.model import Model
from chumoku.probe.cancellation import CheckInterrupt, interruptible
from chumoku.server.checkpoints import UnknownRun
from chumoku.server.disconnect import cancel_on_disconnect, run_job
from chumoku.server.errors import RequestError, to_request_error
from chumoku.server.jobs import Job, JobCancelled
from chumoku.server.look import schemas, views
from chumoku.server.models import find_model
from chumoku.server.openai.routes import admit_texts
from chumoku.server.runs import Runs
from chumoku.server.state import ServerState, state_of
from chumoku.server.streaming import encode_json, json_response

Handler = Callable[[Request], Awaitable[Response]]
LOOKS: dict[str, tuple[type[schemas.Strict], Callable[..., Any]]] = {
    "/v1/look": (schemas.Look, views.look),
    "/v1/look/tokens": (schemas.PromptRequest, views.tokens),
    "/v1/look/addresses": (schemas.PromptRequest, views.addresses),
    "/v1/look/tensor": (schemas.Tensor, views.tensor),
    "/v1/look/block": (schemas.Block, views.block),
    "/v1/look/next": (schemas.Next, views.next_tokens),
    "/v1/look/ablate": (schemas.Ablate, views.ablate),
    "/v1/look/patch": (schemas.Patch, views.patch),
    "/v1/look/effects": (schemas.Effects, views.effects),
}


class LookJob(Job):
    """One look inside a model, encoded as JSON in the worker; it ends early if the client disconnects."""

    def __init__(self, model: Model, compute: Callable[[CheckInterrupt], Any]) -> None:
        super().__init__()
        self._model, self._compute = model, compute

    def run_batch(self, jobs: Sequence[LookJob], yield_turn: Callable[[], None]) -> list[bytes]:
        check_interrupt = self.cancellation_check(yield_turn)
        with interruptible(self._model, check_interrupt):
            return [encode_json(self._compute(check_interrupt))]  # always one job: these have no `Job.key`


def make_look_handler(path: str) -> Handler:
    schema, function = LOOKS[path]

    async def handle(request: Request) -> Response:
        state = state_of(request)
        body: Any = await state.read_body(request, schema)
        served = find_model(state.models, body.model)
        with admit_texts(served, 1):
            job = LookJob(
                served.pipeline.model, lambda check_interrupt: function(served.pipeline, body, check_interrupt)
            )
            return json_response(await run_job(request, served.worker, job))

    return handle


def require_runs(state: ServerState) -> Runs:
    if state.training_runs is None:
        raise RequestError(404, "This server shows no training runs. Give a folder with: chumoku serve --runs FOLDER.")
    return state.training_runs


async def list_runs(request: Request) -> Response:
    state = state_of(request)
    if state.training_runs is None:
        return json_response({"runs": []})
    return json_response(await state.files.read("runs", state.training_runs.list_runs))


async def run_points(request: Request) -> Response:
    state, after = state_of(request), request.query_params.get("after", "0")
    if not (after.isascii() and after.isdigit() and len(after) <= 12):
        raise RequestError(400, "The parameter 'after' must be the number of a step.", param="after")
    name, step, runs = request.path_params["run"], int(after), require_runs(state)
    return json_response(await state.files.read(("points", name, step), _convert_errors, runs.points, name, step))


async def run_look(request: Request) -> Response:
    state = state_of(request)
    body = await state.read_body(request, schemas.RunLook)
    runs, name, step = require_runs(state), request.path_params["run"], body.checkpoint
    opened = state.files.read(("model", name, step), _convert_errors, runs.open_model, name, step)
    pipeline = await cancel_on_disconnect(request, opened)
    look = state.run_checkpoint_look(
        lambda lock, check_interrupt: encode_json(_convert_errors(runs.look, pipeline, body, lock, check_interrupt))
    )
    return json_response(await cancel_on_disconnect(request, look))


def _convert_errors(work: Callable[..., Any], *arguments: Any) -> Any:
    """Result of `work(*arguments)`; exceptions become RequestError, with 404 for an unknown run."""
    try:
        return work(*arguments)
    except JobCancelled:
        raise
    except UnknownRun as error:
        raise RequestError(404, str(error), code="run_not_found") from error
    except Exception as error:
        raise to_request_error(error) from error
