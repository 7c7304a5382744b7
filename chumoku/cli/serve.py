"""chumoku serve: models behind one address, for the page and for every OpenAI client."""

from __future__ import annotations

import importlib.util
import inspect
import ipaddress
import sys
import typing
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from chumoku.cli.shared import KNOWN, Device, Precision
from chumoku.errors import MissingExtraError, UsageError
from chumoku.server.security.limits import Limits

RUNS = Path("runs")
SHORTEST_KEY = 8
Names = Annotated[list[str] | None, typer.Option(help="A name by which this server is asked; again for more.")]
Origins = Annotated[list[str] | None, typer.Option(metavar="ORIGIN", help="A page that may ask, as https://a.example.")]
Key = Annotated[str | None, typer.Option(envvar="CHUMOKU_API_KEY", help="Asked for on every route but /health.")]


def serve(
    models: Annotated[list[str], typer.Argument(metavar="MODEL…", help=f"Any model: {KNOWN}; NAME=PATH names it.")],
    host: Annotated[str, typer.Option(help="Address to listen at; one that others reach needs a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: any that is free.")] = 8731,
    api_key: Key = None,
    host_name: Names = None,
    cors: Origins = None,
    runs: Annotated[Path | None, typer.Option(help="Folder of runs to show; runs/, where it is there.")] = None,
    lab: Annotated[
        Path | None, typer.Option(help="Folder of the laboratory's report; else lab/ in that of runs.")
    ] = None,
    device: Device = "cpu",
    precision: Precision = None,
    **limits: Any,
) -> None:
    """Serve models at one address: a page to translate, chat and look inside, and OpenAI's API for other programs."""
    check(host, api_key, cors or [])
    bounds = Limits(**limits)
    need("fastapi", "uvicorn")
    from chumoku.server.models import named, open_models
    from chumoku.server.run import bound
    from chumoku.server.run import serve as answer
    from chumoku.server.state import House

    named(models)  # what is wrong with the names is said before anything is opened
    listening = bound(host, port)
    runs = runs or (RUNS if RUNS.is_dir() else None)
    house = House(
        open_models(models, bounds, device=device, precision=precision),
        bounds,
        key=api_key,
        hosts=hosts(host, host_name or []),
        any_address=host in ("0.0.0.0", "::"),
        origins=frozenset(cors or []),
        runs=runs,
        lab=lab or (None if runs is None else runs / "lab"),
    )
    told = f"[{host}]" if ":" in host else host
    print(f"{', '.join(house.models)} at http://{told}:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
    answer(house, listening)


def with_limits(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every limit."""
    own, hints = inspect.signature(command), typing.get_type_hints(command, include_extras=True)
    types, parameters = typing.get_type_hints(Limits), []
    for one in fields(Limits):
        least, most = one.metadata["least"], one.metadata["most"]
        # An int's bounds are ints, or typer would print 1.0.
        kind = types[one.name]
        option = typer.Option(min=kind(least), max=kind(most), help=one.metadata["help"], rich_help_panel="Limits")
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


def check(host: str, key: str | None, origins: list[str]) -> None:
    """What is said before anything is loaded."""
    if key is not None and len(key) < SHORTEST_KEY:
        raise UsageError(f"A key of fewer than {SHORTEST_KEY} letters is soon guessed. Give a longer one.")
    if key is None and not loopback(host):
        raise UsageError(
            f"At the address {host} others could ask your models too, so a key is needed. Give one with --api-key (or "
            "in CHUMOKU_API_KEY), or listen at 127.0.0.1."
        )
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
            raise UsageError(f"'{origin}' is no origin. Write scheme and name, as in --cors https://a.example.")


def loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def hosts(host: str, names: list[str]) -> frozenset[str]:
    """Names by which requests may call this server."""
    return frozenset({"localhost", "127.0.0.1", "::1", host.lower(), *(name.lower() for name in names)})


def need(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"The server needs {' and '.join(missing)}, which this Python lacks. Install it with: pip install "
            "'chumoku[serve]'."
        )


serve = with_limits(serve)
