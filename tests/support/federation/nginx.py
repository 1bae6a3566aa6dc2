"""nginx in front of a proxy, with the example configuration as it is shipped, or changed in one place."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from dpdpca_cli.federation.processes import tail
from federation.behind import DEPLOY, HOST, ReverseProxy, listens
from federation.processes import wait_for

# The example is a file for the http block; what stands around it on Debian is this, but for files of our own.
_AROUND = """\
daemon off;
{user}
pid {folder}/nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/client_body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


class Nginx(ReverseProxy):
    """nginx with the example of `deploy/`."""

    def configure(self, proxy_port: int, changes: dict[str, str] | None = None) -> None:
        """Writes the example with names, ports and paths of this machine, and with `changes` to its text."""
        site = (DEPLOY / "nginx.example.conf").read_text()
        here = {
            "listen 443 ": f"listen {self.port} ",
            "server_name proxy.example.org;": f"server_name {HOST};",
            "/etc/ssl/proxy.example.org.pem": str(self.folder / "tls.pem"),
            "/etc/ssl/private/proxy.example.org.key": str(self.folder / "tls.key"),
            "http://127.0.0.1:8440": f"http://127.0.0.1:{proxy_port}",
        }
        for shipped, wanted in ((changes or {}) | here).items():
            assert shipped in site, f"not in the example: {shipped}"
            site = site.replace(shipped, wanted)
        (self.folder / "site.conf").write_text(site)
        # Its processes must reach a folder that is root's alone, where a test is root's.
        user = "user root;" if os.geteuid() == 0 else ""
        (self.folder / "nginx.conf").write_text(_AROUND.format(folder=self.folder, user=user))

    def check(self) -> str:
        """What `nginx -t` says; it must take the configuration."""
        done = subprocess.run([*self._command, "-t"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    @contextmanager
    def serving(self, proxy_port: int, changes: dict[str, str] | None = None) -> Iterator[None]:
        """Serves, with `changes` to the text of the example, until the block ends."""
        self.configure(proxy_port, changes)
        self.check()
        process = subprocess.Popen(self._command, start_new_session=True)
        try:
            wait_for(lambda: listens(self.port), "nginx listens")
            assert process.poll() is None, tail(self.folder / "error.log")
            yield
        finally:
            process.terminate()
            process.wait(20)

    @property
    def _command(self) -> list[str]:
        folder = self.folder
        return [self.program, "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
