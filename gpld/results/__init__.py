"""Results of runs as one tidy table, written by many workers; and the numbers of others to compare with."""

from gpld.results._collect import METHODS as METHODS
from gpld.results._collect import collect as collect
from gpld.results._collect import method_of as method_of
from gpld.results._collect import runs_in as runs_in
from gpld.results._reference import paper_cost as paper_cost
from gpld.results._reference import paper_scores as paper_scores
from gpld.results._reference import peers as peers
from gpld.results._reference import published as published
from gpld.results._scores import add_score as add_score
from gpld.results._scores import read_scores as read_scores
from gpld.results._store import COLUMNS as COLUMNS
from gpld.results._store import FOLDER as FOLDER
from gpld.results._store import can_write as can_write
from gpld.results._store import compact as compact
from gpld.results._store import load as load
from gpld.results._store import with_options as with_options
from gpld.results._store import write as write
from gpld.results._tables import RUNS as RUNS
from gpld.results._tables import RunRecord as RunRecord
from gpld.results._tables import Tables as Tables
from gpld.results._tables import collect_tables as collect_tables
from gpld.results._tables import differences as differences
from gpld.results._tables import merge as merge
from gpld.results._tables import read_tables as read_tables
from gpld.results._tables import write_tables as write_tables
from gpld.results._unpack import unpack as unpack
