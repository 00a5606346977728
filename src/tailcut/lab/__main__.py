"""`python -m tailcut.lab`: the same as `tailcut lab`."""

from tailcut.lab.commands import app

app(prog_name="tailcut lab")
