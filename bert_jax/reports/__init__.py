"""What shows runs to people: studies and their tables, the HTML page, the quickstart."""
