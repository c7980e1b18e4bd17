"""The answers of commands, printed as sentences and tables, or with ``--json`` as one JSON object."""

import functools
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shoal.runs.audits.gate import Gate

EXIT_CODES = "Exit codes: 0 done; 1 failed; 2 bad input; 3 a --gate limit is broken; 130 interrupted."

_AS_JSON = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


@dataclass(frozen=True)
class CommandResult:
    """A command's answer.

    Args:
        document: the answer as JSON, with the keys of the written files.
        shown: the answer for a person, as text or as a function that prints.
        gates: the gates on the document's figures; a broken gate makes the exit code 3.
        code: the exit code without a broken gate.
    """

    document: Mapping[str, Any]
    shown: str | Callable[[], object]
    gates: Sequence["Gate"] = ()
    code: int = 0


def command(app: typer.Typer, example: str) -> Callable[[Callable[..., CommandResult]], Callable[..., None]]:
    """Add a function as a command of ``app`` with the option ``--json``; ``example`` is the last line of the help."""

    def add(function: Callable[..., CommandResult]) -> Callable[..., None]:
        @functools.wraps(function)
        def answered(*, as_json: bool, **arguments: object) -> None:
            _print(function(**arguments), as_json=as_json)

        signature = inspect.signature(function)
        option = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_AS_JSON)
        # Typer reads both attributes.
        answered.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # pyright: ignore[reportAttributeAccessIssue]
        answered.__annotations__ = function.__annotations__ | {"as_json": _AS_JSON, "return": None}
        return app.command(epilog=f"Example: shoal {example}\n\n{EXIT_CODES}")(answered)

    return add


def _print(answer: CommandResult, *, as_json: bool) -> None:
    judged = [gate.verdict(answer.document) for gate in answer.gates]
    if as_json:
        gates = {str(gate): holds for gate, (_, holds) in zip(answer.gates, judged, strict=True)}
        typer.echo(json.dumps(_finite({**answer.document, **({"gates": gates} if gates else {})}), indent=2))
    elif isinstance(answer.shown, str):
        typer.echo(answer.shown)
    else:
        answer.shown()
    for sentence, _ in judged:
        typer.echo(sentence, err=as_json)
    # A gate on an unmeasured figure raises an error, after all gates are printed.
    broken = [gate.broken_by(answer.document) for gate in answer.gates]
    if any(broken) or answer.code:
        raise typer.Exit(3 if any(broken) else answer.code)


def _finite(value: object) -> object:
    """Replace NaN and infinities by None, and other objects by text."""
    match value:
        case Mapping():
            return {str(key): _finite(part) for key, part in value.items()}
        case list() | tuple():
            return [_finite(part) for part in value]
        case float():
            return value if math.isfinite(value) else None
        case None | bool() | int() | str():
            return value
    return str(value)
