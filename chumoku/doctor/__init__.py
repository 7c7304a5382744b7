"""The doctor: finds silent bugs in a model, its tokenizer and its corpus before training."""

from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.runner import CHECKS, Report, examine, is_quickly_checked, run_quick_checks
from chumoku.doctor.subject import Subject

__all__ = ["CHECKS", "Check", "Finding", "Report", "Subject", "examine", "is_quickly_checked", "run_quick_checks"]
