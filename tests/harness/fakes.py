"""HTTP servers that tests imitate others with, and certificates that sign themselves."""
import http.server
import socket
import socketserver
import ssl
import struct
import threading

from .processes import run


class UnixServer(http.server.ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self):
        socketserver.TCPServer.server_bind(self)


class FakeServer:
    """Serves on a port of its own, or on a unix socket, from its construction on. `answer(handler, body)`
    is called on a thread for each request. A client that goes away in the middle is nothing to tell."""

    def __init__(self, answer, certificate=None, unix_path=None):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_method(self):
                try:
                    answer(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))
                except OSError:
                    self.close_connection = True

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = handle_method

            def log_message(self, *_):
                pass

        if unix_path:
            self.http = UnixServer(str(unix_path), Handler)
        else:
            self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self.http.server_port}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def send(handler, code, content=b"", headers=()):
    """An answer of bytes or text."""
    content = content.encode() if isinstance(content, str) else content
    handler.send_response(code)
    for name, value in dict(headers).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(content)


def reset(handler):
    """The connection ends with RST."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


def make_certificate(folder, names="IP:127.0.0.1"):
    """A certificate that signs itself, and its key."""
    certificate, key = folder / "http.crt", folder / "http.key"
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-days", "2", "-subj", "/CN=test", "-addext", f"subjectAltName={names}", "-keyout", key,
        "-out", certificate)
    return certificate, key
