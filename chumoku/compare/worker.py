"""A process that runs jobs:  python -m chumoku.compare.worker FOLDER [LIST]

Without a list, ids of jobs come line by line on standard input, and a line of JSON answers each: {"id": …, "error": …}.
When standard input ends, a running job saves its checkpoint and the process stops. With a list (a file of ids), it runs
the job whose number is in SLURM_ARRAY_TASK_ID.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

from chumoku.compare.jobs import Job, JobStoppedError, read_job, run_job
from chumoku.errors import BusyError, ChumokuError

TASK = "SLURM_ARRAY_TASK_ID"
RETRIES = 60  # seconds to wait for a process of a killed command, which still saves its checkpoint


def run_and_report(folder: Path, job: Job) -> str | None:
    """Run a job; returns why it failed, as text, or None. JobStoppedError passes through."""
    for _ in range(RETRIES):
        try:
            run_job(folder, job)
            return None
        except JobStoppedError:
            raise
        except BusyError as error:
            busy = str(error)
            time.sleep(1)
        except ChumokuError as error:
            return str(error)
        except (RuntimeError, OSError) as error:  # such as a GPU without enough memory
            return f"{type(error).__name__}: {error}"
    return busy


def serve_standard_input(folder: Path) -> None:
    """Run the jobs whose ids come on standard input."""
    ids: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            ids.put(line.strip())
        ids.put(None)
        os.kill(os.getpid(), signal.SIGTERM)  # the command has ended; a running job saves its checkpoint

    threading.Thread(target=read, daemon=True).start()
    while (id := ids.get()) is not None:
        print(json.dumps({"id": id, "error": run_and_report(folder, read_job(folder, id))}), flush=True)


def run_numbered(folder: Path, ids: Path) -> None:
    """Run the job of this task of a Slurm array."""
    number = os.environ.get(TASK, "")
    lines = ids.read_text(encoding="ascii").split()
    if not number.isdecimal() or int(number) >= len(lines):
        raise ChumokuError(f"{TASK} is '{number}', which is not one of the {len(lines)} jobs in {ids}.")
    error = run_and_report(folder, read_job(folder, lines[int(number)]))
    if error is not None:
        raise ChumokuError(error)


def main() -> None:
    try:
        if len(sys.argv) > 2:
            run_numbered(Path(sys.argv[1]), Path(sys.argv[2]))
        else:
            serve_standard_input(Path(sys.argv[1]))
    except ChumokuError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
