"""The attack lab: what deployed ways of blurring places give away, all under one smoother.

- `parse_channel`: a way of blurring out of its text. Subclass `Channel` for one of your own; `TableChannel` is a table.
- `attack_tracks`: channels tried on people, a `ChannelResult` for each with an `Outcome` for each of them.
"""

from dphmm.attack.deployed_channels import DEFAULT_CHANNELS, parse_channel
from dphmm.attack.measures import ChannelResult, Outcome, attack_tracks
from dphmm.attack.mesh import Moves
from dphmm.attack.noise_channel import Blurred, Channel, Samples, TableChannel
from dphmm.attack.posterior import Posterior, Track

__all__ = [
    "DEFAULT_CHANNELS",
    "Blurred",
    "Channel",
    "ChannelResult",
    "Moves",
    "Outcome",
    "Posterior",
    "Samples",
    "TableChannel",
    "Track",
    "attack_tracks",
    "parse_channel",
]
