"""The program ``thermocline``: checks manifests and connection strings, explains where commands go, tells how a resource is."""

import dataclasses
import datetime as dt
import enum
import sys
from pathlib import Path
from typing import Annotated

import typer
from pymongo.errors import PyMongoError

from thermocline_cli import cluster, output
from thermocline_cli.checking import check_text
from thermocline_cli.commands import CommandTextError, parse_command
from thermocline_cli.explain import assume, explain as explain_command
from thermocline_cli.files import file_problems
from thermocline_cli.members import choose_members
from thermocline_cli.release import release as release_namespaces, standing
from thermocline_common import __version__
from thermocline_common.durations import DurationError, parse_duration
from thermocline_common.errors import CommandError, ConfigError
from thermocline_common.manifest import load_manifest
from thermocline_common.spec.manifest import Manifest, ManifestError, Problem, parse_text
from thermocline_common.uri.check import check
from thermocline_common.uri.options import Place
from thermocline_common.uri.render import redact

INVALID = 1
USAGE = 2

app = typer.Typer(
    name="thermocline",
    help="Storage tiering for MongoDB: check manifests, see where commands go, release namespaces.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

uri_app = typer.Typer(help="Connection strings.", no_args_is_help=True)
app.add_typer(uri_app, name="uri")
cluster.register(app)


class Format(enum.StrEnum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"


FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="A manifest (YAML or JSON), or - for standard input.")
]
CredentialsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="The services' credentials, as they get them. Needed with log-ins and TLS.",
    ),
]
FormatOption = Annotated[Format, typer.Option("--output", "-o", help="text, or json for programs.")]


def _version(wanted: bool) -> None:
    if wanted:
        output.console().print(f"thermocline {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Storage tiering for MongoDB: check manifests, see where commands go, release namespaces."""


def _load(file: str) -> Manifest:
    if file == "-":
        return parse_text(sys.stdin.read())
    return load_manifest(Path(file))


@app.command()
def validate(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Manifests (YAML or JSON), or - for standard input."
        ),
    ],
    form: FormatOption = Format.TEXT,
) -> None:
    """Print every problem of a manifest with its path, reason and remedy; exit 1 if there is one."""
    found: dict[str, tuple[Problem, ...]] = {}
    for file in files:
        try:
            _load(file)
            found[file] = ()
        except ManifestError as error:
            found[file] = error.problems
    to = output.console()
    if form is Format.JSON:
        to.print(output.as_json({file: list(problems) for file, problems in found.items()}))
    else:
        for file, problems in found.items():
            output.print_problems(to, file, problems)
    if any(found.values()):
        raise typer.Exit(INVALID)


@app.command()
def explain(
    file: FileArgument,
    command: Annotated[
        str,
        typer.Option(
            "--command", "-c", help='In MongoDB\'s extended JSON, such as \'{"find": "orders"}\'.'
        ),
    ],
    database: Annotated[
        str | None,
        typer.Option(help="The command's database; not needed where all policies share one."),
    ] = None,
    floor: Annotated[
        str | None,
        typer.Option(
            help="Assume that the fast tier is complete back to this age (7d) or date; "
            "maxAge of each policy by default."
        ),
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Assume that nothing is covered yet.")
    ] = False,
    members: Annotated[
        bool,
        typer.Option(
            "--members",
            help="Ask both tiers, and print the members that the read preference chooses.",
        ),
    ] = False,
    credentials: CredentialsOption = None,
    zone: Annotated[
        str, typer.Option(help="With --members: the zone of the proxy, for spec.proxy.locality.")
    ] = "",
    form: FormatOption = Format.TEXT,
) -> None:
    """Print which tier a command would go to, and why. Without --members nothing is asked but the manifest.

    Exit 1 if no member fits the read preference.
    """
    try:
        manifest = _load(file)
    except ManifestError as error:
        output.print_problems(output.console(error=True), file, error.problems)
        raise typer.Exit(INVALID) from None
    now = dt.datetime.now(dt.UTC)
    spec = manifest.spec
    try:
        assumed = None if floor is None else _floor(floor, now)
        parsed = parse_command(command, database, [policy.namespace for policy in spec.collections])
    except (CommandTextError, DurationError, ValueError) as error:
        output.console(error=True).print(f"thermocline explain: {redact(str(error))}")
        raise typer.Exit(USAGE) from None
    explanation = explain_command(parsed, assume(spec, now, floor=assumed, cold=cold))
    try:
        chosen = choose_members(manifest, credentials, parsed, zone) if members else None
    except (ConfigError, CommandError, PyMongoError) as error:
        output.console(error=True).print(f"thermocline explain: {redact(str(error))}")
        raise typer.Exit(USAGE) from None
    to = output.console()
    if form is Format.JSON:
        found = dataclasses.asdict(explanation)
        to.print(output.as_json(found if chosen is None else {**found, "members": chosen}))
    else:
        output.print_explanation(to, explanation)
        output.print_chosen(to, chosen or [])
    if any(not one.members for one in chosen or []):
        raise typer.Exit(INVALID)


@uri_app.command("check")
def uri_check(
    text: Annotated[
        str, typer.Argument(metavar="URI", help="A connection string, or - for standard input.")
    ],
    place: Annotated[
        Place,
        typer.Option(help="client: an application's; manifest: a tier's in a resource."),
    ] = Place.CLIENT,
    files: Annotated[
        bool, typer.Option("--files", help="Look at the files that it names, too, on this machine.")
    ] = False,
    form: FormatOption = Format.TEXT,
) -> None:
    """Print what a connection string comes to, or every mistake in it; exit 1 if there is one.

    Stricter than drivers: what they ignore or only warn about is a mistake. No password is printed.
    """
    text = sys.stdin.read().strip("\r\n") if text == "-" else text
    found = check_text(text, place)
    if files and not found.problems:
        told = tuple(file_problems(check(text, place), dt.datetime.now(dt.UTC)))
        found = dataclasses.replace(found, problems=told)
    to = output.console()
    if form is Format.JSON:
        to.print(output.as_json(found))
    else:
        output.print_checked(to, found)
    if found.problems:
        raise typer.Exit(INVALID)


@app.command()
def release(
    file: FileArgument,
    namespaces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DB.COLLECTION]...", help="Which to release; none: list what waits for it."
        ),
    ] = None,
    credentials: CredentialsOption = None,
    form: FormatOption = Format.TEXT,
) -> None:
    """Let reads go to the fast tier again, after its self-check found it to differ from the archive.

    Asks the fast tier. Look at the documents first: the self-check names them. Exit 1 if nothing was there.
    """
    try:
        manifest = _load(file)
        found = (
            release_namespaces(manifest, credentials, namespaces)
            if namespaces
            else standing(manifest, credentials)
        )
    except ManifestError as error:
        output.print_problems(output.console(error=True), file, error.problems)
        raise typer.Exit(INVALID) from None
    except (ConfigError, PyMongoError) as error:
        output.console(error=True).print(f"thermocline release: {redact(str(error))}")
        raise typer.Exit(USAGE) from None
    to = output.console()
    if form is Format.JSON:
        to.print(output.as_json(found))
    else:
        output.print_standing(to, found)
    if namespaces and not all(one.released for one in found):
        raise typer.Exit(INVALID)


def _floor(text: str, now: dt.datetime) -> dt.datetime:
    """An age or a date. Raises ``ValueError``."""
    if text[:4].isdigit() and "-" in text:
        try:
            when = dt.datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"--floor: {text!r} is no date; write 2026-01-31T12:00:00Z") from None
        return when if when.tzinfo is not None else when.replace(tzinfo=dt.UTC)
    return now - parse_duration(text)


def main() -> None:
    """Entry point; under the name ``kubectl-thermocline`` a plugin of kubectl."""
    plugin = Path(sys.argv[0]).name.startswith("kubectl-")
    app(prog_name="kubectl thermocline" if plugin else "thermocline")


if __name__ == "__main__":
    main()
