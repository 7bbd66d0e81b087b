"""Programs for nodes that manage logins: POSIX sh, and Python 3.6 with only its standard library."""
