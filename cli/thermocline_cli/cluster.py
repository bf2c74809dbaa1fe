"""Commands on a resource in a cluster; as ``kubectl thermocline`` they are a plugin of kubectl."""

import datetime as dt
import enum
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml
from rich.live import Live

from thermocline_cli import bundle, output
from thermocline_cli.kubectl import KIND, Kubectl, KubectlError
from thermocline_cli.standing import progress_line, status_view

FAILED: Final = 1
ADMIN_PORT: Final = 8080
APPROVED: Final = "thermocline.io/approved-rollout"
RESOURCE_LABEL: Final = "thermocline.io/resource"
LOG_LINES: Final = 5_000
WATCH_SECONDS: Final = 2.0


class Form(enum.StrEnum):
    """How a status is printed."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="The TieredReplicaSet; none: the only one there."),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Its namespace; kubectl's own by default.")
]
Context = Annotated[str | None, typer.Option(help="The context of the kubeconfig.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="The kubeconfig file.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (status, approve, pause, resume, report):
        app.command()(command)


def _kubectl(namespace: str | None, context: str | None, kubeconfig: Path | None) -> Kubectl:
    given = {"namespace": namespace, "context": context, "kubeconfig": kubeconfig}
    return Kubectl(tuple(f"--{key}={value}" for key, value in given.items() if value is not None))


def _fail(command: str, error: Exception) -> typer.Exit:
    output.console(error=True).print(f"thermocline {command}: {error}")
    return typer.Exit(FAILED)


def status(
    name: Name = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    form: Annotated[Form, typer.Option("--output", "-o", help="text, json or yaml.")] = Form.TEXT,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on until interrupted, and show what changes.")
    ] = False,
) -> None:
    """Print how a resource is: phase, what it waits for, collections, services, conditions."""
    kubectl = _kubectl(namespace, context, kubeconfig)
    try:
        body = kubectl.resource(name)
        if not watch:
            _show(body, form)
            return
        _watch(lambda: kubectl.resource(body["metadata"]["name"]), body, form)
    except KubectlError as error:
        raise _fail("status", error) from None
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _show(body: dict[str, Any], form: Form) -> None:
    to = output.console()
    found = body.get("status") or {}
    if form is Form.JSON:
        to.print(output.as_json(found))
    elif form is Form.YAML:
        to.print(yaml.safe_dump(found, sort_keys=False), end="")
    else:
        to.print(status_view(body))


def _watch(read: Callable[[], dict[str, Any]], body: dict[str, Any], form: Form) -> None:
    """On a terminal one view that is renewed; else, and for programs, a part for each change."""
    to = output.console()
    if form is Form.TEXT and to.is_terminal:
        with Live(status_view(body), console=to, auto_refresh=False) as live:
            while True:
                time.sleep(WATCH_SECONDS)
                live.update(status_view(read()), refresh=True)
    shown: object = None
    while True:
        now = progress_line(body) if form is Form.TEXT else body.get("status") or {}
        if now != shown:
            shown = now
            if isinstance(now, str):
                to.print(f"{dt.datetime.now(dt.UTC).strftime('%H:%M:%S')} {now}")
            elif form is Form.JSON:
                to.print(json.dumps(now))  # one line for each
            else:
                to.print("---")
                _show(body, form)
        time.sleep(WATCH_SECONDS)
        body = read()


def approve(
    name: Name = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Let the rollout go on that waits (rolloutPolicy OnApproval). Exit 1 if none waits."""
    kubectl = _kubectl(namespace, context, kubeconfig)
    try:
        body = kubectl.resource(name)
        pending = (body.get("status") or {}).get("pendingRollout")
        if not pending:
            raise KubectlError("no rollout waits for approval")
        approval, _, what = str(pending).partition(": ")
        kubectl.patch(body, {"metadata": {"annotations": {APPROVED: approval}}})
    except KubectlError as error:
        raise _fail("approve", error) from None
    output.console().print(f"approved {approval}: {what}")


def pause(
    name: Name = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Hold operator, evictor and warmer still (spec.paused); proxies go on serving."""
    _set_paused("pause", _kubectl(namespace, context, kubeconfig), name, paused=True)


def resume(
    name: Name = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Take `pause` back."""
    _set_paused("resume", _kubectl(namespace, context, kubeconfig), name, paused=False)


def _set_paused(command: str, kubectl: Kubectl, name: str | None, *, paused: bool) -> None:
    try:
        body = kubectl.resource(name)
        already = bool((body.get("spec") or {}).get("paused")) is paused
        if not already:
            kubectl.patch(body, {"spec": {"paused": paused}})
    except KubectlError as error:
        raise _fail(command, error) from None
    metadata = body["metadata"]
    state = "paused" if paused else "running"
    was = "was" if already else "is now"
    output.console().print(f"{metadata['namespace']}/{metadata['name']} {was} {state}")


def report(
    name: Name = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Where to write it; a name with the time by default.")
    ] = None,
) -> None:  # fmt: skip
    """Write a .tar.gz for support: resource, objects, events, logs and /status of the pods, and no secret.

    Of Secrets it has the names of their keys alone. What can't be read is named in errors.txt.
    """
    kubectl = _kubectl(namespace, context, kubeconfig)
    try:
        body = kubectl.resource(name)
    except KubectlError as error:
        raise _fail("report", error) from None
    metadata = body["metadata"]
    now = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = f"thermocline-{metadata['namespace']}-{metadata['name']}-{now}"
    files = _collect(kubectl, body)
    path = file or Path(f"{folder}.tar.gz")
    try:
        bundle.write(path, folder, files)
    except OSError as error:
        raise _fail("report", error) from None
    lacking = len(files["errors.txt"].splitlines()) if "errors.txt" in files else 0
    left_out = f", {lacking} that can't be read" if lacking else ""
    output.console().print(f"{path}: {len(files)} files{left_out}")


def _collect(kubectl: Kubectl, body: dict[str, Any]) -> dict[str, str]:
    """The report's files by name."""
    metadata = body["metadata"]
    inside = f"--namespace={metadata['namespace']}"
    label = f"--selector={RESOURCE_LABEL}={metadata['name']}"
    files = {"resource.yaml": _yaml(body)}
    errors: list[str] = []

    def collect(file: str, *words: str, plain: bool = False) -> dict[str, Any]:
        try:
            if plain:
                files[file] = kubectl.run(*words)
                return {}
            found = kubectl.read(*words)
        except KubectlError as error:
            errors.append(f"{file}: {error}".replace("\n", " "))
            return {}
        files[file] = _yaml(found)
        return found

    collect("version.txt", "version", plain=True)
    collect("crd.yaml", "crd", KIND)
    collect("events.yaml", "events", inside)
    for kind in ("deployments", "services", "configmaps", "poddisruptionbudgets"):
        collect(f"{kind}.yaml", kind, inside, label)
    for secret in bundle.secret_names(body.get("spec") or {}):
        # Only names of keys ever leave the API server's answer.
        keys = '--output=go-template={{range $key, $_ := .data}}{{$key}}{{"\\n"}}{{end}}'
        collect(f"secrets/{secret}.txt", "get", "secret", secret, inside, keys, plain=True)
    for pod in collect("pods.yaml", "pods", inside, label).get("items", []):
        one = pod["metadata"]["name"]
        raw = f"/api/v1/namespaces/{metadata['namespace']}/pods/{one}:{ADMIN_PORT}/proxy"
        collect(f"pods/{one}/status.json", "get", f"--raw={raw}/status", plain=True)
        collect(f"pods/{one}/metrics.txt", "get", f"--raw={raw}/metrics", plain=True)
        tail = ("logs", one, inside, "--all-containers", f"--tail={LOG_LINES}")
        collect(f"pods/{one}/log.txt", *tail, plain=True)
        if any(c.get("restartCount") for c in pod.get("status", {}).get("containerStatuses") or []):
            collect(f"pods/{one}/log-before.txt", *tail, "--previous", plain=True)
    if errors:
        files["errors.txt"] = "\n".join(errors) + "\n"
    return files


def _yaml(body: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(bundle.cleaned(body), sort_keys=False, allow_unicode=True)
    return text
