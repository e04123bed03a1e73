"""`make run`: a controller, the real agent of this machine, and a simulated fleet around them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from smgate.sim.node import SimulatedNodeError
from smgate.sim.processes import DemoError
from smgate.sim.stage import Demo
from smgate.sim.story import say, tell, what_next


def _stop(*_: object) -> None:
    """A closed terminal or a SIGTERM ends what was started, as Ctrl-C does."""
    raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> int:
    """Run the demonstration; exit status."""
    parser = argparse.ArgumentParser(prog="smgate-demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="End by itself; last line is JSON.")
    parser.add_argument("--state", type=Path, default=Path(".demo"), help="Folder for its files.")
    args = parser.parse_args(argv)
    demo = Demo(args.state.resolve())
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    began = time.monotonic()
    try:
        demo.set_up()
        say("smgate: a controller on SQLite, the real agent of this machine, 24 simulated nodes.")
        agent_state = demo.start_agent()
        demo.start_fleet()
        say(f"   controller {demo.url}; agent state in {os.path.relpath(agent_state)}")
        say(f"   this machine: {' '.join(demo.agent_says().split())}")
        tell(demo)
        what_next(demo, ended=args.once)
        summary = demo.summary()
        say()
        say(
            f"   Done in {time.monotonic() - began:.0f} s. "
            f"The log stays in {os.path.relpath(demo.database)} until the next run."
        )
        if not args.once:
            say(json.dumps(summary))
            say("   Ctrl-C ends it.")
            threading.Event().wait()
        say(json.dumps(summary))
    except KeyboardInterrupt:
        say("\nStopped.")
    except (DemoError, SimulatedNodeError) as error:
        say(f"\nThe demonstration failed: {error}")
        return 1
    finally:
        demo.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
