"""
Disclosure of an event
======================

The event is *the user was in the district Gardens between steps 8 and 40*. Each release is private, but together they
raise its probability far above the prior. Blue: its probability after each release, with triangles at the largest
changes. Green: the smoothed probability that it has happened by then. Bands: ranges of several steps. Dashed: the prior
under the model. Orange: a bound that an event cap would enforce.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from dphmm import ReleaseSettings
from dphmm.jobs import Data, audit_event, learn, region, release
from dphmm.plots import draw_event_probability

town, space = "data/sample/geolife", region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
learned = learn(Data((town,), exclude_users=("000",)), space, step_seconds=300)
with tempfile.TemporaryDirectory() as folder:
    database = Path(folder) / "users.db"
    release(Data((town,), users=("000",)), learned.model, ReleaseSettings("utility:1km", 0.5), session=database, rng=2)
    result = audit_event(
        database, learned.model, "at:data/districts.geojson#Gardens between 8 and 40", max_posterior=0.7
    )

figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
draw_event_probability(ax, result.audits[0][0], max_posterior=0.7)
ax.legend(fontsize="small")
plt.show()
