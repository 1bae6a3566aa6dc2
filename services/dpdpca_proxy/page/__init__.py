"""The operator's page: studies and chains, written by the server, so that no script is needed to read it."""
