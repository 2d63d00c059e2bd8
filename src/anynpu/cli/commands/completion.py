"""``anynpu completion``: what a shell needs to complete commands, options and chips."""

from __future__ import annotations

import enum
import sys
from typing import Annotated

import typer

from ..helpers.console import print_json
from ..helpers.options import JsonOption


class Shell(str, enum.Enum):
    """A shell with completion."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def command(
    shell: Annotated[Shell, typer.Argument(help="The shell.")],
    as_json: JsonOption = False,
) -> None:
    """Print the completion script of a shell.

    \b
    Example:
      anynpu completion bash >> ~/.bashrc
      anynpu completion zsh > ~/.zfunc/_anynpu
      anynpu completion fish > ~/.config/fish/completions/anynpu.fish
    """
    from typer._completion_shared import get_completion_script

    script = get_completion_script(prog_name="anynpu", complete_var="_ANYNPU_COMPLETE", shell=shell.value)
    if as_json:
        print_json({"shell": shell.value, "script": script})
    else:
        sys.stdout.write(f"{script}\n")
