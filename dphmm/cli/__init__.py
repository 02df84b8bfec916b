"""The `dphmm` command, one module per subject; the subcommands are listed in `dphmm.cli.commands`."""

from dphmm.cli.commands import COMMANDS as COMMANDS
from dphmm.cli.commands import Program as Program
from dphmm.cli.commands import main as main
