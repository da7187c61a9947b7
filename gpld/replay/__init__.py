"""The replay buffer: preallocated rings of steps and latents, on the device or in host memory."""

from gpld.replay._checkpoint import (
    export as export,
    restore as restore,
    stored as stored,
)
from gpld.replay._ring import (
    Choice as Choice,
    Indices as Indices,
    Replay as Replay,
    Storage as Storage,
    append as append,
    choose as choose,
    complete as complete,
    for_run as for_run,
    init as init,
    join as join,
    read as read,
    sample as sample,
    slots_for as slots_for,
    split as split,
    write_back as write_back,
)
from gpld.replay._rows import Record as Record
