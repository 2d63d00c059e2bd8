"""One table for each set of options: object, keywords, docstrings, checks, flags and pages come from it."""

from __future__ import annotations

import importlib.util
import inspect
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

import anynpu
from anynpu._util.options import OptionTable, documented, keyword_form, option, same_as
from anynpu.cli.helpers.flags import with_flags
from anynpu.errors import CompileError, OptionError

ROOT = Path(__file__).parents[1]


@documented
@dataclass(frozen=True)
class Tea(OptionTable):
    """How tea is made."""

    sort: str = option("green", "the leaves", choices=("green", "black"), flag="--sort")
    minutes: float = option(3.0, "how long it draws", minimum=0, flag="--minutes", kind=float)
    herbs: tuple[str, ...] = option((), "what else goes in", flag="--herb", kind=list[str] | None, metavar="NAME")
    grams: int = option(2, "how much", flag="--spoons", kind=float, flag_default=1.0, read=lambda spoons: round(2 * spoons))
    pot: Any = option(None, "what it is made in", python="any vessel")


@keyword_form(Tea)
def brew(water: str, options: Tea | None = None, **changes: Any) -> Tea:
    """Make tea.

    :param water: how hot

    >>> brew("hot").sort
    'green'
    """
    del water
    return Tea.merged(options, changes)


def test_a_function_takes_an_object_keywords_or_both() -> None:
    assert brew("hot") == Tea()
    assert brew("hot", minutes=5).minutes == 5
    assert brew("hot", Tea(sort="black"), minutes=5) == Tea(sort="black", minutes=5)
    with pytest.raises(TypeError, match="no option 'minute'; did you mean minutes"):
        brew("hot", minute=5)


def test_what_is_wrong_is_said_with_what_is_right() -> None:
    with pytest.raises(OptionError, match="no sort 'blue'") as caught:
        Tea(sort="blue")
    assert "green, black" in caught.value.hint
    with pytest.raises(OptionError, match="minutes must be at least 0, got -1"):
        Tea(minutes=-1)
    with pytest.raises(OptionError, match="at least 0, got nan"):
        Tea(minutes=float("nan"))


def test_signature_and_docstrings_have_every_option() -> None:
    assert list(inspect.signature(brew).parameters) == ["water", "options", "sort", "minutes", "herbs", "grams", "pot"]
    assert inspect.signature(brew).parameters["minutes"].default == 3.0
    assert ":param sort: the leaves (``green``, ``black``)" in (brew.__doc__ or "")
    assert ":param pot: what it is made in; any vessel\n\n>>> brew" in (brew.__doc__ or "")
    assert ":ivar minutes: how long it draws" in (Tea.__doc__ or "")


def test_a_command_gets_the_flags() -> None:
    seen: list[Any] = []
    app = typer.Typer()

    @app.command()
    @with_flags(Tea)
    def command(
        cup: Annotated[str, typer.Argument()], given: dict[str, Any], hot: Annotated[bool, typer.Option("--hot")] = False
    ) -> None:
        """Make tea."""
        seen.append((cup, hot, Tea(**given)))

    assert CliRunner().invoke(app, ["blue"]).exit_code == 0
    arguments = ["--sort", "black", "--herb", "mint", "--herb", "sage", "--spoons", "3", "--hot", "red"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert seen == [("blue", False, Tea()), ("red", True, Tea(sort="black", herbs=("mint", "sage"), grams=6))]
    assert CliRunner().invoke(app, ["--sort", "blue", "red"]).exit_code == 2
    assert CliRunner().invoke(app, ["--minutes", "-1", "red"]).exit_code == 2
    assert "--pot" not in CliRunner().invoke(app, ["--help"]).output


def test_a_command_may_have_some_of_them_and_need_one() -> None:
    app = typer.Typer()

    @app.command()
    @with_flags(Tea, only=("sort", "minutes"), without=("minutes",), required=("sort",))
    def command(given: dict[str, Any]) -> None:
        """Make tea."""
        assert given == {"sort": "black"}

    assert CliRunner().invoke(app, []).exit_code == 2
    assert CliRunner().invoke(app, ["--sort", "black"]).exit_code == 0


def test_the_compiler_has_an_object_and_keywords() -> None:
    options = anynpu.CompileOptions(dtype="fp16", hybrid=("x",))
    assert options.algorithm == "percentile"
    assert "hybrid" in inspect.signature(anynpu.compile).parameters
    with pytest.raises(CompileError, match="no algorithm 'guess'"):
        anynpu.CompileOptions(algorithm="guess")
    with pytest.raises(TypeError, match="did you mean dtype"):
        anynpu.compile(b"", dtyp="fp16")


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("options_page", ROOT / "tools" / "options_page.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


TOOL = load_tool()


@pytest.mark.parametrize(("name", "table"), TOOL.TABLES)
def test_the_pages_have_the_tables_of_today(name: str, table: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert page == TOOL.updated(page, table, TOOL.TABLES[name, table]()), "run python tools/options_page.py"


def test_a_field_may_be_that_of_another_table() -> None:
    @dataclass(frozen=True)
    class Coffee(OptionTable):
        minutes: float = same_as(Tea, "minutes", flag="--draw")

    assert Coffee().minutes == 3.0
    assert Coffee.options()["minutes"].doc == "how long it draws"
    assert (Coffee.options()["minutes"].flag, Tea.options()["minutes"].flag) == ("--draw", "--minutes")
    with pytest.raises(OptionError, match="minutes must be at least 0"):
        Coffee(minutes=-1)


def test_the_server_and_the_cluster_have_the_same_flags() -> None:
    from anynpu.cli.app import app
    from anynpu.serve import ServeOptions

    commands = typer.main.get_command(app)
    flags = {
        name: {flag for parameter in commands.get_command(None, name).params for flag in parameter.opts}  # type: ignore[attr-defined]
        for name in ("serve", "cluster", "run", "bench")
    }
    table = {entry.flag.split("/")[0] for entry in ServeOptions.options().values() if entry.flag}
    assert table <= flags["serve"]
    assert table - flags["cluster"] == {"--isolate", "--isolate-memory", "--load-root", "--shared-memory", "--trace"}
    assert {"--isolate", "--isolate-memory"} <= flags["run"] & flags["bench"]


def test_the_options_of_a_session_are_one_table() -> None:
    """The type of the dictionary and the keyword form have the names of the table."""
    from anynpu.session import RknnProviderOptions, SessionOptions, make_provider_options

    table = SessionOptions.options()
    accepted = {name for option, entry in table.items() for name in (option, *entry.aliases)}
    assert accepted == set(RknnProviderOptions.__annotations__)
    assert list(inspect.signature(make_provider_options).parameters) == list(table)
    for name in table:
        assert f":param {name}: " in (make_provider_options.__doc__ or "")
    with pytest.raises(TypeError, match="unexpected keyword argument 'shedule'"):
        make_provider_options(shedule=[0])  # type: ignore[call-arg]
