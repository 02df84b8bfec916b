"""
What releases tell of an event
==============================

*Was she in the district of the Gardens between the eighth and the fortieth step?* Each release is private by itself;
together they tell nearly all of the event. Blue, how probable it is after each release; green, in hindsight, by when it
had happened; dashed, what the model said beforehand. The orange line is a limit that somebody might set, and that a cap
on the event would keep.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from dphmm import ReleaseSettings
from dphmm.jobs import Data, audit_event, learn, region, release
from dphmm.plots import event_over_time

town, space = "data/sample/geolife", region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
learned = learn(Data((town,), exclude_users=("000",)), space, step_seconds=300)
with tempfile.TemporaryDirectory() as folder:
    database = Path(folder) / "people.db"
    release(Data((town,), users=("000",)), learned.model, ReleaseSettings("utility:1km", 0.5), session=database, rng=2)
    told = audit_event(
        database, learned.model, "at:data/districts.geojson#Gardens between 8 and 40", most_certainty=0.7
    )

figure, ax = plt.subplots(figsize=(8, 4), layout="constrained")
event_over_time(ax, told.audits[0][0], most_certainty=0.7)
plt.show()
