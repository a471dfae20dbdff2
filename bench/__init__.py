"""How fast fanin is, measured as a user sees it and beside the raw limit of the database. Run it with `make bench`."""
