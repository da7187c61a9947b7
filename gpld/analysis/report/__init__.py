"""One self-contained HTML page about some runs: no server, no network, for a phone or a printer alike."""

from gpld.analysis.report._measured import MEASURES as MEASURES, section_of as section_of
from gpld.analysis.report._page import (
    Chart as Chart,
    FilmEntry as FilmEntry,
    Page as Page,
    Section as Section,
    Tile as Tile,
    write as write,
)
from gpld.analysis.report._runs import (
    configs_of as configs_of,
    environment_of as environment_of,
    films_of as films_of,
)
