"""What a comparison tells while it runs: lines and a progress bar on a console, and the same lines in log.txt."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from chumoku.compare.jobs import Job, read_result
from chumoku.messages import choose, translate
from chumoku.probe.bilingual import Words
from chumoku.text.progress import ShowProgress


class Report:
    def __init__(self, folder: Path, console: Console | None) -> None:
        self.folder, self._console = folder, console
        self.progress = ShowProgress(console)
        self._log = (folder / "log.txt").open("a", encoding="utf-8")

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.close()
        self._log.close()

    def info(self, sentence: str | Words) -> None:
        """Print a sentence in the language of the command line, and append it to the log in English."""
        english = sentence if isinstance(sentence, str) else sentence.en
        shown = translate(sentence) if isinstance(sentence, str) else choose(*sentence)
        self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {english}\n")
        self._log.flush()
        if self._console is None:
            return
        try:
            self._console.print(shown, markup=False, highlight=False, soft_wrap=True)
        except (OSError, SystemExit):  # rich exits when the pipe is closed; the comparison continues
            self._console = None

    def start(self, jobs: Sequence[Job]) -> Callable[[Job], None]:
        """A function that is called for each finished job of these."""
        done = {job.id for job in jobs if read_result(self.folder, job) is not None}
        total = len({job.id for job in jobs})
        self.progress("training", len(done), total, "runs")

        def finished(job: Job) -> None:
            done.add(job.id)
            result = read_result(self.folder, job)
            if result is not None:
                value = "diverged" if result.value is None else f"{result.value:.4f}"
                self.info(
                    f"{len(done)} of {total} runs finished: {job.label}: {value} ({result.seconds:.1f} s, "
                    f"{result.tokens_per_second:,.0f} tokens/s)"
                )
            self.progress("training", len(done), total, "runs")

        return finished
