"""``python -m ctem`` is the command line."""

from ctem.cli import app

app(prog_name="ctem")
