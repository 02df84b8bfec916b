"""Where a person can be: trajectories, a local projection, state spaces."""
