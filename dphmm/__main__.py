"""``python -m dphmm`` is the command `dphmm`."""

from dphmm.cli import main

if __name__ == "__main__":
    main(prog_name="dphmm")
