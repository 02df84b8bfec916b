"""The `dphmm` command, one module per subject. `dphmm.cli.commands` lists the subcommands."""

from dphmm.cli.commands import COMMANDS as COMMANDS
from dphmm.cli.commands import Program as Program
from dphmm.cli.commands import main as main
