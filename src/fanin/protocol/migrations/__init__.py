"""Numbered schema changes, one file per database and number."""
