"""``python -m anynpu.cli``."""

from . import main

main()
