"""Population counts over time: noise, and what known mobility repairs of it.

A curator knows where each of ``n`` users is at each of ``T`` times (`count_states`), adds noise to the counts
(`release`), and anyone may repair the noisy counts with what is public (`post_process`): the number of users and how
they move. `least_squares` and `maximum_likelihood` use the number of users only; `estimate` takes any of these by its
name in `ESTIMATORS`, and `compare` measures their errors. `smooth_counts` and `ChainFilter`, which begin at a `Start`,
are the coupled estimators themselves.
"""

from dphmm.counts.chain_estimate import ChainFilter, Start, smooth_counts
from dphmm.counts.repair import ESTIMATORS, compare, estimate, least_squares, maximum_likelihood, post_process
from dphmm.counts.stream import count_states, release

__all__ = [
    "ESTIMATORS",
    "ChainFilter",
    "Start",
    "compare",
    "count_states",
    "estimate",
    "least_squares",
    "maximum_likelihood",
    "post_process",
    "release",
    "smooth_counts",
]
