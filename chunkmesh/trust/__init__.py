"""Who may call what: certificates, bearer keys, roles, and the table of ports and methods."""
