"""An owner's home on a network file system is refused, with the reason."""

import os
from pathlib import Path

import pytest

from dpdpca_cli.main import main
from dpdpca_protocol.errors import UsageError
from dpdpca_runtime import network_drives
from dpdpca_runtime.network_drives import check_not_on_network, network_file_system

LISTED = """\
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw
23 22 0:21 / /proc rw shared:2 - proc proc rw
30 22 0:40 / /net rw,relatime shared:9 - nfs4 server:/export rw,vers=4.2
31 30 259:2 / /net/local rw shared:10 - xfs /dev/sdb1 rw
32 22 0:41 / /mnt/ward\\040share rw - cifs //files/ward rw
33 22 0:42 / /over rw - nfs server:/old rw
34 33 259:3 / /over rw - ext4 /dev/sdc1 rw
35 22 0:43 / /ssh rw shared:1 master:2 - fuse.sshfs me@host: rw
36 22 0:44 / /networks rw - ext4 /dev/sdd1 rw
a line that is none
"""


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mountinfo").write_text(LISTED, encoding="utf-8")
    monkeypatch.setattr(network_drives, "MOUNTS", tmp_path / "mountinfo")
    return tmp_path / "mountinfo"


@pytest.mark.parametrize(
    ("path", "system"),
    [
        ("/net/home/owner", "NFS"),
        ("/net", "NFS"),
        ("/net/local/owner", None),
        ("/network", None),
        ("/networks/owner", None),
        ("/mnt/ward share/owner", "a Windows share (SMB)"),
        ("/over/owner", None),
        ("/ssh/x/y", "SSHFS"),
        ("/home/owner", None),
    ],
)
def test_where_a_folder_is(mounts: Path, path: str, system: str | None) -> None:
    assert network_file_system(Path(path)) == system
    if system is None:
        check_not_on_network(Path(path))
    else:
        with pytest.raises(UsageError) as refusal:
            check_not_on_network(Path(path))
        assert system in refusal.value.problem
        assert "a disk of this machine" in refusal.value.next_step


def test_a_link_leads_to_where_the_folder_is(mounts: Path, tmp_path: Path) -> None:
    (tmp_path / "home").symlink_to("/net/home")
    assert network_file_system(tmp_path / "home" / "owner") == "NFS"


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="only Linux lists its mounts")
def test_what_this_system_lists_can_be_read(tmp_path: Path) -> None:
    assert network_file_system(tmp_path) is None
    network_drives.MOUNTS.read_text(encoding="utf-8")


def test_without_a_list_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(network_drives, "MOUNTS", tmp_path / "none")
    check_not_on_network(Path("/net/home"))


@pytest.mark.parametrize("words", [["init", "--name", "A"], ["ledger"], ["status"]])
def test_the_owner_s_commands_refuse_such_a_home_at_their_start(
    mounts: Path, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["owner", *words, "--home", "/net/owner"])
    assert ended.value.code == 2
    err = capfd.readouterr().err
    assert "network file system (NFS)" in err
    assert not os.path.lexists("/net/owner")
