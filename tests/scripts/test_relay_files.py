"""Tests of the relay's systemd unit, compose file and wheel."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RELAY = ROOT / "scripts" / "relay"


@pytest.mark.slow
def test_systemd_accepts_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    unit = (RELAY / "dphmm-relay.service").read_text(encoding="utf-8")
    here = tmp_path / "dphmm-relay.service"
    here.write_text(unit.replace("/opt/dphmm/bin/dphmm", shutil.which("true") or ""), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(here)], capture_output=True, text=True)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "dphmm-relay" in line]) == (0, [])


def test_unit_prevents_core_dumps_and_swap():
    unit = configparser.RawConfigParser(strict=False)
    unit.read(RELAY / "dphmm-relay.service", encoding="utf-8")
    assert (unit["Service"]["LimitCORE"], unit["Service"]["MemorySwapMax"]) == ("0", "0")


def test_denied_system_calls_of_unit_do_not_end_the_relay():
    """By default systemd ends a process at such a call, and the import of NumPy makes one."""
    unit = configparser.RawConfigParser(strict=False)
    unit.read(RELAY / "dphmm-relay.service", encoding="utf-8")
    assert unit["Service"]["SystemCallFilter"].startswith("~")
    assert unit["Service"]["SystemCallErrorNumber"] == "EPERM"


def test_container_is_read_only_unprivileged_and_local():
    yaml = pytest.importorskip("yaml")
    relay = yaml.safe_load((RELAY / "compose.yaml").read_text(encoding="utf-8"))["services"]["relay"]
    assert relay["image"] == "localhost/dphmm", "the image of scripts/image and of podman build -t dphmm"
    assert relay["read_only"] is True
    assert relay["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") for port in relay["ports"])
    assert relay["mem_limit"] == relay["memswap_limit"]
    assert relay["ulimits"]["core"] == 0
    assert (RELAY / relay["build"]["context"] / relay["build"]["dockerfile"]).resolve() == RELAY / "Containerfile"
    assert "USER 10001:10001" in (RELAY / "Containerfile").read_text(encoding="utf-8")


@pytest.mark.slow
def test_wheel_contains_page_and_licences_of_vendored_files(tmp_path):
    hatchling = pytest.importorskip("hatchling.builders.wheel")
    (wheel,) = hatchling.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = zipfile.ZipFile(wheel).namelist()
    inside = {name.removeprefix("dphmm/") for name in names}
    assert {f"serve/static/{name}" for name in ("index.html", "page.css", "page.js")} <= inside
    pages = ("webmap.html", "webmap.css", "webmap.js")
    assert {f"plots/{name}" for name in pages} <= inside
    assert {"space/ground/world.npz", "space/ground/README.md"} <= inside
    for library, script in (("leaflet", "leaflet.js"), ("leaflet-geoman", "leaflet-geoman.min.js")):
        assert {f"vendor/{library}/LICENSE", f"vendor/{library}/{script}"} <= inside


@pytest.mark.slow
def test_image_has_the_loops_of_every_release(tmp_path):
    """Short commands call few loops often enough without eager compilation."""
    pytest.importorskip("numba")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(RELAY / "compile_loops.py"), str(ROOT / "data" / "sample")]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    compiled = {file.name.split("-")[0] for file in tmp_path.rglob("*.nbi")}
    assert compiled >= {
        "base._fill_norms_loop",
        "soundness_loops.find_without_partner",
        "soundness_loops.write_halfspaces",
        "forward_backward._run_dense_loop",
        "planar._write_chain_loop",
        "point_estimate._compute_point_sums_loop",
    }
