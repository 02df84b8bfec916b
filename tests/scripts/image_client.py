"""The client of the image test: start a relay with the image's Python, post a fix, report."""

import json
import os
import pathlib
import subprocess
import time
import urllib.request

INIT = ["dphmm", "serve", "relay.toml", "--init", "--bbox", "44.97", "-30.04", "45.03", "-29.96", "--user", "ann"]
WORK = (
    "learn /mnt/sample/geolife --exclude-users 000 --bbox 44.97 -30.04 45.03 -29.96 --cell 0.5 --step 300 -o model.npz",
    "release /mnt/sample/geolife --users 000 --model model.npz --policy utility:1km --epsilon 1 -o releases.csv",
    "audit session releases.csv --model model.npz --policy utility:1km --epsilon 1",
    "leak --model model.npz --steps 10 --epsilon 1",
    "hide /mnt/sample/ride.gpx --near 45.01,-30.01 --within 500m -o public.gpx",
)
RELAY = "http://127.0.0.1:8787"


def count_loops(folder):
    """Return the number of compiled loops in a folder."""
    return sum(1 for _ in pathlib.Path(folder).rglob("*.nbi"))


def main():
    output = subprocess.run(INIT, check=True, capture_output=True, text=True).stdout
    token = output.partition("access token ")[2].split()[0]
    began = time.monotonic()
    relay = subprocess.Popen(["dphmm", "serve", "relay.toml"])
    while subprocess.run(["dphmm-ready"], capture_output=True).returncode and time.monotonic() < began + 60:
        time.sleep(0.1)
    ready = time.monotonic() - began
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    fix = json.dumps({"time": now, "latitude": 45.001, "longitude": -30.001}).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{RELAY}/fix", fix, headers), timeout=60) as answer:
        response = answer.status, json.load(answer)
    relay.terminate()
    exit_code = relay.wait(30)
    unready = subprocess.run(["dphmm-ready"], capture_output=True).returncode
    num_loops = [count_loops("/opt/dphmm/compiled"), count_loops(os.environ["NUMBA_CACHE_DIR"])]
    for line in WORK:
        subprocess.run(["dphmm", *line.split()], check=True)
    num_loops.append(count_loops(os.environ["NUMBA_CACHE_DIR"]))
    seen = {
        "uid": os.getuid(),
        "ready_s": ready,
        "answer": response,
        "ended": exit_code,
        "unready": unready,
        "loops": num_loops,
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
