"""An application of which the processes exit immediately."""

import os


def app() -> None:
    os._exit(9)
