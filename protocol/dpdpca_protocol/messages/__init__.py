"""The signed statements that the parties exchange, and the chains that hold them."""
