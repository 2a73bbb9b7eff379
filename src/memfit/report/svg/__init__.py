"""Pictures as inline SVG strings: no scripts, no fonts to load, `currentColor` for ink, so that they sit on any ground.

Each takes `width` in CSS pixels: what is laid out for 900 is not readable on a phone, so a page holds two of them.
"""

from memfit.report.svg.breakdown import breakdown
from memfit.report.svg.frontier import frontier
from memfit.report.svg.losses import losses
from memfit.report.svg.peaks import peaks
from memfit.report.svg.timeline import timeline

__all__ = ["breakdown", "frontier", "losses", "peaks", "timeline"]
