"""`engine completions`: what a shell needs to complete commands, options and names."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from engine.printing import pipe

Shell = Literal["bash", "zsh", "fish", "powershell"]


def completions(
    shell: Annotated[Shell, typer.Argument(help="For which shell.")],
) -> None:
    """Print a completion script: source <(engine completions bash)."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name="engine", complete_var="_ENGINE_COMPLETE", shell=shell)
    with pipe():
        print(script)
