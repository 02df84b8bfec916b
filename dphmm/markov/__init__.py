"""How people move: the Markov model and the belief that it carries forward."""
