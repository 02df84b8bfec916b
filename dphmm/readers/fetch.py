"""Public data sets, downloaded once and checked at every later use.

No digest that the publishers state is known to this package, and it invents none. So a first download is read to its
end, which finds truncation and damage by the archive's own checksums; its SHA-256 is written to ``SHA256SUMS`` beside
it, and every later use is checked against that (as ``sha256sum --check SHA256SUMS`` does). This protects from change
and damage after the first download, not from a first download that was already another file: with a digest from
elsewhere, pass it as `sha256`.
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

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError, DataFileError, DownloadError, OutputError, need
from dphmm.tables.output import write_text
from dphmm.tables.source import readable
from dphmm.tables.table import content_lines
from dphmm.tables.values import is_text

CHECKSUMS = "SHA256SUMS"
_CHUNK = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class DataSet:
    """A public data set.

    Parameters
    ----------
    base_url
        The folder of the web that holds it.
    remote_name, file_name
        What its file is called there and here.
    terms
        What the publisher allows and whom to cite.
    """

    base_url: str
    remote_name: str
    file_name: str
    terms: str


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
"""Name → where it comes from."""


@dataclass(frozen=True)
class Fetched:
    """A data set that was downloaded, or was there already.

    Parameters
    ----------
    path
        The file.
    sha256
        Its digest, in hexadecimal.
    verified
        True when the digest was known beforehand and agreed; false when it was recorded just now, at the first
        download.
    terms
        What the publisher allows and whom to cite.
    """

    path: Path
    sha256: str
    verified: bool
    terms: str


@checked
def fetch_data(
    name: str,
    folder: str | Path,
    *,
    base_url: str | None = None,
    sha256: str | None = None,
    timeout_seconds: float = 60.0,
) -> Fetched:
    """Download a public data set unless it is there already, and check it.

    Parameters
    ----------
    name
        ``"geolife"`` or ``"gowalla"``.
    folder
        Where the file goes; made if need be.
    base_url
        Another folder of the web to take the file from, such as a mirror.
    sha256
        The digest that the file must have; left out, the one in the folder's ``SHA256SUMS``, if any.
    timeout_seconds
        How long to wait for the server's next bytes.

    Returns
    -------
    Fetched
        Where the file is, and whether its digest was known beforehand.

    Raises
    ------
    ConfigurationError
        For an unknown name, or a digest that is none.
    DownloadError
        When the server cannot be reached or refuses, or what it sent is not the file that the digest names. Nothing
        is left in the file's place then, except a file that was there before.
    DataFileError
        When a first download, whose digest is not known, is truncated or damaged.
    OutputError
        When the folder cannot be written to.
    MissingDependencyError
        When pooch is not installed.
    """
    if name not in DATA_SETS:
        raise ConfigurationError(f"no data set is called {name!r}; there are {sorted(DATA_SETS)}")
    data_set = DATA_SETS[name]
    target = Path(folder) / data_set.file_name
    if "\0" in str(target) or not is_text(str(target)):
        raise OutputError(f"{folder!r} is no folder's name; correct it")
    known = sha256.lower() if sha256 else _digests(target).get(target.name)
    if known and not _DIGEST.fullmatch(known):
        raise ConfigurationError(f"sha256 is {known!r}; give the 64 hexadecimal digits of a SHA-256")
    try:
        new = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = known is not None or not target.exists()
        if fresh:
            url = (base_url or data_set.base_url).rstrip("/") + "/" + data_set.remote_name
            _download(url, target, known, timeout_seconds)
        digest = known or _first_digest(target, fresh)
        _record(target, digest)
    except OSError as problem:
        raise OutputError(f"{target.parent} cannot be written to ({problem.strerror}); choose another folder") from None
    except DownloadError:
        with suppress(OSError):  # which is what removing a folder with something in it is
            for folder in new:
                folder.rmdir()
        raise
    return Fetched(target, digest, known is not None, data_set.terms)


def _first_digest(target: Path, fresh: bool) -> str:
    """Compute the digest of a file for which none is known, having read it to its end, where its checksums are."""
    try:
        with readable(target):
            if target.suffix == ".zip":
                with zipfile.ZipFile(target) as archive:
                    damaged = archive.testzip()
                if damaged:
                    raise zipfile.BadZipFile(f"bad checksum of {damaged}")
            else:
                with gzip.open(target) as content:
                    while content.read(_CHUNK):
                        pass
            with target.open("rb") as packed:
                return hashlib.file_digest(packed, "sha256").hexdigest()
    except DataFileError:
        if fresh:
            target.unlink()
        raise


def _download(url: str, target: Path, known: str | None, timeout_seconds: float) -> None:
    pooch, requests = need("pooch", "fetch"), need("requests", "fetch")
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # what there is to say is in the result
    try:
        downloader = pooch.HTTPDownloader(timeout=timeout_seconds)
        pooch.retrieve(url, known, fname=target.name, path=target.parent, downloader=downloader)
    except requests.RequestException as problem:
        reason = textwrap.shorten(str(problem), 160, placeholder="...")
        raise DownloadError(f"{url} could not be fetched ({reason}); check the network and try again") from None
    except ValueError:  # pooch's own for a digest that differs
        raise DownloadError(
            f"{url} sent a file whose SHA-256 is not {known}; it was damaged or has changed, and was thrown away"
        ) from None
    finally:
        logger.setLevel(level)


def _record(target: Path, digest: str) -> None:
    recorded = _digests(target)
    if recorded.get(target.name) != digest:
        lines = sorted((recorded | {target.name: digest}).items())
        text = "".join(f"{value}  {name}\n" for name, value in lines)
        write_text(target.parent / CHECKSUMS, text, overwrite=True)


def _digests(target: Path) -> dict[str, str]:
    """Read the file of checksums beside the target: name → digest."""
    sums, found = target.parent / CHECKSUMS, {}
    for number, line in content_lines(sums) if sums.exists() else ():
        digest, name = (*line.split(maxsplit=1), "")[:2]
        if not (_DIGEST.fullmatch(digest.lower()) and name):
            raise DataFileError(sums, "is no line of a SHA-256 digest and a file name; correct or remove it", number)
        found[name.lstrip("*")] = digest.lower()
    return found
