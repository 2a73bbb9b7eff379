"""Results for people: terminal tables, one self-contained HTML file, JSON; the same for notebooks. No torch."""

from memfit.report.document import to_json
from memfit.report.format import gib, percent, ratio, seconds
from memfit.report.html import notebook, page, save_html
from memfit.report.settings import mix_text
from memfit.report.terminal import devices_view, estimates_view, render, to_text

__all__ = [
    "devices_view",
    "estimates_view",
    "gib",
    "mix_text",
    "notebook",
    "page",
    "percent",
    "ratio",
    "render",
    "save_html",
    "seconds",
    "to_json",
    "to_text",
]
