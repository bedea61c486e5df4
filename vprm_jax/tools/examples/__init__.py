"""Tables of users, in the formats that tools.load reads."""
