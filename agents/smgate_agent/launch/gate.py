"""The launch gate from start to `exec`.

All work runs in threads; the main thread only waits, no longer than the deadline, and then becomes
the command. So a hung driver, name server, file system or controller costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smgate_agent.launch import (
    agreement,
    barrier_entry,
    checks,
    config_sink,
    contact,
    conversation,
    ending,
    handover,
    kernel_key,
    link,
    local_rule,
    options as option_lists,
    peers,
    plan,
    ranks_rule,
    shapes,
    state,
    telling,
)
from smgate_agent.launch.children import Children, reap_strangers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smgate_agent.launch.command import Command

Json = dict[str, Any]

USAGE_STATUS = 2
MARGIN_S = 0.3
"""Kept of the deadline for the local rule and the `exec`."""
FAREWELL_S = 1.0
READING_SHARE = 0.5
READING_S = 20.0


@dataclass
class Progress:
    """What the working thread has found so far; the main thread reads it when time is up."""

    launch: Json | None = None
    command: Command | None = None
    model_path: str | None = None
    endpoints: tuple[link.Endpoint, ...] = ()
    identity: state.Identity | None = None
    held: Json | None = None
    heard: Json | None = None
    last_appended: Json | None = None
    talk: conversation.Conversation | None = None
    decided: tuple[Json, Json] | None = None
    signed: Json | None = None
    agreement: agreement.Agreement | None = None
    agreed: tuple[Json, str] | None = None
    doubt: str = "deadline"
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Gate:
    """One launch: what it was told, and when it must be over."""

    options: option_lists.Options
    argv: list[str]
    began: float
    launch_id: str
    children: Children = field(default_factory=Children)
    progress: Progress = field(default_factory=Progress)

    @property
    def until(self) -> float:
        """The moment, on the monotonic clock, when the main thread stops waiting."""
        return self.began + max(0.0, self.options.deadline_s - MARGIN_S)

    @property
    def store(self) -> state.Store:
        """The state folder."""
        return state.Store(Path(self.options.state_dir))

    def work(self) -> None:
        """Read the launch, ask, wait. Never raises."""
        try:
            self._read()
            try:
                self._ask()
            except conversation.NoDecisionError as exc:
                self.progress.doubt = exc.code
            self._settle()
        except BaseException as exc:
            self.progress.doubt = f"gate_error_{type(exc).__name__.lower()}"
        finally:
            self.progress.done.set()

    def _read(self) -> None:
        progress = self.progress
        found = peers.find(self.options, self.store)
        progress.identity, progress.held = found.identity, found.held
        progress.heard = found.heard
        progress.endpoints = found.endpoints
        edge = plan.Edge(
            launch_id=self.launch_id,
            environ=dict(os.environ),
            unit_name=shapes.kept(shapes.NAME, self.options.unit),
            restarter=self.options.restarter,
            children=self.children,
            store=self.store,
            timeout_s=min(READING_S, READING_SHARE * self.options.deadline_s),
            resolve_s=READING_SHARE * self.options.deadline_s,
            base_config=self.options.base_config,
        )
        reading = plan.read(self.argv, edge)
        launch, progress.command = reading.launch, reading.command
        progress.model_path = reading.model_path
        if progress.held is not None:
            launch["held_generation"] = progress.held["generation"]
        if progress.identity is not None:
            unit = kernel_key.unit_id(progress.identity.node, launch)
            progress.last_appended = self.store.last_appended(unit)
        progress.launch = launch
        progress.agreement = agreement.begin(launch, progress.identity)

    def _ask(self) -> None:
        progress = self.progress
        if progress.identity is None or progress.launch is None:
            raise conversation.NoDecisionError("not_enrolled")
        if not progress.endpoints:
            raise conversation.NoDecisionError("no_controller_address")
        progress.talk = talk = conversation.Conversation(
            endpoints=progress.endpoints,
            identity=progress.identity,
            launch=progress.launch,
            held=progress.held,
            until=self.until,
        )
        answer = talk.report()
        if answer["checks_wanted"]:
            for finished in checks.run(
                answer["checks_wanted"],
                progress.launch,
                command=progress.command,
                children=self.children,
                until=self.until,
            ):
                talk.add_fact(finished)
            talk.send_facts()
        entry, directive, signed = talk.decision(answer)
        progress.decided, progress.signed = (entry, directive), signed
        self.store.save_directive(signed, directive, progress.identity)
        self.store.save_heard()

    def _settle(self) -> None:
        """Let all ranks of this server do the same, whoever of them heard the controller."""
        progress = self.progress
        if progress.agreement is None or progress.launch is None:
            return
        alone, unheard_s = self._alone(progress.launch), self._unheard_s()
        disagreed = barrier_entry.is_remembered(self.store, progress.launch)
        report = ranks_rule.report(
            progress.launch, progress.held, alone, unheard_s, disagreed=disagreed
        )
        if progress.signed is not None:
            progress.agreement.hand_on(self.outcome()[0], progress.signed, report)
        else:
            progress.agreed = progress.agreement.settle(report, alone, until=self.until)

    def outcome(self) -> tuple[Json, str, int | None]:
        """What to do, whether a directive or the local rule says so, and the generation."""
        progress = self.progress
        launch = progress.launch
        if launch is None:
            return local_rule.result("untouched", None, "launch_unread"), "local_rule", None
        if progress.decided is not None:
            entry, directive = progress.decided
            done = local_rule.apply(entry, launch, progress.last_appended)
            return done, "directive", int(directive["generation"])
        generation = None if progress.held is None else progress.held["generation"]
        done, source = progress.agreed or (self._alone(launch), "local_rule")
        return done, source, generation

    def _alone(self, launch: Json) -> Json:
        return local_rule.decide(
            launch,
            held=self.progress.held,
            last_appended=self.progress.last_appended,
            on_doubt=self.options.on_doubt,
            unheard_s=self._unheard_s(),
        )

    def _unheard_s(self) -> float | None:
        return contact.unheard_s(self.progress.heard, self.progress.held, contact.now())

    def put_in_file(self, outcome: Json) -> Json:
        """Where the value goes into a file: what is in it now."""
        base, path = self.options.base_config, self.options.write_config
        if base is None or path is None:
            return outcome
        value, code = config_sink.put(
            outcome["value"], base=Path(base), path=Path(path), command=self.progress.command
        )
        if code is None:
            return outcome
        return local_rule.result("untouched", value, code)

    def barrier(self, more: list[str]) -> list[str]:
        """Wait for the other ranks, where they are to wait for each other inside SGLang."""
        launch, command = self.progress.launch, self.progress.command
        if not self.options.barrier or launch is None or command is None:
            return []
        asked = barrier_entry.Asked(
            launch=launch,
            command=command,
            more=tuple(more),
            store=self.store,
            children=self.children,
            timeout_s=self.options.gate_timeout_s,
            until=self.until,
        )
        return [] if self.options.prepare else barrier_entry.wait(asked, quiet=self.options.quiet)

    def farewell(self, outcome: Json, source: str, generation: int | None) -> None:
        """Remember and report what is about to be done. Never raises."""
        progress, value = self.progress, outcome["value"]
        launch, identity = progress.launch, progress.identity
        if launch is None:
            return
        with contextlib.suppress(Exception):
            if identity is not None and value is not None:
                unit = kernel_key.unit_id(identity.node, launch)
                self.store.save_appended(unit, value, local_rule.given_for(launch))
            self.store.save_launch(self.launch_id, self._record(launch))
        with contextlib.suppress(Exception):
            if progress.talk is not None:
                progress.talk.add_fact(
                    {
                        "type": "override_applied",
                        "launch_id": self.launch_id,
                        "form": "appended" if value is not None else "untouched",
                        "value": value,
                        "source": source,
                        "code": outcome["code"],
                        "generation": generation,
                        "added_ms": self._added_ms(),
                    }
                )
                progress.talk.send_facts()

    def _record(self, launch: Json) -> Json:
        """What links the server to this launch for the resident agent; it never leaves the node."""
        model = launch["model"] or {}
        names = ("unit_name", "workload", "rendezvous", "nnodes", "node_rank")
        return {
            "launch_id": self.launch_id,
            "started_at_us": time.time_ns() // 1_000,
            "pid": None if self.options.prepare else os.getpid(),
            "pid_namespace": str(Path("/proc/self/ns/pid").readlink()),
            **{name: launch[name] for name in names},
            "gpu_uuids": [gpu["uuid"] for gpu in launch["gpus"]],
            "model_path": self.progress.model_path,
            "architecture": model.get("architecture"),
            "mxfp4": local_rule.is_packed(model) if model else None,
        }

    def _added_ms(self) -> int:
        return int((time.monotonic() - self.began) * 1_000)

    def say(self, outcome: Json, source: str) -> None:
        """One line for whoever reads the server's log."""
        if self.options.quiet:
            return
        done = "left the command as it is"
        if outcome["value"] is not None:
            written = self.options.write_config is not None
            done = f"{'wrote' if written else 'appended'} {handover.FLAG} {outcome['value']}"
        why = f"{outcome['code']}, by {source.replace('_', ' ')}"
        if source == "local_rule":
            why += f" because of {self.progress.doubt}"
        telling.say(f"{done} ({why}; {self._added_ms()} ms)")


def main(argv: Sequence[str]) -> int:
    """Run the gate; on success this process has become the command and nothing is returned."""
    began = time.monotonic()
    telling.hold_standard_files()
    own, command = option_lists.split(argv)
    if not command:
        return _usage(own)
    more: list[str] = []
    children = Children()
    config_sink.lay_base(own)
    try:
        _decide(own, command, began, children, more)
    except ending.Terminated:
        children.kill_all()
        raise
    except BaseException as exc:
        children.kill_all()
        telling.say(f"left the command as it is (gate_error_{type(exc).__name__.lower()})")
    if "--prepare" in own:  # also where the other options make no sense
        return 0
    return handover.become(command, more)


def _usage(own: list[str]) -> int:
    parser = option_lists.parser(os.environ)
    if "-h" in own or "--help" in own:
        parser.print_help()
        return 0
    telling.say(f"no command: {parser.usage}")
    return USAGE_STATUS


def _decide(
    own: list[str], command: list[str], began: float, children: Children, more: list[str]
) -> None:
    """Add to `more` what the command is given; it holds whatever goes wrong after."""
    try:
        options = option_lists.read(own, os.environ)
    except option_lists.UsageError:
        # The message is not repeated: it quotes what was typed, and a secret may be in it.
        telling.say("left the command as it is (usage_error: see smgate-agent launch --help)")
        return
    gate = Gate(
        options=options,
        argv=command,
        began=began,
        launch_id=f"launch-{uuid.uuid4().hex}",
        children=children,
    )
    threading.Thread(target=gate.work, daemon=True).start()
    gate.progress.done.wait(max(0.0, gate.until - time.monotonic()))
    outcome, source, generation = gate.outcome()
    outcome = gate.put_in_file(outcome)
    value = None if options.write_config is not None else outcome["value"]
    more += [] if value is None else [handover.FLAG, str(value)]
    more += gate.barrier(more)
    parting = threading.Thread(
        target=gate.farewell, args=(outcome, source, generation), daemon=True
    )
    parting.start()
    parting.join(FAREWELL_S)
    children.kill_all()
    reap_strangers()
    gate.say(outcome, source)
