"""What the services of deploy/scale.yml prove themselves with: certificates, a password, keys of the store.

Runs once; a second run finds the authority's certificate and changes nothing. Each service gets what it needs
into a folder of its own, in files that only it can read.
"""

import json
import secrets
import sys
from pathlib import Path

import authority

from dpdpca_runtime.files import write_private

PUBLIC = Path("/run/dpdpca/public")
GRANT = Path("/run/dpdpca/grant")
PROXIES = ("proxy-1", "proxy-2")
BUCKET = "studies"
ACTIONS = ("Read", "Write", "List")


def share_password() -> None:
    """Of the database, for the server and for each proxy (as `.pgpass`)."""
    password = secrets.token_urlsafe(32)
    write_private(GRANT / "postgres" / "password", password.encode())
    for proxy in PROXIES:
        write_private(GRANT / proxy / "pgpass", f"postgres:5432:proxy:proxy:{password}\n".encode())


def share_store_keys() -> None:
    """Of the object storage, for the server and for each proxy (as `~/.aws/credentials`)."""
    access, secret = secrets.token_hex(10), secrets.token_urlsafe(32)
    proxies = {
        "name": "proxies",
        "credentials": [{"accessKey": access, "secretKey": secret}],
        "actions": [f"{action}:{BUCKET}" for action in ACTIONS],
    }
    write_private(GRANT / "store" / "s3.json", json.dumps({"identities": [proxies]}).encode())
    file = f"[default]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n"
    for proxy in PROXIES:
        write_private(GRANT / proxy / "s3-credentials", file.encode())


def main() -> None:
    if (PUBLIC / "ca.pem").exists():
        sys.stderr.write("these secrets were made already\n")
        return
    share_password()
    share_store_keys()
    # The parties know the balancer as "proxy". Last, because its public certificate says that all is made.
    hosts = {"proxy": "balancer"} | {name: name for name in (*PROXIES, "postgres", "store", "user")}
    authority.main(PUBLIC, {host: GRANT / folder for host, folder in hosts.items()})
    (PUBLIC / "ca.pem").chmod(0o644)


if __name__ == "__main__":
    main()
