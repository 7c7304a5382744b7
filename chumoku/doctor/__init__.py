"""The doctor: finds the silent bugs of a model, its tokenizer and its corpus, before they cost a week."""

from chumoku.doctor.finding import Check, Finding
from chumoku.doctor.patient import Patient
from chumoku.doctor.runner import CHECKS, Report, examine, quick

__all__ = ["CHECKS", "Check", "Finding", "Patient", "Report", "examine", "quick"]
