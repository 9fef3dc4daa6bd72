"""The report of a study, as ``archbench compare`` writes it."""

from archbench.analysis.comparison import Comparison
from archbench.analysis.report.page import draw, render_page
from archbench.analysis.tables.study_tables import study_tables


def page_of(comparison: Comparison) -> str:
    """Return the report as HTML text."""
    return render_page(comparison, study_tables(comparison), draw(comparison))
