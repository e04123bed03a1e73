"""`smgate-agent enroll | launch | run | status | doctor | golden`.

`launch` is handed on before anything else is imported: it stands in the way of a server's start.
Data goes to standard output, everything else to standard error; tokens are never arguments.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from smgate_agent import config, identity

EXIT_OK: Final = 0
EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_DEFEATED: Final = 3
EXIT_AUTH: Final = 4
EXIT_UNREACHABLE: Final = 7
EXIT_BROKEN_PIPE: Final = 141

_LAUNCH_HELP: Final = "start SGLang with the value decided for its unit: launch -- COMMAND"
_AUTH_STATUSES: Final = frozenset({401, 403})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["launch"]:
        from smgate_agent import launch

        return launch.main(arguments[1:])
    words: list[str] = []
    if arguments[:1] == ["doctor"] and "--" in arguments:
        at = arguments.index("--")
        arguments, words = arguments[:at], arguments[at + 1 :]
    parsed = _parser().parse_args(arguments)
    parsed.words = words
    if parsed.command is None:
        _parser().print_help(sys.stderr)
        return EXIT_USAGE
    commands = {
        "enroll": _enroll,
        "run": _run,
        "status": _status,
        "doctor": _doctor,
        "golden": _golden,
    }
    try:
        status = commands[parsed.command](parsed)
        sys.stdout.flush()
    except BrokenPipeError:
        if parsed.command == "run":
            raise
        # The interpreter flushes once more at its end; there must be something to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return status


def _parser() -> argparse.ArgumentParser:
    import argparse

    import smgate_agent

    parser = argparse.ArgumentParser(
        prog="smgate-agent",
        description="The node side of smgate.",
        epilog="Exit status: 0 done, 1 error, 2 usage, 3 an override would not reach SGLang, "
        "4 not allowed, 7 controller unreachable, 141 the reader of the output went away.",
    )
    parser.add_argument("--version", action="version", version=smgate_agent.VERSION)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("launch", help=_LAUNCH_HELP)

    enroll = commands.add_parser("enroll", help="exchange a join token for this node's credential")
    enroll.add_argument("--controller", required=True, metavar="URL", help="http(s)://host[:port]")
    enroll.add_argument(
        "--join-token-file",
        required=True,
        metavar="FILE",
        help="file that holds the join token; - is standard input",
    )
    enroll.add_argument("--node", metavar="NAME", help="name of this node (default: host name)")
    enroll.add_argument("--ca-file", metavar="FILE", help="certificate authority of the controller")

    run = commands.add_parser("run", help="watch this node's servers until stopped")
    status = commands.add_parser("status", help="show what this node's agent knows")
    status.add_argument("-o", "--output", choices=("text", "json"), default="text")
    doctor = _add_doctor(commands)
    golden = commands.add_parser(
        "golden", help="report how a running server answered golden prompts"
    )
    golden.add_argument("--instance", required=True, metavar="NAME", help="as `status` names it")
    golden.add_argument(
        "--file",
        required=True,
        metavar="FILE",
        help='JSON {"run", "finished_at_us", "set_digest", "prompts", "mismatches"}; '
        "- is standard input",
    )
    golden.add_argument("--ca-file", metavar="FILE", help="certificate authority of the controller")
    for command in (enroll, run, status, doctor, golden):
        command.add_argument(
            "--config", metavar="FILE", help="settings (default: /etc/smgate-agent/agent.toml)"
        )
        command.add_argument("--state-dir", metavar="DIR", help="overrides the settings' state_dir")
    return parser


def _add_doctor(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
) -> argparse.ArgumentParser:
    doctor = commands.add_parser(
        "doctor",
        help="say what would keep an override from SGLang: doctor -- COMMAND",
        usage="smgate-agent doctor [options] [-- COMMAND...]",
        description="Looks at a command, else at the servers that run here. Ends with 3 if an "
        "override would not reach SGLang.",
    )
    doctor.add_argument("-o", "--output", choices=("text", "json"), default="text")
    doctor.add_argument(
        "--sink",
        choices=("gate", "config"),
        default="gate",
        help="how the value reaches SGLang: by the launch gate (default), or in --config's file",
    )
    return doctor


def _enroll(parsed: argparse.Namespace) -> int:
    import secrets
    import socket
    from pathlib import Path

    from smgate_agent import clock, config, gate_folder, http1, identity

    state_dir = _state_dir(parsed)
    if state_dir is None:
        return EXIT_USAGE
    if not config.is_http_url(parsed.controller, schemes=("http", "https")):
        return _fail(EXIT_USAGE, "--controller must be http(s)://host[:port]", None)
    try:
        if parsed.join_token_file == "-":  # noqa: S105 # the usual name of standard input
            data = sys.stdin.buffer.read(identity.TOKEN_BYTES_MAX + 1)
        else:
            with Path(parsed.join_token_file).open("rb") as file:
                data = file.read(identity.TOKEN_BYTES_MAX + 1)
        token = identity.read_token(data)
        state_dir.mkdir(mode=gate_folder.FOLDER_MODE, parents=True, exist_ok=True)
        gate_folder.prepare(state_dir)
        client = http1.Client(
            parsed.controller,
            clock_=clock.SystemClock(),
            ca_file=parsed.ca_file,
            keep_alive=False,
        )
        answer = identity.enroll(
            client,
            token=token,
            node=parsed.node or socket.gethostname(),
            machine=identity.machine_id(
                state_dir, etc=Path("/etc/machine-id"), new_id=lambda: secrets.token_hex(16)
            ),
        )
        credential = identity.save(state_dir, parsed.controller, answer)
    except identity.EnrollError as exc:
        return _fail(_enroll_status(exc), exc.message, exc.next_step)
    except OSError as exc:
        return _fail(EXIT_ERROR, str(exc), "Check the path and its permissions.")
    print(f"enrolled as {credential.node} at {credential.controller_url}")
    print(f"credential written to {state_dir / identity.CREDENTIAL_FILE}", file=sys.stderr)
    return EXIT_OK


def _enroll_status(error: identity.EnrollError) -> int:
    if error.code == "controller_unreachable":
        return EXIT_UNREACHABLE
    return EXIT_AUTH if error.status in _AUTH_STATUSES else EXIT_ERROR


def _run(parsed: argparse.Namespace) -> int:
    import logging
    import secrets
    import signal

    from smgate_agent import clock, config, resident
    from smgate_agent.launch import ed25519

    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    settings = _settings(parsed)
    if settings is None:
        return EXIT_USAGE
    edges = resident.Edges(
        clock_=clock.SystemClock(),
        new_id=lambda: secrets.token_hex(16),
        jitter=secrets.SystemRandom().random,
        verify=ed25519.verify,
    )
    try:
        agent = resident.Resident(settings, edges)
    except resident.AlreadyRunningError as exc:
        return _fail(EXIT_ERROR, f"another agent runs with {exc}", "Stop it first.")
    except (OSError, config.ConfigError) as exc:
        return _fail(EXIT_ERROR, str(exc), "Check the state directory and its permissions.")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.ask_to_stop())
    agent.run()
    return EXIT_OK


def _status(parsed: argparse.Namespace) -> int:
    import msgspec

    from smgate_agent import clock, nvml, status

    state_dir = _state_dir(parsed)
    if state_dir is None:
        return EXIT_USAGE
    driver = nvml.Nvml()
    driver.open()
    gathered = status.gather(state_dir, clock_=clock.SystemClock(), gpus=driver.inventory())
    if parsed.output == "json":
        print(msgspec.json.format(msgspec.json.encode(gathered)).decode())
    else:
        for line in status.lines(gathered):
            print(line)
    return EXIT_OK


def _doctor(parsed: argparse.Namespace) -> int:
    from pathlib import Path

    import msgspec

    from smgate_agent import doctor_report

    settings = _settings(parsed)
    if settings is None:
        return EXIT_USAGE
    if parsed.words:
        looked = doctor_report.one(parsed.words, sink=parsed.sink)
    else:
        looked = doctor_report.running(
            Path(settings.state_dir), socket=Path(settings.socket), sink=parsed.sink
        )
    if parsed.output == "json":
        print(msgspec.json.format(msgspec.json.encode(looked)).decode())
    else:
        for line in doctor_report.lines(looked):
            print(line)
    return EXIT_DEFEATED if doctor_report.defeated(looked) else EXIT_OK


def _golden(parsed: argparse.Namespace) -> int:
    from pathlib import Path

    from smgate_agent import clock, controller_link, golden, identity
    from smgate_agent.launch import shapes

    state_dir = _state_dir(parsed)
    credential = None if state_dir is None else identity.load(state_dir)
    if state_dir is None or not shapes.fits(shapes.NAME, parsed.instance):
        return EXIT_USAGE if state_dir is None else _fail(EXIT_USAGE, "--instance is no name", None)
    if credential is None:
        return _fail(EXIT_AUTH, "this node is not enrolled", "Run smgate-agent enroll first.")
    try:
        if parsed.file == "-":
            data = sys.stdin.buffer.read(golden.FILE_BYTES_MAX + 1)
        else:
            with Path(parsed.file).open("rb") as file:
                data = file.read(golden.FILE_BYTES_MAX + 1)
        result = golden.read(data)
    except (OSError, golden.GoldenError) as exc:
        return _fail(EXIT_USAGE, str(exc), "See smgate-agent golden --help.")
    link = controller_link.Link(
        credential, clock_=clock.SystemClock(), ca_file=parsed.ca_file, keep_alive=False
    )
    try:
        golden.send(link, result, parsed.instance)
    except golden.GoldenError as exc:
        status = EXIT_UNREACHABLE if exc.status is None else EXIT_ERROR
        status = EXIT_AUTH if exc.status in _AUTH_STATUSES else status
        return _fail(status, str(exc), "Send it again: the same run is taken in once.")
    finally:
        link.close()
    print(f"reported: {result.mismatches} of {result.prompts} came out wrong on {parsed.instance}")
    return EXIT_OK


def _settings(parsed: argparse.Namespace) -> config.AgentConfig | None:
    from pathlib import Path

    import msgspec

    from smgate_agent import config

    try:
        settings = config.load(Path(parsed.config) if parsed.config else None)
    except config.ConfigError as exc:
        _fail(EXIT_USAGE, str(exc), "Correct the configuration.")
        return None
    if parsed.state_dir:
        settings = msgspec.structs.replace(settings, state_dir=parsed.state_dir)
    return settings


def _state_dir(parsed: argparse.Namespace) -> Path | None:
    from pathlib import Path

    settings = _settings(parsed)
    return None if settings is None else Path(settings.state_dir)


def _fail(status: int, message: str, hint: str | None) -> int:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
