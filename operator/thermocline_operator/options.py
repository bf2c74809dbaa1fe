"""The operator's command line; every option can come from the environment too."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from thermocline_common.admin import Address
from thermocline_common.settings import address

OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator was started with. ``watch_namespaces`` empty: the whole cluster."""

    service_image: str
    lease_namespace: str
    watch_namespaces: tuple[str, ...] = ()
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    lease_name: str = "thermocline-operator"
    admin: Address = field(default_factory=lambda: Address.parse(":8080"))
    network_policies: bool = False
    egress_cidrs: tuple[str, ...] = ()
    log_level: str = "info"


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _yes(text: str) -> bool:
    if text.lower() not in ("true", "false", ""):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def parse_options(argv: list[str] | None, environment: Mapping[str, str] | None = None) -> Options:
    """From arguments and environment. Ends the process with 2 where they can't be used."""
    env = os.environ if environment is None else environment
    parser = argparse.ArgumentParser("thermocline-operator", allow_abbrev=False)

    def add(name: str, default: str | None, text: str, **more: object) -> None:
        variable = "THERMOCLINE_" + name.upper().replace("-", "_")
        parser.add_argument(
            f"--{name}",
            default=env.get(variable) or default,
            help=f"{text} ({variable})",
            **more,  # type: ignore[arg-type]
        )

    add("service-image", None, "image of the services", metavar="IMAGE")
    add(
        "image-pull-policy",
        "IfNotPresent",
        "of the services' containers",
        choices=["Always", "IfNotPresent", "Never"],
    )
    add("image-pull-secrets", "", "for the services' image", type=_list, metavar="NAMES")
    add("watch-namespaces", "", "all, if empty", type=_list, metavar="NAMES")
    add("lease-namespace", None, "the pod's own", metavar="NAME")
    add("lease-name", "thermocline-operator", "of the Lease", metavar="NAME")
    add("admin", ":8080", "health, status, metrics", type=address, metavar="HOST:PORT")
    add("egress-cidrs", "", "where services may connect to", type=_list, metavar="CIDRS")
    add(
        "log-level",
        "info",
        "JSON on standard error",
        choices=["debug", "info", "warning", "error"],
    )
    parser.add_argument(
        "--network-policies",
        nargs="?",
        const=True,
        type=_yes,
        default=env.get("THERMOCLINE_NETWORK_POLICIES", "false"),
        help="create a NetworkPolicy for each resource (THERMOCLINE_NETWORK_POLICIES)",
    )
    given = parser.parse_args(argv)
    if not given.service_image:
        parser.error("--service-image is missing")
    namespace = given.lease_namespace or _own_namespace()
    if not namespace:
        parser.error("--lease-namespace is missing, and this is no pod")
    return Options(
        service_image=given.service_image,
        lease_namespace=namespace,
        watch_namespaces=tuple(sorted(set(given.watch_namespaces))),
        image_pull_policy=given.image_pull_policy,
        image_pull_secrets=given.image_pull_secrets,
        lease_name=given.lease_name,
        admin=given.admin,
        network_policies=given.network_policies,
        egress_cidrs=given.egress_cidrs,
        log_level=given.log_level,
    )


def _own_namespace() -> str | None:
    try:
        return OWN_NAMESPACE.read_text("utf-8").strip() or None
    except OSError:
        return None
