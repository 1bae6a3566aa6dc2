"""What the services of deploy/scale.yml prove themselves with: certificates, a password, and keys.

Runs once; a second run finds the authority's certificate and changes nothing. Each service gets what it needs
into a folder of its own, in files that only it can read.
"""

import json
import secrets
import sys
from pathlib import Path

import authority

from dpdpca_runtime.files import private_dir, write_private

PUBLIC = Path("/run/dpdpca/public")
GRANT = Path("/run/dpdpca/grant")
PROXIES = ("proxy-1", "proxy-2")
CALLERS = (*PROXIES, "worker")
"""Who reads and writes the store, and opens calls of the Dask cluster."""
BUCKET = "studies"
ACTIONS = ("Read", "Write", "List")


def share_password() -> None:
    """Of the database, for the server and for each proxy (as `.pgpass`)."""
    password = secrets.token_urlsafe(32)
    write_private(GRANT / "postgres" / "password", password.encode())
    for proxy in PROXIES:
        write_private(GRANT / proxy / "pgpass", f"postgres:5432:proxy:proxy:{password}\n".encode())


def share_store_keys() -> None:
    """Of the object storage, for the server, the proxies and the workers (as `~/.aws/credentials`)."""
    access, secret = secrets.token_hex(10), secrets.token_urlsafe(32)
    proxies = {
        "name": "proxies",
        "credentials": [{"accessKey": access, "secretKey": secret}],
        "actions": [f"{action}:{BUCKET}" for action in ACTIONS],
    }
    write_private(GRANT / "store" / "s3.json", json.dumps({"identities": [proxies]}).encode())
    file = f"[default]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n"
    for caller in CALLERS:
        write_private(GRANT / caller / "s3-credentials", file.encode())


def found_cluster() -> None:
    """Makes certificates of the Dask cluster, and the key under which calls pass the scheduler.

    The cluster has an authority of its own, because each of its certificates lets a party in. The scheduler
    does not get the key.
    """
    folders = {party: private_dir(GRANT / party / "cluster") for party in ("scheduler", *CALLERS)}
    authority.main(folders["scheduler"], folders)
    ca, seal_key = (folders["scheduler"] / "ca.pem").read_bytes(), secrets.token_hex(32).encode()
    for folder in folders.values():
        write_private(folder / "ca.pem", ca)
    for caller in CALLERS:
        write_private(folders[caller] / "seal.key", seal_key)


def main() -> None:
    if (PUBLIC / "ca.pem").exists():
        sys.stderr.write("these secrets were made already\n")
        return
    share_password()
    share_store_keys()
    found_cluster()
    # The parties know the balancer as "proxy". Last, because its public certificate says that all is made.
    hosts = {"proxy": "balancer"} | {name: name for name in (*PROXIES, "postgres", "store", "user")}
    authority.main(PUBLIC, {host: GRANT / folder for host, folder in hosts.items()})
    (PUBLIC / "ca.pem").chmod(0o644)


if __name__ == "__main__":
    main()
