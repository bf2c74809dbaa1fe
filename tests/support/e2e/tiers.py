"""Two MongoDB replica sets of one member each, in pods, with log-ins and TLS."""

import contextlib
import datetime as dt
import functools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from support import accounts
from support.e2e.cluster import Cluster, wait_until
from support.e2e.pki import Authority
from thermocline_common.coverage import Tier

ROOT_USER: Final = accounts.Login("root", "root-secret")
NAMES: Final = {Tier.ARCHIVE: "archive", Tier.FAST: "fast"}
DATABASE: Final = "shop"

_START: Final = """
set -e
install -m 400 /keys/key /data/db/key.file
# A mongod that doesn't find itself under its name when it starts is never a member again.
until getent hosts "$HOST" | grep -q "^$ADDRESS "; do sleep 0.2; done
exec mongod --replSet "$SET" --bind_ip_all --auth --keyFile /data/db/key.file \
  --tlsMode preferTLS --tlsCertificateKeyFile /keys/server.pem --tlsCAFile /keys/ca.crt \
  --tlsAllowConnectionsWithoutCertificates --wiredTigerCacheSizeGB 0.25 --oplogSize 200
"""


@dataclass(frozen=True, slots=True)
class Member:
    """The one member of a tier's replica set: pod ``<name>-0`` behind the headless Service ``<name>``."""

    cluster: Cluster
    tier: Tier
    namespace: str

    @property
    def name(self) -> str:
        """Of the replica set, the StatefulSet and the Service."""
        return NAMES[self.tier]

    @property
    def host(self) -> str:
        """Its name in the cluster, with port."""
        return f"{self.name}-0.{self.name}.{self.namespace}:27017"

    @property
    def uri(self) -> str:
        """As a resource has it."""
        return f"mongodb://{self.host}/?replicaSet={self.name}&tls=true"

    @property
    def address(self) -> str:
        """The pod's IP address; reached from this machine directly."""
        pod = self.cluster.get("pod", f"{self.name}-0", self.namespace)
        return str((pod or {}).get("status", {}).get("podIP", ""))

    @contextlib.contextmanager
    def client(self, login: accounts.Login = ROOT_USER) -> Iterator[MongoClient[dict[str, Any]]]:
        """A client of this member alone, past the proxy."""
        with MongoClient[dict[str, Any]](
            self.address,
            27017,
            username=login.user,
            password=login.password,
            directConnection=True,
            serverSelectionTimeoutMS=20_000,
            tz_aware=True,
            tzinfo=dt.UTC,
        ) as client:
            yield client

    def initiate(self) -> None:
        """Make it a replica set with its first user, over the localhost exception."""
        with (
            _forwarded(self) as port,
            MongoClient[dict[str, Any]](
                "127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=20_000
            ) as client,
        ):
            config = {"_id": self.name, "members": [{"_id": 0, "host": self.host}]}
            client.admin.command("replSetInitiate", config)
            wait_until(
                f"{self.name} has a primary",
                lambda: client.admin.command("hello")["isWritablePrimary"],
                60,
            )
            client.admin.command(
                "createUser", ROOT_USER.user, pwd=ROOT_USER.password, roles=["root"]
            )

    def create_services_user(self, login: accounts.Login) -> None:
        """A user with the services' role; in a cluster that was kept there may be one of that name."""
        granted = accounts.privileges(self.tier, [DATABASE])
        with self.client() as client:
            if not client.admin.command("rolesInfo", accounts.ROLE)["roles"]:
                client.admin.command("createRole", accounts.ROLE, privileges=granted, roles=[])
            known = client.admin.command("usersInfo", login.user)["users"]
            verb = "updateUser" if known else "createUser"
            client.admin.command(verb, login.user, pwd=login.password, roles=[accounts.ROLE])

    def objects(self, authority: Authority, key: str) -> list[dict[str, Any]]:
        """What makes the pod."""
        labels = {"app": self.name}
        meta = {"name": self.name, "namespace": self.namespace}
        server = authority.issue(
            self.name, [self.host.partition(":")[0], "localhost", f"{self.name}.{self.namespace}"]
        )
        container = {
            "name": "mongod",
            "image": "localhost/mongod:6.0.5",
            "command": ["sh", "-c", _START],
            "env": [
                {"name": "SET", "value": self.name},
                {"name": "HOST", "value": self.host.partition(":")[0]},
                {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            ],
            # Or it would get next to nothing beside pods that ask for some.
            "resources": {"requests": {"cpu": "100m"}},
            "readinessProbe": {"tcpSocket": {"port": 27017}, "periodSeconds": 1},
            "volumeMounts": [
                {"name": "keys", "mountPath": "/keys"},
                {"name": "data", "mountPath": "/data/db"},
            ],
        }
        pod = {
            "terminationGracePeriodSeconds": 10,
            "securityContext": {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001},
            "containers": [container],
            "volumes": [{"name": "keys", "secret": {"secretName": f"{self.name}-keys"}}],
        }
        claim = {
            "metadata": {"name": "data"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        return [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {**meta, "name": f"{self.name}-keys"},
                "stringData": {
                    "key": key,
                    "server.pem": server.pem,
                    "ca.crt": authority.certificate,
                },
            },
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": meta,
                "spec": {
                    "clusterIP": "None",
                    "publishNotReadyAddresses": True,
                    "selector": labels,
                    "ports": [{"port": 27017}],
                },
            },
            {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "metadata": meta,
                "spec": {
                    "serviceName": self.name,
                    "replicas": 1,
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": pod},
                    "volumeClaimTemplates": [claim],
                },
            },
        ]


@contextlib.contextmanager
def _forwarded(member: Member) -> Iterator[int]:
    """A local port whose connections arrive in the pod from its own localhost."""
    cluster = member.cluster
    with subprocess.Popen(
        [
            str(cluster.programs / "kubectl"), f"--kubeconfig={cluster.kubeconfig}", "-n",
            member.namespace, "port-forward", f"pod/{member.name}-0", ":27017",
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as forward:  # fmt: skip
        try:
            assert forward.stdout is not None
            yield int(forward.stdout.readline().split(" -> ")[0].rpartition(":")[2])
        finally:
            forward.terminate()


@dataclass(frozen=True, slots=True)
class Tiers:
    """Both tiers, ready."""

    archive: Member
    fast: Member
    authority: Authority

    def __iter__(self) -> Iterator[Member]:
        return iter((self.archive, self.fast))


def start_tiers(cluster: Cluster, namespace: str, folder: Path) -> Tiers:
    """Make the namespace and both replica sets in it, with the services' and the application's users.

    In a cluster that was kept they may be there already, with certificates in the same ``folder``.
    """
    authority = Authority(folder)
    tiers = Tiers(
        Member(cluster, Tier.ARCHIVE, namespace), Member(cluster, Tier.FAST, namespace), authority
    )
    if cluster.get("namespace", namespace, "default"):
        return tiers
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        *(part for member in tiers for part in member.objects(authority, "k" * 64)),
    )
    for member in tiers:
        cluster.kubectl(
            "-n", namespace, "rollout", "status", f"statefulset/{member.name}", "--timeout=120s",
            timeout=130,
        )  # fmt: skip
        member.initiate()
        wait_until(f"{member.name} takes log-ins", functools.partial(_answers, member), 30)
        member.create_services_user(accounts.SERVICES[member.tier])
    with tiers.archive.client() as client:
        client.admin.command(
            "createUser",
            accounts.APPLICATION.user,
            pwd=accounts.APPLICATION.password,
            roles=["readWriteAnyDatabase"],
        )
    return tiers


def _answers(member: Member) -> bool:
    try:
        with member.client() as client:
            return bool(client.admin.command("ping")["ok"])
    except PyMongoError:
        return False
