"""Brings a database's schema to this version with its Alembic scripts.

Alembic takes as long to import as everything else that a service needs, so this module is imported only when
there is something to do.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from dpdpca_protocol.errors import PolicyError


def upgrade_schema(connection: Connection, scripts: Path, present: str | None) -> None:
    """Runs the scripts that come after the revision `present`, or all of them if it is None.

    Raises:
        PolicyError: `newer-store`, no script has that revision.
    """
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if present is not None and present not in known:
        raise PolicyError(
            "newer-store",
            "a later version of this program wrote the database",
            "run that version, or restore a backup from this version",
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
