"""How people move: the Markov model, the belief that it carries forward, and all that is inferred with the two.

- `MarkovModel`, and `state_sequence`, `state_sequences`: trajectories as what it is learned from by counting.
- `fit_shrunk`: a model in which every move within a highest speed is possible (`Reach`), and counts of moves are shrunk
  towards what the region has in common (`RegionKernel`).
- `ExtendedModel`: one whose transitions vary with public classes of time (`Rhythm`), or that looks back two steps and
  so tells pairs of states apart (`Contexts`).
- `extend`: such a model by counting, each class and pair shrunken towards what is known of all.
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

from dphmm.markov.belief import Belief
from dphmm.markov.chain import reverse, reverses, stationary
from dphmm.markov.contexts import Contexts
from dphmm.markov.extended import ExtendedModel
from dphmm.markov.extending import Extension, extend
from dphmm.markov.inference import Filtering, Observations, filter, filter_releases, smooth, smooth_releases
from dphmm.markov.learning import LearnedModel, learn_from_releases
from dphmm.markov.likelihood import move_probabilities
from dphmm.markov.likeness import Crowd, compare_crowds, jensen_shannon
from dphmm.markov.model import MarkovModel
from dphmm.markov.path import MostProbablePath, most_probable_path, path_of_releases
from dphmm.markov.reach import MAX_SPEED_KMH, Reach
from dphmm.markov.rhythm import Rhythm
from dphmm.markov.sequence import state_sequence, state_sequences
from dphmm.markov.shrinkage import RegionKernel, ShrunkModel, fit_shrunk
from dphmm.markov.walks import draw_like, draw_paths

__all__ = [
    "MAX_SPEED_KMH",
    "Belief",
    "Contexts",
    "Crowd",
    "ExtendedModel",
    "Extension",
    "Filtering",
    "LearnedModel",
    "MarkovModel",
    "MostProbablePath",
    "Observations",
    "Reach",
    "RegionKernel",
    "Rhythm",
    "ShrunkModel",
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
