"""The proxies of ``deploy/``: the committed files, with addresses and ports of the test in place of those that a user replaces."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from tools import need

from .running import DEPLOY, Board, Process, answers, free_ports

NGINX_FILE = DEPLOY / "nginx" / "anynpu.conf"
ENVOY_FILE = DEPLOY / "envoy" / "anynpu.yaml"

_NGINX_MAIN = """\
{user}
daemon off;
worker_processes 2;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/anynpu.conf;
}}
"""
"""What Debian's own nginx.conf does: it includes our file inside of http."""


def replaced(text: str, pattern: str, replacement: str) -> str:
    """As ``sed -E s/pattern/replacement/g``; there must be something to replace."""
    text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
    assert count, f"nothing matches {pattern}"
    return text


Change = Callable[[str], str]
"""Something that is done to a configuration before it is used."""


class Proxy:
    """A proxy in front of boards.

    :param ready: what reports that it can be asked; default: a board is ready through it
    :param change: what a user may do to the file beyond addresses and ports
    """

    def __init__(
        self, boards: Sequence[Board], folder: Path, ready: Callable[[int], bool] = answers, change: Change | None = None
    ) -> None:
        self.boards = boards
        self.folder = folder
        self.port, self.grpc_port = free_ports(2)
        text = self.configuration()
        self.process = Process(self.command(text if change is None else change(text)), folder / "proxy.log")
        try:
            self.process.wait_for(lambda: ready(self.port), "the proxy answers")
        except BaseException:
            self.process.end()
            raise

    def configuration(self) -> str:
        """The committed file with addresses and ports of the test."""
        raise NotImplementedError

    def command(self, text: str) -> list[str]:
        """Writes the configuration, and states how the proxy is started."""
        raise NotImplementedError


class Nginx(Proxy):
    """nginx with ``deploy/nginx/anynpu.conf``."""

    def configuration(self) -> str:
        text = NGINX_FILE.read_text(encoding="utf-8")
        for number, board in enumerate(self.boards, 1):
            text = replaced(text, f"board-{number}:8000", f"127.0.0.1:{board.port}")
            text = replaced(text, f"board-{number}:8001", f"127.0.0.1:{board.grpc_port}")
        text = replaced(text, r"^( *)listen 8000 ", rf"\1listen 127.0.0.1:{self.port} ")
        return replaced(text, r"^( *)listen 8001 ", rf"\1listen 127.0.0.1:{self.grpc_port} ")

    def command(self, text: str) -> list[str]:
        (self.folder / "anynpu.conf").write_text(text, encoding="utf-8")
        user = "user root;" if os.geteuid() == 0 else ""
        main = self.folder / "nginx.conf"
        main.write_text(_NGINX_MAIN.format(user=user, folder=self.folder), encoding="utf-8")
        return [need("nginx"), "-p", str(self.folder), "-c", str(main)]


class Envoy(Proxy):
    """Envoy with ``deploy/envoy/anynpu.yaml``."""

    def configuration(self) -> str:
        text = ENVOY_FILE.read_text(encoding="utf-8")
        for number, board in enumerate(self.boards, 1):
            address = "address: 127.0.0.1, port_value:"
            text = replaced(
                text,
                rf"address: board-{number}, port_value: 8001(.*)\{{port_value: 8000\}}",
                rf"{address} {board.grpc_port}\1{{port_value: {board.port}}}",
            )
            text = replaced(text, f"address: board-{number}, port_value: 8000", f"{address} {board.port}")
        text = replaced(text, r"\{address: 0.0.0.0, port_value: 8000\}", f"{{address: 127.0.0.1, port_value: {self.port}}}")
        return replaced(text, r"\{address: 0.0.0.0, port_value: 8001\}", f"{{address: 127.0.0.1, port_value: {self.grpc_port}}}")

    def command(self, text: str) -> list[str]:
        file = self.folder / "anynpu.yaml"
        file.write_text(text, encoding="utf-8")
        # hot restart is for one Envoy on a machine; tests run side by side
        return [need("envoy"), "-c", str(file), "--disable-hot-restart", "--concurrency", "2", "--log-level", "warning"]


PROXIES: dict[str, type[Proxy]] = {"nginx": Nginx, "envoy": Envoy}
