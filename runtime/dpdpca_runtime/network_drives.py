"""Whether a folder is on a network file system.

There, a lock may not hold between machines, and a file that was written may not be on the disk after a power
failure. Ledgers and databases need both.
"""

import ctypes
import re
import sys
from pathlib import Path
from typing import Final

from dpdpca_protocol.errors import UsageError

MOUNTS = Path("/proc/self/mountinfo")
"""Where Linux lists the mounted file systems."""
_NETWORK: Final = {
    "nfs": "NFS",
    "nfs4": "NFS",
    "cifs": "a Windows share (SMB)",
    "smb3": "a Windows share (SMB)",
    "smbfs": "a Windows share (SMB)",
    "ncpfs": "a NetWare share",
    "afs": "AFS",
    "davfs": "WebDAV",
    "fuse.davfs": "WebDAV",
    "fuse.sshfs": "SSHFS",
    "fuse.rclone": "rclone",
    "fuse.s3fs": "S3",
    "fuse.glusterfs": "GlusterFS",
    "lustre": "Lustre",
}
_ESCAPED = re.compile(r"\\([0-7]{3})")
_DRIVE_REMOTE = 4


def check_not_on_network(path: Path) -> None:
    """Refuses a folder on a network file system. The folder need not exist yet. Linux and Windows are known.

    Raises:
        UsageError: `network-home`.
    """
    if (system := network_file_system(path)) is not None:
        raise UsageError(
            "network-home",
            f"{path} is on a network file system ({system}), where locks and writes are not reliable enough"
            " for a ledger",
            "name a folder on a disk of this machine: --home FOLDER, or DPDPCA_OWNER_HOME",
        )


def network_file_system(path: Path) -> str | None:
    """The name of the network file system that holds `path`; None if it is local or not known."""
    whole = path.resolve()
    if sys.platform == "win32":
        if whole.drive.startswith("\\\\"):
            return "a Windows share (SMB)"
        remote = ctypes.windll.kernel32.GetDriveTypeW(whole.anchor) == _DRIVE_REMOTE
        return "a network drive" if remote else None
    try:
        listed = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    mounted: tuple[int, str] = (0, "")
    for line in listed.splitlines():
        place, _, about = line.partition(" - ")
        fields = place.split()
        if len(fields) < 5 or not about:
            continue
        root = Path(_ESCAPED.sub(lambda found: chr(int(found.group(1), 8)), fields[4]))
        # The last of several mounts at one place is the one that is seen.
        if whole.is_relative_to(root) and len(root.parts) >= mounted[0]:
            mounted = len(root.parts), about.split()[0]
    return _NETWORK.get(mounted[1])
