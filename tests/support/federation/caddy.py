"""Caddy in front of a proxy, with the example as it is shipped but for names, ports and paths."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from dpdpca_cli.federation.processes import tail
from federation.behind import DEPLOY, ReverseProxy, listens
from federation.processes import wait_for

# No administration and no redirects from port 80. The test brings its own certificate.
_OURS = "{\n\tadmin off\n\tauto_https disable_redirects\n"


class Caddy(ReverseProxy):
    """Caddy with the example of `deploy/`."""

    @property
    def example(self) -> str:
        return (DEPLOY / "Caddyfile.example").read_text()

    def check(self, configuration: str) -> str:
        """What `caddy validate` says; it must take the configuration."""
        file = self.folder / "Caddyfile"
        file.write_text(configuration)
        words = [self.program, "validate", "--adapter", "caddyfile", "--config", str(file)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=self._environment)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    @contextmanager
    def serving(self, proxy_port: int, changes: dict[str, str] | None = None) -> Iterator[None]:
        """Serves, with `changes` to the text of the example, until the block ends."""
        site = self.example
        certificate = f"\ttls {self.folder}/tls.pem {self.folder}/tls.key\n"
        here = {
            "\n{\n": f"\n{_OURS}",
            "\nproxy.example.org {\n": f"\n{self.url} {{\n{certificate}",
            "127.0.0.1:8440": f"127.0.0.1:{proxy_port}",
        }
        for shipped, wanted in ((changes or {}) | here).items():
            assert shipped in site, f"not in the example: {shipped}"
            site = site.replace(shipped, wanted)
        self.check(site)
        words = [self.program, "run", "--adapter", "caddyfile", "--config", str(self.folder / "Caddyfile")]
        log = self.folder / "caddy.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                words, start_new_session=True, stdout=output, stderr=output, env=self._environment
            )
            try:
                wait_for(lambda: listens(self.port), "caddy listens")
                assert process.poll() is None, tail(log)
                yield
            finally:
                process.terminate()
                process.wait(20)

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, "HOME": str(self.folder), "XDG_DATA_HOME": str(self.folder / "data")}
