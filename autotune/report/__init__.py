"""A study as one page of HTML: `facts_of` gathers plain data, `page` draws it, `find_study` finds the folder."""

from autotune.report.facts import facts_of
from autotune.report.page import page
from autotune.report.studies import Study, find_study, read_study

__all__ = ["Study", "facts_of", "find_study", "page", "read_study"]
