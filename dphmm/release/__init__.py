"""The loop of the hidden Markov model: constrain, repair, draw, update."""
