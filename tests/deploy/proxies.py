"""The proxies of ``deploy/``: the committed files, with addresses and ports of the test in place of those that a user replaces."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from .running import DEPLOY, Board, Process, answers, free_ports, program

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


class Proxy:
    """A proxy in front of boards."""

    def __init__(self, boards: Sequence[Board], folder: Path) -> None:
        self.boards = boards
        self.folder = folder
        self.port, self.grpc_port = free_ports(2)
        self.process = Process(self.command(), folder / "proxy.log")
        try:
            self.process.wait_for(lambda: answers(self.port), "the proxy answers")
        except BaseException:
            self.process.end()
            raise

    def command(self) -> list[str]:
        """Writes the configuration, and says how the proxy is started."""
        raise NotImplementedError


class Nginx(Proxy):
    """nginx with ``deploy/nginx/anynpu.conf``."""

    def command(self) -> list[str]:
        text = NGINX_FILE.read_text(encoding="utf-8")
        for number, board in enumerate(self.boards, 1):
            text = replaced(text, f"board-{number}:8000", f"127.0.0.1:{board.port}")
            text = replaced(text, f"board-{number}:8001", f"127.0.0.1:{board.grpc_port}")
        text = replaced(text, r"^( *)listen 8000 ", rf"\1listen 127.0.0.1:{self.port} ")
        text = replaced(text, r"^( *)listen 8001 ", rf"\1listen 127.0.0.1:{self.grpc_port} ")
        (self.folder / "anynpu.conf").write_text(text, encoding="utf-8")
        user = "user root;" if os.geteuid() == 0 else ""
        main = self.folder / "nginx.conf"
        main.write_text(_NGINX_MAIN.format(user=user, folder=self.folder), encoding="utf-8")
        return [program("nginx"), "-p", str(self.folder), "-c", str(main)]


class Envoy(Proxy):
    """Envoy with ``deploy/envoy/anynpu.yaml``."""

    def command(self) -> list[str]:
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
        text = replaced(text, r"\{address: 0.0.0.0, port_value: 8001\}", f"{{address: 127.0.0.1, port_value: {self.grpc_port}}}")
        file = self.folder / "anynpu.yaml"
        file.write_text(text, encoding="utf-8")
        # hot restart is for one Envoy on a machine; tests run side by side
        return [program("envoy"), "-c", str(file), "--disable-hot-restart", "--concurrency", "2", "--log-level", "warning"]


PROXIES: dict[str, type[Proxy]] = {"nginx": Nginx, "envoy": Envoy}
