"""One self-contained HTML page about some runs: no server, no network, for a phone or a printer alike."""

from gpld.analysis.report._measured import MEASURES as MEASURES
from gpld.analysis.report._measured import section_of as section_of
from gpld.analysis.report._page import Chart as Chart
from gpld.analysis.report._page import FilmEntry as FilmEntry
from gpld.analysis.report._page import Page as Page
from gpld.analysis.report._page import Section as Section
from gpld.analysis.report._page import Tile as Tile
from gpld.analysis.report._page import write as write
from gpld.analysis.report._runs import configs_of as configs_of
from gpld.analysis.report._runs import environment_of as environment_of
from gpld.analysis.report._runs import films_of as films_of
