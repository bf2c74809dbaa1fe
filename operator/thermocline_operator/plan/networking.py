"""How the proxies are reached: Services, the binding Secret; and who may connect to whom."""

import base64
from typing import Any

from thermocline_common.uri.check import check
from thermocline_common.uri.options import Place
from thermocline_operator.plan import labels
from thermocline_operator.plan.labels import Component
from thermocline_operator.plan.objects import make
from thermocline_operator.plan.pods import ADMIN_PORT, MONGODB_PORT, workers
from thermocline_operator.plan.settings import PodSettings
from thermocline_operator.plan.source import Resource


def services(resource: Resource) -> list[dict[str, Any]]:
    """The proxies' Service, their headless one, and a headless one of all admin ports."""
    name = resource.name
    proxies = labels.selector(name, Component.PROXY)
    front = make(
        resource, "Service", labels.deployment(name, Component.PROXY), Component.PROXY.value
    )
    front["spec"] = {
        "type": resource.spec.proxy.service_type.value,
        "selector": proxies,
        "ports": [_port("mongodb", resource.spec.proxy.port)],
    }
    nodes = make(resource, "Service", labels.nodes_service(name), Component.PROXY.value)
    nodes["spec"] = {
        "clusterIP": "None",
        "selector": proxies,
        "ports": [_port("mongodb", MONGODB_PORT)],
    }
    admin = make(resource, "Service", labels.admin_service(name), "admin")
    admin["spec"] = {
        "clusterIP": "None",
        # A service that isn't ready has the more to tell.
        "publishNotReadyAddresses": True,
        "selector": labels.selector(name),
        "ports": [_port("admin", ADMIN_PORT)],
    }
    return [front, nodes, admin]


def _port(name: str, port: int) -> dict[str, Any]:
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}


def binding(resource: Resource) -> dict[str, Any]:
    """A Secret of servicebinding.io's form, without password: applications log in as themselves."""
    host = f"{labels.deployment(resource.name, Component.PROXY)}.{resource.namespace}.svc"
    port = str(resource.spec.proxy.port)
    tls = "?tls=true" if resource.spec.proxy.tls.certificate_secret_ref else ""
    values = {
        "type": "mongodb",
        "provider": "thermocline",
        "host": host,
        "port": port,
        "uri": f"mongodb://{host}:{port}/{tls}",
    }
    body = make(resource, "Secret", labels.binding_secret(resource.name), Component.PROXY.value)
    body["type"] = "servicebinding.io/mongodb"
    body["data"] = {k: base64.b64encode(v.encode()).decode() for k, v in values.items()}
    return body


def network_policy(resource: Resource, settings: PodSettings) -> dict[str, Any]:
    """Clients and scrapes may come in; services may go to the tiers' ports and ask for names."""
    body = make(resource, "NetworkPolicy", resource.name, "network")
    outside: dict[str, Any] = {}
    if settings.egress_cidrs:
        outside["to"] = [{"ipBlock": {"cidr": cidr}} for cidr in settings.egress_cidrs]
    ports = _tier_ports(resource)
    if ports:
        outside["ports"] = [{"protocol": "TCP", "port": port} for port in ports]
    last = ADMIN_PORT + workers(resource, Component.PROXY) - 1
    admin: dict[str, Any] = {"protocol": "TCP", "port": ADMIN_PORT}
    if last > ADMIN_PORT:
        admin["endPort"] = last
    body["spec"] = {
        "podSelector": {"matchLabels": labels.selector(resource.name)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"ports": [{"protocol": "TCP", "port": MONGODB_PORT}, admin]}],
        "egress": [
            {"ports": [{"protocol": protocol, "port": 53} for protocol in ("TCP", "UDP")]},
            outside,
        ],
    }
    return body


def _tier_ports(resource: Resource) -> list[int]:
    """The ports of both tiers; none: any, as the servers behind an SRV record name their own."""
    ports: set[int] = set()
    for tier in (resource.spec.archive, resource.spec.fast_tier):
        uri = check(tier.uri, Place.MANIFEST).uri
        if uri.srv:
            return []
        ports |= {host.port for host in uri.hosts}
    return sorted(ports)
