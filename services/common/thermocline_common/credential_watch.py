"""Follows the credentials directory, and tells what its certificates have left of their time."""

import asyncio
import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from thermocline_common.access import Access
from thermocline_common.credentials import AllCredentials, read_all
from thermocline_common.errors import ConfigError
from thermocline_common.health import Problems
from thermocline_common.spec.models import Manifest

INTERVAL_SECONDS = 0.5


def refusal(new: AllCredentials, old: AllCredentials, now: dt.datetime) -> str | None:
    """Why ``new`` doesn't come into force: something in it doesn't count now, and all of ``old`` does. Pure."""
    untimely = [text for one in new.each for text in one.untimely(now)]
    if not untimely or any(text for one in old.each for text in one.untimely(now)):
        return None
    return f"the new files are not used: {'; '.join(untimely)}"


def warnings(credentials: AllCredentials, now: dt.datetime) -> str | None:
    """What is said of certificates that have expired, aren't valid yet or are near their end. Pure."""
    found = []
    for one in credentials.each:
        untimely = one.untimely(now)
        found += untimely
        if one.certificate is not None and not untimely:
            own = one.certificate.certificates[0]
            if own.ending(now):
                when = f"{own.not_after:%Y-%m-%d %H:%M} UTC"
                found.append(f"{one.certificate.place}: {own.subject} ends on {when}")
    return "; ".join(found) or None


def described(credentials: AllCredentials) -> list[dict[str, Any]]:
    """Every certificate in use, for ``/status``. Pure."""
    return [
        {
            "file": place.short,
            "subject": certificate.subject,
            "notBefore": certificate.not_before.isoformat(),
            "notAfter": certificate.not_after.isoformat(),
        }
        for one in credentials.each
        for place, certificate in one.certificates
    ]


class CredentialWatch(Collector):
    """Keeps ``access`` up to date with the directory; :meth:`run` follows it until cancelled.

    The files are read again and again, as the manifest is. They count once they were read twice alike:
    certificate and key, say, are seldom written at one moment. What can't be used is the problem
    ``credentials``, and what was used before stays in force.
    """

    def __init__(
        self,
        access: Access,
        manifest: Callable[[], Manifest],
        directory: Path | None,
        problems: Problems,
        registry: CollectorRegistry,
        *,
        listener: bool,
    ) -> None:
        self._access = access
        self._manifest = manifest
        self._directory = directory
        self._problems = problems
        self._listener = listener
        registry.register(self)

    async def run(self) -> None:
        """See the class."""
        candidate: AllCredentials | None = None
        while True:
            now = dt.datetime.now(dt.UTC)
            self._problems.put("certificates", warnings(self._access.credentials, now))
            await asyncio.sleep(INTERVAL_SECONDS)
            if self._directory is None:
                continue
            try:
                found = await asyncio.to_thread(
                    read_all, self._manifest(), self._directory, listener=self._listener
                )
                if found != candidate:
                    candidate = found
                    continue
                await self._take(found)
            except ConfigError as error:
                candidate = None
                self._problems.set("credentials", str(error))
            else:
                self._problems.clear("credentials")

    async def _take(self, found: AllCredentials) -> None:
        before = self._access.credentials
        if found == before:
            return
        reason = refusal(found, before, dt.datetime.now(dt.UTC))
        if reason is not None:
            raise ConfigError(reason)
        self._access.renew(self._manifest(), found)
        await self._access.renew_connections(before)

    def status(self) -> Mapping[str, Any]:
        """For ``/status``."""
        return {
            "generation": self._access.generation,
            "certificates": described(self._access.credentials),
        }

    def collect(self) -> list[Metric]:
        """Prometheus' callback."""
        ends: dict[tuple[str, str], float] = {}
        for one in self._access.credentials.each:
            for place, certificate in one.certificates:
                key = (place.short, certificate.subject)
                ends[key] = max(ends.get(key, 0.0), certificate.not_after.timestamp())
        found = GaugeMetricFamily(
            "thermocline_certificate_not_after_seconds",
            "When a certificate in use expires, in Unix time.",
            labels=["file", "subject"],
        )
        for labels, end in ends.items():
            found.add_metric(labels, end)
        return [found]
