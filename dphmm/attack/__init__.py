"""Attacks on obfuscation methods in common use, all with the same adversary.

- `parse_channel`: build a channel from its specification. Subclass `Channel` for your own; `TableChannel` is a table.
- `attack_tracks`: attack users under several channels, with an `AttackOutcome` per user in each `ChannelResult`.
"""

from dphmm.attack.deployed_channels import DEFAULT_CHANNELS, parse_channel
from dphmm.attack.mesh import MeshMovement
from dphmm.attack.noise_channel import Channel, ObfuscatedTrack, SampledChannel, TableChannel
from dphmm.attack.outcomes import AttackOutcome, ChannelResult, attack_tracks
from dphmm.attack.posterior import Posterior, Track

__all__ = [
    "DEFAULT_CHANNELS",
    "AttackOutcome",
    "Channel",
    "ChannelResult",
    "MeshMovement",
    "ObfuscatedTrack",
    "Posterior",
    "SampledChannel",
    "TableChannel",
    "Track",
    "attack_tracks",
    "parse_channel",
]
