"""Refuses what no linter looks for, in every file that git knows."""

import re
import subprocess
import sys
from pathlib import Path

RULES = {
    "a path of one machine": re.compile(r"(?<![\w.])/(work|root|farm)/|bash_jobs"),
    "a registry's host": re.compile(
        r"\b(pypi\.org|pythonhosted\.org|registry\.npmjs|proxy\.golang\.org|crates\.io|repo1?\.maven)"
    ),
    "an open end": re.compile(r"\b(TODO|FIXME|XXX)\b"),
}
# Not ours to change, or the rules themselves.
EXEMPT = re.compile(r"^(\.ci/gate\.py|tests/(cluster|compat)/.*|requirements\.lock|LICENSE)$")


def main() -> int:
    # A checkout may belong to another user than the one who runs this.
    command = ["git", "-c", f"safe.directory={Path.cwd()}", "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split("\0") if name and not EXEMPT.match(name)]
    problems = []
    if Path("operator/__init__.py").exists():
        problems.append("operator/__init__.py: shadows the standard library's module")
    for name in names:
        path = Path(name)
        if not path.is_file():
            continue
        raw = path.read_bytes()
        if b"\0" in raw:  # a picture: its bytes may spell anything
            continue
        for number, line in enumerate(raw.decode(errors="replace").splitlines(), 1):
            problems += [
                f"{name}:{number}: {what}: {line.strip()[:100]}"
                for what, rule in RULES.items()
                if rule.search(line)
            ]
    print("\n".join(problems) if problems else f"gate: {len(names)} files, nothing found")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
