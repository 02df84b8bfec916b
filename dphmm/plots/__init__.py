"""Maps and curves; every function takes an `ax`."""
