"""Downloads from a local server: cached, verified, rejected if damaged, and atomic."""

from __future__ import annotations

import gzip
import hashlib
import io
import socket
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dphmm.errors import ConfigurationError, DataFileError, DownloadError, OutputError
from dphmm.readers.fetch import DATA_SETS, fetch_data

GOWALLA = gzip.compress(b"1\t2010-10-21T00:03:50Z\t34.0\t-118.0\t7\n" * 500, mtime=0)


def build_zip() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("Geolife Trajectories 1.3/Data/000/Trajectory/1.plt", "x" * 9000)
    return content.getvalue()


class Server:
    """A server with one body at every path that counts its requests."""

    def __init__(self):
        self.body = GOWALLA
        self.status = 200
        self.requests = []
        self.promised = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests.append(self.path)
                self.send_response(outer.status)
                self.send_header("Content-Length", str(outer.promised or len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/data"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def server():
    local_server = Server()
    yield local_server
    local_server.http.shutdown()
    local_server.http.server_close()


@pytest.mark.slow
def test_first_download_records_digest_and_second_call_verifies(server, tmp_path):
    first = fetch_data("gowalla", tmp_path, base_url=server.url)
    assert first.path.read_bytes() == GOWALLA
    assert first.sha256 == hashlib.sha256(GOWALLA).hexdigest()
    assert not first.verified
    assert (tmp_path / "SHA256SUMS").read_text() == f"{first.sha256}  {first.path.name}\n"
    second = fetch_data("gowalla", tmp_path, base_url=server.url)
    assert second.verified
    assert server.requests == ["/data/loc-gowalla_totalCheckins.txt.gz"]


def test_changed_file_is_downloaded_again(server, tmp_path):
    path = fetch_data("gowalla", tmp_path, base_url=server.url).path
    path.write_bytes(b"damaged")
    assert fetch_data("gowalla", tmp_path, base_url=server.url).path.read_bytes() == GOWALLA
    assert len(server.requests) == 2


def test_corrupted_download_raises_and_leaves_no_file(server, tmp_path):
    digest = hashlib.sha256(GOWALLA).hexdigest()
    server.body = GOWALLA[:-30] + b"\0" * 30
    with pytest.raises(DownloadError, match="SHA-256") as caught:
        fetch_data("gowalla", tmp_path, base_url=server.url, sha256=digest)
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == []


def test_corrupted_download_does_not_change_recorded_digest(server, tmp_path):
    path = fetch_data("gowalla", tmp_path, base_url=server.url).path
    recorded = (tmp_path / "SHA256SUMS").read_text()
    path.unlink()
    server.body = GOWALLA[:-1]
    with pytest.raises(DownloadError, match="SHA-256"):
        fetch_data("gowalla", tmp_path, base_url=server.url)
    assert not path.exists()
    assert (tmp_path / "SHA256SUMS").read_text() == recorded


@pytest.mark.parametrize("body", [GOWALLA[:-20], b"<html>moved</html>", GOWALLA[:40] + b"\xff" + GOWALLA[41:]])
def test_damaged_first_download_raises_without_digest(server, tmp_path, body):
    server.body = body
    with pytest.raises(DataFileError) as caught:
        fetch_data("gowalla", tmp_path, base_url=server.url)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_damaged_zip_raises_without_digest(server, tmp_path):
    whole = build_zip()
    at = whole.index(b"1.plt") + 8
    server.body = whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :]
    with pytest.raises(DataFileError):
        fetch_data("geolife", tmp_path, base_url=server.url)
    server.body = whole
    assert fetch_data("geolife", tmp_path, base_url=server.url).path.name == "geolife-1.3.zip"


def test_interrupted_connection_raises(server, tmp_path):
    server.promised = len(GOWALLA) + 1000
    with pytest.raises(DownloadError):
        fetch_data("gowalla", tmp_path, base_url=server.url, timeout_seconds=2)
    assert list(tmp_path.iterdir()) == []


def test_refused_connection_raises_in_one_line(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(DownloadError, match="fetched") as caught:
        fetch_data("gowalla", tmp_path, base_url=f"http://127.0.0.1:{port}")
    assert "\n" not in str(caught.value)


def test_damaged_local_file_is_named_if_no_other_can_be_downloaded(server, tmp_path):
    path = fetch_data("gowalla", tmp_path, base_url=server.url).path
    path.write_bytes(GOWALLA[:-9])
    server.status = 404
    with pytest.raises(DownloadError, match=f"^{path} does not have the expected SHA-256, and http"):
        fetch_data("gowalla", tmp_path, base_url=server.url)
    assert path.read_bytes() == GOWALLA[:-9]


def test_missing_page_raises(server, tmp_path):
    server.status = 404
    with pytest.raises(DownloadError, match="404"):
        fetch_data("gowalla", tmp_path, base_url=server.url)


def test_local_file_is_recorded_without_download_and_kept_if_damaged(server, tmp_path):
    path = tmp_path / DATA_SETS["gowalla"].file_name
    path.write_bytes(GOWALLA)
    assert not fetch_data("gowalla", tmp_path, base_url=server.url).verified
    (tmp_path / "SHA256SUMS").unlink()
    path.write_bytes(GOWALLA[:-9])
    with pytest.raises(DataFileError):
        fetch_data("gowalla", tmp_path, base_url=server.url)
    assert path.exists()
    assert server.requests == []


def test_invalid_fetch_arguments_raise(tmp_path):
    with pytest.raises(ConfigurationError, match="geolife"):
        fetch_data("brightkite", tmp_path)
    with pytest.raises(ConfigurationError, match="64"):
        fetch_data("gowalla", tmp_path, sha256="md5:abc")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        fetch_data("gowalla", tmp_path / "file" / "below")
    (tmp_path / "SHA256SUMS").write_text("nonsense\n")
    with pytest.raises(DataFileError, match="line 1"):
        fetch_data("gowalla", tmp_path)


def test_data_set_urls_use_https():
    assert all(data_set.base_url.startswith("https://") for data_set in DATA_SETS.values())
