"""Markov models of movement, the beliefs they propagate, and inference with both.

- `MarkovModel`: one transition matrix, or one for each public class of time (`TimeClasses`). `state_sequence` and
  `state_sequences` convert trajectories to the state sequences that a model is learned from.
- `fit_shrunk`: learns a model in which every move below a speed limit (`SpeedLimit`) is possible. Counts of moves are
  shrunk towards a kernel of the region (`RegionKernel`).
- `region_prior`: builds a model of a region without data of users.
- `extend`: learns one matrix for each class of time, each shrunk towards the matrix of all classes.
- `Belief`: a distribution over states, with prediction and update.
- `sample_paths`, `sample_paths_like`: sample synthetic users. `Crowd`, `compare_crowds` and `jensen_shannon` measure
  their similarity to real ones.
- `move_probabilities`: the probability of observed moves under a model.
- `filter`, `smooth`, `most_probable_path`: inference on plain arrays. `filter_releases`, `smooth_releases` and
  `find_release_path` work on beliefs, which distinguish improbable states from impossible ones and allow gaps in time.
- `learn_from_releases`: learns a model from `Observations` alone, by expectation maximisation.
- `reverse`, `reverse_by_step`, `compute_stationary_distribution`: properties of a transition matrix.
"""

from __future__ import annotations

from dphmm.model.belief import Belief
from dphmm.model.blank_model import region_prior
from dphmm.model.expectation_maximisation import LearnedModel, learn_from_releases
from dphmm.model.forward_backward import Filtering, Observations, filter, filter_releases, smooth, smooth_releases
from dphmm.model.learning import Extension, RegionKernel, ShrunkModel, extend, fit_shrunk
from dphmm.model.mobility_statistics import Crowd, compare_crowds, jensen_shannon, move_probabilities
from dphmm.model.model import MarkovModel
from dphmm.model.observed_moves import state_sequence, state_sequences
from dphmm.model.path_sampling import sample_paths, sample_paths_like
from dphmm.model.reversal import reverse, reverse_by_step
from dphmm.model.speed_limit import MAX_SPEED_KMH, SpeedLimit
from dphmm.model.stationary_distribution import compute_stationary_distribution
from dphmm.model.time_classes import TimeClasses
from dphmm.model.viterbi import MostProbablePath, find_release_path, most_probable_path

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
    "compare_crowds",
    "compute_stationary_distribution",
    "extend",
    "filter",
    "filter_releases",
    "find_release_path",
    "fit_shrunk",
    "jensen_shannon",
    "learn_from_releases",
    "most_probable_path",
    "move_probabilities",
    "region_prior",
    "reverse",
    "reverse_by_step",
    "sample_paths",
    "sample_paths_like",
    "smooth",
    "smooth_releases",
    "state_sequence",
    "state_sequences",
]
