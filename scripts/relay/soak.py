"""A day of people at a relay, as fast as it goes: how much memory it holds, and whether that grows.

    python -m scripts.relay.soak --hours 24 --people 200

Every person has a place every five minutes, and two recipients are told, one of them with a precision. Prints the
relay's memory each tenth of the way, and at last what was not told.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import tomli_w

from dphmm.jobs import learn, region
from scripts.benchmarks.relay import START, STEP_S, memory
from scripts.relay.kills import EPSILON, PRECISION_M, REGION, ROOT, Seen, listening, recipient_of, start

_AT_ONCE = 8


async def _day(url: str, process: Any, people: int, steps: int) -> list[float]:
    rng, held = np.random.default_rng(1), []
    places = rng.uniform((44.975, -30.035), (45.025, -29.965), size=(people, 2))
    gate = asyncio.Semaphore(_AT_ONCE)

    async def post(client: httpx.AsyncClient, person: int, step: int) -> None:
        async with gate:
            latitude, longitude = places[person]
            fix = {"_type": "location", "tst": START + STEP_S * step, "lat": latitude, "lon": longitude}
            answer = await client.post(f"{url}/owntracks", json=fix, auth=(f"p{person:03}", f"{person:040}"))
            answer.raise_for_status()

    # connections are given up before the relay closes those that are idle, however late this process is
    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(keepalive_expiry=1.0)) as client:
        for step in range(steps):
            places = np.clip(places + rng.normal(0, 0.002, places.shape), (44.972, -30.038), (45.028, -29.962))
            await asyncio.gather(*(post(client, person, step) for person in range(people)))
            if step % max(1, steps // 10) == max(1, steps // 10) - 1:
                held.append(memory(process))
                print(f"{(step + 1) * STEP_S / 3600:5.1f} hours: {held[-1]:.0f} MiB", flush=True)
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--people", type=int, default=200)
    options = parser.parse_args()
    _, missing = run(options.people, round(options.hours * 3600 / STEP_S))
    sys.exit(missing > 0)


def run(people: int, steps: int) -> tuple[list[float], int]:
    """The relay's memory in MiB each tenth of the way, and how many messages recipients lack in the end."""
    with tempfile.TemporaryDirectory() as here:
        folder, seen = Path(here), Seen()
        learn(ROOT / "data" / "sample" / "geolife", region(**REGION), step_seconds=STEP_S, output=folder / "m.npz")
        recipient, listen = recipient_of(seen), listening()
        told = f"http://127.0.0.1:{recipient.server_port}"
        keys = {
            "model": "m.npz", "store": "people.db", "listen": listen,
            "release": {"policy": "utility:1km", "epsilon": EPSILON},
            "device": [{"user": f"p{k:03}", "token": f"{k:040}"} for k in range(people)],
            "recipient": [
                {"name": "family", "kind": "webhook", "url": f"{told}/family"},
                {"name": "friends", "kind": "webhook", "url": f"{told}/friends", "precision": f"{PRECISION_M}m"},
            ],
        }  # fmt: skip
        (folder / "relay.toml").write_text(tomli_w.dumps(keys), encoding="utf-8")
        process = start(folder, f"http://{listen}")
        try:
            begun = time.perf_counter()
            held = asyncio.run(_day(f"http://{listen}", process, people, steps))
            took, fixes, by_then = time.perf_counter() - begun, steps * people, len(seen.told)
            while len(seen.told) < 2 * fixes and time.perf_counter() - begun < 2 * took + 60:
                time.sleep(0.5)
            late, missing = time.perf_counter() - begun - took, 2 * fixes - len(seen.told)
            print(f"{fixes:,} fixes in {took:,.0f} s, {fixes / took:.0f} a second; {by_then:,} messages were told")
            print(f"by then, {len(seen.told):,} {late:.0f} s later, and {missing} are missing")
        finally:
            process.terminate()
            process.wait(60)
            recipient.shutdown()
            recipient.server_close()
    return held, missing


if __name__ == "__main__":
    main()
