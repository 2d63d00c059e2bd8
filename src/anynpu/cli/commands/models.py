"""``anynpu models``: well-known networks and the configs that fit them."""

from __future__ import annotations

from typing import Annotated

import typer

from ..helpers.console import plain_table, print_json, results
from ..helpers.options import JsonOption
from ..networks import NETWORKS, NOT_MEASURED, Network, find, get, recipe_text

_ACTIONS = ("list", "show", "recipe")


def command(
    action: Annotated[
        str,
        typer.Argument(
            metavar="[list|show|recipe|NAME]",
            help="List all, show one, or print the config of one for compile -c. A name alone shows that network.",
            show_default=False,
        ),
    ] = "list",
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The network; for list, a part of its name or a task.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List well-known networks, and print the config of one for 'anynpu compile -c'.

    A config has the preprocessing that the network was trained with. Files stay where their owners publish them.

    \b
    Example:
      anynpu models
      anynpu models list pose
      anynpu models yolox-nano
      anynpu models recipe yolox-nano > yolox.toml
    """
    if action not in _ACTIONS and name is None:
        action, name = "show", action
    if action not in _ACTIONS:
        raise typer.BadParameter(f"'{action}' is not one of {', '.join(_ACTIONS)}", param_hint="'[list|show|recipe|NAME]'")
    if action == "list":
        _list(name or "", as_json)
        return
    if name is None:
        raise typer.BadParameter("name a network; anynpu models lists them", param_hint="'NAME'")
    network = get(name)
    if action == "recipe":
        typer.echo(recipe_text(network, as_json=as_json), nl=False)
    elif as_json:
        print_json(network.to_json())
    else:
        _show(network)


def _list(text: str, as_json: bool) -> None:
    found = find(text)
    if not found:
        raise typer.BadParameter(f"no network has '{text}' in its name; there are {len(NETWORKS)}", param_hint="'NAME'")
    if as_json:
        print_json([network.to_json() for network in found])
        return
    table = plain_table("name", "task", "preprocessing", "source")
    for network in found:
        table.add_row(network.name, network.task, network.preprocessing, network.source)
    results().print(table)


def _show(network: Network) -> None:
    facts = {
        "task": network.task,
        "source": network.source,
        "ONNX file": network.to_onnx,
        "input": network.inputs,
        "outputs": network.outputs,
        "preprocessing": network.preprocessing,
        "cut": network.cut,
        "run with": network.run_flags,
        "note": network.note,
        "measured": network.measured or NOT_MEASURED,
    }
    console = results()
    console.print(network.name)
    for label, value in facts.items():
        if value:
            console.print(f"  {label + ':':15} {value}")
    console.print(f"  {'recipe:':15} anynpu models recipe {network.name} > {network.name}.toml")
