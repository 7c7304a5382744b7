"""The doctor: finds the silent bugs of a model, its tokenizer and its corpus, before they cost a week."""

from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.runner import CHECKS, Report, examine, quick
from chumoku.doctor.subject import Patient

__all__ = ["CHECKS", "Check", "Finding", "Patient", "Report", "examine", "quick"]
