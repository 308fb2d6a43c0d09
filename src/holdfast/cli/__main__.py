"""``python -m holdfast.cli``: the command, if its script is not on the path."""

from holdfast.cli.main import main

main()
