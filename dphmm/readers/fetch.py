"""Download of public data sets, verified at every later use.

The publishers state no digests, and this package defines none. A first download is therefore read to its end, which
detects truncation and damage by the archive's checksums. Its SHA-256 is written to ``SHA256SUMS`` in the same folder,
and every later use is compared with it (like ``sha256sum --check SHA256SUMS``). This protects against change and damage
after the first download. It does not detect a first download that already was a different file: if a digest is
available from another source, pass it as `sha256`.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import re
import textwrap
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dphmm.errors import ConfigurationError, DataFileError, DownloadError, OutputError, import_library
from dphmm.tables.output import write_text
from dphmm.tables.source import convert_read_errors
from dphmm.tables.table import content_lines
from dphmm.tables.values import is_text
from dphmm.validation import Seconds, check_arguments

CHECKSUMS = "SHA256SUMS"
_CHUNK_BYTES = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class DataSet:
    """A public data set.

    Parameters
    ----------
    base_url
        The URL of the folder that contains it.
    remote_name, file_name
        The name of its file on the server, and on the disk.
    terms
        The license terms of the publisher, and the publication to cite.
    """

    base_url: str
    remote_name: str
    file_name: str
    terms: str


# The data sets by name.
DATA_SETS: Mapping[str, DataSet] = {
    "geolife": DataSet(
        "https://download.microsoft.com/download/F/4/8/F4894AA5-FDBC-481E-9285-D5F8C4C4F039/",
        "Geolife%20Trajectories%201.3.zip",
        "geolife-1.3.zip",
        "GeoLife GPS Trajectories 1.3 (about 300 MB): non-commercial use only, no distribution; "
        "cite Zheng, Xie, Ma, IEEE Data Engineering Bulletin 33(2), 2010",
    ),
    "gowalla": DataSet(
        "https://snap.stanford.edu/data/",
        "loc-gowalla_totalCheckins.txt.gz",
        "loc-gowalla_totalCheckins.txt.gz",
        "Gowalla check-ins of the SNAP collection (about 100 MB); cite Cho, Myers, Leskovec, KDD 2011",
    ),
}


@dataclass(frozen=True)
class Fetched:
    """A data set on the disk, downloaded now or before.

    Parameters
    ----------
    path
        The file.
    sha256
        Its digest, in hexadecimal.
    verified
        True if the file was compared with a digest from an earlier download or from the caller. False if its digest was
        recorded now, at the first download.
    terms
        The license terms of the publisher, and the publication to cite.
    """

    path: Path
    sha256: str
    verified: bool
    terms: str


@check_arguments
def fetch_data(
    name: str,
    folder: str | Path,
    *,
    base_url: str | None = None,
    sha256: str | None = None,
    timeout_seconds: Seconds = 60.0,
) -> Fetched:
    """Download a public data set unless the file exists, and verify it.

    Parameters
    ----------
    name
        ``"geolife"`` or ``"gowalla"``.
    folder
        The folder of the file. It is created if necessary.
    base_url
        URL of another folder with the file under the publisher's name, such as a mirror.
    sha256
        The digest that the file must have. Defaults to the one in the folder's ``SHA256SUMS``, if any.
    timeout_seconds
        Timeout for the server's next bytes, in seconds.

    Returns
    -------
    Fetched
        The file, and whether it was verified.

    Raises
    ------
    ConfigurationError
        For an unknown name, or an invalid digest.
    DownloadError
        If the server cannot be reached or refuses, or the received file does not match the digest. No file is left in
        its place, except one that existed before.
    DataFileError
        If a first download, the digest of which is not known, is truncated or damaged.
    OutputError
        If the folder cannot be written to.
    MissingDependencyError
        If pooch is not installed.
    """
    if name not in DATA_SETS:
        raise ConfigurationError(f"name must be one of {sorted(DATA_SETS)}, got {name!r}")
    data_set = DATA_SETS[name]
    target = Path(folder) / data_set.file_name
    if "\0" in str(target) or not is_text(str(target)):
        raise OutputError(f"folder must be a valid path, got {folder!r}")
    expected = sha256.lower() if sha256 else _read_digests(target).get(target.name)
    if expected and not _DIGEST.fullmatch(expected):
        raise ConfigurationError(f"sha256 must have 64 hexadecimal digits, got {expected!r}")
    try:
        new = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = expected is not None or not target.exists()
        if fresh:
            url = (base_url or data_set.base_url).rstrip("/") + "/" + data_set.remote_name
            _download(url, target, expected, timeout_seconds)
        digest = expected or _compute_first_digest(target, fresh)
        _record_digest(target, digest)
    except OSError as problem:
        raise OutputError(f"{target.parent} is not writable ({problem.strerror}); choose another folder") from None
    except DownloadError:
        with suppress(OSError):  # a folder that is not empty cannot be removed, and is kept
            for folder in new:
                folder.rmdir()
        raise
    return Fetched(target, digest, expected is not None, data_set.terms)


def _compute_first_digest(target: Path, fresh: bool) -> str:
    """Compute the digest of a file without a known one, after verifying its own checksums."""
    try:
        with convert_read_errors(target):
            if target.suffix == ".zip":
                with zipfile.ZipFile(target) as archive:
                    damaged = archive.testzip()
                if damaged:
                    raise zipfile.BadZipFile(f"bad checksum of {damaged}")
            else:
                with gzip.open(target) as content:
                    while content.read(_CHUNK_BYTES):
                        pass
            with target.open("rb") as packed:
                return hashlib.file_digest(packed, "sha256").hexdigest()
    except DataFileError:
        if fresh:
            target.unlink()
        raise


def _download(url: str, target: Path, expected: str | None, timeout_seconds: float) -> None:
    pooch = import_library("pooch", "fetch")
    requests = import_library("requests", "fetch")
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # the result reports all that pooch would log
    try:
        downloader = pooch.HTTPDownloader(timeout=timeout_seconds)
        pooch.retrieve(url, expected, fname=target.name, path=target.parent, downloader=downloader)
    except requests.RequestException as problem:
        reason = textwrap.shorten(str(problem), 160, placeholder="...")
        # A file with the expected digest is not downloaded again.
        damage = f"{target} does not have the expected SHA-256, and " if target.exists() else ""
        raise DownloadError(f"{damage}{url} could not be fetched ({reason}); check the network and try again") from None
    except ValueError:  # raised by pooch if the digest differs
        raise DownloadError(
            f"{url} sent a file with another SHA-256 than {expected}; it is damaged or has changed, and was deleted"
        ) from None
    finally:
        logger.setLevel(level)


def _record_digest(target: Path, digest: str) -> None:
    recorded = _read_digests(target)
    if recorded.get(target.name) != digest:
        lines = sorted((recorded | {target.name: digest}).items())
        text = "".join(f"{value}  {name}\n" for name, value in lines)
        write_text(target.parent / CHECKSUMS, text, overwrite=True)


def _read_digests(target: Path) -> dict[str, str]:
    """Read the checksums in the target's folder: name → digest."""
    sums = target.parent / CHECKSUMS
    digests = {}
    for number, line in content_lines(sums) if sums.exists() else ():
        digest, name = (*line.split(maxsplit=1), "")[:2]
        if not (_DIGEST.fullmatch(digest.lower()) and name):
            raise DataFileError(
                sums, "must contain a SHA-256 digest and a file name; correct or remove the line", number
            )
        digests[name.lstrip("*")] = digest.lower()
    return digests
