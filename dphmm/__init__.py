"""Private locations for people who move.

A trajectory is put on a state space (`dphmm.space`, read by `dphmm.readers`); a Markov model says where the person
can be (`dphmm.model`); a policy graph says what must stay indistinguishable (`dphmm.policy`); the hull of what is
left of it shapes the noise (`dphmm.geometry`); a mechanism draws (`dphmm.mechanisms`); the belief is updated and a
record says what happened (`dphmm.release`).

Apart from that loop: `dphmm.events` (what releases tell of things that happen over time), `dphmm.leakage` (temporal
privacy leakage), `dphmm.landmarks` (significant timestamps), `dphmm.counts` (count streams), `dphmm.flows` (tables of
where people go), `dphmm.audit`, `dphmm.calibrate` (which epsilon), `dphmm.attack` (what deployed blurring gives away),
`dphmm.evaluation` and `dphmm.plots`. Whole jobs, each a function that the command line only wraps, are in `dphmm.jobs`.

The names below are imported on first use, so that ``import dphmm`` costs nothing that is not needed.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
