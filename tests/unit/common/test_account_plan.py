"""Which users and roles of F are written, removed, and left alone."""

import pytest

from thermocline_common.account_plan import (
    AccountPlan,
    is_own_role,
    is_own_user,
    plan_accounts,
)


@pytest.mark.parametrize(
    ("archive", "fast", "copied", "protected", "expected"),
    [
        pytest.param(
            {"admin.app": b"1"},
            {},
            (),
            (),
            AccountPlan(("admin.app",), (), (), frozenset({"admin.app"})),
            id="new",
        ),
        pytest.param(
            {"admin.app": b"2"},
            {"admin.app": b"1"},
            ("admin.app",),
            (),
            AccountPlan(("admin.app",), (), (), frozenset({"admin.app"})),
            id="changed password of one that was copied",
        ),
        pytest.param(
            {"admin.root": b"2"},
            {"admin.root": b"1"},
            (),
            (),
            AccountPlan((), (), ("admin.root",)),
            id="F's own stays",
        ),
        pytest.param(
            {"admin.app": b"1"},
            {"admin.app": b"1"},
            (),
            (),
            AccountPlan((), (), (), frozenset({"admin.app"})),
            id="equal counts as copied",
        ),
        pytest.param(
            {},
            {"admin.app": b"1", "admin.root": b"1"},
            ("admin.app",),
            (),
            AccountPlan((), ("admin.app",)),
            id="dropped in the archive",
        ),
        pytest.param({}, {}, ("admin.app",), (), AccountPlan(), id="dropped on both"),
        pytest.param(
            {"admin.thermocline": b"2"},
            {"admin.thermocline": b"1"},
            ("admin.thermocline",),
            ("admin.thermocline",),
            AccountPlan(),
            id="the services' own is never written",
        ),
        pytest.param(
            {},
            {"admin.thermocline": b"1"},
            ("admin.thermocline",),
            ("admin.thermocline",),
            AccountPlan(),
            id="the services' own is never removed",
        ),
    ],
)
def test_accounts(
    archive: dict[str, bytes],
    fast: dict[str, bytes],
    copied: tuple[str, ...],
    protected: tuple[str, ...],
    expected: AccountPlan,
) -> None:
    assert plan_accounts(archive, fast, copied, protected) == expected


def test_own_users_are_known_by_login_or_role() -> None:
    role = [{"role": "thermocline", "db": "admin"}]
    assert is_own_user({"_id": "admin.x", "db": "admin", "roles": []}, {"admin.x"})
    assert is_own_user({"_id": "admin.y", "db": "admin", "roles": role}, {"admin.x"})
    assert not is_own_user(
        {"_id": "admin.app", "db": "admin", "roles": [{"role": "read", "db": "shop"}]}, {"admin.x"}
    )
    assert is_own_role({"_id": "admin.thermocline", "role": "thermocline"})
    assert not is_own_role({"_id": "shop.clerk", "role": "clerk"})
