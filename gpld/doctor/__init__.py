"""Checks of this machine, with remedies."""

from gpld.doctor._examine import Finding as Finding
from gpld.doctor._examine import examine as examine
from gpld.doctor._examine import report as report
