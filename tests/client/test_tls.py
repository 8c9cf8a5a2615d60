"""A server that speaks TLS with a certificate that nobody vouches for."""

from __future__ import annotations

import http.server
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from client.__main__ import main

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


@pytest.fixture
def url(tmp_path: Path, wire: SimpleNamespace) -> Iterator[str]:
    """Of a server that answers every request with one token."""
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    new = ["-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-subj", "/CN=nobody"]
    subprocess.run(["openssl", "req", "-x509", *new], check=True, capture_output=True)
    answer = b"".join([wire.text("hi"), wire.text("", "stop"), wire.usage(8, 1), wire.done])

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send(b'{"data": [{"id": "m"}]}')

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send(answer)

        def send(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def get_request(self) -> tuple[ssl.SSLSocket, tuple[str, int]]:
            connection, address = super().get_request()
            return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that does not trust it hangs up

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_it_is_refused_unless_one_insists(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--base-url", url, "--num-prompts", "2", "--metrics-interval", "0", "--max-concurrency", "1"]
    assert main(flags) == 1
    assert "certificate verify failed" in capsys.readouterr().err.lower()
    assert main([*flags, "--insecure"]) == 0
    assert "Successful requests:                        2" in capsys.readouterr().out
