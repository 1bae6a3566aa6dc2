"""Holds the locks against the database of known vulnerabilities: `make audit`.

A vulnerability fails. Where the database cannot be reached, which pip-audit's status does not tell apart, a
line says so and nothing fails: a check that cannot be made must not be taken for one that was.
"""

import json
import subprocess
import sys
from pathlib import Path

LOCKS = ("dev.txt", "demo.txt")
SECONDS = 300


def judge(lock: str, command: list[str]) -> bool:
    """Prints what came out for one lock; whether nothing known is wrong with it."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        packages = json.loads(done.stdout)["dependencies"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        print(f"audit of {lock}: NOT AUDITED, pip-audit or its database is out of reach")
        return True
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if len(skipped) == len(packages):
        print(
            f"audit of {lock}: NOT AUDITED, the database that answers knows none of {len(packages)} packages"
        )
        return True
    if skipped:
        print(f"audit of {lock}: not audited: {', '.join(skipped)}")
    found = [
        (package["name"], package["version"], flaw)
        for package in packages
        for flaw in package.get("vulns", ())
    ]
    for name, version, flaw in found:
        mended = ", ".join(flaw["fix_versions"]) or "no version yet"
        print(f"audit of {lock}: {name} {version} has {flaw['id']}, mended in {mended}")
    print(f"audit of {lock}: {len(packages)} packages, {len(found)} known vulnerabilities")
    return not found


def main(folder: Path, program: list[str]) -> int:
    """The exit status: 1 where a locked package has a known vulnerability."""
    options = [
        "--require-hashes",
        "--disable-pip",
        "--no-deps",
        "--format",
        "json",
        "--progress-spinner",
        "off",
    ]
    sound = [judge(lock, [*program, *options, "-r", str(folder / lock)]) for lock in LOCKS]
    return 0 if all(sound) else 1


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent, sys.argv[1:] or [sys.executable, "-m", "pip_audit"]))
