"""The `dphmm` command, one module per subcommand."""
