"""`gpuchaos completion`: what a shell needs to complete commands, options, choices and files."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import FishComplete, ShellComplete, ZshComplete

from gpuchaos_stream.commandline import exits

_PROGRAM: Final = "gpuchaos"
_VARIABLE: Final = "_GPUCHAOS_COMPLETE"

#: As click's own, but it asks no bash for its version, and a folder or file is completed as bash does it.
_BASH: Final = """\
_gpuchaos_completion() {
    local IFS=$'\\n' line
    COMPREPLY=()
    local words="${COMP_WORDS[*]}"
    for line in $(COMP_WORDS=$words COMP_CWORD=$COMP_CWORD _GPUCHAOS_COMPLETE=bash_complete "$1" 2>/dev/null); do
        case $line in
            plain,*) COMPREPLY+=("${line#plain,}") ;;
            file,*) compopt -o default; COMPREPLY=(); return ;;
            dir,*) compopt -o dirnames; COMPREPLY=(); return ;;
        esac
    done
}
complete -o nosort -F _gpuchaos_completion gpuchaos
"""

#: How each shell is told, for its first line.
_HOW: Final = {
    "bash": 'eval "$(gpuchaos completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(gpuchaos completion zsh)" in ~/.zshrc, after compinit',
    "fish": "gpuchaos completion fish > ~/.config/fish/completions/gpuchaos.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_HOW)))
@exits()
def completion(shell: str) -> None:
    """Print what makes SHELL complete gpuchaos at TAB: commands, options, their choices, files.

    It asks no Kafka: ids of experiments are not completed.
    """
    click.echo(f"# {_HOW[shell]}\n{script(shell)}", nl=False)


def script(shell: str) -> str:
    """The script of one shell."""
    if shell == "bash":
        return _BASH
    kind: type[ShellComplete] = {"zsh": ZshComplete, "fish": FishComplete}[shell]
    return kind(click.Group(), {}, _PROGRAM, _VARIABLE).source().strip() + "\n"
