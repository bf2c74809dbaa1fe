"""The files of a pod: the manifest, and the Secrets as one projected volume."""

from typing import Any, Final

from thermocline_common.spec.models import SecretRef, TierSpec
from thermocline_operator.plan import labels
from thermocline_operator.plan.effective import MANIFEST_KEY
from thermocline_operator.plan.labels import Component
from thermocline_operator.plan.source import Resource

MANIFEST_DIR: Final = "/etc/thermocline/manifest"
CREDENTIALS_DIR: Final = "/etc/thermocline/credentials"
MANIFEST_PATH: Final = f"{MANIFEST_DIR}/{MANIFEST_KEY}"


def secret_files(resource: Resource, component: Component) -> list[tuple[str, str, str]]:
    """Secret, key, and path below the credentials directory, of every file that may be there."""
    files = [
        *_tier_files("archive", resource.spec.archive),
        *_tier_files("fast-tier", resource.spec.fast_tier),
    ]
    if component is Component.PROXY:
        tls = resource.spec.proxy.tls
        files += _files("proxy", tls.certificate_secret_ref, "tls.crt", "tls.key")
        files += _files("proxy", tls.client_ca_secret_ref, "ca.crt")
    return files


def secret_names(resource: Resource) -> list[str]:
    """Every Secret that some service reads."""
    return sorted({secret for secret, _, _ in secret_files(resource, Component.PROXY)})


def _tier_files(directory: str, tier: TierSpec) -> list[tuple[str, str, str]]:
    return [
        *_files(directory, tier.credentials_secret_ref, "username", "password"),
        *_files(directory, tier.tls.ca_secret_ref, "ca.crt"),
        *_files(directory, tier.tls.certificate_secret_ref, "tls.crt", "tls.key", "tls.pem"),
    ]


def _files(directory: str, ref: SecretRef | None, *keys: str) -> list[tuple[str, str, str]]:
    return [] if ref is None else [(ref.name, key, f"{directory}/{key}") for key in keys]


def _sources(resource: Resource, component: Component) -> list[dict[str, Any]]:
    # One source for each Secret and directory, in the order of the files.
    by_source: dict[tuple[str, str], list[dict[str, str]]] = {}
    for secret, key, path in secret_files(resource, component):
        directory = path.partition("/")[0]
        by_source.setdefault((secret, directory), []).append({"key": key, "path": path})
    return [
        # Optional: what is missing shows in the service's status, not as a pod that never starts.
        {"secret": {"name": secret, "optional": True, "items": items}}
        for (secret, _), items in by_source.items()
    ]


def volumes(resource: Resource, component: Component) -> list[dict[str, Any]]:
    """The pod's volumes. Never mounted by ``subPath``, as such files would never be updated."""
    return [
        {
            "name": "manifest",
            "configMap": {
                "name": labels.config_map(resource.name),
                "items": [{"key": MANIFEST_KEY, "path": MANIFEST_KEY}],
            },
        },
        {"name": "credentials", "projected": {"sources": _sources(resource, component)}},
        # In memory: certificate and key are joined into one file here.
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
    ]


MOUNTS: Final[list[dict[str, Any]]] = [
    {"name": "manifest", "mountPath": MANIFEST_DIR, "readOnly": True},
    {"name": "credentials", "mountPath": CREDENTIALS_DIR, "readOnly": True},
    {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 (a mount of the pod's own)
]
