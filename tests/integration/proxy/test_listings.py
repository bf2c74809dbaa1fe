"""What a client has just made is in the lists of databases and collections, which the archive gives."""

import threading

import pytest

from support.haste import HASTE
from support.mongod import ReplicaSet
from support.services import Thermocline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_collections_that_replay_has_yet_to_make(fast: ReplicaSet, archive: ReplicaSet) -> None:
    names = [f"db{number}.items" for number in range(2)]
    policies = [{"namespace": name, "keep": "All"} for name in names]
    thermocline = Thermocline(fast, archive, policies, environment=HASTE)
    with thermocline.logs_on_failure():
        try:
            thermocline.start(only=("feeder", "proxy", "warmer"))
            thermocline.wait_state("Active")
            feeder = thermocline.services["feeder"].process
            with thermocline.client() as client:
                for number in range(2):
                    database = client[f"db{number}"]
                    feeder.pause()
                    later = threading.Timer(1.0, feeder.resume)
                    try:
                        database["items"].insert_one({"_id": 1})
                        later.start()
                        if number:
                            assert database.list_collection_names() == ["items"]
                        else:
                            assert database.name in client.list_database_names()
                    finally:
                        later.cancel()
                        feeder.resume()
        finally:
            thermocline.stop()
