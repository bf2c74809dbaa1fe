"""The import contracts hold what they could hold: a new module without I/O is listed as decision code."""

import tomllib
from pathlib import Path

import grimp

NOT_DECISIONS = {"thermocline_cli.files": "it opens files, which no import shows"}


def test_every_module_without_io_is_held_to_it() -> None:
    text = Path(__file__).parents[3].joinpath("pyproject.toml").read_text()
    linter = tomllib.loads(text)["tool"]["importlinter"]
    contract = next(
        c for c in linter["contracts"] if c["name"].startswith("Decision code does no I/O")
    )
    io, listed = contract["forbidden_modules"], contract["source_modules"]
    graph = grimp.build_graph(
        *linter["root_packages"], include_external_packages=True, cache_dir=None
    )

    def within(module: str, others: list[str]) -> bool:
        return any(module == other or module.startswith(f"{other}.") for other in others)

    pure = {
        module
        for module in graph.modules
        if within(module, linter["root_packages"])
        and not graph.find_children(module)  # packages hold what their modules do
        and not any(within(used, io) for used in graph.find_upstream_modules(module))
    }
    assert len(pure) > 100
    missing = {m for m in pure if not within(m, listed)} - set(NOT_DECISIONS)
    assert not missing, f"list them in pyproject.toml under {contract['name']!r}: {sorted(missing)}"
    assert set(NOT_DECISIONS) <= pure
