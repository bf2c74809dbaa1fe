"""What people do to a running system meanwhile: modes, policies and indexes change, from a seed."""

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from support.differential.layout import (
    EVENTS,
    NOTES,
    ORDERS,
    POLICIES,
    PRODUCTS,
    SHARED,
    SHOP,
    Document,
    own_policies,
)
from support.differential.sides import Client, Tally
from support.processes import wait_until
from support.services import Thermocline

WAIT_SECONDS: Final = 150.0
"""A switch waits for the open transactions and cursors of a busy, shared machine."""
PAUSES: Final = (2.0, 7.0)


def policies(streams: int) -> list[Document]:
    """Those of the start."""
    own = [policy for partition in range(streams) for policy in own_policies(partition)]
    return [*POLICIES, *own]


class Changes:
    """Applies one change after the other until told to stop; the first failure is kept in ``failure``."""

    def __init__(
        self,
        thermocline: Thermocline,
        plain: Client,
        proxied: Client,
        seed: int,
        streams: int,
        tally: Tally,
        indexing: threading.Lock,
    ) -> None:
        self._indexing = indexing
        self._thermocline = thermocline
        self._clients = (plain, proxied)
        self._random = random.Random(f"{seed}/changes")
        self._tally = tally
        self._policies = {policy["namespace"]: policy for policy in policies(streams)}
        self._switches: Counter[str] = Counter()
        self._busy: set[str] = set()
        self._indexed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the change at hand, bring all shared namespaces back to what they were; wait for that."""
        self._stop.set()
        self._thread.join(3 * WAIT_SECONDS)

    def switches(self, namespace: str) -> tuple[int, bool]:
        """Another number whenever a switch of the namespace began or ended; whether one is under way."""
        return self._switches[namespace], namespace in self._busy

    @contextlib.contextmanager
    def _switching(self, *namespaces: str) -> Iterator[None]:
        """Streams of these namespaces may end meanwhile."""
        self._busy.update(namespaces)
        self._switches.update(namespaces)
        yield
        self._switches.update(namespaces)
        self._busy.difference_update(namespaces)

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._random.uniform(*PAUSES)):
                change = self._random.choice(self._changes())
                change()
            self._restore()
        except BaseException as error:  # noqa: BLE001 - told by run()
            self.failure = error

    def _changes(self) -> Sequence[Callable[[], None]]:
        return (
            self.passthrough_and_back, self.longer_or_shorter, self.longer_or_shorter, self.without_policy,
            self.whole_for_a_while, self.other_age_field, self.with_policy, self.evictor_rests, self.paused,
            self.unique_index,
        )  # fmt: skip

    # One change each

    def passthrough_and_back(self) -> None:
        """All of it."""
        with self._switching(*self._policies):
            self._thermocline.manifest.change(mode="Passthrough")
            self._wait("Passthrough", *self._policies)
            self._rest()
            self._thermocline.manifest.change(mode="Active")
            self._active()
        self._done("Passthrough and back")

    def longer_or_shorter(self) -> None:
        """``maxAge``."""
        chosen = self._random.choice((ORDERS, EVENTS)).namespace
        if "maxAge" not in self._policies.get(chosen, {}):
            return
        age = self._random.choice(("4s", "10s", "25s"))
        self._apply({**self._policies[chosen], "maxAge": age})
        self._done("maxAge")

    def without_policy(self) -> None:
        """A collection leaves the policies and joins them again."""
        namespace = self._random.choice(SHARED).namespace
        policy = self._policies.pop(namespace, None)
        if policy is None:
            return
        with self._switching(namespace):
            self._write()
            self._wait("Passthrough", namespace)
            self._rest()
            self._apply(policy)
            self._active()
        self._done("without policy and back")

    def with_policy(self) -> None:
        """The untiered one is tiered for a while."""
        namespace = NOTES.namespace
        whole = {"namespace": namespace, "keep": "All"}
        aged = {"namespace": namespace, "ageField": "at", "maxAge": "8s"}
        with self._switching(namespace):
            self._apply(self._random.choice((whole, aged)))
            self._wait("Active", namespace)
            self._rest()
            del self._policies[namespace]
            self._write()
            self._wait("Passthrough", namespace)
        self._done("untiered, tiered and back")

    def whole_for_a_while(self) -> None:
        """``keep: All`` to an age, and back."""
        namespace = PRODUCTS.namespace
        self._apply({"namespace": namespace, "ageField": "at", "maxAge": "8s"})
        self._in_force(namespace, ageField="at", keep=None)
        self._rest()
        self._apply({"namespace": namespace, "keep": "All"})
        self._in_force(namespace, ageField=None, keep="All")
        self._done("keep: All to an age and back")

    def other_age_field(self) -> None:
        """The age field is another one."""
        namespace = ORDERS.namespace
        policy = self._policies[namespace]
        field = "seen" if policy["ageField"] == "at" else "at"
        self._apply({**policy, "ageField": field})
        self._in_force(namespace, ageField=field)
        self._done("another age field")

    def evictor_rests(self) -> None:
        """``DryRun``, then ``Running`` again."""
        self._thermocline.manifest.change(evictor={"mode": "DryRun"})
        self._rest()
        self._thermocline.manifest.change(evictor={"mode": "Running"})
        self._done("evictor rests")

    def paused(self) -> None:
        """Nothing is switched, warmed or evicted for a while."""
        self._thermocline.manifest.change(paused=True)
        self._rest()
        self._thermocline.manifest.change(paused=False)
        self._done("paused")

    def unique_index(self) -> None:
        """On a busy shared collection: no two documents ever have the same, so it changes no answer."""
        namespace = ORDERS.namespace
        name = "p_serial"
        command: Document = {"dropIndexes": ORDERS.name, "index": name}
        if not self._indexed:
            index = {"key": {"p": 1, "serial": 1}, "name": name, "unique": True}
            # Fences have no serial, and one stream's would be duplicates.
            index["partialFilterExpression"] = {"serial": {"$gt": 0}}
            command = {"createIndexes": ORDERS.name, "indexes": [index]}
        self._indexed = not self._indexed
        with self._switching(namespace), self._indexing:
            for client in self._clients:
                client[SHOP].command(command)
            self._wait("Active", namespace)  # from Passthrough, where the command has left it
        self._done("unique index under load")

    # Helpers

    def _restore(self) -> None:
        """Everything active again."""
        self._active()

    def _apply(self, policy: Document) -> None:
        self._policies[policy["namespace"]] = policy
        self._write()

    def _write(self) -> None:
        self._thermocline.manifest.change(collections=list(self._policies.values()))

    def _rest(self) -> None:
        self._stop.wait(self._random.uniform(0.5, 3.0))

    def _done(self, what: str) -> None:
        self._tally.changes[what] += 1

    def _wait(self, state: str, *namespaces: str) -> None:
        for namespace in namespaces:
            self._thermocline.wait_state(state, namespace, timeout=WAIT_SECONDS)

    def _active(self) -> None:
        """The shared ones: the streams' own may lack an index just now."""
        shared = {collection.namespace for collection in SHARED}
        self._wait("Active", *(namespace for namespace in self._policies if namespace in shared))

    def _in_force(self, namespace: str, **wanted: Any) -> None:
        def reached() -> bool:
            document = self._thermocline.coverage(namespace) or {}
            return all(document.get(name) == value for name, value in wanted.items())

        wait_until(f"{namespace} {wanted}", reached, WAIT_SECONDS, 0.2)
        time.sleep(0.1)
