"""chumoku serve: the web page and the OpenAI-compatible API for one or more models."""

from __future__ import annotations

import importlib.util
import inspect
import ipaddress
import typing
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from chumoku.cli.shared import KNOWN, Device, Precision, message_on_sigterm, say_aside
from chumoku.errors import MissingExtraError, UsageError
from chumoku.pretrained import NAMES, installed_models
from chumoku.server.security.limits import Limits

RUNS = Path("runs")
SHORTEST_KEY = 8
Names = Annotated[list[str] | None, typer.Option(help="Another host name of this server; may be repeated.")]
Origins = Annotated[list[str] | None, typer.Option(metavar="ORIGIN", help="Allowed origin, as https://a.example.")]
Adapters = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=FOLDER", help="A LoRA adapter of the model, requested by its name; may be repeated."),
]
Key = Annotated[str | None, typer.Option(envvar="CHUMOKU_API_KEY", help="Key required on every route but /health.")]


def serve(
    command_line: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL…", help=f"Any model: {KNOWN}; NAME=PATH names it; default: all shipped models."),
    ] = None,
    adapter: Adapters = None,
    host: Annotated[str, typer.Option(help="Address to listen on; a public one requires a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 8731,
    api_key: Key = None,
    host_name: Names = None,
    cors: Origins = None,
    runs: Annotated[Path | None, typer.Option(help="Folder of training runs to show; by default runs/.")] = None,
    lab: Annotated[
        Path | None, typer.Option(help="Folder of the lab report; by default lab/ (or lab-quick/) in --runs.")
    ] = None,
    device: Device = "cpu",
    precision: Precision = None,
    **limits: Any,
) -> None:
    """Serve models: a web page to translate, chat and look inside, and an OpenAI-compatible API."""
    check_options(host, api_key, cors or [])
    models = models or require_installed()
    server_limits = Limits(**limits)
    require_modules("fastapi", "uvicorn")
    command_line.with_resource(message_on_sigterm(exit_code=0))  # while models are loaded; then uvicorn handles it
    from chumoku.server.models import list_names, name_models, open_models
    from chumoku.server.run import bind_socket
    from chumoku.server.run import serve as run_server
    from chumoku.server.state import ServerState

    # Without the option, models with longrope have the frequencies that the other commands use by default.
    source = command_line.get_parameter_source("context")
    context = server_limits.context if source is not None and source.name == "COMMANDLINE" else None
    adapters = adapter or []
    name_models(models, adapters)  # report invalid names before loading anything
    listening_socket = bind_socket(host, port)
    runs = runs or (RUNS if RUNS.is_dir() else None)
    state = ServerState(
        open_models(models, server_limits, adapters=adapters, device=device, precision=precision, context=context),
        server_limits,
        key=api_key,
        hosts=allowed_hosts(host, host_name or []),
        any_address=host in ("0.0.0.0", "::"),
        origins=frozenset(cors or []),
        runs=runs,
        lab=lab or (None if runs is None else runs / "lab"),
    )
    address = f"{f'[{host}]' if ':' in host else host}:{listening_socket.getsockname()[1]}"
    say_aside(f"{', '.join(list_names(state.models))} at http://{address}")
    for name, served in state.models.items():
        for notice in filter(None, (served.chat_notice, served.engine_notice)):
            say_aside(f"{name}: {notice}")
    run_server(state, listening_socket)


def add_limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option to the command for every limit."""
    own, hints = inspect.signature(command), typing.get_type_hints(command, include_extras=True)
    types, parameters = typing.get_type_hints(Limits), []
    for one in fields(Limits):
        minimum, maximum = one.metadata["minimum"], one.metadata["maximum"]
        # typer would show a float bound of an int option as 1.0.
        kind = types[one.name]
        option = typer.Option(min=kind(minimum), max=kind(maximum), help=one.metadata["help"], rich_help_panel="Limits")
        parameters.append(
            inspect.Parameter(
                one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=Annotated[kind, option]
            )
        )
    named = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [*(one.replace(annotation=hints[one.name]) for one in named), *parameters]
    command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def check_options(host: str, key: str | None, origins: list[str]) -> None:
    """Raise UsageError for unsafe or invalid options, before anything is loaded."""
    if key is not None and len(key) < SHORTEST_KEY:
        raise UsageError(f"A key of fewer than {SHORTEST_KEY} characters is easy to guess. Give a longer one.")
    if key is None and not is_loopback(host):
        raise UsageError(
            f"Other computers can reach the address {host}, so a key is required. Give one with --api-key (or in "
            "CHUMOKU_API_KEY), or listen on 127.0.0.1."
        )
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
            raise UsageError(f"'{origin}' is not an origin. Write scheme and host, as in --cors https://a.example.")


def require_installed() -> list[str]:
    """The shipped models, which are served by default; UsageError if this installation has none."""
    models = installed_models()
    if not models:
        raise UsageError(
            f"This installation has no shipped models ({', '.join(NAMES)}). Give at least one model to serve, a "
            "folder or a file: chumoku serve runs/demo."
        )
    return models


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def allowed_hosts(host: str, names: list[str]) -> frozenset[str]:
    """Names allowed in the Host header."""
    return frozenset({"localhost", "127.0.0.1", "::1", host.lower(), *(name.lower() for name in names)})


def require_modules(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"The server needs {' and '.join(missing)}, which are not installed. Install them with: pip install "
            "'chumoku[serve]'."
        )


serve = add_limit_options(serve)
