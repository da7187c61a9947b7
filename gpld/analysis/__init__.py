"""What results say: statistics, tables, figures and the report."""
