"""The local launcher: runs a deployment as processes of this machine until it is asked to stop.

Owns the order of start and stop, restarts, and what is shown meanwhile. That no process outlives the launcher, not
even when it is killed, is the work of ``child``.
"""

import asyncio
import os
import secrets
import signal
import ssl
from collections.abc import Coroutine, Mapping
from types import MappingProxyType
from typing import Any

import httpx

from deploy.console import Console
from deploy.ending import EXIT_STOPPED, EXIT_UNUSABLE, LaunchFailed, describe_exit, exit_reason, with_tail
from deploy.expand import PYTHON, ROUTER_ROLE, DeploymentPlan, ProcessPlan
from deploy.greeting import greeting
from deploy.ports import PortTaken, check_port_free
from deploy.process import ManagedProcess
from deploy.restart import RestartPolicy
from deploy.run_dir import ADDRESSES, RunDir
from deploy.spec import NANO_MODEL
from wire.handoff import HANDOFF_KEY_ENV
from wire.worker_config import CLUSTER_TOKEN_ENV, EXIT_CONFIG

# A process that has never been up fails for a reason that stays; one more try covers a port that was just taken.
MAX_FAILED_STARTS = 2
POLL_START_S = 0.25
POLL_READY_S = 1.0
# A worker that computes answers /health late; one that listens but hangs must not hold up the others' checks.
HEALTH_TIMEOUT_S = 2.0
NANO_BUILDER = (*PYTHON, "msa_model.nano")
_PORT_HINTS = {
    "router": "Choose another: tandem up --port N, or make serve PORT=N; leave router.metrics_port auto.",
    "prefill": "Choose others by prefill.port and prefill.kv_port, or leave them auto.",
    "decode": "Choose others by decode.port and decode.kv_port, or leave them auto.",
}


class Launcher:
    """Runs one plan once."""

    def __init__(
        self,
        plan: DeploymentPlan,
        console: Console,
        environ: Mapping[str, str],
        *,
        is_verbose: bool = False,
        nano_builder: tuple[str, ...] = NANO_BUILDER,
    ) -> None:
        """``environ`` is what the processes inherit, but the handoff key, which workers alone get.

        A cluster token and a handoff key are made up when it holds none.
        """
        self._plan = plan
        self._console = console
        token = environ.get(CLUSTER_TOKEN_ENV) or secrets.token_urlsafe(32)
        self._handoff_key = environ.get(HANDOFF_KEY_ENV) or secrets.token_urlsafe(32)
        inherited = {name: value for name, value in environ.items() if name != HANDOFF_KEY_ENV}
        self._environ = MappingProxyType({**inherited, CLUSTER_TOKEN_ENV: token})
        self._is_verbose = is_verbose
        self._nano_builder = nano_builder
        self._stop_asked = asyncio.Event()
        self._processes: dict[str, ManagedProcess] = {}
        self._up: set[str] = set()
        self._once_up: set[str] = set()
        self._liveness_read, self._liveness_write = -1, -1

    async def run(self) -> int:
        """Start everything, keep it running, stop everything; returns 0 when it was asked to stop.

        Raises PortTaken and AlreadyRunning before anything was started, LaunchFailed after everything was stopped.
        """
        with RunDir(self._plan.spec.run_dir) as run_dir:
            self._check_ports()
            self._liveness_read, self._liveness_write = os.pipe()
            self._install_signal_handlers()
            try:
                if self._plan.spec.model == NANO_MODEL:
                    await self._build_nano(run_dir)
                await self._serve(run_dir)
            finally:
                self._end_supervisors()
                os.close(self._liveness_read)
        self._console.say("Stopped.")
        return EXIT_STOPPED

    def _check_ports(self) -> None:
        for process in self._plan.processes:
            for host, port in process.listens:
                try:
                    check_port_free(host, port)
                except PortTaken as error:
                    raise PortTaken(f"{process.name} can't start: {error}. {_PORT_HINTS[process.role]}") from error

    def _install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_stop_signal)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it: keep it so
            loop.add_signal_handler(signal.SIGHUP, self._on_stop_signal)

    def _on_stop_signal(self) -> None:
        if self._stop_asked.is_set():
            self._console.say("Killing what is left.")
            self._end_supervisors()
        self._stop_asked.set()

    def _end_supervisors(self) -> None:
        """Close the liveness pipe: each supervisor then kills its tree at once."""
        if self._liveness_write >= 0:
            os.close(self._liveness_write)
            self._liveness_write = -1

    async def _build_nano(self, run_dir: RunDir) -> None:
        checkpoint = self._plan.spec.checkpoint_dir
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        self._console.say(f"Building or checking the nano checkpoint in {checkpoint}")
        builder = ManagedProcess(
            name="nano",
            command=(*self._nano_builder, str(checkpoint)),
            env=self._environ,
            log_path=run_dir.new_log("nano"),
            stop_timeout_s=self._plan.spec.timeouts.kill_s,
        )
        builder.start(self._liveness_read)
        await self._until_stop_or(builder.wait())
        if self._stop_asked.is_set():
            await builder.stop()
        elif exit_code := await builder.wait():
            raise LaunchFailed(with_tail(f"The nano checkpoint was not built (exit code {exit_code}).", builder))

    async def _until_stop_or(self, *awaited: Coroutine[Any, Any, object]) -> None:
        """Return when a stop was asked or one of ``awaited`` ended, raising what it raised; cancel the others."""
        tasks = [asyncio.create_task(item) for item in (self._stop_asked.wait(), *awaited)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, run_dir: RunDir) -> None:
        if self._stop_asked.is_set():
            return
        run_dir.write_config(ADDRESSES, {"api": self._plan.router_url, "control": self._plan.control_url})
        for plan in self._plan.processes:
            self._processes[plan.name] = self._prepare(plan, run_dir)
        self._console.say(f"Starting {', '.join(self._processes)}; logs: {run_dir.path}/*.log")
        try:
            await self._until_stop_or(self._watch(), *(self._keep_running(name) for name in self._processes))
        finally:
            await self._stop_all()

    def _prepare(self, plan: ProcessPlan, run_dir: RunDir) -> ManagedProcess:
        config = run_dir.write_config(plan.name, plan.config)
        # The router passes handoffs on and is reached from outside: what it does not hold can't be had from it.
        secret = {} if plan.role == ROUTER_ROLE else {HANDOFF_KEY_ENV: self._handoff_key}
        return ManagedProcess(
            name=plan.name,
            command=(*plan.command, "--config", str(config)),
            env={**self._environ, **secret, **plan.env},
            log_path=run_dir.new_log(plan.name),
            stop_timeout_s=self._plan.spec.timeouts.drain_s + self._plan.spec.timeouts.kill_s,
        )

    async def _keep_running(self, name: str) -> None:
        """Start the process again whenever it ends; raises LaunchFailed when that makes no sense any more."""
        process = self._processes[name]
        policy = RestartPolicy(self._plan.spec.restart, asyncio.get_running_loop().time)
        while True:
            process.start(self._liveness_read)
            exit_code = await process.wait()
            self._up.discard(name)
            if exit_code == EXIT_CONFIG:
                # At any time: its peers or this machine have changed meanwhile, and a restart would not change it back.
                headline = f"{name} can't serve as it is configured: {exit_reason(process)}"
                raise LaunchFailed(with_tail(headline, process), EXIT_UNUSABLE)
            if exit_code == EXIT_UNUSABLE and name not in self._once_up:
                raise LaunchFailed(with_tail(f"{name} refuses its configuration:", process), EXIT_UNUSABLE)
            await self._tell_router_of_end(name)
            delay_s = policy.note_crash()
            ended = f"{name} ended ({describe_exit(exit_code)})"
            if name not in self._once_up and policy.num_recent_crashes >= MAX_FAILED_STARTS:
                raise LaunchFailed(with_tail(f"{ended} and has never been up: giving up. Its last lines:", process))
            if delay_s is None:
                times = f"{policy.num_recent_crashes} times within {self._plan.spec.restart.window_s:.0f} s"
                raise LaunchFailed(with_tail(f"{ended}, {times}: giving up. Its last lines:", process))
            self._console.say(f"  {ended}; starting it again in {delay_s:.1f} s. Its log: {process.log_path}")
            await asyncio.sleep(delay_s)

    async def _tell_router_of_end(self, name: str) -> None:
        """So that the router need not find out by a failed request or by silence; without an answer it will so."""
        router = self._plan.processes[0]
        if name == router.name:
            return
        headers = {"authorization": f"Bearer {self._environ[CLUSTER_TOKEN_ENV]}"}
        try:
            async with http_client() as client:
                await client.delete(f"{self._plan.control_url}/internal/workers/{name}", headers=headers)
        except httpx.TransportError as error:
            self._console.say(f"  the router was not told that {name} ended ({type(error).__name__})")

    async def _watch(self) -> None:
        """Notice which processes can serve, say when the whole is ready, and fail when it takes too long."""
        limit_s, is_ready = self._plan.spec.timeouts.start_s, False
        started_at = asyncio.get_running_loop().time()
        async with http_client() as client:
            while True:
                await asyncio.gather(*(self._check(client, plan) for plan in self._plan.processes))
                self._mirror_logs()
                if not is_ready:
                    is_ready = await _answers_ok(client, f"{self._plan.router_url}/ready")
                    self._show_start(is_ready)
                    if not is_ready and asyncio.get_running_loop().time() - started_at > limit_s:
                        raise self._start_took_too_long()
                await asyncio.sleep(POLL_READY_S if is_ready else POLL_START_S)

    async def _check(self, client: httpx.AsyncClient, plan: ProcessPlan) -> None:
        name = plan.name
        if name in self._up or not self._processes[name].is_running:
            return
        if await _answers_ok(client, plan.health_url) and self._processes[name].is_running:
            self._up.add(name)
            self._once_up.add(name)
            self._console.say(f"  {name} is up ({self._console.elapsed_s:.1f} s)")

    def _show_start(self, is_ready: bool) -> None:
        if is_ready:
            self._console.say(greeting(self._plan, self._console.elapsed_s))
        else:
            self._console.progress(sorted(self._up), [name for name in self._processes if name not in self._up])

    def _start_took_too_long(self) -> LaunchFailed:
        missing = [process for name, process in self._processes.items() if name not in self._up]
        message = f"Not ready within timeouts.start_s = {self._plan.spec.timeouts.start_s:.0f} s."
        if not missing:
            message += " Every process is up, but the router has no usable pair of workers."
            missing = [self._processes[self._plan.processes[0].name]]
        return LaunchFailed("\n".join([message, *(with_tail(f"{p.name}, last lines:", p) for p in missing)]))

    def _mirror_logs(self) -> None:
        if self._is_verbose:
            for name, process in self._processes.items():
                for line in process.take_new_log_lines():
                    self._console.say(f"[{name}] {line}")

    async def _stop_all(self) -> None:
        """The router first, so that it drains while workers still serve; then all workers at once."""
        running = [process for process in self._processes.values() if process.is_running]
        if running:
            self._console.say(f"Stopping {', '.join(p.name for p in running)} (again: kill at once)")
        router_name = self._plan.processes[0].name
        await self._processes[router_name].stop()
        await asyncio.gather(*(process.stop() for name, process in self._processes.items() if name != router_name))
        self._mirror_logs()


def http_client() -> httpx.AsyncClient:
    """For checks of this deployment's own processes; https is trusted by the system's roots and ``SSL_CERT_FILE``."""
    # Proxy settings of the environment are for the outside world, not for these loopback checks.
    return httpx.AsyncClient(trust_env=False, timeout=HEALTH_TIMEOUT_S, verify=ssl.create_default_context())


async def _answers_ok(client: httpx.AsyncClient, url: str) -> bool:
    try:
        response = await client.get(url)
    except httpx.TransportError:
        return False  # not there yet: an expected answer while it starts
    return response.status_code == httpx.codes.OK
