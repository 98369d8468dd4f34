"""What a command says and how it ends: text or JSON, one red line for an error, an exit code."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import sys
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from obc.errors import ObcError

FAILED, STOPPED = 1, 130
_PACKAGE = str(Path(__file__).resolve().parents[1])
_WIDTH = 140  # of tables in a file or a pipe, where rich would take 80

Result = Mapping[str, Any]

_COMMON = {
    "as_json": Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")],
    "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")],
    "debug": Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")],
}


class Output:
    """Text for people on stdout, progress and notes on stderr, unless a machine is reading."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet
        self._out, self._err = _console(sys.stdout), _console(sys.stderr)
        self.notes: list[str] = []

    def say(self, *what: Any) -> None:
        """Print text or tables; names in brackets are no markup."""
        if not self.quiet and not self.as_json:
            self._out.print(*what, markup=False, highlight=False)

    def note(self, text: str) -> None:
        """Something to know of, kept for the report too."""
        self.notes.append(text)
        if not self.quiet:
            self._err.print(Text(f"note: {text}", style="yellow"), soft_wrap=True)

    def error(self, text: str, kind: str = "error") -> None:
        line = " ".join(text.split())
        self._err.print(Text(f"{kind}: {line}", style="bold red"), soft_wrap=True)
        if self.as_json:
            print(json.dumps({"error": line}))

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Say on a terminal what takes time; the long jobs have bars of their own."""
        if self.quiet or not self._err.is_terminal:
            yield
            return
        self._err.print(Text(f"{what} …", style="dim"))
        yield

    def finish(self, result: Result | None) -> None:
        if self.as_json and result is not None:
            print(json.dumps(result, indent=1, default=_plain))


def command(app: typer.Typer, name: str, *, resumes: bool = False) -> Callable[[Any], Any]:
    """Make a function a command: it gets an Output and its own arguments, and returns its result.

    Every command has --json, --quiet and --debug. `resumes` says that the same command again goes
    on where it was stopped.
    """

    def made(function: Callable[..., Result | None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*, as_json: bool, quiet: bool, debug: bool, **arguments: Any) -> None:
            out = Output(as_json=as_json, quiet=quiet)
            with _guarded(out, debug, resumes), _told(out), _bars(not quiet and not as_json):
                out.finish(function(out, **arguments))

        hints = typing.get_type_hints(function, include_extras=True)
        own = list(inspect.signature(function).parameters.values())[1:]
        own = [p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY) for p in own]
        extra = [
            inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=a)
            for n, a in _COMMON.items()
        ]
        run.__signature__ = inspect.Signature([*own, *extra])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in [*own, *extra]}
        del run.__wrapped__
        app.command(name)(run)
        return run

    return made


@contextmanager
def _guarded(out: Output, debug: bool, resumes: bool) -> Iterator[None]:
    """End with one line and an exit code, whatever happens."""
    try:
        yield
    except KeyboardInterrupt:
        how = "the same command goes on from here" if resumes else "nothing was changed"
        out.error(how, "stopped")
        raise typer.Exit(STOPPED) from None
    except (ObcError, OSError) as error:
        if debug:
            raise
        out.error(str(error))
        raise typer.Exit(FAILED) from None
    except (typer.Exit, typer.BadParameter):
        raise
    except Exception as error:
        if debug:
            raise
        said = (str(error).strip() or "no message").splitlines()[0]
        out.error(f"{type(error).__name__}: {said}; --debug shows where")
        raise typer.Exit(FAILED) from None


@contextmanager
def _told(out: Output) -> Iterator[None]:
    """Our own warnings become notes; those of libraries are for programmers."""

    def show(message: Warning | str, category: Any, filename: str, *rest: Any) -> None:
        if str(Path(filename).resolve()).startswith(_PACKAGE) and str(message) not in out.notes:
            out.note(str(message))

    # Its retries are told line by line; the error at the end says the same.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextmanager
def _bars(shown: bool) -> Iterator[None]:
    """The bars of planning and tuning ask rich for a terminal; rich asks this variable."""
    name = "TTY_COMPATIBLE"
    before = os.environ.get(name)
    if not shown:
        os.environ[name] = "0"
    try:
        yield
    finally:
        if not shown:
            os.environ.pop(name)
            if before is not None:
                os.environ[name] = before


def _console(stream: Any) -> Console:
    terminal = stream.isatty()
    return Console(file=stream, width=None if terminal else _WIDTH)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
