"""Results of runs as one tidy table, written by many workers; and the numbers of others to compare with."""

from gpld.results._collect import (
    METHODS as METHODS,
    add_score as add_score,
    collect as collect,
    method_of as method_of,
    read_scores as read_scores,
    runs_in as runs_in,
)
from gpld.results._reference import (
    paper_cost as paper_cost,
    paper_scores as paper_scores,
    peers as peers,
    published as published,
)
from gpld.results._store import (
    COLUMNS as COLUMNS,
    FOLDER as FOLDER,
    can_write as can_write,
    compact as compact,
    load as load,
    with_options as with_options,
    write as write,
)
from gpld.results._tables import (
    KEY as KEY,
    RUNS as RUNS,
    TABLES as TABLES,
    RunRecord as RunRecord,
    Tables as Tables,
    collect_tables as collect_tables,
    last_start as last_start,
    merge as merge,
    read_tables as read_tables,
    refuse_differences as refuse_differences,
    unpack as unpack,
    write_tables as write_tables,
)
