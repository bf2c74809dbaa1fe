"""What the pages point at exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Those of tests/compat and tests/cluster speak of the environments that they make.
PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md", "tests/model/README.md", *(
    path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))
)]  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_links(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    files = [target for target in targets if target and "://" not in target]
    missing = [target for target in files if not ((ROOT / page).parent / target).exists()]
    assert not missing


def test_the_component_table_names_files_that_exist() -> None:
    missing = []
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        cells = [re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[2:4]]
        if len(cells) < 2:
            continue
        base = ROOT
        for name in (name for cell in cells for name in cell):
            if "/" in name and (ROOT / name).exists():
                base = ROOT / name if (ROOT / name).is_dir() else (ROOT / name).parent
            elif not any((ROOT / root / name).exists() for root in (base, ROOT, *BASES)):
                missing.append(name)
    assert not missing


BASES = [path.parent for path in ROOT.glob("services/*/*/__init__.py")]


def test_make_targets_that_pages_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"`make ([a-z0-9-]+)", (ROOT / page).read_text()):
            assert f"\n{target}:" in makefile, f"{page}: make {target}"
