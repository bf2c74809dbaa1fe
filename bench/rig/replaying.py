"""``python -m rig.replaying``: how fast replay brings updates to an archive whose disk its readers keep busy.

Updates wait behind a paused feeder; readers in a closed loop ask the archive for cold documents; then the feeder
goes on. ``--other``: a directory with another ``thermocline_feeder`` to take turns with. The disk is the limit, so
a shared machine's processors matter little.
"""

import argparse
import datetime as dt
import os
import random
from pathlib import Path

from pymongo import MongoClient

from rig.__main__ import ROOT
from rig.crew import Crew
from rig.documents import Catalogue, Document, id_of
from rig.generator import Plan
from rig.loading import load
from rig.place import Place
from rig.scales import QUICK
from rig.wire import COLLECTION, DATABASE

SETTLE = 10.0


def update(client: MongoClient[Document], numbers: list[int]) -> None:
    """One update of each, through the proxy."""
    orders = client[DATABASE][COLLECTION]
    for number in numbers:
        assert orders.update_one(
            {"_id": id_of(number)}, {"$set": {"z": os.urandom(4)}}
        ).matched_count


def turn(place: Place, crew: Crew, numbers: list[int], seconds: float, connections: int) -> None:
    """Updates behind a paused feeder, then replay beside readers; prints what came of it."""
    assert place.thermocline is not None
    manifest, feeder = place.thermocline.manifest, place.thermocline.services["feeder"]
    place.throttle(on=False)
    manifest.change(feeder={"mode": "Paused"})
    with place.thermocline.client() as client:
        update(client, numbers)
    place.throttle(on=True)
    before = int(place.status("feeder").get("appliedTotal", 0))
    progress: list[tuple[float, int]] = []
    running = False

    def each_second(at: float) -> None:
        nonlocal running
        if at >= SETTLE and not running:
            manifest.change(feeder={"mode": "Running"})
            running = True
        if running and len(progress) < 1_000:
            progress.append((at, int(place.status("feeder").get("appliedTotal", 0)) - before))

    port = place.archive.members[0].port
    plan = Plan(
        port, "cold reads", connections, None, 0.0, SETTLE, seconds, random.randrange(1_000)
    )
    seen = crew.run(plan, each_second)
    done = [at for at, count in progress if count >= len(numbers)]
    reads = seen.histograms["read"]
    print(
        f"  {progress[-1][1]:,} of {len(numbers):,} replayed"
        + (f", all after {done[0] - SETTLE:.0f} s" if done else f" in {seconds:.0f} s")
        + f"; readers {sum(seen.within.values()) / seconds:.0f} op/s, p50 {reads.at(50):.0f} ms, p99 {reads.at(99):.0f} ms"
        f"; load {os.getloadavg()[0]:.0f}; counts every 10 s {[count for _, count in progress[::10]]}",
        flush=True,
    )
    place.catch_up()
    assert feeder.process.running


def restart(place: Place, path: Path | None) -> None:
    """The feeder, of this tree or of another."""
    assert place.thermocline is not None
    feeder = place.thermocline.services["feeder"]
    feeder.terminate()
    inherited = os.environ.get("PYTHONPATH", "")
    feeder.process.environment = {"PYTHONPATH": f"{path}:{inherited}"} if path else None
    feeder.start()
    feeder.wait_ready()
    place.leftovers.add_process(feeder.process.pid)


def main() -> None:
    """Load once, take turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--updates", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    catalogue = Catalogue.make(QUICK.documents, QUICK.filler, dt.datetime.now(dt.UTC))
    numbers = random.Random(5).sample(range(QUICK.documents), options.updates)
    with Place(ROOT / "build" / "rig", QUICK) as place, Crew(2, catalogue) as crew:
        with place.archive.client() as client:
            load(client, catalogue)
        place.settle_archive()
        place.start_thermocline({})
        place.throttle(on=False)
        with place.thermocline.client() as client:  # type: ignore[union-attr]
            update(client, numbers)
        place.catch_up()
        for _ in range(options.turns):
            for path in [None, *([options.other] if options.other else [])]:
                print("the other feeder" if path else "this tree's feeder", flush=True)
                restart(place, path)
                turn(place, crew, numbers, options.seconds, options.connections)


if __name__ == "__main__":
    main()
