"""Tests of the image: built without a daemon, run unprivileged from a read-only root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
IMAGES = os.environ.get(
    "DPHMM_IMAGES"
)  # a folder of archives written by scripts/image, used instead of building new ones
# Upper bounds in bytes of the archives, by extras.
SIZES = {"serve": 150e6, "serve,fast": 220e6}


@pytest.fixture(scope="module", params=list(SIZES) if IMAGES else ["serve,fast"])
def extras(request):  # the default contents are part of both: one is built, and existing archives are both tested
    return request.param


@pytest.fixture(scope="module")
def archive(extras, tmp_path_factory):
    missing = [tool for tool in ("buildah", "mmdebstrap", "bwrap") if shutil.which(tool) is None]
    if missing or os.getuid():
        pytest.skip(f"needs root, and {', '.join(missing) or 'is not root'}")
    file = Path(IMAGES or tmp_path_factory.mktemp("image")) / f"{extras}.tar"
    if not IMAGES:
        subprocess.run([ROOT / "scripts" / "image", "--extras", extras, file], check=True)
    return file


@pytest.fixture(scope="module")
def image(archive):
    """Return the image's root and its runtime configuration."""
    name = subprocess.check_output(["buildah", "from", f"oci-archive:{archive}"], text=True).strip()
    try:
        config = json.loads(subprocess.check_output(["buildah", "inspect", name], text=True))["OCIv1"]["config"]
        yield subprocess.check_output(["buildah", "mount", name], text=True).strip(), config
    finally:
        subprocess.run(["buildah", "rm", name], check=True, capture_output=True)


def test_archive_is_small_and_follows_oci_layout(archive, extras):
    with tarfile.open(archive) as layout:
        names = {member.name.removeprefix("./"): member for member in layout}
        (manifest,) = json.load(layout.extractfile(names["index.json"]))["manifests"]
        listed = json.load(layout.extractfile(names[manifest["digest"].replace("sha256:", "blobs/sha256/")]))
    assert sum(layer["size"] for layer in listed["layers"]) == pytest.approx(archive.stat().st_size, rel=0.01)
    assert archive.stat().st_size < SIZES[extras]


def test_image_answers_fix_and_works_from_read_only_root(image, extras, tmp_path):
    root, config = image
    assert (config["User"], config["Entrypoint"], config["WorkingDir"]) == ("10001:10001", ["dphmm"], "/var/lib/dphmm")
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 10001, 10001)
    environment = [word for line in config["Env"] for word in ("--setenv", *line.split("=", 1))]
    bound = [  # only root can read pytest's folders
        ("--ro-bind", root, "/"), ("--dev", "/dev"), ("--proc", "/proc"), ("--perms", "1777", "--tmpfs", "/tmp"),
        ("--bind", data, config["WorkingDir"]), ("--chdir", config["WorkingDir"]), ("--tmpfs", "/mnt"),
        ("--ro-bind", ROOT / "data" / "sample", "/mnt/sample"),
        ("--ro-bind", Path(__file__).with_name("image_client.py"), "/mnt/client.py"),
        ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"),
    ]  # fmt: skip
    unprivileged = [
        "setpriv",
        "--reuid=10001",
        "--regid=10001",
        "--clear-groups",
        "--no-new-privs",
        "--bounding-set=-all",
    ]
    inside = [str(word) for words in bound for word in words] + ["--unshare-net", "--unshare-pid", "--clearenv"]
    command = ["bwrap", *inside, *environment, "--", *unprivileged, "python3", "/mnt/client.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    print(seen)
    assert (seen["uid"], seen["answer"][0], abs(seen["ended"]), seen["unready"] != 0) == (10001, 200, 15, True)
    inside, copied, after = seen["loops"]  # in the image, in numba's cache, and in the cache after the work
    assert inside == copied == after
    assert (inside > 0) == ("fast" in extras)
    files = {"relay.toml", "relay.npz", "users.db", "releases.csv", "public.gpx"}
    assert {path.name for path in data.iterdir()} >= files
