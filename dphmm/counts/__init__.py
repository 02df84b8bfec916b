"""Population counts over time: noise, and what known mobility repairs of it.

A curator knows where each of ``n`` users is at each of ``T`` times (`count_states`), adds noise to the counts
(`release`), and anyone may repair the noisy counts with what is public (`post_process`): the number of users and how
they move. `least_squares` and `maximum_likelihood` use the number of users only.
"""

from dphmm.counts.baselines import least_squares, maximum_likelihood, nearest_integers
from dphmm.counts.chain_estimate import ChainFilter, Start, filter_counts, smooth_counts
from dphmm.counts.comparison import ESTIMATORS, compare, estimate
from dphmm.counts.map_estimate import integer_map, objective, optimality_gap, real_map
from dphmm.counts.noise import release
from dphmm.counts.occupancy import Occupancy, as_transition, first_distribution, occupancy
from dphmm.counts.repair import post_process
from dphmm.counts.stream import count_states

__all__ = [
    "ESTIMATORS",
    "ChainFilter",
    "Occupancy",
    "Start",
    "as_transition",
    "compare",
    "count_states",
    "estimate",
    "filter_counts",
    "first_distribution",
    "integer_map",
    "least_squares",
    "maximum_likelihood",
    "nearest_integers",
    "objective",
    "occupancy",
    "optimality_gap",
    "post_process",
    "real_map",
    "release",
    "smooth_counts",
]
