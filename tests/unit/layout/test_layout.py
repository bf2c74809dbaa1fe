"""The repository's shape: what breaks Python itself when it is wrong."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def imports_the_standard_operator(directory: Path) -> bool:
    # -S: without site-packages' start-up code, which imports the module early and hides the fault.
    code = "import sys; sys.path.insert(0, ''); import operator; operator.itemgetter"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=directory, capture_output=True, check=False
    )
    return done.returncode == 0


def test_python_starts_in_the_repository_root() -> None:
    assert imports_the_standard_operator(ROOT)
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_the_check_above_can_fail(tmp_path: Path) -> None:
    (tmp_path / "operator").mkdir()
    (tmp_path / "operator" / "__init__.py").touch()
    assert not imports_the_standard_operator(tmp_path)


def test_only_the_support_package_of_the_tests_is_importable() -> None:
    inits = {
        path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("__init__.py")
    }
    kits = ("tests/cluster", "tests/compat")
    strays = {name for name in inits if not name.startswith(("tests/support", *kits))}
    assert not strays
