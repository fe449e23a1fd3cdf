"""A study: what its rows need, how it is made, and the table of what came of it."""
