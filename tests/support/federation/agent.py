"""An owner's agent with its page, as a process."""

from web_browser import answers

from dpdpca_cli.federation.processes import free_port
from federation import warm
from federation.processes import Server, wait_for
from federation.world import Federation, Owner


class Agent(Server):
    """`owner serve`, ready once its page answers."""

    owner: Owner

    @classmethod
    def of(cls, federation: Federation, owner: Owner, log: str) -> "Agent":
        """The agent of an owner, which runs until the federation ends."""
        port = free_port()
        words = owner.serve("--port", str(port), "--every", "1")
        url = f"http://127.0.0.1:{port}"
        agent = cls(f"agent of {owner.name}", words, owner.environment, federation.logs / f"{log}.log", url)
        agent.owner = owner
        federation.serve(agent)
        return agent

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        return answers(f"{self.url}/page.css")

    def start(self) -> None:
        self.process = warm.start(self.arguments, self.environment, self.log)
        wait_for(self._is_ready, f"{self.name} is ready", 180)

    @property
    def link(self) -> str:
        done = self.owner.run("owner", "serve", "--link")
        assert done.status == 0, done.err
        return done.out.strip()
