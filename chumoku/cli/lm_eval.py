"""chumoku lm-eval: the command line of lm-evaluation-harness, with the model `chumoku`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from chumoku.errors import MissingExtraError

# Everything after `lm-eval` is for the harness; only a --help that comes first is ours.
CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


def lm_eval(
    arguments: Annotated[list[str], typer.Argument(help="Of lm_eval, such as: --model chumoku --tasks hellaswag.")],
) -> None:
    """Run lm-evaluation-harness; its model `chumoku` opens any decoder that chumoku opens.

    chumoku lm-eval --model chumoku --model_args path=runs/novel,precision=int8 --tasks hellaswag

    The --model_args: path, precision, adapter and context. `chumoku lm-eval run --help` lists the options of lm_eval.
    """
    try:
        from lm_eval.__main__ import cli_evaluate

        import chumoku.harness.lm_eval_model  # noqa: F401 - registers the model
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "lm_eval":
            raise
        raise MissingExtraError("lm_eval is not installed. Install it with: pip install 'chumoku[lm-eval]'.") from None
    sys.argv = ["lm_eval", *arguments]
    cli_evaluate()
