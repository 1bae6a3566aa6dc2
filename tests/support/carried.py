"""An owner without a network, and the machine that sends its folder, before a proxy in memory."""

from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from memory_proxy import URL
from owner_scene import Scene

from dpdpca_owner import actions
from dpdpca_owner.carrying import NotCarriedError, carrying, take_receipt
from dpdpca_owner.sending import SendWatcher, Sent, send
from dpdpca_owner.upload import Settled, Watcher
from dpdpca_protocol.messages.share import Receipt
from dpdpca_protocol.paillier.keys import KeyRules
from dpdpca_runtime.http.retry import Patience

TOY_BITS = 512
ONCE = Patience(0, sleep=lambda seconds: None)


@dataclass
class Carried:
    """The owner of a scene, whose messages go through a folder."""

    scene: Scene
    folder: Path

    def join(self, scene: Scene | None = None) -> Receipt | Settled | NotCarriedError:
        """What `dpdpca owner join --to FOLDER` does: the receipt, or what is missing."""
        scene = scene or self.scene
        home = scene.desk.home
        try:
            with carrying(
                home,
                home.load(),
                self.folder,
                URL,
                scene.address.study,
                now=scene.desk.now,
                key_rules=KeyRules(TOY_BITS),
            ) as desk:
                if (receipt := take_receipt(desk, scene.address)) is not None:
                    return receipt
                prepared = actions.prepare_join(desk, scene.address, scene.location)
                return actions.join(desk, scene.address, prepared, Watcher())
        except NotCarriedError as waiting:
            return waiting

    def send(self) -> Sent:
        """What `dpdpca owner send FOLDER` does, on a machine that has nothing else."""
        return send(
            self.folder,
            SendWatcher(),
            patience=ONCE,
            transport=httpx.MockTransport(self.scene.proxy.answer),
        )

    def pack(self) -> None:
        """Bring the terms, then put the share into the folder."""
        asked = self.join()
        assert isinstance(asked, NotCarriedError)
        assert not asked.has_request
        self.send()
        packed = self.join()
        assert isinstance(packed, NotCarriedError)
        assert packed.has_request

    def bodies(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted((self.folder / "to-proxy").iterdir())}

    def content(self) -> bytes:
        """All bytes of the folder, names included."""
        return b"".join(
            str(path.relative_to(self.folder)).encode() + path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        )

    def at_location(self, data: Path) -> "Carried":
        location = replace(self.scene.location, data=str(data))
        return Carried(replace(self.scene, location=location), self.folder)
