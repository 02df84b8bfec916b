"""From files to trajectories, one module per format."""
