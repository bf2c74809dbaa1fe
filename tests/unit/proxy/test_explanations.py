"""Every reason has its sentence, and stands in the page for users."""

from pathlib import Path

import pytest

from thermocline_proxy.routing.explanations import EXPLANATIONS
from thermocline_proxy.routing.routes import Reason

PAGE = (Path(__file__).parents[3] / "docs" / "routing.md").read_text()


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_explained(reason: Reason) -> None:
    assert EXPLANATIONS[reason].endswith((".", ")"))
    assert f"`{reason.value}`" in PAGE
