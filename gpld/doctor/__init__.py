"""What this machine can do, and what to do about what it cannot."""

from gpld.doctor._examine import Finding as Finding
from gpld.doctor._examine import examine as examine
from gpld.doctor._examine import report as report
