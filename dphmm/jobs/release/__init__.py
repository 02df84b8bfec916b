"""Jobs that release trajectories: the job, what it guarantees, and stored releases."""
