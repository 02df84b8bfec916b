"""Jobs that release many users: the batch, its workers and its folder."""
