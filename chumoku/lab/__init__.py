"""The lab: every claim of the notes is one file that runs an experiment, judges the claim and draws a figure."""

from __future__ import annotations
