"""The watches' settings: what kopf does by itself that an operator of several namespaces can't have."""

import itertools
from collections.abc import Iterable, Sized

from thermocline_operator.watches import _settings


def test_an_api_server_that_refuses_is_asked_for_ever() -> None:
    # One namespace whose Role has gone must not end the watches of the others.
    pauses = _settings().networking.error_backoffs
    assert isinstance(pauses, Iterable)
    assert not isinstance(pauses, Sized)
    first = list(itertools.islice(iter(pauses), 1_000))
    assert len(first) == 1_000
    assert max(first) <= 30
    assert list(itertools.islice(iter(pauses), 5)) == first[:5], "each call begins anew"
