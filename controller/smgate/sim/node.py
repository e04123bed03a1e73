"""One simulated node: it enrols, reports, launches and long-polls with real tokens and signatures.

It sends only wire messages over loopback. What its simulated SGLang resolves comes from the tested
model of SGLang's own rules, so a wrong decision shows as it would on a real server.
"""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Final, Literal

import httpx2
import msgspec
import nacl.signing

from smgate.domain import readings, upstream, values
from smgate.wire import base, directive, facts

AGENT_VERSION: Final = "0.1.0"
PROBE_VERSION: Final = "0.1.0"
ANSWER_WAIT_S: Final = 20.0
POLL_S: Final = 10

K3: Final = facts.Model(
    digest="5a1fe0c3d2b49687",
    architecture=upstream.ARCHITECTURE,
    quant_method="compressed-tensors",
    format_top_level="mxfp4-pack-quantized",
    format_group="mxfp4-pack-quantized",
)
K3_SHAPE: Final = facts.Layout(
    experts=896, hidden_size=3584, intermediate_size=3072, top_k=16, expert_layers=92
)
K3_TP8: Final = msgspec.structs.replace(K3_SHAPE, tp=8)


def build(flashinfer: str, sglang: str = "0.5.23") -> facts.Build:
    """The build of one image."""
    return facts.Build(
        sglang_version=sglang,
        flashinfer_version=flashinfer,
        cuda_toolkit="13.4",
        torch_version="2.13.0",
        torch_cuda="13.0",
        driver_version="600.21.04",
        cute_dsl_version="4.8.0",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a simulated node is and what it starts."""

    name: str
    sm: str
    rack: str
    build: facts.Build
    gpus: int = 8
    pool: bool = False
    a2a: str | None = None
    ep: int = 1
    unit_name: str | None = None
    nnodes: int = 1
    rank: int = 0
    kernel_is_good: bool = True
    """What a self-test of `moe_mxfp4` on this node's build would find."""


@dataclass(slots=True)
class Outbox:
    """Sequence numbers of one stream of facts."""

    id: str
    sequence: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class SimulatedNodeError(RuntimeError):
    """The controller answered something that a node must not accept."""


class Node:
    """A node that talks to the controller as the real agent does."""

    def __init__(self, spec: Spec, *, url: str) -> None:
        self.spec: Final = spec
        self._client: Final = httpx2.Client(base_url=url, timeout=ANSWER_WAIT_S + 10)
        self._outbox: Final = Outbox(id=f"outbox-{uuid.uuid4().hex}")
        self._verify_key: nacl.signing.VerifyKey | None = None
        self._stop: Final = threading.Event()
        self._launch_id: str | None = None
        self.generation = 0
        self.runner: str | None = None
        """The runner of the server now running, None if none runs."""

    @property
    def gpus(self) -> tuple[facts.Gpu, ...]:
        """The node's GPUs."""
        return tuple(
            facts.Gpu(
                uuid=f"GPU-{self.spec.name}-{number}",
                sm=self.spec.sm,
                name=f"simulated SM {self.spec.sm}",
                memory_bytes=288 << 30,
            )
            for number in range(self.spec.gpus)
        )

    def enroll(self, join_token: str) -> None:
        """Trade a join token for the node's own credential, and pin the controller's key."""
        request = directive.EnrollRequest(
            node=self.spec.name, machine_id=uuid.uuid4().hex, agent_version=AGENT_VERSION
        )
        body = self._post("/v1/agent/enroll", request, token=join_token)
        answer = base.decode(body, directive.EnrollAnswer)
        self._client.headers["Authorization"] = f"Bearer {answer.credential}"
        self._verify_key = nacl.signing.VerifyKey(bytes.fromhex(answer.public_key))
        threading.Thread(target=self._poll, name=self.spec.name, daemon=True).start()

    def report(self) -> None:
        """Say what this node is."""
        self.send(
            facts.NodeReported(
                agent_version=AGENT_VERSION,
                gpus=self.gpus,
                driver_version=self.spec.build.driver_version,
                rack=self.spec.rack,
                chassis=f"chassis-{self.spec.name}",
                pool=self.spec.pool,
            )
        )

    def send(self, *payloads: facts.Payload) -> None:
        """Send facts from the node's own outbox."""
        self._send(self._outbox, payloads)

    def _send(self, outbox: Outbox, payloads: tuple[facts.Payload, ...]) -> None:
        with outbox.lock:
            batch = facts.FactsBatch(
                node=self.spec.name,
                outbox_id=outbox.id,
                facts=tuple(
                    facts.Fact(
                        sequence=outbox.sequence + 1 + offset,
                        occurred_at_us=time.time_ns() // 1000,
                        payload=payload,
                    )
                    for offset, payload in enumerate(payloads)
                ),
            )
            answer = base.decode(self._post("/v1/agent/facts", batch), facts.Acknowledgement)
            outbox.sequence = answer.acknowledged_through

    def launch(self, *, unread_config: bool = False) -> directive.UnitOverride:
        """What the launch gate does: ask, run the checks wanted, apply, and let SGLang start."""
        launch_id = f"launch-{uuid.uuid4().hex}"
        outbox = Outbox(id=launch_id, sequence=1)
        planned = self._planned(launch_id, unread_config=unread_config)
        request = directive.LaunchRequest(
            node=self.spec.name, occurred_at_us=time.time_ns() // 1000, launch=planned
        )
        answer = base.decode(self._post("/v1/agent/launch", request), directive.LaunchAnswer)
        deadline = time.monotonic() + ANSWER_WAIT_S
        checked = False
        override = self._decision(answer, launch_id)
        while override is None:
            if time.monotonic() > deadline:
                raise SimulatedNodeError(f"{self.spec.name}: no decision for {launch_id}")
            if answer.checks_wanted and not checked:
                checked = True
                self._send(outbox, self.check_results(answer.checks_wanted, launch_id))
            path = f"/v1/agent/launch/{launch_id}?wait={1 if not checked else 5}"
            answer = base.decode(self._get(path), directive.LaunchAnswer)
            override = self._decision(answer, launch_id)
        self._launch_id = launch_id
        self._send(
            outbox,
            (
                facts.OverrideApplied(
                    launch_id=launch_id,
                    form="appended" if override.value is not None else "untouched",
                    value=override.value,
                    source="directive",
                    code=override.code,
                    generation=override.decided_at,
                ),
            ),
        )
        return override

    def _planned(self, launch_id: str, *, unread_config: bool) -> facts.LaunchPlanned:
        spec = self.spec
        layout = K3_TP8 if spec.ep == 1 else expert_parallel(spec.ep)
        return facts.LaunchPlanned(
            launch_id=launch_id,
            platform="cuda",
            argv_read=True,
            gpus=self.gpus,
            unit_name=spec.unit_name,
            rendezvous=f"{spec.unit_name}:20000" if spec.nnodes > 1 else None,
            nnodes=spec.nnodes,
            node_rank=spec.rank,
            asked_a2a=spec.a2a,
            model_digest=K3.digest,
            model=None if unread_config else K3,
            build=spec.build,
            layout=layout,
        )

    def check_results(
        self, checks: tuple[str, ...], launch_id: str | None
    ) -> tuple[facts.Payload, ...]:
        """What the self-tests find on this node."""
        return tuple(
            facts.CheckFinished(
                check=check,
                outcome="failed"
                if check == "moe_mxfp4" and not self.spec.kernel_is_good
                else "passed",
                reason="all_zero_output"
                if check == "moe_mxfp4" and not self.spec.kernel_is_good
                else "ok",
                sm=self.spec.sm,
                gpu_uuids=tuple(gpu.uuid for gpu in self.gpus),
                chassis=f"chassis-{self.spec.name}",
                build=self.spec.build,
                layout=K3_TP8,
                probe_version=PROBE_VERSION,
                negative_control="caught" if check == "moe_mxfp4" else "not_run",
                launch_id=launch_id,
                numbers={"zero_fraction": 0.0 if self.spec.kernel_is_good else 1.0}
                if check == "moe_mxfp4"
                else {},
            )
            for check in checks
        )

    def _decision(
        self, answer: directive.LaunchAnswer, launch_id: str
    ) -> directive.UnitOverride | None:
        """The decision for this launch, its signature verified."""
        if answer.directive is None:
            return None
        for unit in self._verified(answer.directive).units:
            if launch_id in unit.launch_ids:
                return unit
        return None

    def _verified(self, signed: directive.SignedDirective) -> directive.Directive:
        assert self._verify_key is not None
        self._verify_key.verify(signed.signed.encode(), bytes.fromhex(signed.signature))
        found = base.decode(signed.signed.encode(), directive.Directive)
        if found.node != self.spec.name:
            raise SimulatedNodeError(f"a directive for {found.node} came to {self.spec.name}")
        return found

    def start_server(self, override: directive.UnitOverride, *, fits: bool = False) -> str:
        """Let the simulated SGLang start with what the gate appended; returns the runner it has.

        Args:
            override: the decision the gate applied.
            fits: whether BF16 experts would fit into the GPUs; if not, the server dies of OOM.
        """
        spec = self.spec
        resolved = upstream.upstream_auto_of(
            sglang_version=spec.build.sglang_version or "",
            sm=spec.sm,
            torch_cuda=spec.build.torch_cuda,
            a2a=spec.a2a or "none",
            backend=override.value or "auto",
            architecture=K3.architecture,
            layout=readings.mxfp4_layout(
                values.Model(
                    digest=K3.digest,
                    architecture=K3.architecture,
                    format_group=K3.format_group,
                    format_top_level=K3.format_top_level,
                )
            ),
        )
        runner, a2a = resolved.runner or "auto", resolved.a2a or "none"
        self.runner = runner
        self.send(
            self._instance("starting"),
            facts.EffectiveSeen(
                instance_id="sglang",
                runner=runner,
                a2a=a2a,
                source="server_info" if spec.rank == 0 else "log",
                architecture=K3.architecture,
                mxfp4=True,
                sglang_version=spec.build.sglang_version,
            ),
        )
        if resolved.memory_fallback:
            self.send(facts.MemoryFallbackSeen(instance_id="sglang", phase="imminent"))
            self.send(
                facts.MemoryFallbackSeen(
                    instance_id="sglang",
                    phase="active" if fits else "crashed",
                    excess_bytes=464 << 30,
                ),
                self._instance("serving") if fits else self._instance("exited", exit_code=1),
            )
        elif resolved.raises is not None:
            self.send(self._instance("exited", exit_code=1))
        else:
            self.send(self._instance("serving"))
        return runner

    def _instance(
        self,
        state: Literal["starting", "serving", "unhealthy", "exited"],
        exit_code: int | None = None,
    ) -> facts.InstanceChanged:
        return facts.InstanceChanged(
            instance_id="sglang",
            state=state,
            gpu_uuids=tuple(gpu.uuid for gpu in self.gpus),
            launch_id=self._launch_id,
            unit_name=self.spec.unit_name,
            nnodes=self.spec.nnodes,
            node_rank=self.spec.rank,
            exit_code=exit_code,
        )

    def stop_server(self) -> None:
        """The owner stops the server."""
        self.runner = None
        self.send(self._instance("exited", exit_code=0))

    def bake(self, seconds: int) -> None:
        """Report what was served in one interval."""
        self.send(
            facts.BakeInterval(
                instance_id="sglang",
                interval_s=seconds,
                requests=40 * seconds,
                failures=0,
                tokens_per_s=5200.0,
            )
        )

    def close(self) -> None:
        """Stop polling."""
        self._stop.set()
        self._client.close()

    def _poll(self) -> None:
        """Hold the long-poll: the heartbeat, and how a new directive comes."""
        while not self._stop.is_set():
            try:
                path = f"/v1/agent/directive?generation={self.generation}&wait={POLL_S}"
                answer = self._client.get(path)
                if answer.status_code == httpx2.codes.OK:
                    signed = base.decode(answer.content, directive.SignedDirective)
                    self.generation = max(self.generation, self._verified(signed).generation)
                elif answer.status_code != httpx2.codes.NO_CONTENT:
                    self._stop.wait(1.0)
            except (httpx2.HTTPError, RuntimeError):
                self._stop.wait(1.0)

    def _post(self, path: str, message: base.Message, token: str | None = None) -> bytes:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        answer = self._client.post(path, content=base.encode(message), headers=headers)
        return _checked(answer)

    def _get(self, path: str) -> bytes:
        return _checked(self._client.get(path))


def expert_parallel(ep: int) -> facts.Layout:
    """K3 with its experts spread over `ep` ranks."""
    return msgspec.structs.replace(K3_SHAPE, tp=ep, ep=ep)


def _checked(answer: httpx2.Response) -> bytes:
    if answer.status_code >= httpx2.codes.BAD_REQUEST:
        raise SimulatedNodeError(f"{answer.status_code}: {answer.text[:300]}")
    return answer.content
