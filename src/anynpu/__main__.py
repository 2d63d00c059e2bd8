"""``python -m anynpu``: the command line."""

from .cli import main

main()
