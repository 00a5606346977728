"""The program `tailcut`: only where its subcommands are put together."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from tailcut.bench import calibrating
from tailcut.bench.commands import BENCH_HELP, REPORT_HELP, bench, report
from tailcut.lab.commands import app as lab

HELP = """AllReduce that finishes on time: no hangs, the slow rank named, ordinary Ethernet usable.

\b
Begin with:
  tailcut bench             how it compares with Gloo on this machine, in a minute or two
  tailcut lab list          networks with bad days, on this machine
  tailcut report            the newest results as a page with figures
  tailcut COMMAND --help    what a command does, with examples

In a program: tailcut.connect(...), or init_process_group("tailcut") in PyTorch.
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tailcut {version('tailcut')}")
        raise typer.Exit()


@app.callback()
def _options(
    show: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Options before the subcommand."""


app.command("bench", help=BENCH_HELP)(bench)
app.command("report", help=REPORT_HELP)(report)
lab.command("calibrate", help=calibrating.HELP)(calibrating.command)  # it measures: lab may not import bench
app.add_typer(lab, name="lab")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
