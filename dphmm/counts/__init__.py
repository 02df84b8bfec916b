"""Population counts over time: release with noise, post-processing with known mobility.

A curator knows the location of each of ``n`` users at each of ``T`` times (`count_states`) and adds noise to the counts
(`release`). Recipients can repair the noisy counts with public knowledge (`post_process`): the number of users and
their transition matrix. `least_squares` and `maximum_likelihood` use the number of users only. `estimate` selects an
estimator by its name in `ESTIMATORS`, and `compare` measures their errors. `smooth_counts` and `ChainFilter` are the
coupled estimators; they begin at a `Start`.
"""

from dphmm.counts.chain_estimate import ChainFilter, Start, smooth_counts
from dphmm.counts.noisy_stream import count_states, release
from dphmm.counts.post_processing import ESTIMATORS, compare, estimate, least_squares, maximum_likelihood, post_process

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
