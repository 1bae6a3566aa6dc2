"""The signed client to a proxy, used by owners and by the data user."""
