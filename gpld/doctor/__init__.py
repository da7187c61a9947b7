"""Checks of this machine, with remedies."""

from gpld.doctor._examine import Finding as Finding, examine as examine, report as report
