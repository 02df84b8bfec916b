"""How people move: the Markov model, the belief that it carries forward, and all that is inferred with the two.

- `MarkovModel`: one or several transition matrices, with the public classes of time that choose among them
  (`TimeClasses`) or none. `state_sequence`, `state_sequences`: trajectories as what it is learned from by counting.
- `fit_shrunk`: a model in which every move within a highest speed is possible (`SpeedLimit`), and counts of moves are
  shrunk towards what the region has in common (`RegionKernel`).
- `blank`: a model of a region alone, without data of people.
- `extend`: such a model by counting, each class shrunken towards what is known of all.
- `Belief`: a distribution over states, predicted and updated.
- `draw_paths`, `draw_like`: people who do not exist; `Crowd`, `compare_crowds`, `jensen_shannon`: how alike they are
  to those who do.
- `move_probabilities`: how probable a model thinks what people did.
- `filter`, `smooth`, `most_probable_path`: inference on plain arrays. `filter_releases`, `smooth_releases` and
  `path_of_releases` are the same on beliefs, which tell a faint state from an impossible one and take gaps in time.
- `learn_from_releases`: a model from `Observations` alone, by expectation maximisation.
- `reverse`, `reverses`, `stationary`: what follows from a transition matrix alone.
"""

from __future__ import annotations

from dphmm.model.belief import Belief
from dphmm.model.expectation_maximisation import LearnedModel, learn_from_releases
from dphmm.model.fitting import Extension, RegionKernel, ShrunkModel, extend, fit_shrunk
from dphmm.model.forward_backward import Filtering, Observations, filter, filter_releases, smooth, smooth_releases
from dphmm.model.mobility_statistics import Crowd, compare_crowds, jensen_shannon, move_probabilities
from dphmm.model.model import MarkovModel
from dphmm.model.moves import state_sequence, state_sequences
from dphmm.model.path_sampling import draw_like, draw_paths
from dphmm.model.published_laws import blank
from dphmm.model.reversal import reverse, reverses, stationary
from dphmm.model.speed_limit import MAX_SPEED_KMH, SpeedLimit
from dphmm.model.time_classes import TimeClasses
from dphmm.model.viterbi import MostProbablePath, most_probable_path, path_of_releases

__all__ = [
    "MAX_SPEED_KMH",
    "Belief",
    "Crowd",
    "Extension",
    "Filtering",
    "LearnedModel",
    "MarkovModel",
    "MostProbablePath",
    "Observations",
    "RegionKernel",
    "ShrunkModel",
    "SpeedLimit",
    "TimeClasses",
    "blank",
    "compare_crowds",
    "draw_like",
    "draw_paths",
    "extend",
    "filter",
    "filter_releases",
    "fit_shrunk",
    "jensen_shannon",
    "learn_from_releases",
    "most_probable_path",
    "move_probabilities",
    "path_of_releases",
    "reverse",
    "reverses",
    "smooth",
    "smooth_releases",
    "state_sequence",
    "state_sequences",
    "stationary",
]
