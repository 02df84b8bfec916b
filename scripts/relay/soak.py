"""Measure the memory of a relay during a day of users, at full speed.

    python -m scripts.relay.soak --hours 24 --num-users 200

Every user has a location every five minutes. There are two recipients, one of them with a precision. The command prints
the relay's memory at each tenth of the day, and finally the number of missing messages.
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
from scripts.benchmarks.relay import START, STEP_S, measure_memory
from scripts.relay.kills import (
    EPSILON,
    PRECISION_M,
    REGION,
    ROOT,
    Observations,
    find_free_address,
    start,
    start_recipient,
)

_MAX_CONCURRENT_POSTS = 8


async def _post_day(url: str, process: Any, num_users: int, steps: int) -> list[float]:
    rng, memories = np.random.default_rng(1), []
    positions = rng.uniform((44.975, -30.035), (45.025, -29.965), size=(num_users, 2))
    gate = asyncio.Semaphore(_MAX_CONCURRENT_POSTS)

    async def post(client: httpx.AsyncClient, user_index: int, step: int) -> None:
        async with gate:
            latitude, longitude = positions[user_index]
            fix = {"_type": "location", "tst": START + STEP_S * step, "lat": latitude, "lon": longitude}
            answer = await client.post(f"{url}/owntracks", json=fix, auth=(f"p{user_index:03}", f"{user_index:040}"))
            answer.raise_for_status()

    # close idle connections before the relay does, even if this process is slow
    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(keepalive_expiry=1.0)) as client:
        for step in range(steps):
            positions = np.clip(positions + rng.normal(0, 0.002, positions.shape), (44.972, -30.038), (45.028, -29.962))
            await asyncio.gather(*(post(client, user_index, step) for user_index in range(num_users)))
            if step % max(1, steps // 10) == max(1, steps // 10) - 1:
                memories.append(measure_memory(process))
                print(f"{(step + 1) * STEP_S / 3600:5.1f} hours: {memories[-1]:.0f} MiB", flush=True)
    return memories


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--num-users", type=int, default=200)
    options = parser.parse_args()
    _, missing = run(options.num_users, round(options.hours * 3600 / STEP_S))
    sys.exit(missing > 0)


def run(num_users: int, steps: int) -> tuple[list[float], int]:
    """Return the relay's memory in MiB at each tenth, and the number of missing messages."""
    with tempfile.TemporaryDirectory() as here:
        folder, seen = Path(here), Observations()
        learn(ROOT / "data" / "sample" / "geolife", region(**REGION), step_seconds=STEP_S, output=folder / "m.npz")
        recipient, listen = start_recipient(seen), find_free_address()
        address = f"http://127.0.0.1:{recipient.server_port}"
        keys = {
            "model": "m.npz", "store": "users.db", "listen": listen,
            "release": {"policy": "utility:1km", "epsilon": EPSILON},
            "device": [{"user": f"p{k:03}", "token": f"{k:040}"} for k in range(num_users)],
            "recipient": [
                {"name": "family", "kind": "webhook", "url": f"{address}/family"},
                {"name": "friends", "kind": "webhook", "url": f"{address}/friends", "precision": f"{PRECISION_M}m"},
            ],
        }  # fmt: skip
        (folder / "relay.toml").write_text(tomli_w.dumps(keys), encoding="utf-8")
        process = start(folder, f"http://{listen}")
        try:
            begun = time.perf_counter()
            memories = asyncio.run(_post_day(f"http://{listen}", process, num_users, steps))
            took = time.perf_counter() - begun
            fixes = steps * num_users
            by_then = len(seen.delivered)
            while len(seen.delivered) < 2 * fixes and time.perf_counter() - begun < 2 * took + 60:
                time.sleep(0.5)
            late, missing = time.perf_counter() - begun - took, 2 * fixes - len(seen.delivered)
            print(f"{fixes:,} fixes in {took:,.0f} s, {fixes / took:.0f} a second; {by_then:,} messages were delivered")
            print(f"by then, {len(seen.delivered):,} {late:.0f} s later, and {missing} are missing")
        finally:
            process.terminate()
            process.wait(60)
            recipient.shutdown()
            recipient.server_close()
    return memories, missing


if __name__ == "__main__":
    main()
