"""Analysis of results: statistics, tables, figures and the report."""
