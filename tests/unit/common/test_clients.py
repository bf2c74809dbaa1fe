"""What a service's client is made of. Nothing connects."""

from pathlib import Path

from pymongo import ReadPreference

from thermocline_common.access import Access, TierAccess
from thermocline_common.clients import close_tiers, open_client, open_tiers
from thermocline_common.coverage import Tier
from thermocline_common.spec.manifest import parse_manifest
from thermocline_common.spec.models import TierSpec

URI = "mongodb://h:1,[::1]:2/?replicaSet=rs0"


async def test_a_client_reads_the_primary_and_writes_to_the_majority() -> None:
    uri = f"{URI}&readPreference=secondary&readPreferenceTags=a:b&heartbeatFrequencyMS=2000"
    async with open_client(Tier.FAST, TierSpec(uri=uri), TierAccess(), "app") as client:
        assert client.read_preference == ReadPreference.PRIMARY
        assert client.write_concern.document == {"w": "majority"}
        assert client.codec_options.tz_aware
        options = client.options
        assert options.replica_set_name == "rs0"
        assert options.server_selection_timeout == 5
        assert options.retry_reads
        assert options.retry_writes
        assert options.pool_options.connect_timeout == 5


async def test_a_member_is_connected_to_directly() -> None:
    spec = TierSpec(uri=URI)
    client = open_client(Tier.FAST, spec, TierAccess(), "app", member="h:7")
    async with client:
        assert client.options.direct_connection
        assert client.options.replica_set_name is None


async def test_both_tiers_have_their_own_files(tmp_path: Path) -> None:
    for folder in ("archive", "fast-tier"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "username").write_text(folder)
        (tmp_path / folder / "password").write_text("secret")
    manifest = parse_manifest(
        {
            "apiVersion": "thermocline.io/v1alpha1",
            "kind": "TieredReplicaSet",
            "metadata": {"name": "x"},
            "spec": {
                "archive": {"uri": "mongodb://a/?replicaSet=a"},
                "fastTier": {"uri": "mongodb://f/?replicaSet=f&authSource=other"},
            },
        }
    )
    tiers = open_tiers(manifest, Access.load(manifest, tmp_path), "app")
    try:
        for client, user, source in (
            (tiers.archive, "archive", "admin"),
            (tiers.fast, "fast-tier", "other"),
        ):
            login = client.options.pool_options._credentials
            assert login is not None
            assert (login.username, login.source) == (user, source)
    finally:
        await close_tiers(tiers)
