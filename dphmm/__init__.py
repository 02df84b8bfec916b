"""Location privacy for trajectories, with formal guarantees.

A trajectory is mapped to a state space (`dphmm.space`, read by `dphmm.readers`). A Markov model contains the possible
movements (`dphmm.model`), and a policy graph the locations that must stay indistinguishable (`dphmm.policy`). The
sensitivity hull of the restricted graph shapes the noise (`dphmm.geometry`), which a mechanism samples
(`dphmm.mechanisms`). The belief is updated, and a record describes the release (`dphmm.release`).

Other subpackages: `dphmm.events` (events over time and what releases reveal about them), `dphmm.leakage` (temporal
privacy leakage), `dphmm.landmarks` (significant timestamps), `dphmm.counts` (count streams), `dphmm.flows` (tables of
flows), `dphmm.audit`, `dphmm.calibrate` (choice of epsilon), `dphmm.attack` (attacks on obfuscation methods in common
use), `dphmm.evaluation` and `dphmm.plots`. Complete jobs are functions in `dphmm.jobs`, which the command line wraps.

The names below are imported on first use, so that ``import dphmm`` is fast.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
