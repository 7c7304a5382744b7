"""Jobs on a Slurm cluster: one array of tasks for each list of jobs, with results in a folder that all machines see.

    sbatch --parsable --array=0-N …    →  id of the array, kept in slurm.json until its jobs are finished
    squeue --jobs ID                   →  whether tasks are still waiting or running
    scancel ID                         at Ctrl-C; tasks save their checkpoints

sbatch reads its options (partition, time limit, GPUs) from environment variables such as SBATCH_PARTITION and
SBATCH_GRES. A command that was killed finds its array again and waits for it.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from chumoku.compare.jobs import Job, queue_job, read_result, write_json
from chumoku.compare.launchers import Finished, failed
from chumoku.errors import ChumokuError, MissingExtraError
from chumoku.safe_files import read_json

STATE = "slurm.json"


class SlurmArrays:
    def __init__(self, folder: Path, *, poll_seconds: float = 5.0) -> None:
        self.folder, self._poll = folder.resolve(), poll_seconds
        self.array: str | None = None

    def run(self, jobs: Sequence[Job], finished: Finished) -> None:
        self.array = self._find_array()
        if self.array is not None:  # of a command that was killed
            self._wait(jobs, finished)
        missing = [job for job in jobs if read_result(self.folder, job) is None]
        if missing:
            self.array = self._submit(missing)
            self._wait(missing, finished)
        (self.folder / STATE).unlink(missing_ok=True)
        self.array = None
        for job in missing:
            if read_result(self.folder, job) is None:
                raise failed(job, "its task ended without a result; see slurm-*.out.")

    def close(self) -> None:
        if self.array is not None:
            _call("scancel", self.array)
            (self.folder / STATE).unlink(missing_ok=True)

    def _find_array(self) -> str | None:
        path = self.folder / STATE
        return str(read_json(path).get("array")) if path.exists() else None

    def _submit(self, jobs: Sequence[Job]) -> str:
        for job in jobs:
            queue_job(self.folder, job)
        ids = self.folder / "slurm-jobs.txt"
        ids.write_text("".join(f"{job.id}\n" for job in jobs), encoding="ascii")
        command = shlex.join([sys.executable, "-m", "chumoku.compare.worker", str(self.folder), str(ids)])
        answer = _call(
            "sbatch",
            "--parsable",
            f"--array=0-{len(jobs) - 1}",
            "--job-name=chumoku-compare",
            f"--output={self.folder}/slurm-%A_%a.out",
            f"--wrap=exec {command}",
        )
        array = answer.strip().partition(";")[0]  # "id" or "id;cluster"
        if not array.isdecimal():
            raise ChumokuError(f"sbatch answered '{answer.strip()[:80]}' instead of a job id.")
        write_json(self.folder / STATE, {"array": array})
        return array

    def _wait(self, jobs: Sequence[Job], finished: Finished) -> None:
        """Wait until every job has a result, or until no task of the array is left."""
        pending = list(jobs)
        while pending:
            alive = bool(_call("squeue", "--noheader", "--jobs", str(self.array), missing_is_empty=True).strip())
            for job in [job for job in pending if read_result(self.folder, job) is not None]:
                pending.remove(job)
                finished(job)
            if not alive:
                return
            if pending:
                time.sleep(self._poll)


def _call(command: str, *arguments: str, missing_is_empty: bool = False) -> str:
    """The output of a Slurm command. squeue fails if it no longer knows an id; the output is then empty."""
    try:
        found = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise MissingExtraError(
            f"--launcher slurm needs the command {command}, which is not installed here."
        ) from error
    if found.returncode and missing_is_empty and "Invalid job id" in found.stderr:
        return ""
    if found.returncode:
        raise ChumokuError(f"{command} failed: {found.stderr.strip()[:400] or f'code {found.returncode}'}.")
    return found.stdout
