"""Certificates as Secrets hold them, made by openssl."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM texts."""

    certificate: str
    key: str

    @property
    def pem(self) -> str:
        """Both in one file, as mongod wants them."""
        return self.certificate + self.key


class Authority:
    """An authority with its files in a folder; one that is there already is taken as it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "ca.crt").exists():
            return
        self._openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=e2e",
            "-keyout", "ca.key", "-out", "ca.crt",
        )  # fmt: skip

    @property
    def certificate(self) -> str:
        """The authority's own certificate, PEM."""
        return (self.folder / "ca.crt").read_text()

    def issue(self, name: str, hosts: Sequence[str], *, days: int = 30) -> Certificate:
        """A certificate for these DNS names."""
        names = ",".join(["IP:127.0.0.1", *(f"DNS:{host}" for host in hosts)])
        (self.folder / "san").write_text(f"subjectAltName={names}\n")
        self._openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/O=e2e/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.csr",
        )  # fmt: skip
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", str(days), "-extfile", "san", "-out", f"{name}.crt",
        )  # fmt: skip
        return Certificate(
            (self.folder / f"{name}.crt").read_text(), (self.folder / f"{name}.key").read_text()
        )

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)
